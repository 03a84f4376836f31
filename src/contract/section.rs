//! Reading one JSON object field by field, without stopping at the first fault.

use serde_json::{Map, Value};
use strsim::osa_distance;

use super::{Problem, Problems, pointer::Pointer};

/// The longest list.
const MAX_LIST: usize = 256;

/// One object of the contract, read field by field; faults go to `problems`.
pub struct Section<'a, 'p> {
    place: &'static str,
    pub members: &'a Map<String, Value>,
    problems: &'p mut Problems,
}

impl<'a, 'p> Section<'a, 'p> {
    /// Begins with the fields nobody knows.
    pub fn new(
        place: &'static str,
        members: &'a Map<String, Value>,
        known: &[&str],
        problems: &'p mut Problems,
    ) -> Self {
        let mut section = Self {
            place,
            members,
            problems,
        };
        for name in members.keys() {
            if known.contains(&name.as_str()) || name.starts_with("x-") {
                continue;
            }
            let near = known.iter().find(|known| osa_distance(known, name) <= 2);
            let remedy = match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "remove it, or let its name begin with \"x-\"".to_owned(),
            };
            section.fault("unknown-field", name, "unknown field", &remedy);
        }
        section
    }

    pub fn fault(&mut self, rule: &'static str, name: &str, message: &str, remedy: &str) {
        let mut at = Pointer::default();
        at.push(name);
        let pointer = format!("{}{at}", self.place);
        self.problems
            .push(Problem::new(rule, pointer, message, remedy));
    }

    /// Reports a field that has to be there; always nothing.
    pub fn missing<T>(&mut self, name: &str, example: &str) -> Option<T> {
        if !self.members.contains_key(name) {
            let rule = if name == "timeout_ms" {
                "timeout"
            } else {
                "missing-field"
            };
            let message = format!("\"{name}\" is required");
            self.fault(
                rule,
                name,
                &message,
                &format!("add \"{name}\", for example {example}"),
            );
        }
        None
    }

    pub fn text(&mut self, name: &str, most: usize) -> Option<&'a str> {
        match self.members.get(name)? {
            Value::String(text) if text.len() <= most => Some(text),
            _ => {
                let message = format!("must be a string of at most {most} bytes");
                self.fault("field-type", name, &message, "write a string");
                None
            }
        }
    }

    pub fn flag(&mut self, name: &str) -> bool {
        match self.members.get(name) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.fault(
                    "field-type",
                    name,
                    "must be true or false",
                    "write true or false",
                );
                false
            }
        }
    }

    pub fn integer(&mut self, name: &str, least: u64, most: u64) -> Option<u64> {
        let value = self.members.get(name)?;
        let number = value
            .as_u64()
            .filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let rule = if name == "timeout_ms" {
                "timeout"
            } else {
                "field-range"
            };
            let message = format!("must be an integer from {least} to {most}");
            self.fault(
                rule,
                name,
                &message,
                "write a number in that range, without quotes",
            );
        }
        number
    }

    pub fn object(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        match self.members.get(name)? {
            Value::Object(members) => Some(members),
            _ => {
                self.fault("field-type", name, "must be an object", "write an object");
                None
            }
        }
    }

    pub fn list(&mut self, name: &str) -> &'a [Value] {
        match self.members.get(name) {
            None => &[],
            Some(Value::Array(items)) if items.len() <= MAX_LIST => items,
            Some(_) => {
                let message = format!("must be a list of at most {MAX_LIST} entries");
                self.fault("field-type", name, &message, "write a list");
                &[]
            }
        }
    }

    /// Reads a list of strings that satisfy `is_fit`.
    pub fn strings(
        &mut self,
        name: &str,
        what: &str,
        is_fit: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for item in self.list(name) {
            match item.as_str() {
                Some(text) if is_fit(text) => texts.push(text.to_owned()),
                _ => {
                    let message = format!("every entry must be {what}");
                    self.fault("field-type", name, &message, "correct or remove the entry");
                    return Vec::new();
                }
            }
        }
        texts
    }
}
