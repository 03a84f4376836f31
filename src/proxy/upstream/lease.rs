//! A connection in use by one exchange.

use super::shared::InUse;
use super::{Error, Upstream};
use crate::proxy::body::Body;
use crate::proxy::received::Received;
use crate::socket::Speaks;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use hyper::body::Body as HttpBody;
use hyper::client::conn::{TrySendError, http1};
use std::sync::Arc;

/// A connection in use; an HTTP/1.1 one that is dropped without `release` is closed.
#[derive(Debug)]
pub struct Lease {
    pub(super) upstream: Arc<Upstream>,
    pub(super) sender: Sender,
    pub(super) speaks: Speaks,
    /// It was there before this exchange, so it may be dead.
    pub(super) kept: bool,
}

#[derive(Debug)]
pub enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(InUse),
}

/// A request that got no answer.
#[derive(Debug)]
pub enum Unsent {
    /// Nothing of it was written.
    Whole(Box<Request<Body>>),
    /// The peer says that it did not look at it (RFC 9113 section 8.7).
    Refused(Error),
    /// It may have been acted upon.
    Broken(Error),
}

impl Lease {
    /// Says whether the connection was kept from an earlier exchange.
    pub fn was_kept(&self) -> bool {
        self.kept
    }

    /// Says whether others use it too: then the peer may keep a request waiting, or turn it away
    /// unseen.
    pub fn is_shared(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Returns what was asked to be spoken on it.
    pub fn speaks(&self) -> Speaks {
        self.speaks
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// A request that a dead kept connection never wrote comes back to be sent elsewhere.
    pub async fn send(&mut self, mut request: Request<Body>) -> Result<Response<Received>, Unsent> {
        let sent = match &mut self.sender {
            Sender::Http1(sender) => {
                *request.version_mut() = Version::HTTP_11;
                name_te(request.headers_mut());
                frame(&mut request);
                sender.try_send_request(request).await
            }
            Sender::Http2(shared) => {
                self.upstream.address(&mut request);
                shared.sender.try_send_request(request).await
            }
        };
        sent.map(Received::of).map_err(|failed| self.unsent(failed))
    }

    fn unsent(&self, mut failed: TrySendError<Request<Body>>) -> Unsent {
        if let Some(request) = failed.take_message() {
            return Unsent::Whole(Box::new(request));
        }
        let place = self.upstream.place().clone();
        let source = failed.into_error();
        match is_refused(&source) {
            true => Unsent::Refused(Error::Refused { place, source }),
            false => Unsent::Broken(Error::Broken { place, source }),
        }
    }

    /// Keeps the connection for the next exchange; call once the answer was read to its end.
    pub fn release(self) {
        // A shared connection is kept where it is.
        let Sender::Http1(mut sender) = self.sender else {
            return;
        };
        let upstream = self.upstream;
        if sender.is_ready() {
            upstream.keep(sender);
        } else if !sender.is_closed() {
            // The connection has read the last byte but has not come round to say so.
            let tracker = upstream.connections.clone();
            tracker.spawn(async move {
                if sender.ready().await.is_ok() {
                    upstream.keep(sender);
                }
            });
        }
    }
}

impl Upstream {
    /// Gives a request the absolute target that HTTP/2 sends as its pseudo-fields.
    fn address(&self, request: &mut Request<Body>) {
        *request.version_mut() = Version::HTTP_2;
        let host = request.headers_mut().remove(HOST);
        let given = host.as_ref().map(HeaderValue::as_bytes);
        let given = given.and_then(|host| Authority::try_from(host).ok());
        let fallback = || self.authority().parse().ok();
        let target = request.uri().path_and_query().cloned();
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(match self.endpoint.tls {
            Some(_) => Scheme::HTTPS,
            None => Scheme::HTTP,
        });
        parts.authority = given.or_else(fallback);
        parts.path_and_query = Some(target.unwrap_or(PathAndQuery::from_static("/")));
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// TE concerns one connection only, and a sender says so (RFC 9110 section 10.1.4).
fn name_te(headers: &mut HeaderMap) {
    if headers.contains_key(TE) && !headers.contains_key(CONNECTION) {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Says that a body of unknown length comes in chunks: left to itself hyper drops that of a GET.
fn frame(request: &mut Request<Body>) {
    let body = request.body();
    if body.is_end_stream() || request.headers().contains_key(CONTENT_LENGTH) {
        return;
    }
    if body.size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
}

/// Finds out whether the peer closed the stream before it did anything for it, or the connection
/// with a GOAWAY that leaves the stream out (RFC 9113 section 6.8).
fn is_refused(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let stream = source.and_then(|source| source.downcast_ref::<h2::Error>());
    stream.is_some_and(|error| {
        let left_out = error.is_go_away() && error.is_remote();
        left_out || error.reason() == Some(h2::Reason::REFUSED_STREAM)
    })
}
