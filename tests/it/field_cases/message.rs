//! HTTP/1.1 messages as bytes: written out, and read just far enough to know where they end.

/// The body that the contract of these cases accepts, 28 bytes.
pub const GOOD: &str = r#"{"order_ref":"A-17","qty":2}"#;

/// How a message says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    /// It ends with its connection.
    ToTheEnd,
}

/// Writes a request: request line, `Host`, these fields (each with its line end), and the body
/// with nothing said about it.
pub fn request(line: &str, fields: &str, body: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{body}")
}

/// Writes a POST of JSON with its length.
pub fn post(target: &str, fields: &str, body: &str) -> String {
    let fields = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\n{fields}",
        body.len()
    );
    request(&format!("POST {target}"), &fields, body)
}

/// Writes an answer with its length.
pub fn answer(status: u16, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Told\r\nContent-Length: {length}\r\n{fields}\r\n{body}").into()
}

/// Writes a 200 with JSON.
pub fn json(body: &str) -> Vec<u8> {
    answer(200, "Content-Type: application/json\r\n", body)
}

/// Writes a body as chunks of at most `size` bytes.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(size) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// Says where a request ends; one that says nothing has no content.
pub fn request_framing(head: &str) -> Framing {
    stated(head).unwrap_or(Framing::Length(0))
}

/// Says where an answer ends (RFC 9112 section 6.3).
pub fn answer_framing(method: &str, status: u16, head: &str) -> Framing {
    if method == "HEAD" || status < 200 || matches!(status, 204 | 304) {
        return Framing::Length(0);
    }
    stated(head).unwrap_or(Framing::ToTheEnd)
}

fn stated(head: &str) -> Option<Framing> {
    if let Some(coding) = values(head, "transfer-encoding").first() {
        assert_eq!(coding, "chunked", "{head}");
        return Some(Framing::Chunked);
    }
    let length = values(head, "content-length").first()?.parse().unwrap();
    Some(Framing::Length(length))
}

/// Returns what each line of the field `name` says, in order.
pub fn values(head: &str, name: &str) -> Vec<String> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let named = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.trim().to_owned()).collect()
}

/// Reads a chunk's size from its line.
pub fn chunk_size(line: &[u8]) -> usize {
    let line = std::str::from_utf8(line).unwrap().trim_end();
    usize::from_str_radix(line, 16).unwrap_or_else(|_| panic!("no chunk size: {line:?}"))
}

/// Finds the first place of `mark` in `bytes`.
pub fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|part| part == mark)
}
