//! From an operation to the members of a contract.

use http::Method;
use serde_json::{Map, Value};

use super::{
    budget::Budget,
    convert::Said,
    document::{Document, step},
    gather::{Direction, Found, Gather, Moved},
    operation::{EXTENSION, Operation},
    origin::Origins,
};
use crate::contract::{Contract, Problems, read};

/// The longest description a contract may have, in bytes.
const MAX_DESCRIPTION: usize = 4_096;

/// A contract as a document says it, before it is read like any other.
#[derive(Debug)]
pub struct Draft {
    pub method: Method,
    pub path: String,
    /// The native form.
    pub members: Map<String, Value>,
    pub origins: Origins,
    pub warnings: Problems,
    faults: Problems,
}

impl Draft {
    /// Carries over what an operation says; `budget` bounds what all may hold together.
    pub fn of(document: &Document, operation: &Operation<'_>, budget: &mut Budget) -> Self {
        let mut drawing = Drawing {
            document,
            operation,
            said: Said::default(),
            origins: Origins::default(),
            members: Map::new(),
            budget,
        };
        drawing.extensions();
        drawing.version();
        drawing.description();
        drawing.route();
        drawing.parameters();
        drawing.elsewhere();
        drawing.input();
        drawing.output();
        Self {
            method: operation.method.clone(),
            path: operation.path.to_owned(),
            members: drawing.members,
            origins: drawing.origins,
            warnings: drawing.said.warnings,
            faults: drawing.said.faults,
        }
    }

    /// Returns the native text, or why there is none.
    pub fn text(&self) -> Result<Vec<u8>, Problems> {
        self.faults.clone().or(())?;
        Ok(serde_json::to_vec(&self.members).expect("JSON values always serialise"))
    }

    /// Reads the contract as if it had been written in its native form.
    pub fn contract(&self) -> Result<Contract, Problems> {
        let text = self.text()?;
        let read = read::document(&text).and_then(|document| read::contract(&document, &text));
        read.map_err(|problems| self.origins.all_placed(problems))
    }
}

/// A draft in the making.
struct Drawing<'d, 'o, 'l> {
    document: &'d Document,
    operation: &'o Operation<'d>,
    said: Said,
    origins: Origins,
    members: Map<String, Value>,
    budget: &'l mut Budget,
}

impl<'d> Drawing<'d, '_, '_> {
    /// Takes every member that some `x-hermes` has.
    fn extensions(&mut self) {
        let nearest = self.operation.said.first();
        let nearest = nearest.map_or_else(
            || format!("{}/{EXTENSION}", self.operation.at),
            |(_, at)| at.clone(),
        );
        self.origins.add("", nearest);
        for (members, at) in self.operation.said.iter().rev() {
            for (name, value) in *members {
                let place = format!("{at}/{}", step(name));
                if matches!(name.as_str(), "input_schema" | "output_schema") {
                    let what = "the schemas are those of request and reply";
                    self.said.fault("field-type", place, what, "remove it here");
                    continue;
                }
                if let Some(value) = self.budget.copy(value, &place, &mut self.said) {
                    self.origins.add(format!("/{}", step(name)), place);
                    self.members.insert(name.clone(), value);
                }
            }
        }
    }

    fn version(&mut self) {
        if self.members.contains_key("version") {
            return;
        }
        if let Some(version) = self.document.info("version") {
            self.origins.add("/version", "/info/version");
            self.members.insert("version".to_owned(), version.clone());
        }
    }

    fn description(&mut self) {
        if self.members.contains_key("description") {
            return;
        }
        for name in ["description", "summary"] {
            let Some(Value::String(text)) = self.operation.members.get(name) else {
                continue;
            };
            let at = format!("{}/{name}", self.operation.at);
            if text.len() <= MAX_DESCRIPTION {
                self.origins.add("/description", at);
                let text = Value::from(text.as_str());
                self.members.insert("description".to_owned(), text);
                return;
            }
            let what = format!("more than {MAX_DESCRIPTION} bytes of description are left out");
            let remedy = format!("put a short \"description\" into \"{EXTENSION}\"");
            self.said.warn("description", at, &what, &remedy);
        }
    }

    fn route(&mut self) {
        let (path, at) = (self.operation.path, self.operation.at.as_str());
        if path.contains(['{', '}', '?', '#']) || !path.bytes().all(|b| b.is_ascii_graphic()) {
            let what = "a contract has one plain path, without templates and queries";
            let remedy = "offer the operation at a fixed path and take the rest from the body";
            self.said.fault("path", at, what, remedy);
        }
        if let Some(base) = self.operation.bases(self.document).next() {
            let what = format!("the servers' base path \"{base}\" is not part of the route");
            let remedy = "configure the path as the application itself serves it";
            self.said.warn("base-path", at, &what, remedy);
        }
    }

    /// A contract's input is its body; what else a request may hold is nobody's business here.
    fn parameters(&mut self) {
        let item_at = self.operation.at.rsplit_once('/').map(|(item, _)| item);
        let lists = [
            (self.operation.item, item_at.unwrap_or_default().to_owned()),
            (self.operation.members, self.operation.at.clone()),
        ];
        for (holder, at) in lists {
            let list = holder.get("parameters").and_then(Value::as_array);
            for (index, parameter) in list.into_iter().flatten().enumerate() {
                let at = format!("{at}/parameters/{index}");
                match self.document.object(parameter, &at) {
                    Ok((parameter, _)) => self.parameter(parameter, &at),
                    Err(problem) => self.said.faults.push(problem),
                }
            }
        }
    }

    fn parameter(&mut self, parameter: &Map<String, Value>, at: &str) {
        let text = |name| {
            parameter
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (name, place) = (text("name"), text("in"));
        if place == "header" && super::parts::is_known_header(name) {
            return;
        }
        let remedy = "take it from the body, or let the application have a default";
        if parameter.get("required") == Some(&Value::Bool(true)) {
            let what = format!("a contract has no {place} parameters, and this one is required");
            self.said.fault("parameter", at, &what, remedy);
        } else {
            let what = format!("the {place} parameter is not part of the contract");
            self.said.warn("parameter", at, &what, remedy);
        }
    }

    /// Names what an operation may say and a contract does not hold.
    fn elsewhere(&mut self) {
        let own = self.operation.members.get("security");
        let at = match own {
            Some(_) => format!("{}/security", self.operation.at),
            None => "/security".to_owned(),
        };
        let security = own.or_else(|| self.document.get("security"));
        let schemes = security.and_then(Value::as_array).into_iter().flatten();
        let mut asked = schemes.filter_map(Value::as_object).peekable();
        if asked.peek().is_some() && asked.all(|scheme| !scheme.is_empty()) {
            let what = "credentials are not part of the contract; callers' sidecars add none";
            let remedy = "let the application trust its own sidecar";
            self.said.warn("security", at, what, remedy);
        }
        if self.operation.members.contains_key("callbacks") {
            let at = format!("{}/callbacks", self.operation.at);
            let what = "callbacks are not part of the contract";
            self.said.warn(
                "callbacks",
                at,
                what,
                "offer them as contracts of the other side",
            );
        }
    }

    fn input(&mut self) {
        let at = format!("{}/requestBody", self.operation.at);
        let remedy = "describe the request's body as application/json";
        let Some(body) = self.operation.members.get("requestBody") else {
            return self
                .said
                .fault("no-input", at, "a contract has an input", remedy);
        };
        let (body, at) = match self.document.object(body, &at) {
            Ok(found) => found,
            Err(problem) => return self.said.faults.push(problem),
        };
        if body.get("required") != Some(&Value::Bool(true)) {
            let what = "the body may be left out here, but not in a call of the contract";
            let remedy = "say \"required\": true";
            self.said.warn("optional-body", at.as_str(), what, remedy);
        }
        match self.media(body, &at) {
            Some(found) => {
                let schema = self.gather(Direction::Input).one(found, "/input_schema");
                self.members.insert("input_schema".to_owned(), schema);
            }
            None => self.said.fault(
                "no-input",
                at,
                "there is no JSON schema of the body",
                remedy,
            ),
        }
    }

    fn gather(&mut self, direction: Direction) -> Gather<'d, '_> {
        Gather {
            document: self.document,
            direction,
            said: &mut self.said,
            origins: &mut self.origins,
            budget: self.budget,
            moved: Moved::default(),
        }
    }

    /// Finds the schema of the JSON among the media types of a body.
    fn media(&mut self, body: &'d Map<String, Value>, at: &str) -> Option<Found<'d>> {
        let content = body.get("content")?.as_object()?;
        let at = format!("{at}/content");
        let (json, others): (Vec<_>, Vec<_>) = content.iter().partition(|(name, _)| is_json(name));
        let (ranges, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(name, _)| is_range(name));
        let exact = json
            .iter()
            .position(|(name, _)| essence(name) == "application/json");
        let chosen = json.get(exact.unwrap_or_default()).copied();
        let chosen = chosen.or_else(|| ranges.first().copied())?;
        if is_range(chosen.0) {
            let what = "any media type is offered; the contract takes JSON";
            let place = format!("{at}/{}", step(chosen.0));
            self.said
                .warn("media-type", place, what, "say application/json");
        }
        let left_out = json.iter().chain(&ranges).chain(&others);
        for (name, _) in left_out.filter(|(name, _)| *name != chosen.0) {
            let what = "the contract takes one JSON body; this media type is left out";
            let place = format!("{at}/{}", step(name));
            self.said.warn(
                "media-type",
                place,
                what,
                "let it pass through if it is needed",
            );
        }
        let at = format!("{at}/{}", step(chosen.0));
        Some((chosen.1.get("schema")?, format!("{at}/schema")))
    }

    /// Every reply with a status of success is held against the one output schema.
    fn output(&mut self) {
        let at = format!("{}/responses", self.operation.at);
        let responses = self.operation.members.get("responses");
        let Some(responses) = responses.and_then(Value::as_object) else {
            return self.no_output(at);
        };
        let is_success = |status: &str| status.len() == 3 && status.starts_with('2');
        let mut names: Vec<&String> = responses.keys().filter(|name| is_success(name)).collect();
        if names.is_empty() && responses.contains_key("default") {
            let what = "no reply of success is described; \"default\" is taken for it";
            let place = format!("{at}/default");
            self.said.warn(
                "default-reply",
                place,
                what,
                "describe the reply with status 200",
            );
            names.extend(responses.keys().filter(|name| *name == "default"));
        }
        let (mut found, mut or_null) = (Vec::<Found<'d>>::new(), false);
        for name in names {
            let place = format!("{at}/{}", step(name));
            match self.document.object(&responses[name], &place) {
                Ok((reply, _)) if is_empty(reply) => or_null = true,
                Ok((reply, place)) => match self.media(reply, &place) {
                    Some(one) if self.is_among(&found, &one) => {}
                    Some(one) => found.push(one),
                    None => {
                        let what = "there is no JSON schema of this reply; it is left out";
                        let remedy = "describe the reply's body as application/json";
                        self.said.warn("media-type", place, what, remedy);
                    }
                },
                Err(problem) => self.said.faults.push(problem),
            }
        }
        self.replies(found, or_null, at);
    }

    /// Answers whether a schema is there already, so far as there is room to compare.
    fn is_among(&mut self, found: &[Found<'d>], (schema, at): &Found<'d>) -> bool {
        let is_same = |(other, place): &Found<'d>| place == at || other == schema;
        !found.is_empty()
            && self.budget.look(schema, at, &mut self.said)
            && found.iter().any(is_same)
    }

    fn replies(&mut self, mut found: Vec<Found<'d>>, or_null: bool, at: String) {
        if or_null {
            let what = "a reply without body is one that the contract takes for null";
            self.said
                .warn("empty-reply", at.as_str(), what, "reply with a JSON body");
        }
        let schema = match (found.len(), or_null) {
            (0, false) => return self.no_output(at),
            (0, true) => serde_json::json!({"type": "null"}),
            (1, false) => {
                let gather = self.gather(Direction::Output);
                gather.one(found.remove(0), "/output_schema")
            }
            _ => {
                let what = "several replies of success become alternatives, whatever the status";
                let remedy = "describe one reply of success";
                self.said.warn("several-replies", at.as_str(), what, remedy);
                self.origins.add("/output_schema", at);
                let gather = self.gather(Direction::Output);
                gather.any(found, or_null, "/output_schema")
            }
        };
        self.members.insert("output_schema".to_owned(), schema);
    }

    fn no_output(&mut self, at: String) {
        let what = "a contract has an output, but no JSON reply of success is described";
        let remedy = "describe the reply with status 200 as application/json";
        self.said.fault("no-output", at, what, remedy);
    }
}

fn is_empty(reply: &Map<String, Value>) -> bool {
    let content = reply.get("content").and_then(Value::as_object);
    content.is_none_or(Map::is_empty)
}

/// Takes the parameters off a media type.
fn essence(name: &str) -> String {
    let essence = name.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

fn is_json(name: &str) -> bool {
    let essence = essence(name);
    essence == "application/json" || essence.ends_with("+json")
}

fn is_range(name: &str) -> bool {
    matches!(essence(name).as_str(), "*/*" | "application/*")
}
