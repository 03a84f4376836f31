//! A body as it comes in, which ends well only where its sender has ended it.
//!
//! Over HTTP/2 hyper takes a stream that was reset with NO_ERROR for one that has ended, since a
//! server may so turn down the rest of a request that it has answered. Passed on over HTTP/1.1 what
//! had come till then would look whole, and be acted upon.
//!
//! Fields of ours in its trailers are nobody's word and taken off: who reads trailers as headers
//! would believe them.

use super::body::Error;
use super::headers;
use bytes::Bytes;
use http::{Response, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a request or an answer that was received.
#[derive(Debug)]
pub struct Received {
    incoming: Incoming,
    /// Its end is a frame of its own, which must have come.
    is_http2: bool,
}

impl Received {
    /// `version` is that of the message which the body belongs to.
    pub fn new(incoming: Incoming, version: Version) -> Self {
        Self {
            incoming,
            is_http2: version == Version::HTTP_2,
        }
    }

    /// Takes an answer's body.
    pub fn of(response: Response<Incoming>) -> Response<Self> {
        let version = response.version();
        response.map(|incoming| Self::new(incoming, version))
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let body = self.get_mut();
        Pin::new(&mut body.incoming)
            .poll_frame(context)
            .map(|polled| match polled {
                Some(Ok(frame)) => Some(Ok(without_context(frame))),
                Some(Err(error)) => Some(Err(Error::Broken(error))),
                None if body.is_http2 && !body.incoming.is_end_stream() => Some(Err(Error::Reset)),
                None => None,
            })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

fn without_context(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        headers::strip_context(trailers);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::body::collect;
    use crate::socket::Tracked;
    use http::Request;
    use hyper::client::conn::http2;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// `:status: 200`, in a HEADERS frame of the first stream.
    const HEAD: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
    const DATA: &[u8] = &[0, 0, 2, 0, 0, 0, 0, 0, 1, b'1', b'2'];
    const LAST_DATA: &[u8] = &[0, 0, 2, 0, 1, 0, 0, 0, 1, b'1', b'2'];

    /// Reads an answer whose stream is reset with NO_ERROR behind `frames`.
    async fn read(frames: &[&[u8]]) -> Result<Bytes, Error> {
        const RESET: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let tasks = Tracked(TaskTracker::new());
        let begun = http2::Builder::new(tasks.clone()).handshake(TokioIo::new(near));
        let (mut sender, connection) = begun.await.unwrap();
        tasks.0.spawn(async move { drop(connection.await) });
        let request = Request::new(http_body_util::Empty::<Bytes>::new());
        let asked = sender.send_request(request);
        let answered = async {
            far.read_exact(&mut [0; 24]).await.unwrap();
            // Up to the request's HEADERS.
            let mut head = [0; 9];
            while head[3] != 1 {
                far.read_exact(&mut head).await.unwrap();
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                far.read_exact(&mut vec![0; length as usize]).await.unwrap();
            }
            let answer = [&[SETTINGS, HEAD], frames, &[RESET]].concat().concat();
            far.write_all(&answer).await.unwrap();
        };
        let (response, ()) = tokio::join!(asked, answered);
        collect(Received::of(response.unwrap()).into_body(), 100).await
    }

    #[test]
    fn trailers_say_nothing_in_our_name() {
        let mut trailers = http::HeaderMap::new();
        for name in ["grpc-status", "hermes-application", "hermes_state"] {
            trailers.append(name, http::HeaderValue::from_static("0"));
        }
        let left = without_context(Frame::trailers(trailers));
        let left = left.into_trailers().unwrap();
        assert_eq!(left.len(), 1);
        assert!(left.contains_key("grpc-status"));
    }

    #[tokio::test]
    async fn a_stream_reset_before_its_end_is_not_whole() {
        assert!(matches!(read(&[DATA]).await, Err(Error::Reset)));
        assert!(matches!(read(&[]).await, Err(Error::Reset)));
        // As a server does that wants no more of the request.
        assert_eq!(read(&[DATA, LAST_DATA]).await.unwrap(), "1212");
    }
}
