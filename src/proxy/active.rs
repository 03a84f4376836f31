//! The steps being served here right now, and which of them an outbound call belongs to.
//!
//! An application that calls others while it serves a task names the task, the step or the call in
//! a header, or hands on the W3C fields, in which we put a token that names the step. Failing that,
//! the trace finds it. Never a guess: where more than one step fits, the call joins their task
//! without a parent, and where these are of several tasks it begins one of its own.

use crate::context::{Claim, Fields, Ids, Links, Member, Origin, Path, Token, Trace};
use crate::task::{Deadline, Id, SlaLevel, Timestamp};
use http::HeaderValue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// How many finished calls of one step are remembered for its path; it has no room for more,
/// however short they are written.
const MOST_MADE: usize = 18;

/// A step that this sidecar's application is working on.
#[derive(Debug)]
pub struct Step {
    pub task_id: Id,
    pub step_id: Id,
    pub call_id: Id,
    /// The key under which the application was asked; not the key of the calls it makes.
    pub key: Option<HeaderValue>,
    /// The contract it serves.
    pub agent: String,
    pub began_at: Timestamp,
    pub attempt: u32,
    pub sla_level: SlaLevel,
    pub requester: Option<String>,
    pub scenario: Option<String>,
    pub region: Option<String>,
    pub utc_offset: Option<String>,
    pub trace: Trace,
    /// What the application hands on in `tracestate` to be known by.
    pub token: Token,
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
    /// The call comes from some step, and from which one cannot be told: its step has ended, or
    /// steps of several tasks fit. It begins a task of its own, as with `None`.
    Unknown,
}

impl Step {
    /// Describes a step that has made no calls yet.
    pub fn new(
        ids: Ids,
        agent: String,
        began_at: Timestamp,
        fields: &Fields,
        deadline: Deadline,
        member: Member,
        (trace, token): (Trace, Token),
    ) -> Self {
        Self {
            task_id: ids.task_id,
            step_id: ids.step_id,
            call_id: ids.call_id,
            key: None,
            attempt: ids.attempt,
            agent,
            began_at,
            sla_level: fields.sla_level.unwrap_or_default(),
            requester: fields.requester.clone(),
            scenario: fields.scenario.clone(),
            region: fields.region.clone(),
            utc_offset: fields.utc_offset.clone(),
            trace,
            token,
            deadline,
            path: fields.path.clone().unwrap_or_default(),
            member,
            made: Mutex::default(),
        }
    }

    /// Names the key under which the application was asked.
    pub fn under(mut self, key: Option<HeaderValue>) -> Self {
        self.key = key;
        self
    }

    /// Returns the path of a call that this step makes now.
    pub fn path_of_call(&self) -> Path {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        self.path.of_call(self.member.clone(), &made)
    }

    fn is_named_by(&self, fields: &Fields) -> bool {
        fields.call_id.as_ref() == Some(&self.call_id)
            || fields.step_id.as_ref() == Some(&self.step_id)
    }

    fn is_claimed_by(&self, origin: &Origin) -> bool {
        origin.claim() == Claim::Step(self.token)
    }

    /// Returns what links the step to its caller's and to its own calls.
    pub fn links(&self) -> Links {
        Links::of(&self.path, &self.member)
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
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    by_task: HashMap<Id, Vec<Arc<Step>>>,
    by_token: HashMap<Token, Arc<Step>>,
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
        let mut steps = self.lock();
        let of_task = steps.by_task.entry(step.task_id.clone()).or_default();
        of_task.push(step.clone());
        steps.by_token.insert(step.token, step.clone());
        Serving {
            active: self.clone(),
            step,
        }
    }

    /// Finds what a call with these fields belongs to; what it names itself goes over where its
    /// trace comes from.
    pub fn parent_of(&self, fields: &Fields, origin: &Origin) -> Parent {
        let steps = self.lock();
        match &fields.task_id {
            Some(task_id) => match steps.by_task.get(task_id) {
                Some(of_task) => within(of_task, fields, origin),
                None => Parent::None,
            },
            None => steps.of_any_task(fields, origin),
        }
    }

    /// Finds the one step of a task that these ids leave; none if several fit.
    pub fn served(&self, task: &Id, step: Option<&Id>, call: Option<&Id>) -> Option<Arc<Step>> {
        let steps = self.lock();
        let fits = |served: &&Arc<Step>| {
            step.is_none_or(|id| served.step_id == *id)
                && call.is_none_or(|id| served.call_id == *id)
        };
        let mut fitting = steps.by_task.get(task)?.iter().filter(fits);
        let only = fitting.next()?;
        fitting.next().is_none().then(|| only.clone())
    }

    /// Lists the steps of a task that are being served.
    pub fn of_task(&self, task: &Id) -> Vec<Arc<Step>> {
        self.lock().by_task.get(task).cloned().unwrap_or_default()
    }

    /// Lists every step being served, oldest first.
    pub fn list(&self) -> Vec<Arc<Step>> {
        let mut steps: Vec<Arc<Step>> = self.lock().all().cloned().collect();
        steps.sort_by_key(|step| step.began_at);
        steps
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steps {
    fn all(&self) -> impl Iterator<Item = &Arc<Step>> + Clone {
        self.by_task.values().flatten()
    }

    /// Finds the step of a call that names no task: by ids, by token, and last by trace alone.
    fn of_any_task(&self, fields: &Fields, origin: &Origin) -> Parent {
        let names_a_step = fields.call_id.is_some() || fields.step_id.is_some();
        let named: Vec<_> = match names_a_step {
            true => self.all().filter(|step| step.is_named_by(fields)).collect(),
            false => Vec::new(),
        };
        // A step id is its caller's own and may occur in two tasks; a call id is unique.
        let called = |step: &&&Arc<Step>| fields.call_id.as_ref() == Some(&step.call_id);
        if let Some(step) = named.iter().find(called) {
            return Parent::Step(Arc::clone(step));
        }
        match named.as_slice() {
            [] => {}
            [first, ..] if are_of_one_task(&named) => return Parent::Step(Arc::clone(first)),
            several => {
                let claimed = several.iter().find(|step| step.is_claimed_by(origin));
                return claimed.map_or(Parent::Unknown, |step| Parent::Step(Arc::clone(step)));
            }
        }
        match origin.claim() {
            // A token is of one step or of none: the trace may be another step's by now.
            Claim::Step(token) => match self.by_token.get(&token) {
                Some(step) => Parent::Step(step.clone()),
                None => Parent::Unknown,
            },
            Claim::Foreign => Parent::Unknown,
            Claim::Nothing => {
                let wished = fields.trace_id.as_ref();
                let traced = self.all().filter(|step| origin.is_of(&step.trace, wished));
                let traced: Vec<_> = traced.collect();
                match traced.as_slice() {
                    [] if names_a_step => Parent::Unknown,
                    [] => Parent::None,
                    [only] => Parent::Step(Arc::clone(only)),
                    _ if are_of_one_task(&traced) => latest(traced),
                    _ => Parent::Unknown,
                }
            }
        }
    }
}

/// Finds the step of a call that names its task, whose steps these are: by call id, by step id, by
/// token, and last by trace. Whoever hands on the token of a step that has ended, or of somebody
/// else's, has no step here, also where a single one is left.
fn within(of_task: &[Arc<Step>], fields: &Fields, origin: &Origin) -> Parent {
    let called = |step: &&Arc<Step>| fields.call_id.as_ref() == Some(&step.call_id);
    let named = |step: &&Arc<Step>| step.is_named_by(fields);
    let mut steps = of_task.iter();
    let by_id = steps.find(called).or_else(|| of_task.iter().find(named));
    if let Some(step) = by_id {
        return Parent::Step(step.clone());
    }
    match origin.claim() {
        Claim::Step(_) => {
            let claimed = of_task.iter().find(|step| step.is_claimed_by(origin));
            return claimed.map_or_else(|| latest(of_task), |step| Parent::Step(step.clone()));
        }
        Claim::Foreign => return latest(of_task),
        Claim::Nothing => {}
    }
    if let [only] = of_task {
        return Parent::Step(only.clone());
    }
    let wished = fields.trace_id.as_ref();
    let mut traced = of_task
        .iter()
        .filter(|step| origin.is_of(&step.trace, wished));
    match (traced.next(), traced.next()) {
        (Some(only), None) => Parent::Step(only.clone()),
        _ => latest(of_task),
    }
}

fn are_of_one_task(steps: &[&Arc<Step>]) -> bool {
    steps.windows(2).all(|two| two[0].task_id == two[1].task_id)
}

/// Joins a task whose step is not known: none may cut the call short with its own end.
fn latest<'a>(steps: impl IntoIterator<Item = &'a Arc<Step>>) -> Parent {
    let latest = steps.into_iter().max_by_key(|step| step.deadline);
    latest.map_or(Parent::None, |step| Parent::Task(step.clone()))
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut steps = self.active.lock();
        steps.by_token.remove(&self.step.token);
        if let Some(of_task) = steps.by_task.get_mut(&self.step.task_id) {
            of_task.retain(|step| !Arc::ptr_eq(step, &self.step));
            if of_task.is_empty() {
                steps.by_task.remove(&self.step.task_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::header;
    use http::{HeaderMap, HeaderValue};
    use std::time::Duration;

    fn id(text: &str) -> Id {
        Id::parse(text).unwrap()
    }

    fn step(task: &str, step: &str) -> Step {
        traced(task, step, TRACE)
    }

    fn traced(task: &str, step: &str, trace: &str) -> Step {
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
            (Trace::of(&w3c(trace), None), Token::draw()),
        )
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const OTHER: &str = "7bf92f3577b34da6a3ce929d0e0e4737";

    fn w3c(trace: &str) -> HeaderMap {
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        let value = HeaderValue::try_from(parent).unwrap();
        HeaderMap::from_iter([(header::TRACEPARENT, value)])
    }

    /// The fields that the application of this step has been sent.
    fn from_step(step: &Step) -> Origin {
        let mut sent = HeaderMap::new();
        step.trace.write_for(Some(step.token), &mut sent);
        Origin::of(&sent)
    }

    fn asking(task: Option<&str>, step: Option<&str>) -> Fields {
        Fields {
            task_id: task.map(id),
            step_id: step.map(id),
            ..Fields::default()
        }
    }

    fn parent(active: &Active, task: Option<&str>, step: Option<&str>) -> String {
        found(active, &asking(task, step), &Origin::default())
    }

    fn found(active: &Active, fields: &Fields, origin: &Origin) -> String {
        match active.parent_of(fields, origin) {
            Parent::Step(step) => format!("step {}", step.step_id),
            Parent::Task(step) => format!("task {}", step.task_id),
            Parent::None => "none".to_owned(),
            Parent::Unknown => "unknown".to_owned(),
        }
    }

    #[tokio::test]
    async fn the_token_finds_the_step_and_nothing_else_does_in_its_place() {
        let active = Arc::new(Active::default());
        let nothing = Fields::default();
        let (one, two) = (step("t-1", "s-1"), step("t-2", "s-2"));
        let (of_one, of_two) = (from_step(&one), from_step(&two));
        let by_trace = Origin::of(&w3c(TRACE));
        assert_eq!(found(&active, &nothing, &of_one), "unknown", "not yet");
        let _one = active.enter(one);
        let two = active.enter(two);
        assert_eq!(found(&active, &nothing, &of_one), "step s-1");
        assert_eq!(found(&active, &nothing, &of_two), "step s-2");
        assert_eq!(found(&active, &nothing, &by_trace), "unknown", "two tasks");
        // What the call names itself goes first.
        assert_eq!(
            found(&active, &asking(Some("t-2"), None), &of_one),
            "task t-2"
        );
        assert_eq!(found(&active, &asking(Some("t-9"), None), &of_one), "none");
        assert_eq!(
            found(&active, &asking(None, Some("s-2")), &of_one),
            "step s-2"
        );
        assert_eq!(
            found(&active, &asking(None, Some("own")), &of_one),
            "step s-1"
        );
        // One step of the trace is left, and yet an ended step's call is not its.
        drop(two);
        assert_eq!(found(&active, &nothing, &by_trace), "step s-1");
        assert_eq!(found(&active, &nothing, &of_two), "unknown");
        let mut foreign = w3c(TRACE);
        foreign.insert("tracestate", HeaderValue::from_static("hermes=elsewhere"));
        assert_eq!(found(&active, &nothing, &Origin::of(&foreign)), "unknown");
    }

    #[tokio::test]
    async fn the_trace_alone_finds_a_step_or_its_task_but_never_guesses() {
        let active = Arc::new(Active::default());
        let nothing = Fields::default();
        let _one = active.enter(step("t-1", "s-1"));
        let by_trace = Origin::of(&w3c(TRACE));
        assert_eq!(found(&active, &nothing, &by_trace), "step s-1");
        assert_eq!(found(&active, &nothing, &Origin::of(&w3c(OTHER))), "none");
        let again = active.enter(step("t-1", "s-2"));
        assert_eq!(found(&active, &nothing, &by_trace), "task t-1");
        let elsewhere = active.enter(step("t-2", "s-3"));
        assert_eq!(found(&active, &nothing, &by_trace), "unknown");
        drop((again, elsewhere));
        // Told in the context, as an envelope's application does.
        let wishing = |id: &str| Fields {
            trace_id: Some(Id::parse(id).unwrap()),
            ..Fields::default()
        };
        assert_eq!(
            found(&active, &wishing(TRACE), &Origin::default()),
            "step s-1"
        );
        assert_eq!(found(&active, &wishing(OTHER), &Origin::default()), "none");
    }

    #[tokio::test]
    async fn of_several_steps_of_a_named_task_the_token_or_the_trace_picks_one() {
        let active = Arc::new(Active::default());
        let one = step("t-1", "s-1");
        let of_one = from_step(&one);
        let _one = active.enter(one);
        let _two = active.enter(traced("t-1", "s-2", OTHER));
        let task = asking(Some("t-1"), None);
        assert_eq!(found(&active, &task, &of_one), "step s-1");
        assert_eq!(found(&active, &task, &Origin::of(&w3c(OTHER))), "step s-2");
        assert_eq!(found(&active, &task, &Origin::default()), "task t-1");
        let ended = from_step(&traced("t-1", "s-3", OTHER));
        assert_eq!(found(&active, &task, &ended), "task t-1");
        let called = Fields {
            call_id: Some(id("call-s-2")),
            ..asking(Some("t-1"), Some("s-1"))
        };
        assert_eq!(found(&active, &called, &of_one), "step s-2", "by call id");
        // One step id in two tasks: the token says which.
        let twin = step("t-2", "s-1");
        let of_twin = from_step(&twin);
        let _twin = active.enter(twin);
        assert_eq!(
            found(&active, &asking(None, Some("s-1")), &of_twin),
            "step s-1"
        );
        assert_eq!(parent(&active, None, Some("s-1")), "unknown");
    }

    #[tokio::test]
    async fn a_call_of_an_ended_step_is_not_its_only_neighbours() {
        let active = Arc::new(Active::default());
        let (one, two) = (step("t-1", "s-1"), step("t-1", "s-2"));
        let of_one = from_step(&one);
        let one = active.enter(one);
        let _two = active.enter(two);
        drop(one);
        let task = asking(Some("t-1"), None);
        assert_eq!(found(&active, &task, &of_one), "task t-1");
        let mut foreign = w3c(TRACE);
        foreign.insert("tracestate", HeaderValue::from_static("hermes=elsewhere"));
        assert_eq!(found(&active, &task, &Origin::of(&foreign)), "task t-1");
        assert_eq!(found(&active, &task, &Origin::default()), "step s-2");
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
        assert_eq!(
            parent(&active, None, Some("s-2")),
            "unknown",
            "in two tasks"
        );
        drop(elsewhere);
        drop(two);
        assert_eq!(parent(&active, Some("t-2"), None), "step s-3");
        assert_eq!(active.list().len(), 2);
    }
}
