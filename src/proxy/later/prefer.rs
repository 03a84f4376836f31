//! What a request prefers of its reply (RFC 7240).

use http::header::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

pub const PREFER: HeaderName = HeaderName::from_static("prefer");
pub const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
pub const RESPOND_ASYNC: HeaderValue = HeaderValue::from_static("respond-async");

/// The preferences that mean something here; a malformed one is none (RFC 7240 section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefer {
    pub respond_async: bool,
    /// How long the sender would wait for the whole reply.
    pub wait: Option<Duration>,
}

impl Prefer {
    /// Reads the preferences; of one that is stated twice the first counts.
    pub fn read(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        for preference in preferences(headers) {
            match name(&preference) {
                name if name.eq_ignore_ascii_case("respond-async") => prefer.respond_async = true,
                name if name.eq_ignore_ascii_case("wait") && prefer.wait.is_none() => {
                    prefer.wait = seconds(&preference);
                }
                _ => {}
            }
        }
        prefer
    }

    /// Takes off what is answered here; other preferences are the application's.
    pub fn take(headers: &mut HeaderMap) -> Self {
        let prefer = Self::read(headers);
        if !prefer.respond_async {
            return prefer;
        }
        let is_ours = |name: &str| {
            name.eq_ignore_ascii_case("respond-async") || name.eq_ignore_ascii_case("wait")
        };
        let left: Vec<String> = preferences(headers)
            .filter(|preference| !is_ours(name(preference)))
            .collect();
        headers.remove(PREFER);
        if let Ok(left) = HeaderValue::try_from(left.join(", "))
            && !left.is_empty()
        {
            headers.insert(PREFER, left);
        }
        prefer
    }
}

/// Splits the lines at their commas, but not within quotes.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let lines = headers.get_all(PREFER).iter();
    let texts = lines.filter_map(|line| line.to_str().ok());
    let mut found = Vec::new();
    for text in texts {
        let (mut quoted, mut escaped, mut piece) = (false, false, String::new());
        for letter in text.chars() {
            match letter {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                ',' if !quoted => {
                    found.push(std::mem::take(&mut piece));
                    continue;
                }
                _ => {}
            }
            piece.push(letter);
        }
        found.push(piece);
    }
    let trimmed = found.into_iter().map(|piece| piece.trim().to_owned());
    trimmed.filter(|piece| !piece.is_empty())
}

fn name(preference: &str) -> &str {
    let end = preference.find(['=', ';']).unwrap_or(preference.len());
    preference[..end].trim()
}

fn seconds(preference: &str) -> Option<Duration> {
    let value = preference.split(';').next()?.split_once('=')?.1.trim();
    let digits = value
        .strip_prefix('"')
        .and_then(|inner| inner.strip_suffix('"'))
        .unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // More digits than fit mean longer than any bound.
    Some(Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().map(|line| HeaderValue::from_static(line));
        lines.map(|line| (PREFER, line)).collect()
    }

    #[test]
    fn preferences_are_read() {
        for (lines, respond_async, wait) in [
            (&[][..], false, None),
            (&["respond-async"], true, None),
            (&["Respond-Async , wait=10"], true, Some(10)),
            (
                &["wait=\"5\"", "respond-async; foo=\"a, b\""],
                true,
                Some(5),
            ),
            (&["wait=1, wait=2"], false, Some(1)),
            (&["wait=x, respond-async=\"\""], true, None),
            (&["return=minimal; respond-async"], false, None),
            (&["x=\"respond-async, wait=3\""], false, None),
            (&["wait=-1"], false, None),
            (&["wait=99999999999999999999999"], false, Some(u64::MAX)),
        ] {
            let wait = wait.map(Duration::from_secs);
            let prefer = Prefer {
                respond_async,
                wait,
            };
            assert_eq!(Prefer::read(&headers(lines)), prefer, "{lines:?}");
        }
    }

    #[test]
    fn what_is_answered_here_goes_no_further() {
        for (lines, left) in [
            (&["respond-async, wait=10"][..], None),
            (
                &["return=minimal, wait=3", "respond-async, x=\"a, b\""],
                Some("return=minimal, x=\"a, b\""),
            ),
            (&["wait=3, return=minimal"], Some("wait=3, return=minimal")),
        ] {
            let mut headers = headers(lines);
            Prefer::take(&mut headers);
            let told = headers.get(PREFER).map(|value| value.to_str().unwrap());
            assert_eq!(told, left, "{lines:?}");
        }
    }
}
