//! Requests that are passed on unchecked, as they come.
//!
//! Nothing is kept of them: bodies, trailers and upgrades pass both ways, and a caller that hangs
//! up cancels.

use super::body::Body;
use super::forward::{self, Failed};
use super::head;
use super::headers;
use super::received::Received;
use super::respond::Trouble;
use super::target;
use super::tunnel::{Asked, Tunnels};
use super::upstream::Upstream;
use crate::context::Trace;
use crate::socket::{Occupied, Speaks};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::Body as HttpBody;
use hyper::upgrade::OnUpgrade;
use std::sync::Arc;

/// A request on its way out.
pub struct Passing {
    pub request: Request<Body>,
    /// HTTP/2, where it came so: what it means may depend on it, as gRPC's trailers do.
    pub came_as_http2: bool,
    /// The protocols offered, and who offers them.
    asked: Option<(HeaderValue, Asked)>,
}

/// What a listener's passed-on requests have in common.
pub struct Way<'a> {
    pub limits: &'a head::Limits,
    pub tunnels: &'a Tunnels,
    /// Our name in `Via`.
    pub proxy: &'a HeaderValue,
}

impl Passing {
    /// Turns a received request into the one that goes out; the target is the received one.
    ///
    /// Context fields of ours are taken off; who sends it on adds those that are believed.
    pub fn new(mut head: Parts, body: Received, trace: &Trace, way: &Way<'_>) -> Self {
        let is_framed = is_framed(&head, &body);
        let target = target::origin(&head.uri).parse::<Uri>();
        let protocol = headers::upgrade_of(&head.headers).filter(|_| !is_framed);
        let downstream = head.extensions.remove::<OnUpgrade>();
        let place = head.extensions.remove::<Occupied>();
        let body = match is_framed {
            true => Body::stream(body, way.tunnels.silence, None),
            false => Body::empty(),
        };
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = target.unwrap_or_default();
        let mut out = head.headers;
        headers::settle_host(&mut out, &head.uri);
        headers::settle_length(&mut out);
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        out.remove(EXPECT);
        trace.write(&mut out);
        headers::add_via(&mut out, head.version, way.proxy);
        let asked = match (protocol, downstream) {
            (Some(protocol), Some(downstream)) => {
                out.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                out.insert(UPGRADE, protocol.clone());
                Some((protocol, Asked { downstream, place }))
            }
            _ => None,
        };
        *request.headers_mut() = out;
        Self {
            request,
            came_as_http2: head.version == Version::HTTP_2,
            asked,
        }
    }

    /// Sends it and returns what goes back; `speaks` is for requests that keep their protocol.
    pub async fn send(
        self,
        upstream: &Arc<Upstream>,
        speaks: Speaks,
        way: &Way<'_>,
    ) -> Result<Response<Body>, Trouble> {
        head::check_outgoing(self.request.headers(), way.limits)?;
        let answer = self.exchange(upstream, speaks, way).await;
        let answer = answer.map_err(|failed| failed.into_trouble(upstream.authority()))?;
        head::check_answer(answer.headers(), way.limits)?;
        Ok(answer)
    }

    async fn exchange(
        self,
        upstream: &Arc<Upstream>,
        speaks: Speaks,
        way: &Way<'_>,
    ) -> Result<Response<Body>, Failed> {
        // Only HTTP/1.1 can switch.
        let speaks = match self.asked {
            Some(_) => Speaks::Http1,
            None => speaks,
        };
        let upgrades = self.asked.is_some();
        let sending = forward::stream(
            upstream,
            (self.request, speaks),
            upgrades,
            way.tunnels.silence,
        );
        let mut answer = sending.await?;
        let granted = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upgraded = answer.extensions_mut().remove::<OnUpgrade>();
        let protocol = answer.headers().get(UPGRADE).cloned();
        let mut response = received(answer, way.proxy);
        if !granted {
            return Ok(response);
        }
        let (Some((offered, asked)), Some(upstream), Some(protocol)) =
            (self.asked, upgraded, protocol)
        else {
            return Err(Failed::Switched);
        };
        if !is_offered(&offered, &protocol) {
            return Err(Failed::Switched);
        }
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        way.tunnels.join(asked, upstream);
        Ok(response)
    }
}

/// Says whether a switch is to one of the protocols offered (RFC 9110 section 7.8).
fn is_offered(offered: &HeaderValue, protocol: &HeaderValue) -> bool {
    let mut names = offered.as_bytes().split(|byte| *byte == b',');
    names.any(|name| {
        name.trim_ascii()
            .eq_ignore_ascii_case(protocol.as_bytes().trim_ascii())
    })
}

/// Says whether a request has a body; that follows from the framing, not from the method.
fn is_framed(head: &Parts, body: &Received) -> bool {
    match head.version {
        Version::HTTP_2 => !body.is_end_stream(),
        _ => {
            head.headers.contains_key(CONTENT_LENGTH)
                || head.headers.contains_key(TRANSFER_ENCODING)
        }
    }
}

/// Turns a received answer into the one that goes back.
fn received(mut response: Response<Body>, proxy: &HeaderValue) -> Response<Body> {
    let version = response.version();
    let out = response.headers_mut();
    headers::settle_length(out);
    headers::strip_hop_by_hop(out);
    headers::add_via(out, version, proxy);
    *response.version_mut() = Version::HTTP_11;
    response
}
