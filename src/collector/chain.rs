//! Whether the path of each call follows from the step that made it.
//!
//! The callee's sidecar tells by which ancestors a step came, and by which its own calls go on; a
//! call whose path does not go on from any attempt at its parent has been given another one on the
//! way, or was never made by it. Nothing is said where only one of the two has been told.

use super::attempt::{Attempt, Told};
use super::step::Step;
use crate::context::Links;
use crate::identity::Digest;
use crate::task::{Id, Reporter};
use std::collections::HashMap;

/// A call that came by another path than its parent's calls go by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Astray<'s> {
    pub(super) step_id: &'s Id,
    pub(super) call_id: &'s Id,
    pub(super) attempt: u32,
    /// What the newest attempt at the parent leads on by.
    pub(super) leads: Digest,
    pub(super) came: Digest,
}

/// Finds the calls whose path does not follow.
pub(super) fn astray<'s>(steps: &'s [Step<'_>]) -> Vec<Astray<'s>> {
    let mut leading: HashMap<&Id, Vec<[u8; 32]>> = HashMap::new();
    let told = |step: &'s Step<'_>| {
        let attempts = step.attempts.iter();
        attempts.filter_map(move |attempt| Some((step, attempt, links(attempt)?)))
    };
    for (step, _, links) in steps.iter().flat_map(told) {
        leading
            .entry(&step.call.step_id)
            .or_default()
            .push(links.leads);
    }
    let astray = |(step, attempt, links): (&'s Step<'_>, &Attempt<'_>, Links)| {
        let came = links.came?;
        let parent = attempt.by(Reporter::Callee)?.parent_step.as_ref()?;
        let leads = leading.get(parent)?;
        (!leads.contains(&came)).then_some(Astray {
            step_id: &step.call.step_id,
            call_id: &step.call.call_id,
            attempt: attempt.number,
            leads: Digest::from_bytes(*leads.last()?),
            came: Digest::from_bytes(came),
        })
    };
    steps.iter().flat_map(told).filter_map(astray).collect()
}

/// Reads what the callee's sidecar told of an attempt's path.
fn links(attempt: &Attempt<'_>) -> Option<Links> {
    let callee = |told: &&&Told| told.report.reporter == Reporter::Callee;
    let told = attempt.told().iter().find(callee)?;
    Links::parse(told.detail.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::super::attempt::tests::told;
    use super::super::step::steps;
    use super::*;
    use crate::context::{Member, Path};
    use crate::task::{State, Timestamp};

    fn member(step: &str) -> Member {
        let id = Id::parse(step).unwrap();
        Member::new(
            id,
            "a-v1.0@1.0.0".to_owned(),
            Timestamp::from_millis(1),
            [7; 32],
        )
    }

    /// The report of a step that came by `path`.
    fn by(path: &Path, step: &str) -> Vec<Told> {
        let states = [(State::Dispatched, 1), (State::Completed, 5)];
        let parent = path.parent().map(Id::as_str);
        let mut told = told(Reporter::Callee, &states).step(step, parent);
        told.detail = Some(Links::of(path, &member(step)).to_string());
        vec![told]
    }

    fn found(calls: &[Vec<Told>]) -> Vec<String> {
        let steps = steps(calls);
        astray(&steps)
            .iter()
            .map(|one| one.step_id.to_string())
            .collect()
    }

    #[test]
    fn a_path_that_does_not_follow_is_found() {
        let root = Path::default();
        let below = root.of_call(member("s-1"), &[]);
        let deeper = below.of_call(member("s-2"), &[]);
        let sound = [by(&root, "s-1"), by(&below, "s-2"), by(&deeper, "s-3")];
        assert!(found(&sound).is_empty());

        let elsewhere = root.of_call(member("s-0"), &[]);
        let forged = elsewhere.of_call(member("s-2"), &[]);
        let mut calls = sound.to_vec();
        calls.push(by(&forged, "s-4"));
        assert_eq!(found(&calls), ["s-4"]);

        // Of the parent nothing is known here, or only by a reporter that knows no paths.
        assert!(found(&[by(&deeper, "s-3")]).is_empty());
        let caller = told(Reporter::Caller, &[(State::Completed, 5)]).step("s-2", None);
        assert!(found(&[vec![caller], by(&forged, "s-4")]).is_empty());
    }
}
