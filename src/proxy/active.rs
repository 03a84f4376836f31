//! The steps being served here right now, and which of them an outbound call belongs to.
//!
//! An application that calls others while it serves a task names the task (or the step) in a
//! header; the call then inherits what belongs to the task. Never a guess: where more than one
//! step fits, the call joins the task without a parent.

use crate::context::{Fields, Ids, Member, Path};
use crate::task::{Deadline, Id, SlaLevel, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// How many finished calls of one step are remembered for its path; older ones are left out.
const MOST_MADE: usize = 64;

/// A step that this sidecar's application is working on.
#[derive(Debug)]
pub struct Step {
    pub task_id: Id,
    pub step_id: Id,
    pub call_id: Id,
    /// The contract it serves.
    pub agent: String,
    pub began_at: Timestamp,
    pub attempt: u32,
    pub sla_level: SlaLevel,
    pub requester: Option<String>,
    pub scenario: Option<String>,
    pub region: Option<String>,
    pub utc_offset: Option<String>,
    pub trace_id: Option<Id>,
    pub deadline: Deadline,
    /// The ancestors it came with.
    pub path: Path,
    /// This step as a member of its calls' paths.
    pub member: Member,
    made: Mutex<Vec<Member>>,
}

/// What a call inherits.
#[derive(Debug, Clone)]
pub enum Parent {
    /// The step that makes the call.
    Step(Arc<Step>),
    /// Of several steps of the task, the one with the latest deadline: the parent is not known.
    Task(Arc<Step>),
    /// The call begins a task of its own, or joins one that is not served here.
    None,
}

impl Step {
    /// Describes a step that has made no calls yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "one value per field of the context"
    )]
    pub fn new(
        ids: Ids,
        agent: String,
        began_at: Timestamp,
        fields: &Fields,
        deadline: Deadline,
        member: Member,
        path: Path,
        trace_id: Option<Id>,
    ) -> Self {
        Self {
            task_id: ids.task_id,
            step_id: ids.step_id,
            call_id: ids.call_id,
            attempt: ids.attempt,
            agent,
            began_at,
            sla_level: fields.sla_level.unwrap_or_default(),
            requester: fields.requester.clone(),
            scenario: fields.scenario.clone(),
            region: fields.region.clone(),
            utc_offset: fields.utc_offset.clone(),
            trace_id,
            deadline,
            path,
            member,
            made: Mutex::default(),
        }
    }

    /// Returns the path of a call that this step makes now.
    pub fn path_of_call(&self) -> Path {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        self.path.of_call(self.member.clone(), &made)
    }

    /// Shows the step to whoever looks on.
    pub fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "task_id": self.task_id,
            "step_id": self.step_id,
            "call_id": self.call_id,
            "attempt": self.attempt,
            "agent": self.agent,
            "sla_level": self.sla_level,
            "requester": self.requester,
            "began_at": self.began_at,
            "left_ms": self.deadline.left(Instant::now()).as_millis() as u64,
        })
    }

    /// Remembers a call of this step that has finished.
    pub fn made(&self, call: Member) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.len() == MOST_MADE {
            made.remove(0);
        }
        made.push(call);
    }
}

/// All steps being served; as many as calls are in flight, which the listener bounds.
#[derive(Debug, Default)]
pub struct Active {
    by_task: Mutex<HashMap<Id, Vec<Arc<Step>>>>,
}

/// Takes its step out of the set when dropped.
#[derive(Debug)]
pub struct Serving {
    active: Arc<Active>,
    step: Arc<Step>,
}

impl Active {
    /// Enters a step for as long as the returned value lives.
    pub fn enter(self: &Arc<Self>, step: Step) -> Serving {
        let step = Arc::new(step);
        let mut tasks = self.by_task.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = tasks.entry(step.task_id.clone()).or_default();
        steps.push(step.clone());
        Serving {
            active: self.clone(),
            step,
        }
    }

    /// Finds what a call with these fields belongs to.
    pub fn parent_of(&self, fields: &Fields) -> Parent {
        let tasks = self.by_task.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |step: &&Arc<Step>| {
            fields.call_id.as_ref() == Some(&step.call_id)
                || fields.step_id.as_ref() == Some(&step.step_id)
        };
        let Some(task_id) = &fields.task_id else {
            // Without a task the ids themselves must find the step. A step id is its caller's own
            // and may occur in two tasks; a call id is unique.
            let called = |step: &&Arc<Step>| fields.call_id.as_ref() == Some(&step.call_id);
            let mut found = tasks.values().flatten().filter(named);
            let only = match (found.clone().find(called), found.next()) {
                (Some(step), _) => Some(step),
                (None, Some(first)) => found
                    .all(|other| other.task_id == first.task_id)
                    .then_some(first),
                (None, None) => None,
            };
            return only.map_or(Parent::None, |step| Parent::Step(step.clone()));
        };
        let Some(steps) = tasks.get(task_id) else {
            return Parent::None;
        };
        match (steps.iter().find(named), steps.as_slice()) {
            (Some(step), _) => Parent::Step(step.clone()),
            (None, [only]) => Parent::Step(only.clone()),
            // Which of them calls is not known, so none may cut the call short with its own end.
            (None, several) => match several.iter().max_by_key(|step| step.deadline) {
                Some(step) => Parent::Task(step.clone()),
                None => Parent::None,
            },
        }
    }

    /// Finds the one step of a task that these ids leave; none if several fit.
    pub fn served(&self, task: &Id, step: Option<&Id>, call: Option<&Id>) -> Option<Arc<Step>> {
        let tasks = self.by_task.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |served: &&Arc<Step>| {
            step.is_none_or(|id| served.step_id == *id)
                && call.is_none_or(|id| served.call_id == *id)
        };
        let mut fitting = tasks.get(task)?.iter().filter(fits);
        let only = fitting.next()?;
        fitting.next().is_none().then(|| only.clone())
    }

    /// Lists every step being served, oldest first.
    pub fn list(&self) -> Vec<Arc<Step>> {
        let tasks = self.by_task.lock().unwrap_or_else(PoisonError::into_inner);
        let mut steps: Vec<Arc<Step>> = tasks.values().flatten().cloned().collect();
        steps.sort_by_key(|step| step.began_at);
        steps
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let active = &self.active;
        let mut tasks = active
            .by_task
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(steps) = tasks.get_mut(&self.step.task_id) {
            steps.retain(|step| !Arc::ptr_eq(step, &self.step));
            if steps.is_empty() {
                tasks.remove(&self.step.task_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn id(text: &str) -> Id {
        Id::parse(text).unwrap()
    }

    fn step(task: &str, step: &str) -> Step {
        let member = Member::new(
            id(step),
            "a-b-v1.0@1.0.0".to_owned(),
            Timestamp::now(),
            [0; 32],
        );
        let ids = Ids {
            task_id: id(task),
            step_id: id(step),
            call_id: id(&format!("call-{step}")),
            attempt: 1,
        };
        Step::new(
            ids,
            "a-b-v1.0".to_owned(),
            Timestamp::now(),
            &Fields::default(),
            Deadline::after(Instant::now(), Duration::from_secs(1)),
            member,
            Path::default(),
            None,
        )
    }

    fn asking(task: Option<&str>, step: Option<&str>) -> Fields {
        Fields {
            task_id: task.map(id),
            step_id: step.map(id),
            ..Fields::default()
        }
    }

    fn parent(active: &Active, task: Option<&str>, step: Option<&str>) -> String {
        match active.parent_of(&asking(task, step)) {
            Parent::Step(step) => format!("step {}", step.step_id),
            Parent::Task(step) => format!("task {}", step.task_id),
            Parent::None => "none".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_call_finds_its_parent_and_never_guesses() {
        let active = Arc::new(Active::default());
        let _one = active.enter(step("t-1", "s-1"));
        let two = active.enter(step("t-2", "s-2"));
        let _three = active.enter(step("t-2", "s-3"));
        assert_eq!(parent(&active, Some("t-1"), None), "step s-1");
        assert_eq!(parent(&active, Some("t-1"), Some("own")), "step s-1");
        assert_eq!(parent(&active, Some("t-2"), None), "task t-2");
        assert_eq!(parent(&active, Some("t-2"), Some("s-3")), "step s-3");
        assert_eq!(parent(&active, None, Some("s-2")), "step s-2");
        assert_eq!(parent(&active, Some("t-9"), None), "none");
        assert_eq!(parent(&active, None, None), "none");
        let served = |task, step: Option<&str>| {
            let found = active.served(&id(task), step.map(id).as_ref(), None);
            found.map(|step| step.step_id.to_string())
        };
        assert_eq!(served("t-1", None).as_deref(), Some("s-1"));
        assert_eq!(served("t-1", Some("own")), None);
        assert_eq!(served("t-2", None), None);
        assert_eq!(served("t-2", Some("s-3")).as_deref(), Some("s-3"));
        assert_eq!(served("t-9", None), None);
        let elsewhere = active.enter(step("t-3", "s-2"));
        assert_eq!(parent(&active, None, Some("s-2")), "none", "in two tasks");
        drop(elsewhere);
        drop(two);
        assert_eq!(parent(&active, Some("t-2"), None), "step s-3");
        assert_eq!(active.list().len(), 2);
    }
}
