//! Checks on a request's head that hold for every listener.

use super::headers;
use super::respond::Trouble;
use super::target;
use crate::identity::Authority;
use crate::task::Problem;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Version, request::Parts};

/// The longest request target; longer ones are 414.
const LONGEST_TARGET: usize = 16 * 1024;

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_header_bytes: usize,
    pub max_headers: usize,
}

/// Refuses heads that are too large or that two readers could read differently.
pub fn check(head: &Parts, limits: &Limits) -> Result<(), Trouble> {
    let target = head.uri.path_and_query().map_or(0, |pq| pq.as_str().len());
    if target > LONGEST_TARGET {
        let detail = format!("the request target is longer than {LONGEST_TARGET} bytes");
        return Err(Trouble::new(Problem::UriTooLong, detail));
    }
    too_large(&head.headers, limits).map_or(Ok(()), |over| {
        Err(Trouble::new(Problem::HeadersTooLarge, over))
    })?;
    if head.method == Method::CONNECT {
        let detail = "CONNECT is refused: in a tunnel, as https through a proxy needs one, no call \
                      could be checked; use http:// for agents, and no proxy for other https hosts";
        return Err(Trouble::new(Problem::HostRefused, detail));
    }
    check_framing(&head.headers)?;
    check_host(head)?;
    if !target::is_plain(head.uri.path()) {
        let detail = "the path has dot segments, NUL or broken escapes, which servers read \
                      differently; send it in its plain form";
        return Err(Trouble::new(Problem::BadRequest, detail));
    }
    Ok(())
}

/// Refuses a request that has passed this listener before; `pseudonym` is its name in `Via`.
pub fn check_loop(headers: &HeaderMap, pseudonym: &HeaderValue) -> Result<(), Trouble> {
    match headers::has_passed(headers, pseudonym) {
        true => Err(Trouble::new(
            Problem::Loop,
            "the request has passed this listener before",
        )),
        false => Ok(()),
    }
}

/// Refuses a request that is too large with what the sidecar has added: who reads it next has
/// limits as well, and would only say so in its own words.
pub fn check_outgoing(headers: &HeaderMap, limits: &Limits) -> Result<(), Trouble> {
    let Some(over) = too_large(headers, limits) else {
        return Ok(());
    };
    let detail = format!("with the fields that the sidecar adds, {over}");
    Err(Trouble::new(Problem::HeadersTooLarge, detail).executed(false))
}

/// Refuses an answer whose head is too large.
pub fn check_answer(headers: &HeaderMap, limits: &Limits) -> Result<(), Trouble> {
    let Some(over) = too_large(headers, limits) else {
        return Ok(());
    };
    let detail = format!("the head of the answer has {over}");
    Err(Trouble::new(Problem::ReplyTooLarge, detail).executed(true))
}

/// Says which limit a head is over.
fn too_large(headers: &HeaderMap, limits: &Limits) -> Option<String> {
    let Limits {
        max_header_bytes,
        max_headers,
    } = *limits;
    if headers.len() > max_headers {
        return Some(format!(
            "more than limits.max_headers, {max_headers} fields"
        ));
    }
    let sizes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    let bytes: usize = sizes.sum();
    (bytes > max_header_bytes)
        .then(|| format!("more than limits.max_header_bytes, {max_header_bytes} bytes"))
}

/// One way to say where a body ends. Any coding beside `chunked` would hide the body from its checks (RFC 9112 section 6.1).
fn check_framing(headers: &HeaderMap) -> Result<(), Trouble> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let only_chunked = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(one), None) => one.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    if !only_chunked {
        let detail = "Transfer-Encoding may only be chunked";
        return Err(Trouble::new(Problem::BadRequest, detail));
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let first = headers.get(CONTENT_LENGTH);
    let is_one = |length: &HeaderValue| {
        let digits = length.as_bytes();
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && first == Some(length)
    };
    // The parser of HTTP/1.1 has seen to it already, that of HTTP/2 takes an empty one.
    if !lengths.all(is_one) {
        let detail = "Content-Length must be one decimal number";
        return Err(Trouble::new(Problem::BadRequest, detail));
    }
    Ok(())
}

/// One valid authority: HTTP/1.1 has exactly one Host, also beside an absolute target (RFC 9112
/// section 3.2); in HTTP/2 a Host may only repeat `:authority` (RFC 9113 section 8.3.1).
fn check_host(head: &Parts) -> Result<(), Trouble> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    let target = head.uri.authority();
    let target = target.map(|authority| authority.as_str().as_bytes());
    let is_there = match head.version {
        Version::HTTP_09 | Version::HTTP_10 => true,
        Version::HTTP_11 => host.is_some(),
        _ => host.or(target).is_some(),
    };
    let is_valid = |named: Option<&[u8]>| named.is_none_or(is_authority);
    if !is_there || hosts.next().is_some() || !is_valid(host) || !is_valid(target) {
        let detail = "one valid Host field is required";
        return Err(Trouble::new(Problem::BadRequest, detail));
    }
    let differ = |(host, target): (&[u8], &[u8])| !host.eq_ignore_ascii_case(target);
    if head.version > Version::HTTP_11 && host.zip(target).is_some_and(differ) {
        let detail = "Host and :authority name two hosts; leave Host out";
        return Err(Trouble::new(Problem::BadRequest, detail));
    }
    Ok(())
}

fn is_authority(host: &[u8]) -> bool {
    std::str::from_utf8(host).is_ok_and(|host| Authority::parse(host).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    const LIMITS: Limits = Limits {
        max_header_bytes: 1000,
        max_headers: 5,
    };

    fn verdict(build: impl FnOnce(http::request::Builder) -> http::request::Builder) -> u16 {
        let request = build(Request::builder().method("POST").uri("/api"));
        let (head, ()) = request.body(()).unwrap().into_parts();
        check(&head, &LIMITS).map_or_else(|trouble| trouble.problem.status(), |()| 200)
    }

    #[test]
    fn heads_and_their_verdicts() {
        let host = |r: http::request::Builder| r.header("host", "a:7401");
        assert_eq!(verdict(host), 200);
        assert_eq!(verdict(|r| r), 400);
        assert_eq!(verdict(|r| host(r).header("host", "b")), 400);
        assert_eq!(verdict(|r| r.header("host", "a, b")), 400);
        assert_eq!(verdict(|r| r.header("host", "a@b")), 400);
        assert_eq!(verdict(|r| r.header("host", "[::1]:80")), 200);
        assert_eq!(verdict(|r| r.header("host", "[::1")), 400);
        assert_eq!(verdict(|r| r.version(Version::HTTP_10)), 200);
        assert_eq!(verdict(|r| r.uri("http://a/x")), 400);
        assert_eq!(verdict(|r| host(r).uri("http://b/x")), 200);
        assert_eq!(verdict(|r| host(r).uri("http://u@b/x")), 400);
        assert_eq!(verdict(|r| host(r).uri("/a/../b")), 400);
        assert_eq!(
            verdict(|r| host(r).uri(format!("/{}", "a".repeat(17_000)))),
            414
        );
        assert_eq!(verdict(|r| host(r).header("x", "y".repeat(1000))), 431);
        let many = |r| (0..6).fold(host(r), |r, n| r.header(format!("x-{n}"), "y"));
        assert_eq!(verdict(many), 431);
        let coded = |value: &'static str| verdict(|r| host(r).header("transfer-encoding", value));
        assert_eq!(coded("chunked"), 200);
        assert_eq!(coded("gzip, chunked"), 400);
        let lengths = |one: &'static str, two: &'static str| {
            let length = |r| host(r).header("content-length", one);
            verdict(|r| length(r).header("content-length", two))
        };
        assert_eq!(lengths("3", "3"), 200);
        assert_eq!(lengths("3", "4"), 400);
        assert_eq!(lengths("", ""), 400);
        assert_eq!(lengths("+3", "+3"), 400);
        assert_eq!(verdict(|r| host(r).method("CONNECT")), 403);
        let second = |r: http::request::Builder| r.version(Version::HTTP_2).uri("http://a:7401/x");
        assert_eq!(verdict(second), 200);
        assert_eq!(verdict(|r| host(second(r))), 200);
        assert_eq!(verdict(|r| second(r).header("host", "A:7401")), 200);
        assert_eq!(verdict(|r| second(r).header("host", "b:7401")), 400);
        assert_eq!(verdict(|r| r.version(Version::HTTP_2)), 400);
    }
}
