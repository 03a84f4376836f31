//! The words of OpenAPI's schemas that draft 2020-12 does not have, or means otherwise.
//!
//! Each schema object is converted by itself; what changes or loses meaning is said.

use serde_json::{Map, Value};

use super::document::{Dialect, is_oas};
use crate::contract::{Problem, Problems, keyword, pointer::Pointer};

/// The keywords that OpenAPI 3.0 shares with draft 2020-12.
const OF_30: [&str; 31] = [
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "deprecated",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "properties",
    "readOnly",
    "required",
    "title",
    "type",
    "uniqueItems",
    "writeOnly",
];
/// Keywords that only describe, so that it matters little whether anybody reads them.
const PROSE: [&str; 6] = [
    "$ref",
    "default",
    "deprecated",
    "description",
    "example",
    "title",
];
/// Formats that say what a number or text looks like, which nobody here checks.
const UNCHECKED: [&str; 4] = ["double", "float", "int32", "int64"];

type Members = Map<String, Value>;

/// What was found while reading a document.
#[derive(Debug, Default)]
pub struct Said {
    pub warnings: Problems,
    pub faults: Problems,
}

impl Said {
    pub fn warn(&mut self, rule: &'static str, at: impl Into<String>, what: &str, remedy: &str) {
        let warning = Problem::new(rule, at, what, remedy);
        // A component used both ways says everything twice.
        if !self.warnings.as_slice().contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub fn fault(&mut self, rule: &'static str, at: impl Into<String>, what: &str, remedy: &str) {
        self.faults.push(Problem::new(rule, at, what, remedy));
    }
}

/// One schema object on its way from a dialect to draft 2020-12.
pub struct Conversion<'a> {
    pub members: &'a mut Members,
    pub at: &'a mut Pointer,
    pub said: &'a mut Said,
}

impl Conversion<'_> {
    pub fn run(mut self, dialect: Dialect) {
        match dialect {
            Dialect::Plain => return,
            Dialect::V31 => self.v31(),
            Dialect::V30 => self.v30(),
        }
        self.drop_words();
        self.example();
        self.unchecked_format();
    }

    /// Lets a 3.0 reference stand alone, as that version reads it.
    pub fn lone_reference(mut self) {
        let beside = self.members.keys();
        let beside: Vec<String> = beside
            .filter(|name| !PROSE.contains(&name.as_str()) && !name.starts_with("x-"))
            .cloned()
            .collect();
        for name in beside {
            let what = format!("OpenAPI 3.0 ignores \"{name}\" beside \"$ref\"; it is left out");
            let remedy = "put both into \"allOf\" if it shall count";
            self.warn("ref-siblings", &name, &what, remedy);
        }
        self.members.retain(|name, _| name == "$ref");
    }

    fn place(&mut self, name: &str) -> String {
        self.at.within(name, |at| at.to_string())
    }

    fn warn(&mut self, rule: &'static str, name: &str, what: &str, remedy: &str) {
        let at = self.place(name);
        self.said.warn(rule, at, what, remedy);
    }

    fn v31(&mut self) {
        let dialect = self.members.get("$schema").and_then(Value::as_str);
        if dialect.is_some_and(is_oas) {
            self.members.remove("$schema");
        }
        if self.members.remove("nullable").is_some() {
            let what = "\"nullable\" means nothing in OpenAPI 3.1; it is left out";
            let remedy = "write \"type\": [\"string\", \"null\"] and the like";
            self.warn("nullable", "nullable", what, remedy);
        }
    }

    fn v30(&mut self) {
        let is_new =
            |name: &&String| keyword::holds(name).is_some() && !OF_30.contains(&name.as_str());
        let beyond: Vec<String> = self.members.keys().filter(is_new).cloned().collect();
        for name in beyond {
            let what = format!("OpenAPI 3.0 has no \"{name}\"; it is read as in draft 2020-12");
            let remedy = "call the document OpenAPI 3.1 if that is meant";
            self.warn("beyond-3.0", &name, &what, remedy);
        }
        self.nullable();
        self.exclusive("exclusiveMinimum", "minimum");
        self.exclusive("exclusiveMaximum", "maximum");
        self.bytes();
    }

    /// Adds null to the type; without a type `nullable` has no effect (OpenAPI 3.0.3, 4.7.24).
    fn nullable(&mut self) {
        match self.members.remove("nullable") {
            None | Some(Value::Bool(false)) => return,
            Some(Value::Bool(true)) => {}
            Some(_) => {
                let at = self.place("nullable");
                let remedy = "write true or false";
                return self
                    .said
                    .fault("nullable", at, "must be true or false", remedy);
            }
        }
        let Some(Value::String(name)) = self.members.get("type") else {
            let what = "\"nullable\" without \"type\" beside it has no effect; it is left out";
            let remedy =
                "name the type in the same schema, or add {\"type\": \"null\"} as an alternative";
            return self.warn("nullable", "nullable", what, remedy);
        };
        let types = Value::from(vec![name.as_str(), "null"]);
        self.members.insert("type".to_owned(), types);
        let values = self.members.get("enum").and_then(Value::as_array);
        if values.is_some_and(|values| !values.contains(&Value::Null)) {
            let what = "null is still refused, because \"enum\" does not list it";
            self.warn(
                "nullable",
                "enum",
                what,
                "add null to \"enum\" if it shall be allowed",
            );
        }
    }

    /// Turns a flag beside a limit into a limit of its own.
    fn exclusive(&mut self, flag: &'static str, limit: &str) {
        match self.members.get(flag) {
            Some(Value::Bool(true)) => {
                self.members.remove(flag);
                if let Some(value) = self.members.remove(limit) {
                    self.members.insert(flag.to_owned(), value);
                } else {
                    let what =
                        format!("\"{flag}\" without \"{limit}\" has no effect; it is left out");
                    self.warn("exclusive-bound", flag, &what, &format!("add \"{limit}\""));
                }
            }
            Some(Value::Bool(false)) => drop(self.members.remove(flag)),
            Some(Value::Number(_)) => {
                let what = format!(
                    "\"{flag}\" is true or false in OpenAPI 3.0; the number is read as in draft 2020-12"
                );
                let remedy = "call the document OpenAPI 3.1 if that is meant";
                self.warn("exclusive-bound", flag, &what, remedy);
            }
            _ => {}
        }
    }

    /// Bytes have no place in JSON, unless they are written in base64.
    fn bytes(&mut self) {
        if self.members.get("type").is_some_and(|name| name == "file") {
            let at = self.place("type");
            let remedy = "take the file out of the contract, or send it in base64 as a string";
            self.said
                .fault("binary", at, "a file cannot be part of a JSON body", remedy);
        }
        match self.members.get("format").and_then(Value::as_str) {
            Some("binary") => {
                let at = self.place("format");
                let remedy = "say \"byte\" and send base64";
                self.said.fault(
                    "binary",
                    at,
                    "raw bytes cannot be part of a JSON body",
                    remedy,
                );
            }
            Some("byte") => {
                self.members.remove("format");
                let encoding = Value::from("base64");
                self.members.insert("contentEncoding".to_owned(), encoding);
                let what = "\"byte\" becomes \"contentEncoding\": \"base64\", which is not checked";
                self.warn(
                    "byte-format",
                    "format",
                    what,
                    "add a pattern if it shall be checked",
                );
            }
            _ => {}
        }
    }

    fn unchecked_format(&mut self) {
        let format = self.members.get("format").and_then(Value::as_str);
        if let Some(format) = format.filter(|format| UNCHECKED.contains(format)) {
            let what = format!("the format \"{format}\" is not checked");
            let remedy = "add \"minimum\" and \"maximum\" if the range shall be checked";
            self.warn("unchecked-format", "format", &what, remedy);
        }
    }

    fn drop_words(&mut self) {
        for (name, why) in [
            ("discriminator", "the alternatives alone decide"),
            ("xml", "it speaks of another media type"),
            ("externalDocs", "it checks nothing"),
        ] {
            if self.members.remove(name).is_some() {
                let what = format!("\"{name}\" is left out: {why}");
                let remedy = match name {
                    "discriminator" => {
                        "give each alternative a \"const\" or \"enum\" for the member that tells them apart"
                    }
                    _ => "nothing needs to be done",
                };
                self.warn(name_of(name), name, &what, remedy);
            }
        }
    }

    /// Keeps an example under the name that draft 2020-12 has for it.
    fn example(&mut self) {
        if let Some(example) = self.members.remove("example")
            && !self.members.contains_key("examples")
        {
            let examples = Value::Array(vec![example]);
            self.members.insert("examples".to_owned(), examples);
        }
    }
}

fn name_of(word: &str) -> &'static str {
    match word {
        "discriminator" => "discriminator",
        "xml" => "xml",
        _ => "external-docs",
    }
}
