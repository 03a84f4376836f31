//! Sending a request to an upstream within a deadline.

use super::attempt::{Following, STILL_OPEN};
use super::body::{self, Body};
use super::received::Received;
use super::respond::Trouble;
use super::upstream::{Error, Lease, Unsent, Upstream};
use crate::socket::{ConnectError, Speaks};
use crate::task::{Deadline, Failure, Problem, State};
use crate::telemetry::log::Chain;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use hyper::body::Body as HttpBody;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The protocol it came in.
    pub version: Version,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// Says how the attempt ends that got this answer.
    pub fn verdict(&self) -> (State, Option<Failure>) {
        if self.status.is_success() {
            return (State::Completed, None);
        }
        // 408, 425 and 429 say "not now", which is no judgement on the request.
        let refusal =
            self.status.is_client_error() && !matches!(self.status.as_u16(), 408 | 425 | 429);
        let (kind, title) = if refusal {
            ("application_4xx", "The application refused the call")
        } else {
            ("application_status", "The application failed")
        };
        let failure = Failure {
            kind: kind.to_owned(),
            title: title.to_owned(),
            detail: format!("the application answered {}", self.status.as_u16()),
        };
        (State::FailedExecution, Some(failure))
    }
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("the upstream could not be reached")]
    Unreachable(#[source] Error),
    #[error("the upstream broke off")]
    Reset(#[source] Error),
    #[error("the answer broke off")]
    Cut(#[source] body::Error),
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the upstream switched protocols unasked")]
    Switched,
    #[error("no connection before the deadline")]
    LateToConnect,
    #[error("the upstream took no request before the deadline")]
    LateToBegin,
    #[error("no whole answer before the deadline")]
    Late,
}

impl Failed {
    /// Says whether bytes of the request may have reached the upstream.
    fn may_have_executed(&self) -> bool {
        !matches!(
            self,
            Failed::Unreachable(_) | Failed::LateToConnect | Failed::LateToBegin
        )
    }

    /// Turns the failure into what the caller is told, and logs its causes once.
    pub fn into_trouble(self, upstream: &str) -> Trouble {
        if let Failed::Reset(error) = &self
            && let Some(trouble) = short_of_body(error)
        {
            return trouble;
        }
        tracing::warn!(upstream, error = %Chain(&self), "a call failed at its upstream");
        let executed = self.may_have_executed();
        let (problem, detail) = match self {
            Failed::Unreachable(Error::Connect(ConnectError::Tls { .. })) => (
                Problem::UpstreamUnreachable,
                "TLS with the upstream could not be agreed on; nothing was sent".to_owned(),
            ),
            Failed::Unreachable(Error::Refused { .. }) => (
                Problem::UpstreamUnreachable,
                "the upstream refused the request before it looked at it".to_owned(),
            ),
            Failed::Unreachable(_) => (
                Problem::UpstreamUnreachable,
                "no connection to the upstream could be opened; nothing was sent".to_owned(),
            ),
            Failed::Reset(Error::Broken { source, .. }) if source.is_parse_too_large() => (
                Problem::ReplyTooLarge,
                "the head of the answer is far beyond limits.max_headers or \
                 limits.max_header_bytes"
                    .to_owned(),
            ),
            Failed::Reset(_) => (
                Problem::UpstreamReset,
                "the upstream closed the connection before its answer".to_owned(),
            ),
            Failed::Cut(_) => (
                Problem::UpstreamReset,
                "the upstream broke off in the middle of its answer".to_owned(),
            ),
            Failed::Switched => (
                Problem::UpstreamReset,
                "the upstream switched protocols, which nobody had asked for".to_owned(),
            ),
            Failed::TooLarge(max) => (
                Problem::ReplyTooLarge,
                format!("the answer is longer than limits.max_body_bytes, {max} bytes"),
            ),
            Failed::LateToConnect => (
                Problem::Timeout,
                "the attempt's time was up before a connection was open; nothing was sent"
                    .to_owned(),
            ),
            Failed::LateToBegin => (
                Problem::Timeout,
                "the upstream let no further request begin on its connection within the attempt's \
                 time; nothing was sent"
                    .to_owned(),
            ),
            Failed::Late => (
                Problem::Timeout,
                "the upstream did not answer within the attempt's time".to_owned(),
            ),
        };
        Trouble::new(problem, detail).executed(executed)
    }
}

/// Says whose fault it was that the request's body ended early: its sender's, not the upstream's.
fn short_of_body(error: &Error) -> Option<Trouble> {
    let mut causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let body = causes.find_map(|cause| cause.downcast_ref::<body::Error>())?;
    tracing::debug!(error = %Chain(error), "a request's body did not come to its end");
    let problem = match body {
        body::Error::Idle(_) => Problem::RequestTimeout,
        body::Error::Broken(_) | body::Error::Reset | body::Error::TooLarge(_) => {
            Problem::BadRequest
        }
    };
    let detail = format!("the body did not arrive whole: {body}");
    Some(Trouble::new(problem, detail).executed(true))
}

/// Sends `request` and reads the whole answer, at most `max` bytes of it.
///
/// An answer that takes longer than `STILL_OPEN` is said to be waited for.
pub async fn exchange(
    upstream: &Arc<Upstream>,
    (mut request, speaks): (Request<Body>, Speaks),
    deadline: Deadline,
    max: usize,
    mut following: Following<'_>,
) -> Result<Answer, Failed> {
    let asked = Instant::now();
    let leased = tokio::time::timeout_at(deadline.instant(), upstream.lease(speaks)).await;
    let lease = match leased {
        Err(_elapsed) => return Err(Failed::LateToConnect),
        Ok(leased) => leased.map_err(Failed::Unreachable)?,
    };
    let deadline = following.sending(asked.elapsed(), deadline);
    // A stream over the peer's limit waits in the connection, and its body with it: no byte of
    // that has gone out while it was not asked for.
    let begun = match lease.is_shared() {
        true => request.body_mut().mark(),
        false => None,
    };
    let mut answering = std::pin::pin!(answer(upstream, lease, request, max));
    let soon = deadline.instant().min(asked + STILL_OPEN);
    let mut answered = tokio::time::timeout_at(soon, answering.as_mut()).await;
    if answered.is_err() {
        following.waiting();
        answered = tokio::time::timeout_at(deadline.instant(), answering).await;
    }
    let waited = begun.is_some_and(|begun| !begun.is_asked());
    match answered {
        Ok(Err(Failed::Reset(error))) if waited => Err(Failed::Unreachable(error)),
        Ok(answered) => answered,
        Err(_elapsed) if waited => Err(Failed::LateToBegin),
        Err(_elapsed) => Err(Failed::Late),
    }
}

/// Does the same for a request that is no attempt.
pub async fn whole(
    upstream: &Arc<Upstream>,
    (request, speaks): (Request<Body>, Speaks),
    deadline: Deadline,
    max: usize,
) -> Result<Answer, Failed> {
    let leased = tokio::time::timeout_at(deadline.instant(), upstream.lease(speaks)).await;
    let lease = match leased {
        Err(_elapsed) => return Err(Failed::LateToConnect),
        Ok(leased) => leased.map_err(Failed::Unreachable)?,
    };
    let answering = answer(upstream, lease, request, max);
    let answered = tokio::time::timeout_at(deadline.instant(), answering).await;
    answered.unwrap_or(Err(Failed::Late))
}

async fn answer(
    upstream: &Arc<Upstream>,
    lease: Lease,
    request: Request<Body>,
    max: usize,
) -> Result<Answer, Failed> {
    let (response, lease) = head(upstream, lease, request).await?;
    // Nobody asked for a switch: Upgrade is never sent on with a contract call.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Failed::Switched);
    }
    let (head, body) = response.into_parts();
    let body = body::collect(body, max)
        .await
        .map_err(|error| match error {
            body::Error::TooLarge(max) => Failed::TooLarge(max),
            broken => Failed::Cut(broken),
        })?;
    lease.release();
    Ok(Answer {
        version: head.version,
        status: head.status,
        headers: head.headers,
        body: content(head.status, body),
    })
}

/// Takes what an answer of this status may bring: HTTP/2 lets a peer send content with a status
/// that has none (RFC 9110 section 15.3.5), which no reader would see.
fn content(status: StatusCode, body: Bytes) -> Bytes {
    match status {
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => {
            Bytes::new()
        }
        _ => body,
    }
}

/// Sends a request and waits for the head of its answer; once more if a kept connection was dead,
/// or its peer said goodbye before it looked at the request.
async fn head(
    upstream: &Arc<Upstream>,
    mut lease: Lease,
    request: Request<Body>,
) -> Result<(Response<Received>, Lease), Failed> {
    let again = again(&lease, &request);
    let request = match lease.send(request).await {
        Ok(response) => return Ok((response, lease)),
        Err(Unsent::Broken(error)) => return Err(Failed::Reset(error)),
        Err(Unsent::Refused(error)) => match again {
            Some(again) => Box::new(again),
            None => return Err(Failed::Unreachable(error)),
        },
        Err(Unsent::Whole(request)) => request,
    };
    if !lease.was_kept() {
        tracing::debug!(upstream = %upstream.place(), "a fresh connection died unused");
    }
    let mut lease = upstream
        .fresh(lease.speaks())
        .await
        .map_err(Failed::Unreachable)?;
    match lease.send(*request).await {
        Ok(response) => Ok((response, lease)),
        Err(Unsent::Broken(error)) => Err(Failed::Reset(error)),
        Err(Unsent::Refused(error)) => Err(Failed::Unreachable(error)),
        Err(Unsent::Whole(_)) => Err(Failed::Unreachable(Error::Closed {
            place: upstream.place().clone(),
        })),
    }
}

/// Copies a request that a shared connection may not take any more, if it is all in memory.
fn again(lease: &Lease, request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().again().filter(|_| lease.is_shared())?;
    let mut copy = Request::new(body);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

/// Sends a request and passes the answer on as it comes.
///
/// Only silence ends it: no byte of the request or of the answer for `silence`. A switch of
/// protocols is taken only where `upgrades` says that it was asked for.
pub async fn stream(
    upstream: &Arc<Upstream>,
    (request, speaks): (Request<Body>, Speaks),
    upgrades: bool,
    silence: Duration,
) -> Result<Response<Body>, Failed> {
    let activity = request.body().activity();
    let lease = match tokio::time::timeout(silence, upstream.lease(speaks)).await {
        Err(_elapsed) => return Err(Failed::LateToConnect),
        Ok(leased) => leased.map_err(Failed::Unreachable)?,
    };
    let mut answering = std::pin::pin!(head(upstream, lease, request));
    let mut until = Instant::now() + silence;
    loop {
        if let Ok(answered) = tokio::time::timeout_at(until, answering.as_mut()).await {
            let (response, lease) = answered?;
            return match response.status() {
                // The connection is another protocol's from here on; nothing of it is kept.
                StatusCode::SWITCHING_PROTOCOLS if upgrades => {
                    Ok(response.map(|_none| Body::empty()))
                }
                StatusCode::SWITCHING_PROTOCOLS => Err(Failed::Switched),
                _ => Ok(response.map(|incoming| pass_on(incoming, silence, lease))),
            };
        }
        // An upload that still moves is no silence.
        match activity.as_ref().map(|activity| activity.last() + silence) {
            Some(later) if later > until => until = later,
            _ => return Err(Failed::Late),
        }
    }
}

/// Streams an answer; one without content gives its connection back at once.
fn pass_on(incoming: Received, silence: Duration, lease: Lease) -> Body {
    if incoming.is_end_stream() {
        lease.release();
        return Body::stream(incoming, silence, None);
    }
    Body::stream(incoming, silence, Some(lease))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::attempt::Attempt;
    use crate::proxy::upstream::Keep;
    use crate::socket::{Endpoint, Place};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_util::task::TaskTracker;

    #[test]
    fn a_status_without_content_brings_none() {
        let body = Bytes::from_static(b"{}");
        for (status, kept) in [(200, 2), (201, 2), (204, 0), (205, 0), (304, 0), (404, 2)] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(content(status, body.clone()).len(), kept, "{status}");
        }
    }

    /// Answers the first request, allows no further one, and counts those that come.
    async fn one_stream(listener: TcpListener, requests: Arc<AtomicUsize>) {
        /// MAX_CONCURRENT_STREAMS: 0.
        const NO_MORE: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
        /// `:status: 200`, and the end of the first stream.
        const ANSWER: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
        const HEADERS: u8 = 1;
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(NO_MORE).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == HEADERS {
                requests.fetch_add(1, Ordering::SeqCst);
                stream.write_all(ANSWER).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_waits_for_its_stream_was_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place::Tcp(listener.local_addr().unwrap().to_string());
        let connections = TaskTracker::new();
        let requests = Arc::new(AtomicUsize::new(0));
        connections.spawn(one_stream(listener, requests.clone()));
        let endpoint = Endpoint { place, tls: None };
        let upstream = Upstream::new(
            endpoint,
            Keep::new(Duration::from_secs(60)),
            connections.clone(),
        );
        let directory = tempfile::tempdir().unwrap();
        let mut attempt = Attempt::sample(&directory.path().join("spool.db")).await;
        let mut ask = async |time: Duration| {
            let request = Request::new(Body::whole(Bytes::from_static(b"{}")));
            let following = Following {
                attempt: &mut attempt,
                executes: false,
                later: None,
            };
            let deadline = Deadline::after(Instant::now(), time);
            let request = (request, Speaks::Http2);
            exchange(&upstream, request, deadline, 100, following).await
        };
        let answered = ask(Duration::from_secs(10)).await.unwrap();
        assert_eq!(answered.status, 200);
        let waits = ask(Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(waits, Failed::LateToBegin), "{waits:?}");
        let trouble = waits.into_trouble("peer");
        assert_eq!(
            (trouble.problem, trouble.executed),
            (Problem::Timeout, Some(false))
        );
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}
