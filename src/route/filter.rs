//! Whether an instance may serve a call at all.

use super::cohort::Cohort;
use std::time::Duration;

/// Marks a tag as the property of one team.
const TEAM: &str = "team-";
/// Both spellings of the tag that keeps an instance for calls that ask for it.
const CANARY: [&str; 2] = ["canary", "tag-canary"];

/// What a call asks of an instance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// The call's region, else the calling sidecar's; empty fits all.
    pub region: &'a str,
    pub utc_offset: &'a str,
    pub required_tags: &'a [String],
    /// The calling sidecar's own team, without `team-`; empty when it has none.
    pub team: &'a str,
    /// A deadline that this very call names; an inherited one only shortens the attempt.
    pub deadline: Option<Duration>,
    /// Canary: only canaries serve it, as far as nothing else keeps it from them.
    pub cohort: Cohort,
}

/// What an instance and its contract offer.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub tags: &'a [String],
    /// Regions the contract lists; none listed means everywhere.
    pub regions: &'a [String],
    pub utc_offsets: &'a [String],
    pub timeout: Duration,
}

/// Why an instance may not serve a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("the contract does not list the region")]
    Region,
    #[error("the contract does not list the UTC offset")]
    UtcOffset,
    #[error("a required tag is missing")]
    Tags,
    #[error("the instance belongs to another team")]
    Team,
    #[error("the instance is a canary, and the call neither asked for one nor was picked")]
    Canary,
    #[error("the instance is no canary, and the call was picked for those that fit")]
    Stable,
    #[error("the contract's timeout is longer than the call's deadline")]
    Timeout,
}

impl Candidate<'_> {
    /// Says for which calls the instance is kept.
    pub fn cohort(&self) -> Cohort {
        if is_canary(self.tags) {
            Cohort::Canary
        } else {
            Cohort::Stable
        }
    }
}

/// A call that asks for the instances of a team that is not its sidecar's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tag team-{asked} may only be required by a sidecar with team = \"{asked}\"")]
pub struct ForeignTeam {
    pub asked: String,
}

impl Query<'_> {
    /// Refuses a call that asks for another team's instances; a sidecar without a team may ask.
    pub fn check_team(&self) -> Result<(), ForeignTeam> {
        if self.team.is_empty() {
            return Ok(());
        }
        let teams = self
            .required_tags
            .iter()
            .filter_map(|tag| tag.strip_prefix(TEAM));
        match teams.into_iter().find(|asked| *asked != self.team) {
            Some(asked) => Err(ForeignTeam {
                asked: asked.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Says why `candidate` may not serve the call, if it may not.
    pub fn misfit(&self, candidate: &Candidate<'_>) -> Option<Misfit> {
        if !lists(candidate.regions, self.region) {
            return Some(Misfit::Region);
        }
        if !lists(candidate.utc_offsets, self.utc_offset) {
            return Some(Misfit::UtcOffset);
        }
        if !self
            .required_tags
            .iter()
            .all(|tag| carries(candidate.tags, tag))
        {
            return Some(Misfit::Tags);
        }
        if !self.may_use_teams_of(candidate.tags) {
            return Some(Misfit::Team);
        }
        if self
            .deadline
            .is_some_and(|deadline| candidate.timeout > deadline)
        {
            return Some(Misfit::Timeout);
        }
        match (self.cohort, candidate.cohort()) {
            (Cohort::Stable, Cohort::Canary) if !is_canary(self.required_tags) => {
                Some(Misfit::Canary)
            }
            (Cohort::Canary, Cohort::Stable) => Some(Misfit::Stable),
            _ => None,
        }
    }

    /// Team instances are for calls of that team alone: our own, or one the call asks for by tag.
    fn may_use_teams_of(&self, tags: &[String]) -> bool {
        let mut teams = tags.iter().filter(|tag| tag.starts_with(TEAM)).peekable();
        if teams.peek().is_none() {
            return true;
        }
        teams.any(|tag| tag[TEAM.len()..] == *self.team || has(self.required_tags, tag))
    }
}

fn lists(listed: &[String], asked: &str) -> bool {
    listed.is_empty() || asked.is_empty() || has(listed, asked)
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|entry| entry == wanted)
}

/// Says whether a required tag is among the tags; each spelling of a canary stands for both.
fn carries(tags: &[String], required: &str) -> bool {
    has(tags, required) || (CANARY.contains(&required) && is_canary(tags))
}

fn is_canary(tags: &[String]) -> bool {
    CANARY.iter().any(|spelling| has(tags, spelling))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    struct Case {
        tags: &'static [&'static str],
        regions: &'static [&'static str],
        asked: (&'static str, &'static [&'static str], &'static str),
        deadline: Option<u64>,
        misfit: Option<Misfit>,
    }

    #[test]
    fn fitting_is_a_table() {
        let case = |tags, regions, asked, deadline, misfit| Case {
            tags,
            regions,
            asked,
            deadline,
            misfit,
        };
        let cn: &[&str] = &["cn-east-1"];
        let none: &[&str] = &[];
        for (n, case) in [
            case(none, none, ("", none, ""), None, None),
            case(none, cn, ("", none, ""), None, None),
            case(none, cn, ("cn-east-1", none, ""), None, None),
            case(
                none,
                cn,
                ("us-west-2", none, ""),
                None,
                Some(Misfit::Region),
            ),
            case(&["gpu"], none, ("", &["gpu"], ""), None, None),
            case(none, none, ("", &["gpu"], ""), None, Some(Misfit::Tags)),
            case(&["team-a"], none, ("", none, ""), None, Some(Misfit::Team)),
            case(&["team-a"], none, ("", none, "b"), None, Some(Misfit::Team)),
            case(&["team-a"], none, ("", none, "a"), None, None),
            case(&["team-a"], none, ("", &["team-a"], ""), None, None),
            case(none, none, ("", none, "a"), None, None),
            case(
                &["canary"],
                none,
                ("", none, ""),
                None,
                Some(Misfit::Canary),
            ),
            case(
                &["tag-canary"],
                none,
                ("", none, ""),
                None,
                Some(Misfit::Canary),
            ),
            case(&["canary"], none, ("", &["canary"], ""), None, None),
            case(&["canary"], none, ("", &["tag-canary"], ""), None, None),
            case(&["tag-canary"], none, ("", &["canary"], ""), None, None),
            case(none, none, ("", &["canary"], ""), None, Some(Misfit::Tags)),
            case(
                &["canary", "team-a"],
                none,
                ("", &["canary"], ""),
                None,
                Some(Misfit::Team),
            ),
            case(none, none, ("", none, ""), Some(499), Some(Misfit::Timeout)),
            case(none, none, ("", none, ""), Some(500), None),
        ]
        .into_iter()
        .enumerate()
        {
            let (region, required, team) = case.asked;
            let (tags, regions) = (texts(case.tags), texts(case.regions));
            let required = texts(required);
            let query = Query {
                region,
                required_tags: &required,
                team,
                deadline: case.deadline.map(Duration::from_millis),
                ..Query::default()
            };
            let candidate = Candidate {
                tags: &tags,
                regions: &regions,
                utc_offsets: &[],
                timeout: Duration::from_millis(500),
            };
            assert_eq!(query.misfit(&candidate), case.misfit, "case {n}");
        }
    }

    #[test]
    fn a_call_of_the_canary_cohort_fits_canaries_alone() {
        let (canary, stable, gpu) = (texts(&["canary", "gpu"]), texts(&["gpu"]), texts(&["gpu"]));
        let candidate = |tags| Candidate {
            tags,
            regions: &[],
            utc_offsets: &[],
            timeout: Duration::from_millis(500),
        };
        let query = Query {
            cohort: Cohort::Canary,
            required_tags: &gpu,
            ..Query::default()
        };
        assert_eq!(query.misfit(&candidate(&canary)), None);
        assert_eq!(query.misfit(&candidate(&stable)), Some(Misfit::Stable));
        // What keeps everybody from an instance is told first.
        assert_eq!(query.misfit(&candidate(&[])), Some(Misfit::Tags));
        let late = Query {
            deadline: Some(Duration::from_millis(1)),
            ..query
        };
        assert_eq!(late.misfit(&candidate(&canary)), Some(Misfit::Timeout));
    }

    #[test]
    fn another_teams_instances_cannot_be_asked_for() {
        let required = texts(&["team-b"]);
        let mut query = Query {
            required_tags: &required,
            team: "a",
            ..Query::default()
        };
        assert_eq!(query.check_team().unwrap_err().asked, "b");
        for team in ["b", ""] {
            query.team = team;
            assert_eq!(query.check_team(), Ok(()), "team {team:?}");
        }
    }
}
