//! The ids that every call has, whether its caller named them or not.

use super::Fields;
use crate::task::Id;

/// Which call of which step of which task it is, and which attempt at it.
#[derive(Debug, Clone)]
pub struct Ids {
    pub task_id: Id,
    pub step_id: Id,
    pub call_id: Id,
    pub attempt: u32,
}

impl Ids {
    /// Takes the ids of a call; those that are not named are minted, and named from then on.
    pub fn settle(fields: &mut Fields) -> Self {
        let settle = |id: &mut Option<Id>| id.get_or_insert_with(Id::mint).clone();
        Self {
            task_id: settle(&mut fields.task_id),
            step_id: settle(&mut fields.step_id),
            call_id: settle(&mut fields.call_id),
            attempt: *fields.attempt.get_or_insert(1),
        }
    }
}
