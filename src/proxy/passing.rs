//! Requests that are passed on unchecked, as they come.
//!
//! Nothing is kept of them: bodies stream both ways, and a caller that hangs up cancels.

use super::body::Body;
use super::headers;
use crate::context::Trace;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use std::time::Duration;

/// Turns a received request into the one that goes out; the target is the received one.
///
/// Context fields of ours are taken off; who sends it on adds those that are believed.
pub fn request(
    head: Parts,
    body: Incoming,
    target: &str,
    trace: &Trace,
    silence: Duration,
    proxy: &HeaderValue,
) -> Request<Body> {
    // Presence of a body follows from the framing, not from the method.
    let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
    let is_framed = is_chunked || head.headers.contains_key(CONTENT_LENGTH);
    let body = match is_framed {
        true => Body::stream(body, silence, None),
        false => Body::empty(),
    };
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = target.parse::<Uri>().unwrap_or_default();
    let mut out = head.headers;
    headers::settle_host(&mut out, &head.uri);
    headers::strip_hop_by_hop(&mut out);
    headers::strip_context(&mut out);
    out.remove(EXPECT);
    trace.write(&mut out);
    headers::add_via(&mut out, head.version, proxy);
    if is_chunked {
        // Left to itself hyper drops the content of a GET whose length it does not know.
        out.remove(CONTENT_LENGTH);
        out.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    *request.headers_mut() = out;
    request
}

/// Turns a received answer into the one that goes back.
pub fn response(mut response: Response<Body>, proxy: &HeaderValue) -> Response<Body> {
    let version = response.version();
    let out = response.headers_mut();
    headers::settle_length(out);
    headers::strip_hop_by_hop(out);
    headers::add_via(out, version, proxy);
    *response.version_mut() = http::Version::HTTP_11;
    response
}
