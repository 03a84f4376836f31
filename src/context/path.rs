//! The path a task has walked so far, as it travels between sidecars.
//!
//! Oldest first: the ancestors of a call, then the finished calls its step made before. At most
//! 2 KiB. Past that:
//!
//! - the oldest ancestors go, and the list begins with how many went and a digest chained over
//!   them, so that a longer record can still be checked against it; the step that calls stays
//! - of the finished calls the newest fill the room that is left. They travel one hop only and
//!   nest nothing, so that those without room are no part of count and chain: the count is one
//!   of ancestors, and whoever makes many calls is not taken for a loop

use crate::task::{Id, Timestamp};
use http::HeaderValue;
use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser, StringRef, key_ref};

/// The longest path in bytes, as written: it travels in every call's header.
const LONGEST: usize = 2048;
/// What stands between two members.
const SEPARATOR: &str = ", ";

const AGENT: &KeyRef = key_ref("a");
const TIME: &KeyRef = key_ref("t");
const INPUT: &KeyRef = key_ref("i");
const OUTPUT: &KeyRef = key_ref("o");
const COUNT: &KeyRef = key_ref("n");
const CHAIN: &KeyRef = key_ref("c");

/// One step on the path; without an output it is still under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub step: Id,
    /// `ID@VERSION` of the contract that served it.
    pub agent: String,
    /// When it began, in whole seconds since the epoch.
    pub at: i64,
    pub input: [u8; 32],
    pub output: Option<[u8; 32]>,
}

impl Member {
    /// Describes a step that began at `at`; the wire keeps whole seconds.
    pub fn new(step: Id, agent: String, at: Timestamp, input: [u8; 32]) -> Self {
        Self {
            step,
            agent,
            at: (at.millis() / 1000) as i64,
            input,
            output: None,
        }
    }

    fn write(&self, list: &mut ListSerializer<String>) -> Option<()> {
        let step = StringRef::from_str(self.step.as_str()).ok()?;
        let agent = StringRef::from_str(&self.agent).ok()?;
        let at = sfv::Integer::try_from(self.at).ok()?;
        let member = list
            .bare_item(step)
            .parameter(AGENT, agent)
            .parameter(TIME, at)
            .parameter(INPUT, &self.input[..]);
        if let Some(output) = &self.output {
            member.parameter(OUTPUT, &output[..]);
        }
        Some(())
    }

    fn text(&self) -> Option<String> {
        let mut list = ListSerializer::new();
        self.write(&mut list)?;
        list.finish()
    }
}

/// What went from the front of a path that grew too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dropped {
    count: u64,
    chain: [u8; 32],
}

/// A path that fits its limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path {
    dropped: Option<Dropped>,
    members: Vec<Member>,
}

impl Path {
    /// Reads a list; `None` when it is malformed or too long.
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.len() > LONGEST {
            return None;
        }
        let list: List = Parser::new(value).parse().ok()?;
        let mut path = Self::default();
        for (index, entry) in list.into_iter().enumerate() {
            let ListEntry::Item(item) = entry else {
                return None;
            };
            let is_head = index == 0
                && matches!(&item.bare_item, BareItem::String(s) if s.as_str().is_empty());
            if is_head {
                path.dropped = Some(dropped(&item)?);
            } else {
                path.members.push(member(&item)?);
            }
        }
        Some(path)
    }

    /// Returns the path of a call made by `step`, which has finished the calls `made` before.
    pub fn of_call(&self, step: Member, made: &[Member]) -> Self {
        let ancestors = self.members.iter().filter(|member| member.output.is_none());
        let mut path = Self {
            dropped: self.dropped,
            members: ancestors.cloned().chain([step]).collect(),
        };
        path.shorten();
        path.fill(made);
        path
    }

    /// Returns the members that are still carried, oldest first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the step that made the call: the last ancestor.
    pub fn parent(&self) -> Option<&Id> {
        let mut ancestors = self.members.iter().rev().filter(|m| m.output.is_none());
        ancestors.next().map(|member| &member.step)
    }

    /// Counts the ancestors, those included that are carried no longer.
    pub fn depth(&self) -> usize {
        let carried = self.members.iter().filter(|m| m.output.is_none()).count();
        let dropped = self.dropped.map_or(0, |dropped| dropped.count);
        carried.saturating_add(usize::try_from(dropped).unwrap_or(usize::MAX))
    }

    /// Returns the digest chained over all ancestors, carried or not; `None` without any.
    ///
    /// It is the same however many of them are carried.
    pub fn chain(&self) -> Option<[u8; 32]> {
        let ancestors = self.members.iter().filter(|m| m.output.is_none());
        let before = self.dropped.map(|dropped| dropped.chain);
        ancestors.fold(before, |chain, member| Some(chained(chain, member)))
    }

    /// Returns the digest chained over all ancestors and `step`, as the calls of `step` have it.
    pub fn chain_through(&self, step: &Member) -> [u8; 32] {
        chained(self.chain(), step)
    }

    /// Writes the list; `None` when it is empty, since an empty list is no field.
    pub fn write(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.text()?).ok()
    }

    fn text(&self) -> Option<String> {
        let mut list = ListSerializer::new();
        if let Some(dropped) = &self.dropped {
            let count = sfv::Integer::try_from(dropped.count).ok()?;
            list.bare_item(StringRef::from_str("").ok()?)
                .parameter(COUNT, count)
                .parameter(CHAIN, &dropped.chain[..]);
        }
        for member in &self.members {
            member.write(&mut list)?;
        }
        list.finish()
    }

    fn length(&self) -> usize {
        self.text().map_or(0, |text| text.len())
    }

    /// Drops the oldest ancestors until the rest fits; the last one tells who calls.
    fn shorten(&mut self) {
        while self.members.len() > 1 && self.length() > LONGEST {
            let oldest = self.members.remove(0);
            let (count, chain) = match self.dropped {
                Some(dropped) => (dropped.count, Some(dropped.chain)),
                None => (0, None),
            };
            self.dropped = Some(Dropped {
                count: count.saturating_add(1),
                chain: chained(chain, &oldest),
            });
        }
    }

    /// Adds the newest of the finished calls, as many as there is room for.
    fn fill(&mut self, made: &[Member]) {
        let mut room = LONGEST.saturating_sub(self.length());
        let fits = |member: &&Member| {
            let needs = member.text().map_or(LONGEST, |text| text.len()) + SEPARATOR.len();
            room.checked_sub(needs)
                .inspect(|left| room = *left)
                .is_some()
        };
        let count = made.iter().rev().take_while(fits).count();
        self.members.extend_from_slice(&made[made.len() - count..]);
    }
}

/// Puts one more member at the end of a chain of digests.
fn chained(before: Option<[u8; 32]>, member: &Member) -> [u8; 32] {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(before.as_ref().map_or(&[], |before| &before[..]));
    bytes.extend_from_slice(member.text().unwrap_or_default().as_bytes());
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
    let mut chain = [0; 32];
    chain.copy_from_slice(digest.as_ref());
    chain
}

fn digest(item: &Item, key: &KeyRef) -> Option<[u8; 32]> {
    match item.params.get(key)? {
        BareItem::ByteSequence(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    }
}

fn integer(item: &Item, key: &KeyRef) -> Option<i64> {
    match item.params.get(key)? {
        BareItem::Integer(number) => Some(i64::from(*number)),
        _ => None,
    }
}

fn dropped(item: &Item) -> Option<Dropped> {
    let count = u64::try_from(integer(item, COUNT)?).ok()?;
    Some(Dropped {
        // A record of none would be no record.
        count: (count > 0).then_some(count)?,
        chain: digest(item, CHAIN)?,
    })
}

fn member(item: &Item) -> Option<Member> {
    let (BareItem::String(step), BareItem::String(agent)) =
        (&item.bare_item, item.params.get(AGENT)?)
    else {
        return None;
    };
    let output = match item.params.get(OUTPUT) {
        Some(_) => Some(digest(item, OUTPUT)?),
        None => None,
    };
    Some(Member {
        step: Id::parse(step.as_str()).ok()?,
        agent: super::AgentName::parse(agent.as_str()).map(|_| agent.as_str().to_owned())?,
        at: integer(item, TIME)?,
        input: digest(item, INPUT)?,
        output,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(n: usize, done: bool) -> Member {
        Member {
            step: Id::parse(&format!("step-{n}")).unwrap(),
            agent: format!("agent-{n}-v1.0@1.0.0"),
            at: 1_700_000_000 + n as i64,
            input: [n as u8; 32],
            output: done.then_some([255 - n as u8; 32]),
        }
    }

    #[test]
    fn written_as_documented() {
        let path = Path::default().of_call(step(1, false), &[step(2, true)]);
        let text = path.write().unwrap();
        let text = text.to_str().unwrap();
        assert!(text.starts_with(r#""step-1";a="agent-1-v1.0@1.0.0";t=1700000001;i=:AQEB"#));
        assert!(text.contains(";o=:"));
    }

    #[test]
    fn finished_calls_of_an_ancestor_do_not_travel_further() {
        let at_parent = Path::default().of_call(step(1, false), &[step(2, true)]);
        let at_child = at_parent.of_call(step(3, false), &[]);
        let steps: Vec<&str> = at_child.members().iter().map(|m| m.step.as_str()).collect();
        assert_eq!(steps, ["step-1", "step-3"]);
    }

    #[test]
    fn long_paths_keep_their_end_and_a_chain() {
        let mut path = Path::default();
        for n in 0..40 {
            path = path.of_call(step(n, false), &[]);
        }
        let text = path.write().unwrap();
        assert!(text.len() <= LONGEST);
        let dropped = path.dropped.unwrap();
        assert_eq!(dropped.count as usize + path.members.len(), 40);
        let mut chain: Vec<u8> = Vec::new();
        for n in 0..dropped.count as usize {
            let mut input = chain.clone();
            input.extend_from_slice(step(n, false).text().unwrap().as_bytes());
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &input);
            chain = digest.as_ref().to_vec();
        }
        assert_eq!(chain, dropped.chain);
    }

    #[test]
    fn finished_calls_take_only_the_room_that_ancestors_leave() {
        let mut at_caller = Path::default();
        for n in 0..9 {
            at_caller = at_caller.of_call(step(n, false), &[]);
        }
        let made: Vec<Member> = (10..74).map(|n| step(n, true)).collect();
        let path = at_caller.of_call(step(9, false), &made);
        let text = path.write().unwrap();
        assert!(text.len() <= LONGEST && text.len() > LONGEST - 150);
        let received = Path::parse(text.as_bytes()).unwrap();
        assert_eq!(received.dropped, None);
        assert_eq!(received.parent().unwrap().as_str(), "step-9");
        assert_eq!(received.depth(), 10);
        let finished = &received.members()[10..];
        assert!(!finished.is_empty());
        assert_eq!(finished, &made[made.len() - finished.len()..], "the newest");
        assert_eq!(received.of_call(step(2, false), &made).depth(), 11);
    }

    #[test]
    fn a_path_too_long_still_tells_who_calls_and_how_deep() {
        let long = |n: usize| Member {
            step: Id::parse(&format!("{n:0>128}")).unwrap(),
            agent: format!("{}@{}", "a".repeat(128), "1".repeat(128)),
            ..step(n, false)
        };
        let mut path = Path::default();
        for n in 1..=40 {
            path = path.of_call(long(n), &[step(99, true)]);
            let text = path.write().unwrap();
            assert!(text.len() <= LONGEST);
            let received = Path::parse(text.as_bytes()).unwrap();
            assert_eq!(received.depth(), n);
            assert_eq!(received.parent(), Some(&long(n).step));
            path = received;
        }
    }

    #[test]
    fn the_chain_is_the_same_however_much_is_carried() {
        let mut path = Path::default();
        assert_eq!(path.chain(), None);
        let mut chain = None;
        for n in 0..40 {
            path = path.of_call(step(n, false), &[step(99, true)]);
            chain = Some(chained(chain, &step(n, false)));
            assert_eq!(path.chain(), chain);
        }
        assert!(path.dropped.is_some());
        let mut forged = path.clone();
        forged.members[0].input = [7; 32];
        assert_ne!(forged.chain(), path.chain());
    }

    #[test]
    fn malformed_records_are_refused() {
        let chain = format!("c=:{}=:", "A".repeat(43));
        let good = format!("\"\";n=3;{chain}");
        assert_eq!(Path::parse(good.as_bytes()).unwrap().depth(), 3);
        for bad in [
            format!("\"\";n=0;{chain}"),
            format!("\"\";n=-1;{chain}"),
            format!("\"\";n=1.5;{chain}"),
            format!("\"\";{chain}"),
            "\"\";n=3".to_owned(),
            "\"\";n=3;c=:AAAA:".to_owned(),
            format!("{good}, {good}"),
        ] {
            assert_eq!(Path::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn written_paths_read_back(ancestors in 0usize..20, made in 0usize..64) {
            let mut path = Path::default();
            for n in 0..ancestors {
                path = path.of_call(step(n, false), &[]);
            }
            let made: Vec<Member> = (0..made).map(|n| step(100 + n, true)).collect();
            path = path.of_call(step(99, false), &made);
            let text = path.write().unwrap();
            prop_assert_eq!(Path::parse(text.as_bytes()), Some(path));
        }
    }
}
