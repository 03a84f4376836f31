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

/// Up to here the names of an object are compared pair by pair while scanning.
const SMALL_OBJECT: usize = 16;

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

    /// Counts the bytes of the text.
    pub(super) fn length(&self) -> usize {
        self.text.len()
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
    offset: Option<usize>,
}

impl Refusal {
    fn bad_json(message: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::BadJson,
            message: message.into(),
            pointer: None,
            offset: None,
        }
    }

    fn at(offset: usize, message: impl Into<String>) -> Self {
        let mut refusal = Self::bad_json(message);
        refusal.offset = Some(offset);
        refusal
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

    /// Where in the bytes, as far as the fault has one place.
    pub fn offset(&self) -> Option<usize> {
        self.offset
    }
}

/// Lets a body pass, or says why not.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Document<'a>, Refusal> {
    let text = text(bytes)?;
    let Scan {
        long_numbers,
        may_repeat,
        ..
    } = scan(bytes, limits.max_depth.min(DEEPEST))?;
    let tree = Tree::parse(text).map_err(|offset| broken(text, offset, &long_numbers))?;
    if may_repeat && let Some(path) = tree.duplicate() {
        let mut pointer = Pointer::default();
        path.iter().for_each(|name| pointer.push(name));
        let pointer = pointer.to_string();
        return Err(Refusal {
            kind: RefusalKind::BadJson,
            message: format!("the member at {pointer} occurs twice"),
            pointer: Some(pointer),
            offset: None,
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
        return Refusal::at(at, format!("the number at byte {at} is too large"));
    }
    let at = offset.min(text.len());
    Refusal::at(
        at,
        if at >= text.trim_end().len() {
            format!("the JSON document is not complete at its end, byte {at}")
        } else {
            format!("not a single JSON document: unexpected content near byte {at}")
        },
    )
}

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    if bytes.is_empty() {
        return Err(Refusal {
            kind: RefusalKind::BodyRequired,
            message: "body required: the contract asks for a JSON document".to_owned(),
            pointer: None,
            offset: None,
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
        Refusal::at(offset, format!("the body is not UTF-8 at byte {offset}"))
    })
}

/// What the flat walk over the bytes has noticed.
#[derive(Default)]
struct Scan {
    long_numbers: Vec<Range<usize>>,
    /// Names of the objects that are open, and where those of each begin.
    names: Vec<Range<usize>>,
    open: Vec<usize>,
    /// Two names of one object are equal, or cannot be compared as they are written.
    may_repeat: bool,
}

/// Walks the bytes once without recursion: depth, names, control characters, lengths of numbers.
fn scan(bytes: &[u8], max_depth: usize) -> Result<Scan, Refusal> {
    let (mut at, mut scan) = (0, Scan::default());
    scan.names.reserve(SMALL_OBJECT);
    scan.open.reserve(SMALL_OBJECT);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let (end, is_plain) = string_end(bytes, at + 1)?;
                if is_name(bytes, end + 1) {
                    scan.name(bytes, at + 1..end, is_plain);
                }
                at = end;
            }
            b'{' | b'[' => {
                scan.open.push(scan.names.len());
                if scan.open.len() > max_depth {
                    let message = format!("nested deeper than {max_depth} levels at byte {at}");
                    return Err(Refusal::at(at, message));
                }
            }
            b'}' | b']' => scan.names.truncate(scan.open.pop().unwrap_or_default()),
            b'-' | b'0'..=b'9' => {
                let (range, is_long) = number::scan(bytes, at);
                if range.len() > number::MAX_LENGTH {
                    let most = number::MAX_LENGTH;
                    let message = format!("number of over {most} characters at byte {at}");
                    return Err(Refusal::at(at, message));
                }
                at = range.end;
                if is_long {
                    scan.long_numbers.push(range);
                }
                continue;
            }
            0 => return Err(Refusal::at(at, format!("NUL at byte {at}"))),
            _ => {}
        }
        at += 1;
    }
    Ok(scan)
}

impl Scan {
    /// Notes a name; objects too large to compare pair by pair are left to the tree.
    fn name(&mut self, bytes: &[u8], name: Range<usize>, is_plain: bool) {
        let earlier = &self.names[self.open.last().copied().unwrap_or_default()..];
        let text = &bytes[name.clone()];
        let is_equal =
            |other: &Range<usize>| other.len() == text.len() && bytes[other.clone()] == *text;
        if !is_plain || earlier.len() >= SMALL_OBJECT || earlier.iter().any(is_equal) {
            self.may_repeat = true;
        } else {
            self.names.push(name);
        }
    }
}

/// Answers whether the string that ended before `at` is the name of a member.
fn is_name(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.iter().find(|byte| !is_space(**byte)) == Some(&b':')
}

/// Finds the closing quote of the string whose content starts at `at`, and whether the content
/// has no escapes.
fn string_end(bytes: &[u8], mut at: usize) -> Result<(usize, bool), Refusal> {
    let mut is_plain = true;
    loop {
        while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            let special = first_special(u64::from_le_bytes(*chunk));
            at += special;
            if special < 8 {
                break;
            }
        }
        match bytes.get(at) {
            Some(b'"') => return Ok((at, is_plain)),
            Some(b'\\') => (at, is_plain) = (at + 2, false),
            Some(0..0x20) => {
                let message = format!("unescaped control character in a string at byte {at}");
                return Err(Refusal::at(at, message));
            }
            Some(_) => at += 1,
            None => return Err(Refusal::bad_json("the JSON document ends inside a string")),
        }
    }
}

/// Finds the first of eight bytes that is a quote, a backslash or a control character; 8 if
/// none is. Subtracting borrows only upwards, so the lowest mark is always right.
fn first_special(word: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGH;
    let quote = below(word ^ (ONES * u64::from(b'"')), 1);
    let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
    let marks = quote | backslash | below(word, 0x20);
    marks.trailing_zeros() as usize / 8
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests;
