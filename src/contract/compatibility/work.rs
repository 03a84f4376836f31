//! The bounds of one comparison, and what it has found out on the way.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    ptr,
};

use serde_json::{Value, json};

use super::quantity::key;
use crate::contract::{
    Validator,
    guard::{self, Limits},
};

/// Looks at schemas that one side of a contract may take.
const MOST_STEPS: u32 = 200_000;
/// Compiled patterns and formats that one side may take.
const MOST_VALIDATORS: usize = 500;
/// Schemas within schemas; everything here recurses.
pub const DEEPEST: usize = 64;

/// What is left of the bounds.
pub struct Work {
    steps: Cell<u32>,
    /// Patterns and formats, by their schema; nothing if it cannot be compiled.
    validators: RefCell<HashMap<String, Option<Validator>>>,
    /// Members of long lists, by the list's address.
    lists: RefCell<HashMap<*const Value, HashSet<String>>>,
}

impl Work {
    pub fn new() -> Self {
        Self {
            steps: Cell::new(MOST_STEPS),
            validators: RefCell::default(),
            lists: RefCell::default(),
        }
    }

    /// Takes one step; answers whether it was left.
    pub fn step(&self) -> bool {
        self.spend(1)
    }

    pub fn spend(&self, steps: usize) -> bool {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.steps.set(self.steps.get().saturating_sub(steps));
        !self.is_spent()
    }

    /// Gives up: something is too large whatever is left.
    pub fn exhaust(&self) {
        self.steps.set(0);
    }

    pub fn is_spent(&self) -> bool {
        self.steps.get() == 0
    }

    /// Answers whether a list of the schema holds a value.
    pub fn holds(&self, list: &Value, value: &Value) -> bool {
        let mut lists = self.lists.borrow_mut();
        let keys = lists.entry(ptr::from_ref(list)).or_insert_with(|| {
            let items = list.as_array().into_iter().flatten();
            items.map(key).collect()
        });
        keys.contains(&key(value))
    }

    pub fn matches(&self, pattern: &str, text: &str) -> Option<bool> {
        self.asserts(&json!({ "pattern": pattern }), text)
    }

    pub fn has_format(&self, format: &str, text: &str) -> Option<bool> {
        self.asserts(&json!({ "format": format }), text)
    }

    /// Asks the very code that checks bodies, so that both agree.
    fn asserts(&self, schema: &Value, text: &str) -> Option<bool> {
        // About as long as this many steps.
        if !self.spend(4) {
            return None;
        }
        let key = schema.to_string();
        let mut validators = self.validators.borrow_mut();
        if validators.len() > MOST_VALIDATORS {
            return None;
        }
        let validator = validators
            .entry(key)
            .or_insert_with(|| Validator::compile(schema).ok())
            .as_ref()?;
        let body = Value::from(text).to_string();
        let document = guard::parse(body.as_bytes(), &Limits::default()).ok()?;
        Some(validator.check(&document).is_ok())
    }
}
