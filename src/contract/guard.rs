//! The gate every JSON body passes, in both directions, before anybody reads it.
//!
//! What passes is one UTF-8 document without byte order mark, duplicate names or anything after
//! it, of bounded depth. Depth is counted by a flat scan before anything recurses.
//!
//! - a refusal names the place, never a value from the body
//! - numbers are not judged here: those a float cannot hold are listed for the schema's check
//! - elsewhere: size (`proxy` counts while it reads), the schema (`schema`)

use std::{fmt, ops::Range};

use super::{number, pointer::Pointer, tree::Tree};

/// Deeper than this nobody may go, whatever the configuration says: parser and validator recurse.
pub const DEEPEST: usize = 256;

/// What a body may look like.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_depth: 64 }
    }
}

/// A body that passed, ready to be checked.
pub struct Document<'a> {
    text: &'a str,
    tree: Tree,
    /// Where numbers stand that a float may not hold; rarely any.
    long_numbers: Vec<Range<usize>>,
}

impl<'a> Document<'a> {
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Lists numbers that may not be what they are read as, with their offset.
    pub(super) fn long_numbers(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let text = self.text;
        let ranges = self.long_numbers.iter();
        ranges.map(move |range| (range.start, &text[range.clone()]))
    }
}

impl fmt::Debug for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({} bytes)", self.text.len())
    }
}

/// Why a body did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    BodyRequired,
    BadJson,
}

/// A body that did not pass; the message is safe to send and to log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    kind: RefusalKind,
    message: String,
    pointer: Option<String>,
}

impl Refusal {
    fn bad_json(message: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::BadJson,
            message: message.into(),
            pointer: None,
        }
    }

    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Where in the document, as far as a place has a pointer.
    pub fn pointer(&self) -> Option<&str> {
        self.pointer.as_deref()
    }
}

/// Lets a body pass, or says why not.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Document<'a>, Refusal> {
    let text = text(bytes)?;
    let long_numbers = scan(bytes, limits.max_depth.min(DEEPEST))?;
    let tree = Tree::parse(text).map_err(|offset| broken(text, offset, &long_numbers))?;
    if let Some(path) = tree.duplicate() {
        let mut pointer = Pointer::default();
        path.iter().for_each(|name| pointer.push(name));
        let pointer = pointer.to_string();
        return Err(Refusal {
            kind: RefusalKind::BadJson,
            message: format!("the member at {pointer} occurs twice"),
            pointer: Some(pointer),
        });
    }
    Ok(Document {
        text,
        tree,
        long_numbers,
    })
}

#[cold]
fn broken(text: &str, offset: usize, long_numbers: &[Range<usize>]) -> Refusal {
    let is_overflow =
        |range: &&Range<usize>| number::read(&text[(*range).clone()]) == number::Reading::Overflow;
    if let Some(range) = long_numbers.iter().find(is_overflow) {
        let at = range.start;
        return Refusal::bad_json(format!("the number at byte {at} is too large"));
    }
    let at = offset.min(text.len());
    Refusal::bad_json(if at >= text.trim_end().len() {
        format!("the JSON document is not complete at its end, byte {at}")
    } else {
        format!("not a single JSON document: unexpected content near byte {at}")
    })
}

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    if bytes.is_empty() {
        return Err(Refusal {
            kind: RefusalKind::BodyRequired,
            message: "body required: the contract asks for a JSON document".to_owned(),
            pointer: None,
        });
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        let message =
            "the body begins with a byte order mark (EF BB BF), which JSON does not allow";
        return Err(Refusal::bad_json(message));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        let message = "the body begins with a UTF-16 byte order mark; JSON here is UTF-8";
        return Err(Refusal::bad_json(message));
    }
    if bytes.iter().all(|byte| is_space(*byte)) {
        let message = "the body is white space only, which is not a JSON document";
        return Err(Refusal::bad_json(message));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        Refusal::bad_json(format!("the body is not UTF-8 at byte {offset}"))
    })
}

/// Walks the bytes once without recursion: depth, control characters, lengths of numbers.
fn scan(bytes: &[u8], max_depth: usize) -> Result<Vec<Range<usize>>, Refusal> {
    let (mut at, mut depth, mut long_numbers) = (0, 0_usize, Vec::new());
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at + 1)?,
            b'{' | b'[' => {
                depth += 1;
                if depth > max_depth {
                    let message = format!("nested deeper than {max_depth} levels at byte {at}");
                    return Err(Refusal::bad_json(message));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                let (range, is_long) = number::scan(bytes, at);
                if range.len() > number::MAX_LENGTH {
                    let most = number::MAX_LENGTH;
                    let message = format!("number of over {most} characters at byte {at}");
                    return Err(Refusal::bad_json(message));
                }
                at = range.end;
                if is_long {
                    long_numbers.push(range);
                }
                continue;
            }
            0 => return Err(Refusal::bad_json(format!("NUL at byte {at}"))),
            _ => {}
        }
        at += 1;
    }
    Ok(long_numbers)
}

/// Finds the closing quote of the string whose content starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> Result<usize, Refusal> {
    loop {
        // Eight plain bytes at a time; the bytes that matter are looked at one by one.
        while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            if has_special(u64::from_le_bytes(*chunk)) {
                break;
            }
            at += 8;
        }
        match bytes.get(at) {
            Some(b'"') => return Ok(at),
            Some(b'\\') => at += 2,
            Some(0..0x20) => {
                let message = format!("unescaped control character in a string at byte {at}");
                return Err(Refusal::bad_json(message));
            }
            Some(_) => at += 1,
            None => return Err(Refusal::bad_json("the JSON document ends inside a string")),
        }
    }
}

/// Answers whether one of eight bytes may be a quote, a backslash or a control character.
fn has_special(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero_in = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let quote = zero_in(word ^ (ONES * b'"' as u64));
    let backslash = zero_in(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    (quote | backslash | control) != 0
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests;
