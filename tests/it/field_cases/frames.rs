//! HTTP/2 written out frame by frame, as no client library would.

use super::wire::WITHIN;
use std::collections::VecDeque;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// The error code that answers a flood (RFC 9113 section 7).
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame that came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// What ended a stream or the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answer { status: u16, body: Vec<u8> },
    Reset(u32),
    GoneAway(u32),
    Closed,
}

/// One HTTP/2 connection.
pub struct Frames {
    write: OwnedWriteHalf,
    read: OwnedReadHalf,
    came: VecDeque<Frame>,
}

impl Frames {
    /// Connects and greets, by prior knowledge.
    pub async fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, write) = stream.into_split();
        let came = VecDeque::new();
        let mut frames = Self { write, read, came };
        frames.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        frames.send(&frame(SETTINGS, 0, 0, &[])).await;
        frames
    }

    /// Writes bytes; says whether the other side still took them.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        let written = timeout(WITHIN, self.write.write_all(bytes)).await;
        matches!(written, Ok(Ok(())))
    }

    /// Writes `bytes` and reads meanwhile, so that neither side waits for the other; what came
    /// is kept. Says whether the connection is still open.
    pub async fn flood(&mut self, bytes: &[u8]) -> bool {
        let (write, read, came) = (&mut self.write, &mut self.read, &mut self.came);
        let writing = async {
            let written = timeout(WITHIN, write.write_all(bytes)).await;
            matches!(written, Ok(Ok(())))
        };
        tokio::pin!(writing);
        loop {
            tokio::select! {
                biased;
                frame = next(read) => match frame {
                    Some(frame) => came.push_back(frame),
                    None => return false,
                },
                open = &mut writing => return open && !came.iter().any(|frame| frame.kind == GOAWAY),
            }
        }
    }

    /// Sends a whole request.
    pub async fn ask(&mut self, stream: u32, fields: &[(&str, &str)], body: &[u8]) {
        let flags = if body.is_empty() { END_STREAM } else { 0 };
        self.send(&frame(HEADERS, END_HEADERS | flags, stream, &block(fields)))
            .await;
        if !body.is_empty() {
            self.send(&frame(DATA, END_STREAM, stream, body)).await;
        }
    }

    /// Waits for the end of `stream`, or of the connection.
    pub async fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut status, mut body) = (0, Vec::new());
        loop {
            let Some(frame) = self.frame().await else {
                return Outcome::Closed;
            };
            match frame.kind {
                GOAWAY => return Outcome::GoneAway(number(&frame.payload[4..])),
                RST_STREAM if frame.stream == stream => {
                    return Outcome::Reset(number(&frame.payload));
                }
                HEADERS if frame.stream == stream => status = status_of(&frame.payload),
                DATA if frame.stream == stream => body.extend_from_slice(&frame.payload),
                _ => continue,
            }
            if frame.flags & END_STREAM != 0 {
                return Outcome::Answer { status, body };
            }
        }
    }

    /// Waits for the end of the connection; returns the code of its GOAWAY, if it had one.
    pub async fn farewell(&mut self) -> Option<u32> {
        loop {
            let frame = self.frame().await?;
            if frame.kind == GOAWAY {
                return Some(number(&frame.payload[4..]));
            }
        }
    }

    /// Reads the next frame; settings and pings are acknowledged on the way.
    async fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = match self.came.pop_front() {
                Some(frame) => frame,
                None => timeout(WITHIN, next(&mut self.read))
                    .await
                    .expect("no frame came")?,
            };
            match frame.kind {
                SETTINGS | PING if frame.flags & ACK == 0 => {
                    let payload = if frame.kind == PING {
                        &frame.payload[..]
                    } else {
                        &[]
                    };
                    self.send(&self::frame(frame.kind, ACK, 0, payload)).await;
                }
                SETTINGS | PING => {}
                _ => return Some(frame),
            }
        }
    }
}

/// Writes a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Writes fields as literals, neither indexed nor packed (RFC 7541 section 6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "{text}");
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Reads the status at the beginning of a block: indexed, or a literal of three digits.
fn status_of(block: &[u8]) -> u16 {
    // A change of the table's size may stand first.
    let block = if block[0] & 0xe0 == 0x20 {
        &block[1..]
    } else {
        block
    };
    match block[0] {
        indexed @ 0x88..=0x8e => [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)],
        0x08 | 0x48 | 0x18 => {
            let (length, value) = (usize::from(block[1] & 0x7f), &block[2..]);
            match block[1] & 0x80 {
                0 => std::str::from_utf8(&value[..length])
                    .unwrap()
                    .parse()
                    .unwrap(),
                _ => unpacked(&value[..length]),
            }
        }
        other => panic!("no status begins with {other:#x}: {block:?}"),
    }
}

/// Reads digits in HPACK's Huffman code: 0 to 2 take five bits, 3 to 9 take six.
fn unpacked(bytes: &[u8]) -> u16 {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let (mut rest, mut number) = (&bits[..], 0);
    for _ in 0..3 {
        let five = u16::from_str_radix(&rest[..5], 2).unwrap();
        let (digit, length) = match five {
            0..=2 => (five, 5),
            _ => (u16::from_str_radix(&rest[..6], 2).unwrap() - 0x19 + 3, 6),
        };
        (number, rest) = (number * 10 + digit, &rest[length..]);
    }
    number
}

async fn next(read: &mut OwnedReadHalf) -> Option<Frame> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    read.read_exact(&mut payload).await.ok()?;
    let stream = number(&head[5..]) & 0x7fff_ffff;
    Some(Frame {
        kind: head[3],
        flags: head[4],
        stream,
        payload,
    })
}
