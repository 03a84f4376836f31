//! Requests that go to the application unchecked, as they come.
//!
//! Nothing is kept of them: bodies stream both ways, and a caller that hangs up cancels.

use super::{Inbound, has_header};
use crate::context::{Fields, Trace};
use crate::proxy::body::Body;
use crate::proxy::forward;
use crate::proxy::headers;
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;

impl Inbound {
    pub(super) async fn pass_through(&self, head: Parts, body: Incoming) -> Response<Body> {
        if self.is_draining() {
            let detail = "the sidecar is stopping; another instance will take the request";
            let draining = Trouble::new(Problem::Draining, detail).executed(false);
            return self.refuse(&draining, &Fields::default());
        }
        let request = self.outgoing(head, body);
        let silence = self.config.stream_idle_timeout;
        match forward::stream(&self.upstream, request, silence).await {
            Ok(response) => self.returned(response),
            Err(failed) => {
                let trouble = failed.into_trouble(self.upstream.authority());
                self.refuse(&trouble, &Fields::default())
            }
        }
    }

    fn outgoing(&self, head: Parts, body: Incoming) -> Request<Body> {
        // Presence of a body follows from the framing, not from the method.
        let framed = has_header(&head, &CONTENT_LENGTH) || has_header(&head, &TRANSFER_ENCODING);
        let body = if framed {
            Body::stream(body, self.config.stream_idle_timeout, None)
        } else {
            Body::empty()
        };
        let trace = Trace::of(&head.headers, None);
        let target = head.uri.path_and_query().map_or("/", |pq| pq.as_str());
        let target: Uri = target.parse().unwrap_or_default();
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = target;
        let mut out = head.headers;
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        out.remove(EXPECT);
        trace.write(&mut out);
        headers::add_via(&mut out, head.version, &self.config.pseudonym);
        *request.headers_mut() = out;
        request
    }

    fn returned(&self, mut response: Response<Body>) -> Response<Body> {
        *response.version_mut() = Version::HTTP_11;
        let out = response.headers_mut();
        headers::strip_hop_by_hop(out);
        headers::strip_context(out);
        headers::add_via(out, Version::HTTP_11, &self.config.pseudonym);
        response
    }
}
