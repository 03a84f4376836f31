//! A service that may be exchanged while it serves.

use super::peer::Peer;
use super::serve::Serve;
use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;

/// Hands each request to the service of that moment, which serves it to its end: whatever comes
/// to be in force meanwhile is for the next.
#[derive(Debug)]
pub struct Live<S>(ArcSwap<S>);

impl<S> Live<S> {
    pub fn new(service: S) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(service)))
    }

    /// Returns the service for requests that begin now.
    pub fn now(&self) -> Arc<S> {
        self.0.load_full()
    }

    /// Serves later requests by what `make` makes of the present service.
    pub fn exchange(&self, make: impl FnOnce(&S) -> S) {
        let now = self.now();
        self.0.store(Arc::new(make(&now)));
    }
}

impl<S: Serve> Serve for Live<S> {
    type Body = S::Body;

    async fn serve(self: Arc<Self>, request: Request<Incoming>, peer: Peer) -> Response<S::Body> {
        self.now().serve(request, peer).await
    }
}
