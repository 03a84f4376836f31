//! Two tasks side by side: where the second went another way than the first.
//!
//! A pure function of the reports. Steps are paired by the id their caller gave them, else by what
//! was asked of whom: the same agent below the same parent, with the same input if there is one.
//! Bodies are never kept, so digests alone say whether two are the same.

use super::attempt::{Attempt, Told, newest};
use super::step::{Step, leading, steps};
use crate::task::{Id, State, Timestamp};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Serialize)]
pub(super) struct Comparison<'a> {
    task_id: &'a Id,
    other_task_id: &'a Id,
    /// Whether no step differs in anything but its times.
    same: bool,
    verdict: String,
    state: Both<State>,
    duration_ms: Both<Option<u64>>,
    /// The place in `steps` of the first that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<usize>,
    steps: Vec<Row<'a>>,
}

/// What one task has, and what the other has.
#[derive(Debug, Serialize)]
struct Both<T> {
    task: T,
    other: T,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    agent: &'a str,
    differs: Vec<Difference>,
    input: Likeness,
    output: Likeness,
    task: Option<Side<'a>>,
    other: Option<Side<'a>>,
}

/// One step in one of the tasks, as its newest attempt left it.
#[derive(Debug, Serialize)]
struct Side<'a> {
    step_id: &'a Id,
    agent: &'a str,
    agent_version: &'a str,
    instance: &'a str,
    state: State,
    degraded: bool,
    attempts: usize,
    duration_ms: u64,
    input_digest: Option<&'a str>,
    output_digest: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Likeness {
    Equal,
    Different,
    /// One of the digests was never told.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Difference {
    /// Only one of the tasks has such a step.
    Missing,
    Input,
    Output,
    State,
    Version,
    Degraded,
}

/// Compares two tasks by their reports, grouped by call; `None` if one of them has none.
pub(super) fn compare<'a>(
    task: &'a [Vec<Told>],
    other: &'a [Vec<Told>],
    now: Timestamp,
) -> Option<Comparison<'a>> {
    let task_id = &task.first()?.first()?.report.task_id;
    let other_task_id = &other.first()?.first()?.report.task_id;
    let (left, right) = (steps(task), steps(other));
    let rows: Vec<Row<'a>> = pairs(&left, &right)
        .into_iter()
        .filter_map(|(one, two)| Row::of(one, two))
        .collect();
    let first = rows.iter().position(|row| !row.differs.is_empty());
    Some(Comparison {
        task_id,
        other_task_id,
        same: first.is_none(),
        verdict: verdict(first.and_then(|place| rows.get(place))),
        state: Both {
            task: leading(&left)?.call.state,
            other: leading(&right)?.call.state,
        },
        duration_ms: Both {
            task: took(&left, now),
            other: took(&right, now),
        },
        first_difference: first,
        steps: rows,
    })
}

/// Returns how long a task took, or has taken so far.
fn took(steps: &[Step<'_>], now: Timestamp) -> Option<u64> {
    let from = steps.iter().map(|step| step.call.started_at).min()?;
    let ends = steps.iter().map(|step| step.call.ended_at.unwrap_or(now));
    Some(from.age(ends.max()?).as_millis() as u64)
}

type Pair<'s, 'a> = (Option<&'s Step<'a>>, Option<&'s Step<'a>>);

/// Pairs steps in the order of the first task; what only the second has stands where it began.
fn pairs<'s, 'a>(left: &'s [Step<'a>], right: &'s [Step<'a>]) -> Vec<Pair<'s, 'a>> {
    let mut pairing = Pairing::new(left, right);
    pairing.pair(0..left.len(), |_, one, two| {
        one.call.step_id == two.call.step_id
    });
    // Parents first: where a step belongs is told by whose partner its parent is.
    for level in levels(left) {
        let in_place = |pairing: &Pairing<'_, '_>, one: &Step<'_>, two: &Step<'_>| {
            one.call.agent == two.call.agent && pairing.has_equal_parents(one, two)
        };
        pairing.pair(level.iter().copied(), |pairing, one, two| {
            in_place(pairing, one, two) && has_equal_input(one, two)
        });
        pairing.pair(level.iter().copied(), in_place);
    }
    pairing.pair(0..left.len(), |_, one, two| {
        one.call.agent == two.call.agent
    });
    pairing.rows()
}

/// Groups the places of steps by how deep they lie, the roots first.
fn levels(steps: &[Step<'_>]) -> Vec<Vec<usize>> {
    let mut rest: Vec<usize> = (0..steps.len()).collect();
    let mut levels = Vec::new();
    while !rest.is_empty() {
        let waiting: HashSet<&Id> = rest.iter().map(|at| &steps[*at].call.step_id).collect();
        let is_below = |at: &usize| {
            let parent = steps[*at].call.parent_step.as_ref();
            parent.is_some_and(|parent| waiting.contains(parent))
        };
        let (below, level): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(is_below);
        if level.is_empty() {
            // Ids come from outside; a circle has no top.
            levels.push(below);
            break;
        }
        levels.push(level);
        rest = below;
    }
    levels
}

/// Which step of the one task stands for which of the other, so far.
struct Pairing<'s, 'a> {
    left: &'s [Step<'a>],
    right: &'s [Step<'a>],
    partner: Vec<Option<usize>>,
    is_taken: Vec<bool>,
    /// By step of the first task, the step that is its partner.
    by_id: HashMap<&'s Id, &'s Id>,
    /// Steps of the second task.
    others: HashSet<&'s Id>,
}

impl<'s, 'a> Pairing<'s, 'a> {
    fn new(left: &'s [Step<'a>], right: &'s [Step<'a>]) -> Self {
        Self {
            left,
            right,
            partner: vec![None; left.len()],
            is_taken: vec![false; right.len()],
            by_id: HashMap::new(),
            others: right.iter().map(|step| &step.call.step_id).collect(),
        }
    }

    /// Pairs those of `places` that have no partner with the first that fits and is free.
    fn pair(
        &mut self,
        places: impl IntoIterator<Item = usize>,
        fits: impl Fn(&Self, &Step<'a>, &Step<'a>) -> bool,
    ) {
        for place in places {
            if self.partner[place].is_some() {
                continue;
            }
            let one = &self.left[place];
            let mut free = (0..self.right.len()).filter(|at| !self.is_taken[*at]);
            if let Some(at) = free.find(|at| fits(self, one, &self.right[*at])) {
                self.partner[place] = Some(at);
                self.is_taken[at] = true;
                self.by_id
                    .insert(&one.call.step_id, &self.right[at].call.step_id);
            }
        }
    }

    /// Says whether the parents of two steps are partners, or neither has one that is known.
    fn has_equal_parents(&self, one: &Step<'_>, two: &Step<'_>) -> bool {
        match (&one.call.parent_step, &two.call.parent_step) {
            (None, None) => true,
            (Some(one), Some(two)) => match self.by_id.get(one) {
                Some(partner) => *partner == two,
                None => !self.others.contains(two),
            },
            _ => false,
        }
    }

    fn rows(self) -> Vec<Pair<'s, 'a>> {
        let (right, is_taken) = (self.right, self.is_taken);
        let mut rows: Vec<Pair<'s, 'a>> = Vec::with_capacity(self.left.len());
        let mut next = 0;
        for (one, partner) in self.left.iter().zip(self.partner) {
            if let Some(at) = partner {
                let alone = (next..at).filter(|between| !is_taken[*between]);
                rows.extend(alone.map(|between| (None, Some(&right[between]))));
                next = next.max(at + 1);
            }
            rows.push((Some(one), partner.map(|at| &right[at])));
        }
        let rest = (next..right.len()).filter(|at| !is_taken[*at]);
        rows.extend(rest.map(|at| (None, Some(&right[at]))));
        rows
    }
}

fn has_equal_input(one: &Step<'_>, two: &Step<'_>) -> bool {
    let input = |step: &Step<'_>| {
        let attempt = newest(&step.attempts);
        attempt
            .and_then(|attempt| attempt.input_digest())
            .map(str::to_owned)
    };
    input(one).is_some() && input(one) == input(two)
}

impl<'a> Row<'a> {
    fn of(one: Option<&Step<'a>>, two: Option<&Step<'a>>) -> Option<Self> {
        let (task, other) = (one.and_then(Side::of), two.and_then(Side::of));
        let agent = task.as_ref().or(other.as_ref())?.agent;
        let (input, output, differs) = match (&task, &other) {
            (Some(task), Some(other)) => {
                let input = Likeness::of(task.input_digest, other.input_digest);
                let output = Likeness::of(task.output_digest, other.output_digest);
                (input, output, differences(task, other, input, output))
            }
            _ => (
                Likeness::Unknown,
                Likeness::Unknown,
                vec![Difference::Missing],
            ),
        };
        Some(Self {
            agent,
            differs,
            input,
            output,
            task,
            other,
        })
    }
}

fn differences(
    task: &Side<'_>,
    other: &Side<'_>,
    input: Likeness,
    output: Likeness,
) -> Vec<Difference> {
    let found = [
        (input == Likeness::Different, Difference::Input),
        (output == Likeness::Different, Difference::Output),
        (task.state != other.state, Difference::State),
        (
            task.agent_version != other.agent_version,
            Difference::Version,
        ),
        (task.degraded != other.degraded, Difference::Degraded),
    ];
    let found = found.into_iter().filter(|(differs, _)| *differs);
    found.map(|(_, difference)| difference).collect()
}

impl<'a> Side<'a> {
    fn of(step: &Step<'a>) -> Option<Self> {
        let attempt: &Attempt<'a> = newest(&step.attempts)?;
        let report = attempt.decisive;
        Some(Self {
            step_id: &report.step_id,
            agent: step.attempts.first()?.agent(),
            agent_version: &report.agent_version,
            instance: attempt.instance(),
            state: attempt.state,
            degraded: step.call.degraded,
            attempts: step.attempts.len(),
            duration_ms: report.duration_ms,
            input_digest: attempt.input_digest(),
            output_digest: attempt.output_digest(),
        })
    }
}

impl Likeness {
    fn of(one: Option<&str>, two: Option<&str>) -> Self {
        match (one, two) {
            (Some(one), Some(two)) if one == two => Self::Equal,
            (Some(_), Some(_)) => Self::Different,
            _ => Self::Unknown,
        }
    }
}

/// Says in words where the ways part.
fn verdict(first: Option<&Row<'_>>) -> String {
    let Some(row) = first else {
        return "no step differs".to_owned();
    };
    let (task, other) = (&row.task, &row.other);
    let id = task.as_ref().or(other.as_ref());
    let name = id.map(|side| format!("step {} ({})", side.step_id, row.agent));
    let name = name.unwrap_or_default();
    let (Some(task), Some(other)) = (task, other) else {
        let which = if task.is_some() { "first" } else { "second" };
        return format!("the ways part at {name}: only the {which} task has it");
    };
    let has = |difference| row.differs.contains(&difference);
    let what = match () {
        () if has(Difference::Input) => "it was given another input".to_owned(),
        () if has(Difference::State) => format!(
            "{} in the first task, {} in the second",
            task.state, other.state
        ),
        () if has(Difference::Output) && row.input == Likeness::Equal => {
            "the same input gave another output".to_owned()
        }
        () if has(Difference::Output) => "it gave another output".to_owned(),
        () if has(Difference::Version) => format!(
            "version {} in the first task, {} in the second",
            task.agent_version, other.agent_version
        ),
        () => "only one of them was degraded".to_owned(),
    };
    format!("the ways part at {name}: {what}")
}

#[cfg(test)]
mod tests {
    use super::super::attempt::tests::told;
    use super::*;
    use crate::task::Reporter::Caller;
    use State::{Completed, FailedExecution, Pending};
    use serde_json::{Value, json};

    /// A step of a task: id, agent, begin, digests of input and output.
    type Sketched<'a> = (&'a str, &'a str, u64, &'a str, &'a str);

    fn task(id: &str, steps: &[Sketched<'_>]) -> Vec<Vec<Told>> {
        let call = |(step, agent, at, input, output): &Sketched<'_>| {
            let end = if output.is_empty() {
                FailedExecution
            } else {
                Completed
            };
            let told = told(Caller, &[(Pending, *at), (end, at + 5)]);
            vec![told.with(|report| {
                report.task_id = Id::parse(id).unwrap();
                report.call_id = Id::parse(&format!("{id}-{step}")).unwrap();
                report.step_id = Id::parse(step).unwrap();
                report.agent = (*agent).into();
                report.input_digest = Some((*input).into());
                report.output_digest = (!output.is_empty()).then(|| (*output).into());
            })]
        };
        steps.iter().map(call).collect()
    }

    fn compared(one: &[Sketched<'_>], two: &[Sketched<'_>]) -> Value {
        let (one, two) = (task("t-1", one), task("t-2", two));
        let comparison = compare(&one, &two, Timestamp::from_millis(1_000)).unwrap();
        serde_json::to_value(comparison).unwrap()
    }

    #[test]
    fn where_two_ways_part() {
        const ONE: [Sketched<'_>; 3] = [
            ("s1", "a-v1.0", 0, "i1", "o1"),
            ("s2", "b-v1.0", 10, "o1", "o2"),
            ("s3", "c-v1.0", 20, "o2", "o3"),
        ];
        let with = |place: usize, step| {
            let mut two = ONE;
            two[place] = step;
            two
        };
        for (two, first, verdict) in [
            (ONE, None, "no step differs"),
            (
                with(1, ("s2", "b-v1.0", 10, "o1", "x")),
                Some(1),
                "the ways part at step s2 (b-v1.0): the same input gave another output",
            ),
            (
                with(1, ("s2", "b-v1.0", 10, "x", "x")),
                Some(1),
                "the ways part at step s2 (b-v1.0): it was given another input",
            ),
            (
                with(2, ("s3", "c-v1.0", 20, "o2", "")),
                Some(2),
                "the ways part at step s3 (c-v1.0): completed in the first task, failed_execution in the second",
            ),
            (
                with(2, ("s9", "d-v1.0", 20, "o2", "o3")),
                Some(2),
                "the ways part at step s3 (c-v1.0): only the first task has it",
            ),
        ] {
            let got = compared(&ONE, &two);
            assert_eq!(got["verdict"], verdict);
            assert_eq!(
                got.get("first_difference").cloned(),
                first.map(|at| json!(at))
            );
            assert_eq!(got["same"], first.is_none());
        }
    }

    #[test]
    fn steps_with_minted_ids_are_paired_by_agent_and_input() {
        // The two calls of `b` went out side by side, in the other order the second time.
        let one = [
            ("m1", "a-v1.0", 0, "i1", "o1"),
            ("m2", "b-v1.0", 10, "x", "ox"),
            ("m3", "b-v1.0", 11, "y", "oy"),
        ];
        let two = [
            ("n1", "a-v1.0", 0, "i1", "o1"),
            ("n2", "b-v1.0", 10, "y", "oy"),
            ("n3", "b-v1.0", 11, "x", "ox"),
        ];
        let got = compared(&one, &two);
        assert_eq!(got["same"], true, "{got}");
        assert_eq!(got["steps"][1]["other"]["step_id"], "n3");
        assert_eq!(got["steps"][2]["other"]["step_id"], "n2");
    }

    #[test]
    fn equal_steps_are_paired_below_the_same_parent() {
        let below = |mut task: Vec<Vec<Told>>, parents: [usize; 2]| {
            for (call, parent) in [3, 4].into_iter().zip(parents) {
                let parent = task[parent][0].report.step_id.clone();
                task[call][0].report.parent_step = Some(parent);
            }
            task
        };
        // Two of `b`, each of which calls `c`: the other way round the second time.
        let steps = |ids: [&'static str; 5]| {
            [
                (ids[0], "a-v1.0", 0, "i", "o"),
                (ids[1], "b-v1.0", 1, "x", "ox"),
                (ids[2], "b-v1.0", 2, "y", "oy"),
                (ids[3], "c-v1.0", 10, "i", "o"),
                (ids[4], "c-v1.0", 11, "i", "o"),
            ]
        };
        let one = task("t-1", &steps(["m1", "m2", "m3", "m4", "m5"]));
        let two = task("t-2", &steps(["n1", "n2", "n3", "n4", "n5"]));
        let (one, two) = (below(one, [1, 2]), below(two, [2, 1]));
        let got = compare(&one, &two, Timestamp::from_millis(1_000)).unwrap();
        let got = serde_json::to_value(got).unwrap();
        assert_eq!(got["steps"][3]["other"]["step_id"], "n5", "{got}");
        assert_eq!(got["steps"][4]["other"]["step_id"], "n4", "{got}");
    }

    #[test]
    fn a_step_of_the_second_task_alone_stands_where_it_began() {
        let one = [
            ("m1", "a-v1.0", 0, "i", "o"),
            ("m2", "c-v1.0", 20, "i", "o"),
        ];
        let two = [
            ("n1", "a-v1.0", 0, "i", "o"),
            ("n2", "b-v1.0", 10, "i", "o"),
            ("n3", "c-v1.0", 20, "i", "o"),
        ];
        let got = compared(&one, &two);
        let agents: Vec<&str> = got["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["agent"].as_str().unwrap())
            .collect();
        assert_eq!(agents, ["a-v1.0", "b-v1.0", "c-v1.0"]);
        assert_eq!(got["steps"][1]["task"], Value::Null);
        assert_eq!(got["first_difference"], 1);
        assert_eq!(compared(&two, &one)["steps"][1]["other"], Value::Null);
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        let one = task("t-1", &[("s1", "a-v1.0", 0, "i", "o")]);
        assert!(compare(&one, &[], Timestamp::now()).is_none());
        assert!(compare(&[], &one, Timestamp::now()).is_none());
    }
}
