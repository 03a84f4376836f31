//! Request targets: which spellings are taken, and which are two readings of one path.
//!
//! Decisions and forwarding use the same string, the one received; a path that others might read
//! differently is refused instead of being repaired (RFC 3986 sections 3.3 and 6.2.2).

use http::Uri;

/// Returns the target as an origin server is sent it: an absolute one may leave the path out, also
/// before a query (RFC 9112 section 3.2.1).
pub fn origin(uri: &Uri) -> String {
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    match target.starts_with('/') || target == "*" {
        true => target.to_owned(),
        false => format!("/{target}"),
    }
}

/// Says whether a path is free of dot segments, broken escapes and NUL.
pub fn is_plain(path: &str) -> bool {
    if !escapes_are_sound(path) {
        return false;
    }
    // Encoded separators count: a server that decodes before it looks for dots would find them.
    // A parameter does not make `..;x` another segment for the servers that strip it.
    let decoded = decoded(path);
    let mut segments = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    !segments.any(|segment| {
        let name = segment.split(|byte| *byte == b';').next();
        matches!(name, Some(b"." | b".."))
    })
}

fn escapes_are_sound(path: &str) -> bool {
    let bytes = path.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'%') {
        let start = at + found + 1;
        match bytes.get(start..start + 2) {
            Some(b"00") | None => return false,
            Some(pair) if !pair.iter().all(u8::is_ascii_hexdigit) => return false,
            Some(_) => at = start + 2,
        }
    }
    true
}

/// Reduces a path to what a lenient server might read: decoded, lower case, single slashes,
/// no parameters, no trailing slash.
pub fn reduced(path: &str) -> String {
    let decoded = decoded(path);
    let decoded = String::from_utf8_lossy(&decoded).to_lowercase();
    let segments = decoded
        .split(['/', '\\'])
        .map(|s| s.split(';').next().unwrap_or(s));
    let kept: Vec<&str> = segments.filter(|segment| !segment.is_empty()).collect();
    format!("/{}", kept.join("/"))
}

/// Decodes every sound escape, once.
fn decoded(path: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        match escaped(rest) {
            Some(byte) => {
                decoded.push(byte);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}

/// Reads an escape at the start of `rest`.
fn escaped(rest: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = rest else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(*high)? * 16 + digit(*low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_needs_no_path() {
        let origin = |uri: &str| origin(&uri.parse().unwrap());
        assert_eq!(origin("http://a?q=1"), "/?q=1");
        assert_eq!(origin("http://a"), "/");
        assert_eq!(origin("//b/x?q"), "//b/x?q");
        assert_eq!(origin("/a%2Fb?"), "/a%2Fb?");
        assert_eq!(origin("*"), "*");
    }

    #[test]
    fn ambiguous_paths_are_not_plain() {
        for (path, plain) in [
            ("/api/v1/risk", true),
            ("/v1/a%2Fb", true),
            ("/v1/a+b%20c", true),
            ("//evil.example/invoke", true),
            ("/v1/..x/y", true),
            ("/v1/.../y", true),
            ("/v1/%2e%2e/admin", false),
            ("/v1/%2E./admin", false),
            ("/v1/./invoke", false),
            ("/v1/..", false),
            ("/v1/..;x/admin", false),
            ("/v1/%zz", false),
            ("/v1/%0", false),
            ("/v1/%", false),
            ("/v1/%00", false),
            ("/pass/..%2finvoke", false),
            ("/a%2f..%2Finvoke", false),
            ("/.%2finvoke", false),
            ("/pass/..%5cinvoke", false),
            ("/pass\\..\\invoke", false),
            ("/pass/..%3bx/invoke", false),
            ("/invoke%2f..", false),
        ] {
            assert_eq!(is_plain(path), plain, "{path}");
        }
    }

    #[test]
    fn spellings_of_one_path_reduce_to_one() {
        for path in [
            "/api/v1/risk",
            "/api/v1/risk/",
            "/API/v1/Risk",
            "//api//v1/risk",
            "/api/v1/risk;a=b",
            "/api;x/v1/risk",
            "/api/v1/%72isk",
            "/api%2Fv1/risk",
            "/api\\v1\\risk",
        ] {
            assert_eq!(reduced(path), "/api/v1/risk", "{path}");
        }
        assert_eq!(reduced("/a%zzb"), "/a%zzb");
    }
}
