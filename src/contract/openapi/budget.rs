//! How much all contracts of a document together may hold, and look through.

use serde_json::Value;

use super::convert::Said;
use crate::contract::Problem;

/// How many JSON values, long texts counted by their length, all contracts of a document may hold.
const MAX_VALUES: usize = 1 << 18;
/// So many bytes of text count as one value more.
const BYTES: usize = 16;

/// What may still be copied out of a document: moved definitions count each time.
#[derive(Debug)]
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(MAX_VALUES)
    }
}

impl Budget {
    /// Takes a copy, if there is room.
    pub fn copy(&mut self, value: &Value, at: &str, said: &mut Said) -> Option<Value> {
        self.take(weight(value), at, said).then(|| value.clone())
    }

    /// Takes the work of looking through a value.
    pub fn look(&mut self, value: &Value, at: &str, said: &mut Said) -> bool {
        self.take(weight(value), at, said)
    }

    /// Takes so many values, if there are as many; the first lack is a fault.
    pub fn take(&mut self, values: usize, at: &str, said: &mut Said) -> bool {
        if let Some(left) = self.0.checked_sub(values) {
            self.0 = left;
            return true;
        }
        self.0 = 0;
        let is_said = |problem: &Problem| problem.rule == "oversize";
        if !said.faults.as_slice().iter().any(is_said) {
            let what = format!("the contracts hold more than {MAX_VALUES} values together");
            let remedy = "split the document, or make the schemas smaller";
            said.fault("oversize", at, &what, remedy);
        }
        false
    }
}

/// Counts the JSON values in one, and what its texts weigh.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / BYTES,
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(members) => {
            let members = members.iter();
            let all = members.map(|(name, value)| name.len() / BYTES + weight(value));
            1 + all.sum::<usize>()
        }
        _ => 1,
    }
}
