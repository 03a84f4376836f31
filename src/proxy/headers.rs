//! Which header fields cross the proxy (RFC 9110 section 7.6.1).

use crate::context::header::{IDEMPOTENCY_KEY, PREFIX};
use crate::task::Id;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderValue, Uri, Version};
use std::net::IpAddr;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What `Connection` cannot take off a message: where it goes and ends, and what the rules of one
/// hop still have to read.
const STAYS: [HeaderName; 6] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, TE, UPGRADE];

/// Takes off a received request what `Connection` names, before anybody reads it or adds to it.
///
/// What we set later cannot be named any more: of `Connection` itself only `upgrade` is left.
pub fn take_off_named(headers: &mut HeaderMap) {
    if !headers.contains_key(CONNECTION) {
        return;
    }
    let named = named_by_connection(headers);
    for name in named.iter().filter(|name| !STAYS.contains(name)) {
        headers.remove(name);
    }
    match named.contains(&UPGRADE) {
        true => headers.insert(CONNECTION, HeaderValue::from_static("upgrade")),
        false => headers.remove(CONNECTION),
    };
}

/// Adds where a request came from to what it says of that itself, which nobody here decides by.
pub fn add_forwarded(headers: &mut HeaderMap, peer: IpAddr, scheme: &'static str) {
    let peer = peer.to_canonical();
    append_to_list(headers, FORWARDED_FOR, &peer.to_string());
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
    // Who reads this one would otherwise take the sender's word as the last (RFC 7239 section 4).
    if headers.contains_key(FORWARDED) {
        let node = match peer {
            IpAddr::V4(peer) => peer.to_string(),
            IpAddr::V6(peer) => format!("\"[{peer}]\""),
        };
        append_to_list(headers, FORWARDED, &format!("for={node};proto={scheme}"));
    }
}

/// Returns where a request came from, as `add_forwarded` has put it.
pub fn last_forwarded_for(headers: &HeaderMap) -> Option<&str> {
    let last = headers.get_all(FORWARDED_FOR).iter().next_back()?;
    let last = last.to_str().ok()?.rsplit(',').next()?.trim();
    (!last.is_empty()).then_some(last)
}

/// Removes where a request came from.
pub fn strip_forwarded(headers: &mut HeaderMap) {
    for name in [FORWARDED, FORWARDED_FOR, FORWARDED_PROTO] {
        headers.remove(name);
    }
}

/// Makes one line of a list's lines, in their order, with `last` behind them.
fn append_to_list(headers: &mut HeaderMap, name: HeaderName, last: &str) {
    let mut list = Vec::new();
    for line in headers.get_all(&name) {
        let line = line.as_bytes().trim_ascii();
        if !line.is_empty() {
            list.extend_from_slice(line);
            list.extend_from_slice(b", ");
        }
    }
    list.extend_from_slice(last.as_bytes());
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(name, list);
    }
}

/// Removes what concerns one connection only, first of all what `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // `TE: trailers` is the one value that means something to the next hop; `Connection` names
    // the field in any case (RFC 9110 section 10.1.4).
    let trailers = takes_trailers(headers);
    if headers.contains_key(CONNECTION) {
        for name in named_by_connection(headers) {
            // A request without Host would be none (RFC 9112 section 3.2).
            if name != HOST {
                headers.remove(&name);
            }
        }
        headers.remove(CONNECTION);
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(TE).iter();
    let mut codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Returns the protocol that a request asks to switch to, if it asks for one that may pass.
///
/// HTTP itself does not, under whatever name: RFC 9113 section 3.1 took `h2c` back, and behind
/// such a switch requests would hide from their checks. Nor does what is no protocol's name, which
/// a lenient server might read as one.
pub fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (Some(protocol), None) = (protocols.next(), protocols.next()) else {
        return None;
    };
    let mut names = protocol.as_bytes().split(|byte| *byte == b',');
    let may_pass = |name: &[u8]| is_protocol_beside_http(name.trim_ascii());
    let passes = names.all(may_pass) && named_by_connection(headers).contains(&UPGRADE);
    passes.then(|| protocol.clone())
}

/// `NAME` or `NAME/VERSION` (RFC 9110 section 7.8), both tokens.
fn is_protocol_beside_http(protocol: &[u8]) -> bool {
    let mut parts = protocol.splitn(2, |byte| *byte == b'/');
    let name = parts.next().unwrap_or_default();
    let is_token = |part: &[u8]| {
        let sound = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
        !part.is_empty() && part.iter().all(sound)
    };
    let is_http = |name: &[u8]| {
        let names: [&[u8]; 5] = [b"http", b"h2", b"h2c", b"h3", b"tls"];
        names.iter().any(|http| name.eq_ignore_ascii_case(http))
    };
    is_token(name) && parts.next().is_none_or(is_token) && !is_http(name)
}

/// Gives a message one Host: the target's authority where it names one (RFC 9112 section 3.2.2).
pub fn settle_host(headers: &mut HeaderMap, uri: &Uri) {
    let authority = uri.authority().map(|authority| authority.as_str());
    if let Some(host) = authority.and_then(|text| HeaderValue::from_str(text).ok()) {
        headers.insert(HOST, host);
    }
}

/// Leaves a message the length that its framing has: none beside a transfer coding, and one of
/// several equal ones (RFC 9112 section 6.3).
pub fn settle_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let first = headers.get(CONTENT_LENGTH).and_then(|lengths| {
        let first = lengths.as_bytes().split(|byte| *byte == b',').next()?;
        HeaderValue::from_bytes(first.trim_ascii()).ok()
    });
    if let Some(length) = first {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Removes every field of ours, and spellings that some servers fold into them (`hermes_task_id`,
/// `hermes.task.id`).
pub fn strip_context(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_ours(name.as_str()))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
}

fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix(PREFIX.trim_end_matches('-'));
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Drops a length that the body we send will state itself.
pub fn strip_length(headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
}

/// Adds this intermediary to `Via`, behind those before it.
pub fn add_via(headers: &mut HeaderMap, version: Version, name: &HeaderValue) {
    let protocol: &[u8] = match version {
        Version::HTTP_10 => b"1.0 ",
        Version::HTTP_2 => b"2.0 ",
        _ => b"1.1 ",
    };
    let mut entry = protocol.to_vec();
    entry.extend_from_slice(name.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&entry) {
        headers.append(VIA, value);
    }
}

/// Says whether `name` has passed the message on before.
pub fn has_passed(headers: &HeaderMap, name: &HeaderValue) -> bool {
    headers
        .get_all(VIA)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|entry| entry.trim_ascii().split(|byte| *byte == b' ').nth(1))
        .any(|by| by == name.as_bytes())
}

/// Says whether the media type is JSON: `application/json` or a `+json` suffix, whatever the
/// case and the parameters (RFC 9110 section 8.3.1, RFC 6839).
pub fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else {
        return false;
    };
    let bytes = value.as_bytes();
    let essence = bytes.split(|byte| *byte == b';').next().unwrap_or(bytes);
    let essence = essence.trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        return true;
    }
    let Some(slash) = essence.iter().position(|byte| *byte == b'/') else {
        return false;
    };
    let (kind, subtype) = (&essence[..slash], &essence[slash + 1..]);
    let is_token = |part: &[u8]| {
        let sound = |b: &u8| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(b);
        !part.is_empty() && part.iter().all(sound)
    };
    let suffix = subtype.len().checked_sub(5).map(|at| &subtype[at..]);
    is_token(kind)
        && is_token(subtype)
        && suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(b"+json"))
}

/// Says whether the content is coded (gzip and the like); `identity` is no coding.
pub fn is_coded(headers: &HeaderMap) -> bool {
    headers
        .get_all(http::header::CONTENT_ENCODING)
        .iter()
        .any(|value| {
            !value
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(b"identity")
        })
}

/// The application's idempotency key, bare, else the call's id.
pub fn idempotency_key(headers: &HeaderMap, call_id: &Id) -> Option<HeaderValue> {
    match headers.get(IDEMPOTENCY_KEY) {
        Some(given) => HeaderValue::from_bytes(bare(given.as_bytes())).ok(),
        None => HeaderValue::from_str(call_id.as_str()).ok(),
    }
}

/// The application's own idempotency key as text, bare.
pub fn own_idempotency_key(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(IDEMPOTENCY_KEY)?;
    let bare = bare(given.as_bytes());
    std::str::from_utf8(bare).ok().filter(|key| !key.is_empty())
}

/// Takes the quotes off a key that has them.
fn bare(key: &[u8]) -> &[u8] {
    let key = key.trim_ascii();
    let bare = key.strip_prefix(b"\"").and_then(|k| k.strip_suffix(b"\""));
    bare.unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn connection_takes_what_it_names_with_it() {
        let mut map = headers(&[
            ("connection", "close, X-One"),
            ("Connection", "x-two"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
        ]);
        strip_hop_by_hop(&mut map);
        let mut left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["te", "x-three"]);
    }

    #[test]
    fn http_is_no_protocol_to_switch_to_however_it_is_spelt() {
        for (protocol, passes) in [
            ("websocket", true),
            ("WebSocket/13", true),
            ("parrot, websocket", true),
            ("h2c", false),
            ("H2C", false),
            ("websocket, h2c", false),
            ("\"h2c\"", false),
            ("h2c/1", false),
            ("h2c;q=1", false),
            ("h2", false),
            ("HTTP/2.0", false),
            ("TLS/1.0", false),
            ("", false),
            (",", false),
        ] {
            let map = headers(&[("connection", "upgrade"), ("upgrade", protocol)]);
            assert_eq!(upgrade_of(&map).is_some(), passes, "{protocol}");
        }
        assert!(upgrade_of(&headers(&[("upgrade", "websocket")])).is_none());
    }

    #[test]
    fn what_is_set_later_is_not_named_any_more() {
        let mut map = headers(&[
            ("connection", "Upgrade, x-forwarded-for, host"),
            ("upgrade", "websocket"),
            ("host", "a.example"),
            ("x-forwarded-for", "192.0.2.1"),
        ]);
        take_off_named(&mut map);
        add_forwarded(&mut map, "::ffff:192.0.2.7".parse().unwrap(), "http");
        assert_eq!(map["connection"], "upgrade");
        strip_hop_by_hop(&mut map);
        assert_eq!(map["host"], "a.example");
        assert_eq!(map["x-forwarded-for"], "192.0.2.7");
        assert!(!map.contains_key("upgrade") && !map.contains_key("forwarded"));
    }

    #[test]
    fn lists_of_senders_grow_in_order() {
        let mut map = headers(&[
            ("x-forwarded-for", "10.0.0.9, unknown"),
            ("x-forwarded-for", ""),
            ("x-forwarded-for", "[2001:db8::1]:443"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=_x"),
        ]);
        add_forwarded(&mut map, "2001:db8::7".parse().unwrap(), "http");
        assert_eq!(
            map["x-forwarded-for"],
            "10.0.0.9, unknown, [2001:db8::1]:443, 2001:db8::7"
        );
        assert_eq!(map["x-forwarded-proto"], "http");
        assert_eq!(map["forwarded"], "for=_x, for=\"[2001:db8::7]\";proto=http");
    }

    #[test]
    fn host_and_length_are_settled() {
        let mut map = headers(&[("host", "a.example"), ("connection", "host")]);
        settle_host(&mut map, &Uri::from_static("http://b.example/x"));
        strip_hop_by_hop(&mut map);
        assert_eq!(map["host"], "b.example");
        let mut both = headers(&[("content-length", "1"), ("transfer-encoding", "chunked")]);
        settle_length(&mut both);
        assert!(!both.contains_key("content-length"));
        let mut twice = headers(&[("content-length", "3, 3")]);
        settle_length(&mut twice);
        assert_eq!(twice["content-length"], "3");
    }

    #[test]
    fn look_alikes_of_our_fields_go_too() {
        let mut map = headers(&[
            ("hermes-task-id", "a"),
            ("hermes_task_id", "forged"),
            ("hermes.task-id", "forged"),
            ("hermesian", "kept"),
            ("x-hermes", "kept"),
        ]);
        strip_context(&mut map);
        let mut left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["hermesian", "x-hermes"]);
    }

    #[test]
    fn json_by_media_type() {
        for (value, json) in [
            ("application/json", true),
            ("APPLICATION/JSON", true),
            ("application/json; charset=utf-8", true),
            ("application/json;", true),
            ("application/vnd.x+json", true),
            ("application/problem+JSON;v=1", true),
            ("text/json", false),
            ("text/plain", false),
            ("application/json, text/plain", false),
            ("application/jsonx", false),
            ("+json", false),
        ] {
            assert_eq!(
                is_json(&headers(&[("content-type", value)])),
                json,
                "{value}"
            );
        }
        assert!(!is_json(&HeaderMap::new()));
        let twice = [
            ("content-type", "application/json"),
            ("content-type", "application/json"),
        ];
        assert!(!is_json(&headers(&twice)));
        // Judged is the message that goes on: a type that `Connection` names stays behind.
        let mut left_behind = headers(&[
            ("content-type", "application/json"),
            ("connection", "close, Content-Type"),
        ]);
        take_off_named(&mut left_behind);
        assert!(!is_json(&left_behind));
    }

    #[test]
    fn via_grows_and_is_recognised() {
        let own = HeaderValue::from_static("hermes-fraud-1");
        let mut map = headers(&[("via", "1.1 first, 1.1 second")]);
        assert!(!has_passed(&map, &own));
        add_via(&mut map, Version::HTTP_11, &own);
        assert!(has_passed(&map, &own));
        assert!(has_passed(&map, &HeaderValue::from_static("second")));
    }
}
