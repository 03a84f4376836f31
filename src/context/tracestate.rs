//! `tracestate`, the list that travels beside `traceparent` (W3C Trace Context section 3.3).
//!
//! - members of others keep their order; ours stands first, and is taken off by whoever reads it:
//!   it goes from a sidecar to its application and back, never further
//! - a list with a malformed member or more than 32 of them is dropped whole, of two members with
//!   one key the first stays
//! - at most 32 members and 512 characters go out: long members make room first, then the last

use super::token::{Claim, LENGTH, Token};
use http::{HeaderValue, header::GetAll};

/// The key of our member.
const KEY: &str = "hermes";
const MOST_MEMBERS: usize = 32;
const LONGEST: usize = 512;
/// Members longer than this are the first to make room.
const LONG: usize = 128;
const LONGEST_KEY: usize = 256;
const LONGEST_VALUE: usize = 256;

/// The members of others in one `tracestate`, sound and in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    others: Vec<String>,
}

impl State {
    /// Reads all lines of the field, and what our own member claims.
    pub fn read(lines: GetAll<'_, HeaderValue>) -> (Self, Claim) {
        let mut others = Some(Vec::new());
        let mut claim = Claim::Nothing;
        let members = lines
            .iter()
            .flat_map(|line| line.as_bytes().split(|b| *b == b','));
        for member in members.map(trimmed).filter(|member| !member.is_empty()) {
            let Some((key, value)) = split(member) else {
                others = None;
                continue;
            };
            if key == KEY {
                claim = match (claim, Token::parse(value)) {
                    (Claim::Nothing, Some(token)) => Claim::Step(token),
                    // Of two, either may be meant.
                    _ => Claim::Foreign,
                };
            } else if let Some(others) = &mut others {
                keep(others, key, value);
            }
        }
        let sound = others.filter(|others: &Vec<String>| others.len() <= MOST_MEMBERS);
        let others = sound.unwrap_or_default();
        (Self { others }, claim)
    }

    /// Writes the list, with our member first; `None` when it is empty.
    pub fn write(&self, token: Option<Token>) -> Option<HeaderValue> {
        let own = token.map(|token| format!("{KEY}={token}"));
        let mut members: Vec<&str> = own.iter().chain(&self.others).map(String::as_str).collect();
        // The last one was changed longest ago.
        members.truncate(MOST_MEMBERS);
        while length(&members) > LONGEST {
            let long = members.iter().rposition(|member| member.len() > LONG);
            members.remove(long.unwrap_or(members.len() - 1));
        }
        if members.is_empty() {
            return None;
        }
        HeaderValue::try_from(members.join(",")).ok()
    }
}

/// Takes our member off one line and leaves the rest as it is; `None` when nothing is left.
pub fn without_ours(line: &HeaderValue) -> Option<HeaderValue> {
    let is_ours = |member: &&[u8]| {
        let rest = trimmed(member).strip_prefix(KEY.as_bytes());
        rest.is_some_and(|rest| trimmed(rest).starts_with(b"="))
    };
    let members = line.as_bytes().split(|byte| *byte == b',');
    let left: Vec<&[u8]> = members.filter(|member| !is_ours(member)).collect();
    let left = HeaderValue::from_bytes(&left.join(&b','));
    left.ok().filter(|left| !left.is_empty())
}

fn length(members: &[&str]) -> usize {
    let commas = members.len().saturating_sub(1);
    members.iter().map(|member| member.len()).sum::<usize>() + commas
}

/// Takes a member in unless there is one with its key; past the limit one more tells of it.
fn keep(others: &mut Vec<String>, key: &str, value: &str) {
    let has_key = |member: &String| {
        let rest = member.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with('='))
    };
    if others.len() <= MOST_MEMBERS && !others.iter().any(has_key) {
        others.push(format!("{key}={value}"));
    }
}

/// Takes off the white space that may stand around a member.
fn trimmed(member: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = member.iter().position(|byte| !is_space(byte));
    let end = member.iter().rposition(|byte| !is_space(byte));
    match (begin, end) {
        (Some(begin), Some(end)) => &member[begin..=end],
        _ => &[],
    }
}

/// Takes a member apart; `None` when it is malformed.
fn split(member: &[u8]) -> Option<(&str, &str)> {
    let (key, value) = std::str::from_utf8(member).ok()?.split_once('=')?;
    let is_begin = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_key = |byte: u8| is_begin(&byte) || b"_-*/@".contains(&byte);
    let is_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=';
    let fits = key.as_bytes().first().is_some_and(is_begin)
        && key.len() <= LONGEST_KEY
        && key.bytes().all(is_key)
        && (1..=LONGEST_VALUE).contains(&value.len())
        && value.bytes().all(is_value);
    fits.then_some((key, value))
}

// Ours alone always fits.
const _: () = assert!(KEY.len() + 1 + LENGTH <= LONG);

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn read(lines: &[&str]) -> (State, Claim) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(
                "tracestate",
                HeaderValue::from_bytes(line.as_bytes()).unwrap(),
            );
        }
        State::read(headers.get_all("tracestate"))
    }

    fn written(lines: &[&str], token: Option<Token>) -> String {
        let value = read(lines).0.write(token);
        value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn others_keep_their_order_behind_ours() {
        let token = Token::draw();
        for (lines, kept) in [
            (&["a=1,b=2"][..], "a=1,b=2"),
            (&["b=2", "a=1"], "b=2,a=1"),
            (&[" a=1 ,\tb=x y ", ""], "a=1,b=x y"),
            (&["tenant@vendor=1,0a/*_-=~!"], "tenant@vendor=1,0a/*_-=~!"),
            (&["a=1,b=2,a=3"], "a=1,b=2"),
            (&["a=1,ab=2"], "a=1,ab=2"),
            // One malformed member makes the list unsound.
            (&["a=1,B=2"], ""),
            (&["a=1,b"], ""),
            (&["a=1,b="], ""),
            (&["a=1,=2"], ""),
            (&["a=1,b=2=3"], ""),
            (&["a=1,b=\u{e9}"], ""),
            (&["a=1,b c=2"], ""),
            (&[""], ""),
            (&[], ""),
        ] {
            assert_eq!(written(lines, None), kept, "{lines:?}");
            let ours = format!("hermes={token}");
            let both = [ours.as_str(), kept].join(if kept.is_empty() { "" } else { "," });
            assert_eq!(written(lines, Some(token)), both, "{lines:?}");
        }
    }

    #[test]
    fn at_most_thirty_two_members_and_512_characters_go_out() {
        let members = |count: usize| (0..count).map(|n| format!("k{n}={n}")).collect::<Vec<_>>();
        let token = Some(Token::draw());
        let full = members(32).join(",");
        assert_eq!(written(&[&full], None), full);
        let with_ours = written(&[&full], token);
        assert_eq!(with_ours.split(',').count(), 32);
        assert!(with_ours.starts_with("hermes=") && with_ours.ends_with(",k30=30"));
        assert_eq!(written(&[&members(33).join(",")], None), "");

        let long = format!("long={}", "x".repeat(140));
        let short = |key: &str| format!("{key}={}", "y".repeat(118));
        let lines = [short("a"), long, short("b"), short("c"), short("d")].join(",");
        let kept = [short("a"), short("b"), short("c"), short("d")].join(",");
        assert_eq!(written(&[&lines], None), kept);
        let kept = [short("a"), short("b"), short("c")].join(",");
        let with_ours = written(&[&lines], token);
        assert_eq!(with_ours.split_once(',').unwrap().1, kept);
    }

    #[test]
    fn our_member_is_read_and_never_kept() {
        let token = Token::draw();
        let ours = format!("hermes={token}");
        let step = Claim::Step(token);
        for (lines, claim) in [
            (vec!["a=1"], Claim::Nothing),
            (vec![ours.as_str(), "a=1"], step),
            (vec!["a=1", ours.as_str()], step),
            (vec!["MALFORMED", ours.as_str()], step),
            (vec!["hermes=1", "a=1"], Claim::Foreign),
            (vec![ours.as_str(), ours.as_str(), "a=1"], Claim::Foreign),
        ] {
            let (state, found) = read(&lines);
            assert_eq!(found, claim, "{lines:?}");
            let sent = state.write(None);
            let sent = sent.as_ref().map_or("", |value| value.to_str().unwrap());
            assert!(!sent.contains(KEY), "{sent}");
        }
    }

    #[test]
    fn the_rest_of_a_line_stays_as_it_is() {
        for (line, left) in [
            ("a=1, b= ,X", Some("a=1, b= ,X")),
            ("hermes=1", None),
            ("a=1, hermes=1 ,b=2", Some("a=1,b=2")),
            ("hermes = 1,hermes2=1", Some("hermes2=1")),
        ] {
            let left_over = without_ours(&HeaderValue::from_static(line));
            assert_eq!(left_over, left.map(HeaderValue::from_static), "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_goes_out_reads_back_the_same(lines in proptest::collection::vec("[ -~\\t]{0,60}", 0..6)) {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let (state, _) = read(&lines);
            let token = Token::draw();
            let sent = state.write(Some(token)).unwrap();
            let sent = sent.to_str().unwrap();
            prop_assert!(sent.len() <= LONGEST && sent.split(',').count() <= MOST_MEMBERS);
            let (again, claim) = read(&[sent]);
            prop_assert_eq!(claim, Claim::Step(token));
            prop_assert!(state.others.starts_with(&again.others));
        }
    }
}
