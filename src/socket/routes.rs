//! An axum router behind a listener of ours.

use super::peer::Peer;
use super::serve::Serve;
use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;

/// Serves a router; handlers find the `Peer` among the request's extensions.
#[derive(Debug)]
pub struct Routes(TowerToHyperService<Router>);

impl Routes {
    pub fn new(router: Router) -> Arc<Self> {
        Arc::new(Self(TowerToHyperService::new(router)))
    }
}

impl Serve for Routes {
    type Body = Body;

    async fn serve(self: Arc<Self>, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        request.extensions_mut().insert(peer);
        // A router answers everything.
        self.0
            .call(request)
            .await
            .unwrap_or_else(|never| match never {})
    }
}
