//! Paths of another agent that are no contract's route: routed alike, passed on unchecked.

use super::Outbound;
use super::choice::{Asking, Chosen};
use super::inherit::Errand;
use super::place::Told;
use super::whom::Callee;
use crate::context::Fields;
use crate::proxy::body::Body;
use crate::proxy::passing::{Passing, Way};
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::socket::Speaks;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Response};

impl Outbound {
    pub(super) async fn pass_through(
        &self,
        callee: &Callee,
        errand: &Errand,
        head: Parts,
        body: Received,
    ) -> Response<Body> {
        match self.passed(callee, errand, head, body).await {
            Ok(response) => response,
            Err(trouble) => self.refusals.refuse(&trouble, &errand.fields),
        }
    }

    async fn passed(
        &self,
        callee: &Callee,
        errand: &Errand,
        head: Parts,
        body: Received,
    ) -> Result<Response<Body>, Trouble> {
        let fields = &errand.fields;
        let asking = Asking::first(fields, errand.key);
        let view = callee.found.view();
        let Chosen { offer, place } = self.choose(&view, callee, &asking)?;
        drop(view);
        let way = self.way();
        let mut passing = Passing::new(head, body, &errand.trace, &way);
        let told = Fields {
            agent: Some(callee.agent.clone()),
            application: Some(self.config.application.clone()),
            ..fields.clone()
        };
        told.write(passing.request.headers_mut());
        let upstream = self.peer(&offer.instance)?;
        if let Ok(host) = HeaderValue::try_from(upstream.authority()) {
            passing.request.headers_mut().insert(HOST, host);
        }
        let speaks = match passing.came_as_http2 {
            true => Speaks::Http2,
            false => Speaks::Either,
        };
        let sent = passing.send(&upstream, speaks, &way).await;
        place.ended(
            sent.as_ref()
                .map_or_else(Told::of_connection, |_| Told::Nothing),
        );
        sent
    }

    /// What all that is passed on has in common.
    pub(super) fn way(&self) -> Way<'_> {
        Way {
            limits: &self.config.limits.head,
            tunnels: &self.tunnels,
            proxy: &self.config.pseudonym,
        }
    }
}
