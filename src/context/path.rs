//! The path a task has walked so far, as it travels between sidecars.
//!
//! Oldest first: the ancestors of a call, then the finished calls its step made before. At most
//! 2 KiB: past that the oldest members go, and the list begins with how many went and a digest
//! chained over them, so that a longer record can still be checked against it. Where finished
//! calls are among them, `d` says how many were ancestors: only those make a path deep.

use crate::task::{Id, Timestamp};
use http::HeaderValue;
use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser, StringRef, key_ref};

/// The longest path in bytes, as written: it travels in every call's header.
const LONGEST: usize = 2048;

const AGENT: &KeyRef = key_ref("a");
const TIME: &KeyRef = key_ref("t");
const INPUT: &KeyRef = key_ref("i");
const OUTPUT: &KeyRef = key_ref("o");
const COUNT: &KeyRef = key_ref("n");
const CHAIN: &KeyRef = key_ref("c");
const DEPTH: &KeyRef = key_ref("d");

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
    /// How many of them were ancestors; the others are finished calls, which nest nothing.
    ancestors: u64,
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
            members: ancestors
                .cloned()
                .chain([step])
                .chain(made.iter().cloned())
                .collect(),
        };
        path.shorten();
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
        let dropped = self.dropped.map_or(0, |dropped| dropped.ancestors);
        carried + usize::try_from(dropped).unwrap_or(usize::MAX / 2)
    }

    /// Writes the list; `None` when it is empty, since an empty list is no field.
    pub fn write(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.text()?).ok()
    }

    fn text(&self) -> Option<String> {
        let mut list = ListSerializer::new();
        if let Some(dropped) = &self.dropped {
            let count = sfv::Integer::try_from(dropped.count).ok()?;
            let head = list
                .bare_item(StringRef::from_str("").ok()?)
                .parameter(COUNT, count)
                .parameter(CHAIN, &dropped.chain[..]);
            if dropped.ancestors != dropped.count {
                let ancestors = sfv::Integer::try_from(dropped.ancestors).ok()?;
                head.parameter(DEPTH, ancestors);
            }
        }
        for member in &self.members {
            member.write(&mut list)?;
        }
        list.finish()
    }

    fn shorten(&mut self) {
        while self.text().is_some_and(|text| text.len() > LONGEST) && !self.members.is_empty() {
            let oldest = self.members.remove(0);
            self.drop_member(&oldest);
        }
    }

    fn drop_member(&mut self, member: &Member) {
        let mut chained = Vec::with_capacity(256);
        if let Some(dropped) = &self.dropped {
            chained.extend_from_slice(&dropped.chain);
        }
        chained.extend_from_slice(member.text().unwrap_or_default().as_bytes());
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &chained);
        let mut chain = [0; 32];
        chain.copy_from_slice(digest.as_ref());
        let (count, ancestors) = self.dropped.map_or((0, 0), |d| (d.count, d.ancestors));
        self.dropped = Some(Dropped {
            count: count.saturating_add(1),
            ancestors: ancestors.saturating_add(u64::from(member.output.is_none())),
            chain,
        });
    }
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
    let ancestors = match item.params.get(DEPTH) {
        Some(_) => u64::try_from(integer(item, DEPTH)?).ok()?,
        None => count,
    };
    (ancestors <= count).then_some(())?;
    Some(Dropped {
        count,
        ancestors,
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
    fn finished_calls_do_not_deepen_a_path() {
        let made: Vec<Member> = (10..74).map(|n| step(n, true)).collect();
        let path = Path::default().of_call(step(1, false), &made);
        assert!(path.dropped.is_some());
        let text = path.write().unwrap();
        let received = Path::parse(text.as_bytes()).unwrap();
        assert_eq!(received.depth(), 1);
        assert_eq!(received.of_call(step(2, false), &made).depth(), 2);
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
