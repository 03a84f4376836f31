//! What a call takes over from the task it is made for, and what pins it from then on.

use super::Outbound;
use crate::context::{Fields, Origin, Trace};
use crate::proxy::active::{Parent, Step};
use crate::proxy::headers;
use crate::route;
use crate::task::{Deadline, Id};
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;

/// A request for an agent with its context complete, before its agent is found.
pub struct Errand {
    /// Own, inherited and minted context.
    pub fields: Fields,
    pub heritage: Heritage,
    pub trace: Trace,
    /// Drawn once, so that all attempts of a call rank alike and stay in one cohort.
    pub key: route::Key,
}

/// Where a call comes from.
pub struct Heritage {
    /// The step that makes the call, if it is known.
    pub parent: Option<Arc<Step>>,
    /// The keys under which this application was asked, where the call is part of a task served
    /// here: one that is handed on with them is not the call's own.
    pub served_keys: Vec<HeaderValue>,
    /// What is left of the task's time, where the call is part of a task served here.
    pub deadline: Option<Deadline>,
    /// The task id was minted here: nobody else can know it.
    pub minted: bool,
    /// So was the step id.
    pub minted_step: bool,
}

impl Errand {
    /// Returns the ids that a refusal repeats: those that the application knows already.
    pub fn names(&self) -> Fields {
        let (fields, heritage) = (&self.fields, &self.heritage);
        Fields {
            task_id: fields.task_id.clone().filter(|_| !heritage.minted),
            step_id: fields.step_id.clone().filter(|_| !heritage.minted_step),
            agent: fields.agent.clone(),
            trace_id: fields.trace_id.clone(),
            region: fields.region.clone(),
            utc_offset: fields.utc_offset.clone(),
            ..Fields::default()
        }
    }
}

impl Outbound {
    /// Returns what decides who fits a call: its own fields, else its task's.
    pub(super) fn wishes(&self, own: &Fields) -> Fields {
        let mut own = own.clone();
        if let Parent::Step(step) | Parent::Task(step) =
            self.active.parent_of(&own, &Origin::default())
        {
            take_over(&mut own, &step);
        }
        own
    }

    /// Completes the context of a call and draws what pins it.
    ///
    /// A task id that the caller chose pins its calls; a minted one cannot, so there the
    /// application's own idempotency key does.
    pub(super) fn errand(&self, own: Fields, received: &HeaderMap) -> Errand {
        let origin = Origin::of(received);
        let (fields, heritage, served) = self.inherit(own, &origin);
        let served = served.as_ref().map(|step| &step.trace);
        let trace = Trace::from(origin, fields.trace_id.clone(), served);
        let given = headers::own_idempotency_key(received).filter(|_| heritage.minted);
        let task = fields.task_id.as_ref().map_or("", |id| id.as_str());
        let key = route::Key::of(given.unwrap_or(task));
        Errand {
            fields,
            heritage,
            trace,
            key,
        }
    }

    /// Completes the fields of a call: its own, else its task's, else minted or our own. Returns
    /// the step that they were taken from, too.
    fn inherit(&self, mut own: Fields, origin: &Origin) -> (Fields, Heritage, Option<Arc<Step>>) {
        let (step, parent) = match self.active.parent_of(&own, origin) {
            Parent::Step(step) => (Some(step.clone()), Some(step)),
            Parent::Task(step) => (Some(step), None),
            Parent::None => (None, None),
            Parent::Unknown => {
                self.recorder.metrics.context_unmatched();
                (None, None)
            }
        };
        if let Some(step) = &step {
            take_over(&mut own, step);
        }
        // Ids of the step being served name the parent, not this call.
        own.call_id = None;
        own.step_id = own
            .step_id
            .filter(|id| step.as_ref().is_none_or(|step| step.step_id != *id));
        own.attempt = None;
        own.application = None;
        own.path = parent.as_ref().map(|step| step.path_of_call());
        let (minted, minted_step) = (own.task_id.is_none(), own.step_id.is_none());
        own.task_id.get_or_insert_with(Id::mint);
        own.step_id.get_or_insert_with(Id::mint);
        own.requester
            .get_or_insert_with(|| self.config.application.clone());
        // Of a parent that is not known, any step of its task may be it.
        let served = match (&parent, &step) {
            (Some(parent), _) => vec![parent.clone()],
            (None, Some(of_task)) => self.active.of_task(&of_task.task_id),
            (None, None) => Vec::new(),
        };
        let heritage = Heritage {
            served_keys: served.iter().filter_map(|step| step.key.clone()).collect(),
            deadline: step.as_ref().map(|step| step.deadline),
            parent,
            minted,
            minted_step,
        };
        (own, heritage, step)
    }
}

/// Fills what the call leaves open with what its task says.
fn take_over(own: &mut Fields, step: &Step) {
    own.task_id.get_or_insert_with(|| step.task_id.clone());
    own.sla_level.get_or_insert(step.sla_level);
    let texts = [
        (&mut own.requester, &step.requester),
        (&mut own.scenario, &step.scenario),
        (&mut own.region, &step.region),
        (&mut own.utc_offset, &step.utc_offset),
    ];
    for (mine, theirs) in texts {
        if mine.is_none() {
            mine.clone_from(theirs);
        }
    }
    if own.trace_id.is_none() {
        own.trace_id = step.trace.correlation().cloned();
    }
}
