//! A connection whose bytes the test writes itself.

use super::message::{self, Framing};
use crate::support::reply::Reply;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest wait for anything that is bound to come.
pub const WITHIN: Duration = Duration::from_secs(10);
/// How long silence must last to be taken for silence: nothing can be waited for that is not
/// to come.
pub const SILENT: Duration = Duration::from_millis(300);

/// One connection to a listener of the sidecar.
pub struct Wire {
    stream: TcpStream,
    /// Bytes that came and have not been read as an answer.
    rest: Vec<u8>,
}

/// How a connection was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    Closed,
    Silent,
    Talking,
}

impl Wire {
    /// Connects to `address`, for example `127.0.0.1:7401`.
    pub async fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let rest = Vec::new();
        Self { stream, rest }
    }

    /// Writes these bytes; the other side may have closed already, its answer still counts.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Says that nothing more will be written.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Ends the connection with a reset instead of an orderly close.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Reads the next answer whole, also an interim one.
    pub async fn answer(&mut self) -> Reply {
        self.answer_to("POST").await
    }

    /// Reads the next answer whole; none to HEAD has content.
    pub async fn answer_to(&mut self, method: &str) -> Reply {
        let head = self.head().await;
        let reply = Reply::read(head.as_bytes());
        let body = match message::answer_framing(method, reply.status, &head) {
            Framing::Length(length) => self.exactly(length).await,
            Framing::Chunked => self.chunks().await,
            Framing::ToTheEnd => self.end().await,
        };
        let body = body.into();
        Reply { body, ..reply }
    }

    /// Reads the head of the next answer, with the empty line behind it.
    pub async fn head(&mut self) -> String {
        let head = self.until(b"\r\n\r\n").await;
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Reads until `mark` has come, and returns everything up to it.
    pub async fn until(&mut self, mark: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = message::find(&self.rest, mark) {
                return self.rest.drain(..at + mark.len()).collect();
            }
            let seen = self.more(WITHIN).await;
            assert!(
                seen == Now::Talking,
                "{seen:?} before {:?} after {:?}",
                String::from_utf8_lossy(mark),
                String::from_utf8_lossy(&self.rest)
            );
        }
    }

    /// Waits until the other side has closed; everything that came before is returned.
    pub async fn end(&mut self) -> Vec<u8> {
        loop {
            match self.more(WITHIN).await {
                Now::Talking => {}
                Now::Closed => return std::mem::take(&mut self.rest),
                Now::Silent => panic!("still open after {:?}", String::from_utf8_lossy(&self.rest)),
            }
        }
    }

    /// Says whether the other side has closed, without waiting.
    pub fn is_over(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.stream.try_read(&mut chunk) {
                Ok(0) => return true,
                Ok(length) => self.rest.extend_from_slice(&chunk[..length]),
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Finds out what the other side does for a moment: it talks, has closed, or says nothing.
    pub async fn now(&mut self) -> Now {
        match self.rest.is_empty() {
            true => self.more(SILENT).await,
            false => Now::Talking,
        }
    }

    /// Reads exactly `count` bytes.
    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.rest.len() < count {
            let seen = self.more(WITHIN).await;
            assert_eq!(seen, Now::Talking, "{} of {count} bytes", self.rest.len());
        }
        self.rest.drain(..count).collect()
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n").await;
            let size = message::chunk_size(&line);
            let piece = self.exactly(size + 2).await;
            if size == 0 {
                return body;
            }
            body.extend_from_slice(&piece[..size]);
        }
    }

    async fn more(&mut self, within: Duration) -> Now {
        let mut chunk = [0; 16 * 1024];
        match timeout(within, self.stream.read(&mut chunk)).await {
            Err(_elapsed) => Now::Silent,
            Ok(Ok(length @ 1..)) => {
                self.rest.extend_from_slice(&chunk[..length]);
                Now::Talking
            }
            // A reset is an end, too: whoever closes with bytes unread sends one.
            Ok(_) => Now::Closed,
        }
    }
}

/// Sends `bytes` on a connection of their own and reads the one answer.
pub async fn ask(address: &str, bytes: impl AsRef<[u8]>) -> Reply {
    let mut wire = Wire::to(address).await;
    wire.send(bytes).await;
    wire.answer().await
}
