//! Requests that go to the application unchecked.

use super::Inbound;
use crate::context::{Fields, Trace};
use crate::proxy::body::Body;
use crate::proxy::headers;
use crate::proxy::passing::{Passing, Way};
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use http::Response;
use http::request::Parts;

impl Inbound {
    /// Passes a request on; of the context the application is told the caller's name alone, and
    /// only a proven one.
    pub(super) async fn pass_through(
        &self,
        head: Parts,
        body: Received,
        caller: Option<String>,
    ) -> Response<Body> {
        if self.is_draining() {
            let detail = "the sidecar is stopping; another instance will take the request";
            let draining = Trouble::new(Problem::Draining, detail).executed(false);
            return self.refusals.refuse(&draining, &Fields::default());
        }
        let way = Way {
            limits: &self.config.limits.head,
            tunnels: &self.tunnels,
            proxy: &self.config.pseudonym,
        };
        let trace = Trace::of(&head.headers, None);
        let speaks = self.config.protocol.speaks(head.version);
        let mut passing = Passing::new(head, body, &trace, &way);
        if self.config.is_secured {
            let told = Fields {
                application: caller,
                ..Fields::default()
            };
            told.write(passing.request.headers_mut());
        }
        self.address(passing.request.headers_mut());
        match passing.send(&self.upstream, speaks, &way).await {
            Ok(mut answer) => {
                // What the application says in our name is not ours.
                headers::strip_context(answer.headers_mut());
                answer
            }
            Err(trouble) => self.refusals.refuse(&trouble, &Fields::default()),
        }
    }
}
