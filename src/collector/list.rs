//! Which tasks a list shows, and where its next page begins.

use crate::task::{SlaLevel, State, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const USUAL_LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 1_000;

/// The query of a list as it comes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    state: Option<String>,
    agent: Option<String>,
    application: Option<String>,
    sla: Option<String>,
    since: Option<String>,
    min_ms: Option<u64>,
    limit: Option<usize>,
    after: Option<String>,
}

/// What a list asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    states: Vec<State>,
    agent: Option<String>,
    application: Option<String>,
    sla_level: Option<SlaLevel>,
    since: Option<Timestamp>,
    least: Duration,
    limit: usize,
    /// The start and id of the last task seen.
    after: Option<(Timestamp, String)>,
}

/// One task in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct TaskLine {
    pub(super) task_id: String,
    pub(super) state: State,
    pub(super) agent: String,
    pub(super) application: String,
    pub(super) sla_level: SlaLevel,
    pub(super) started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<Timestamp>,
    pub(super) degraded: bool,
}

/// The tasks found so far, and where to go on.
#[derive(Debug)]
pub(super) struct Page {
    filter: Filter,
    tasks: Vec<TaskLine>,
    looked: usize,
    is_last: bool,
}

/// The body of the reply.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    tasks: Vec<TaskLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Query {
    /// Reads the values; an error says which parameter is wrong.
    pub(super) fn filter(self, now: Timestamp) -> Result<Filter, String> {
        let states = self.state.iter().flat_map(|names| names.split(','));
        let states = states.map(|name| {
            State::from_wire(name).ok_or_else(|| format!("state: there is no {name:?}"))
        });
        let sla_level = self.sla.map(|name| {
            SlaLevel::from_wire(&name).ok_or_else(|| "sla: P0, P1, P2 or P3".to_owned())
        });
        let limit = self.limit.unwrap_or(USUAL_LIMIT);
        if !(1..=LARGEST_LIMIT).contains(&limit) {
            return Err(format!("limit: 1 to {LARGEST_LIMIT}"));
        }
        Ok(Filter {
            states: states.collect::<Result<_, _>>()?,
            agent: self.agent,
            application: self.application,
            sla_level: sla_level.transpose()?,
            since: self.since.map(|text| since(&text, now)).transpose()?,
            least: Duration::from_millis(self.min_ms.unwrap_or(0)),
            limit,
            after: self.after.map(|text| cursor(&text)).transpose()?,
        })
    }
}

/// Reads an instant (RFC 3339) or a length before now, such as `15m`.
fn since(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(now.minus(ago));
    }
    let quoted = serde_json::Value::from(text);
    serde_json::from_value(quoted)
        .map_err(|_error| "since: a time (RFC 3339) or a length such as 15m".to_owned())
}

fn cursor(text: &str) -> Result<(Timestamp, String), String> {
    let parts = text.split_once('.');
    let parsed = parts.and_then(|(millis, id)| {
        let at = Timestamp::from_millis(millis.parse().ok()?);
        Some((at, id.to_owned()))
    });
    parsed.ok_or_else(|| "after: the next of a page before".to_owned())
}

impl Filter {
    /// Returns where the page begins: everything before this start and id.
    pub(super) fn cursor(&self) -> (Timestamp, &str) {
        match &self.after {
            Some((at, id)) => (*at, id),
            None => (Timestamp::from_millis(u64::MAX), ""),
        }
    }

    fn takes(&self, line: &TaskLine, now: Timestamp) -> bool {
        let is = |wish: &Option<String>, value: &str| wish.as_deref().is_none_or(|w| w == value);
        let took = line.started_at.age(line.ended_at.unwrap_or(now));
        (self.states.is_empty() || self.states.contains(&line.state))
            && is(&self.agent, &line.agent)
            && is(&self.application, &line.application)
            && self.sla_level.is_none_or(|level| level == line.sla_level)
            && took >= self.least
    }
}

impl Page {
    pub(super) fn new(filter: Filter) -> Self {
        Self {
            filter,
            tasks: Vec::new(),
            looked: 0,
            is_last: false,
        }
    }

    /// Looks at the next older task; returns whether the page wants more.
    pub(super) fn look(&mut self, line: TaskLine, now: Timestamp) -> bool {
        if self
            .filter
            .since
            .is_some_and(|since| line.started_at < since)
        {
            self.is_last = true;
            return false;
        }
        self.looked += 1;
        self.filter.after = Some((line.started_at, line.task_id.clone()));
        if self.filter.takes(&line, now) {
            self.tasks.push(line);
        }
        self.tasks.len() < self.filter.limit
    }

    pub(super) fn looked(&self) -> usize {
        self.looked
    }

    /// Notes that there are no older tasks.
    pub(super) fn exhaust(&mut self) {
        self.is_last = true;
    }

    /// Returns the filter for the tasks still wanted; `None` when the page is done.
    pub(super) fn rest(&self) -> Option<Filter> {
        let missing = self.filter.limit.saturating_sub(self.tasks.len());
        (missing > 0 && !self.is_last).then(|| Filter {
            limit: missing,
            ..self.filter.clone()
        })
    }

    /// Adds the tasks that `rest` led to.
    pub(super) fn extend(&mut self, more: Page) {
        self.tasks.extend(more.tasks);
        self.filter.after = more.filter.after;
        self.is_last = more.is_last;
    }

    pub(super) fn listing(self) -> Listing {
        let next = self.filter.after.filter(|_| !self.is_last);
        Listing {
            tasks: self.tasks,
            next: next.map(|(at, id)| format!("{}.{id}", at.millis())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn query(text: &str) -> Result<Filter, String> {
        let query: Query = serde_json::from_str(text).map_err(|error| error.to_string())?;
        query.filter(Timestamp::from_millis(NOW))
    }

    fn line(state: State, started_at: u64, ended_at: Option<u64>) -> TaskLine {
        TaskLine {
            task_id: format!("task-{started_at}"),
            state,
            agent: "fraud-v1.0".into(),
            application: "shop".into(),
            sla_level: SlaLevel::P1,
            started_at: Timestamp::from_millis(started_at),
            ended_at: ended_at.map(Timestamp::from_millis),
            degraded: false,
        }
    }

    #[test]
    fn every_filter_decides() {
        let done = line(State::Completed, NOW - 5_000, Some(NOW - 4_900));
        let open = line(State::Executing, NOW - 5_000, None);
        for (text, takes_done, takes_open) in [
            ("{}", true, true),
            (r#"{"state":"completed"}"#, true, false),
            (r#"{"state":"timeout,executing"}"#, false, true),
            (
                r#"{"agent":"fraud-v1.0","application":"shop","sla":"P1"}"#,
                true,
                true,
            ),
            (r#"{"agent":"fraud"}"#, false, false),
            (r#"{"application":"pay"}"#, false, false),
            (r#"{"sla":"P0"}"#, false, false),
            (r#"{"min_ms":100}"#, true, true),
            (r#"{"min_ms":101}"#, false, true),
            (r#"{"min_ms":5001}"#, false, false),
        ] {
            let filter = query(text).unwrap();
            let now = Timestamp::from_millis(NOW);
            assert_eq!(filter.takes(&done, now), takes_done, "{text}");
            assert_eq!(filter.takes(&open, now), takes_open, "{text}");
        }
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, named) in [
            (r#"{"state":"done"}"#, "state"),
            (r#"{"sla":"P9"}"#, "sla"),
            (r#"{"since":"yesterday"}"#, "since"),
            (r#"{"limit":0}"#, "limit"),
            (r#"{"limit":1001}"#, "limit"),
            (r#"{"after":"x"}"#, "after"),
            (r#"{"agnet":"x"}"#, "agnet"),
        ] {
            let error = query(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn since_is_an_instant_or_a_length() {
        for (text, millis) in [
            (r#"{"since":"10s"}"#, NOW - 10_000),
            (r#"{"since":"1970-01-01T00:00:01Z"}"#, 1_000),
            (r#"{"since":"99999days"}"#, 0),
        ] {
            let since = query(text).unwrap().since;
            assert_eq!(since, Some(Timestamp::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_page_ends_at_its_limit_and_tells_where_to_go_on() {
        let now = Timestamp::from_millis(NOW);
        let mut page = Page::new(query(r#"{"limit":2}"#).unwrap());
        assert!(page.look(line(State::Completed, 30, None), now));
        assert!(!page.look(line(State::Completed, 20, None), now));
        assert_eq!(page.rest(), None);
        let listing = page.listing();
        let next = listing.next.unwrap();
        assert_eq!(
            cursor(&next),
            Ok((Timestamp::from_millis(20), "task-20".to_owned()))
        );

        let mut page = Page::new(query(r#"{"since":"1970-01-01T00:00:00.025Z"}"#).unwrap());
        assert!(page.look(line(State::Completed, 30, None), now));
        assert!(!page.look(line(State::Completed, 20, None), now));
        assert_eq!(page.listing().next, None);
    }
}
