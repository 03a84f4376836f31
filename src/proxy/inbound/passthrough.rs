//! Requests that go to the application unchecked.

use super::Inbound;
use crate::context::{Fields, Trace};
use crate::proxy::body::Body;
use crate::proxy::respond::Trouble;
use crate::proxy::{forward, head, headers, passing};
use crate::task::Problem;
use http::request::Parts;
use http::{Request, Response};
use hyper::body::Incoming;
use std::time::Duration;

impl Inbound {
    pub(super) async fn pass_through(&self, head: Parts, body: Incoming) -> Response<Body> {
        if self.is_draining() {
            let detail = "the sidecar is stopping; another instance will take the request";
            let draining = Trouble::new(Problem::Draining, detail).executed(false);
            return self.refuse(&draining, &Fields::default());
        }
        let silence = self.config.limits.stream_idle_timeout;
        let proxy = &self.config.pseudonym;
        let trace = Trace::of(&head.headers, None);
        let target = head.uri.path_and_query().map_or("/", |pq| pq.as_str());
        let target = target.to_owned();
        let request = passing::request(head, body, &target, &trace, silence, proxy);
        match self.passed(request, silence).await {
            Ok(mut answer) => {
                // What the application says in our name is not ours.
                headers::strip_context(answer.headers_mut());
                passing::response(answer, proxy)
            }
            Err(trouble) => self.refuse(&trouble, &Fields::default()),
        }
    }

    async fn passed(
        &self,
        request: Request<Body>,
        silence: Duration,
    ) -> Result<Response<Body>, Trouble> {
        let limits = &self.config.limits.head;
        head::check_outgoing(request.headers(), limits)?;
        let answer = forward::stream(&self.upstream, request, silence)
            .await
            .map_err(|failed| failed.into_trouble(self.upstream.authority()))?;
        head::check_answer(answer.headers(), limits)?;
        Ok(answer)
    }
}
