//! From a pointer to the line and column where a file says it.

use crate::contract::pointer::Pointer;

/// Counted from 1; columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    /// Turns an offset in bytes into a place; text that is not UTF-8 counts bytes that begin one.
    pub fn of_offset(text: &[u8], offset: usize) -> Self {
        let before = &text[..offset.min(text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n');
        let line_start = line_start.map_or(0, |at| at + 1);
        let is_start = |byte: &&u8| (**byte & 0xc0) != 0x80;
        Self {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + before[line_start..].iter().filter(is_start).count(),
        }
    }

    /// Finds what a pointer names, a member by its name. Of what is not there, the nearest part
    /// around it that is.
    pub fn of_pointer(text: &[u8], pointer: &str) -> Self {
        let mut reader = Reader { text, at: 0 };
        reader.skip_space();
        let mut found = reader.at;
        for step in pointer.split('/').skip(1) {
            match reader.step(step) {
                Some(at) => found = at,
                None => break,
            }
        }
        Self::of_offset(text, found)
    }
}

/// A flat walk over JSON text; of text that is no JSON it finds less.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Goes from the start of a value to that of the value under `step`; answers where that is
    /// said.
    fn step(&mut self, step: &str) -> Option<usize> {
        let is_object = match self.peek()? {
            b'{' => true,
            b'[' => false,
            _ => return None,
        };
        let mut index = 0;
        loop {
            self.at += 1;
            self.skip_space();
            let said = self.at;
            let is_it = if is_object {
                let name = self.string()?;
                self.skip_space();
                self.at += 1;
                self.skip_space();
                is_named(name, step)
            } else {
                index += 1;
                step.parse() == Ok(index - 1)
            };
            if is_it {
                return Some(said);
            }
            self.skip_value();
            self.skip_space();
            if self.peek()? != b',' {
                return None;
            }
        }
    }

    /// Reads a string with its quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        loop {
            self.at += 1;
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 1,
                _ => {}
            }
        }
        self.at += 1;
        self.text.get(start..self.at)
    }

    fn skip_value(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    if self.string().is_none() {
                        return;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' if depth == 0 => return,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }
}

/// Compares a name, as written, with the step of a pointer, in which long names are cut.
fn is_named(written: &[u8], step: &str) -> bool {
    let Ok(name) = serde_json::from_slice::<String>(written) else {
        return false;
    };
    let mut cut = Pointer::default();
    cut.push(&name);
    cut.as_str()[1..] == *step || name.replace('~', "~0").replace('/', "~1") == step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_lead_to_lines_and_columns() {
        let text = "{\n  \"a/b\": [1, {\"x\": \"}]\\\"\", \"ä\": true}],\n  \"ö\" : {\"~\":\n  null}, \"a\\u0062\": 2\n}\n";
        for (pointer, line, column) in [
            ("", 1, 1),
            ("/a~1b", 2, 3),
            ("/a~1b/0", 2, 11),
            ("/a~1b/1", 2, 14),
            ("/a~1b/1/x", 2, 15),
            ("/a~1b/1/ä", 2, 28),
            ("/ö", 3, 3),
            ("/ö/~0", 3, 10),
            ("/ab", 4, 10),
            ("/ö/missing/below", 3, 3),
            ("/a~1b/7", 2, 3),
        ] {
            let place = Place::of_pointer(text.as_bytes(), pointer);
            assert_eq!((place.line, place.column), (line, column), "{pointer}");
        }
        for broken in [
            "",
            "{",
            "{\"a",
            "{\"a\":",
            "[1,",
            "{\"a\" 1}",
            "\"",
            "{\"a\\",
        ] {
            Place::of_pointer(broken.as_bytes(), "/a/b");
        }
    }
}
