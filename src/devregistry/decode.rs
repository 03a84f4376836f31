//! Registrations as Consul reads them: keys in any case, unknown ones refused, Go's durations.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::state::Refusal;

const MAX_META_PAIRS: usize = 64;
const MAX_META_KEY_BYTES: usize = 128;
const MAX_META_VALUE_BYTES: usize = 512;
const MAX_WEIGHT: u64 = 65_535;
/// Ours; Consul takes any number and length.
const MAX_CHECKS: usize = 16;
const MAX_WORD_BYTES: usize = 1024;
const MAX_TAGS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) tags: Vec<String>,
    pub(super) meta: Option<BTreeMap<String, String>>,
    pub(super) address: String,
    pub(super) port: i64,
    pub(super) weights: (u64, u64),
    pub(super) enable_tag_override: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckDefinition {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) status: Status,
    pub(super) notes: String,
    pub(super) kind: Kind,
    pub(super) deregister_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ttl(Duration),
    Http {
        url: String,
        method: String,
        interval: Duration,
        timeout: Duration,
    },
    Maintenance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Passing,
    Warning,
    Critical,
}

impl Status {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Status::Passing => "passing",
            Status::Warning => "warning",
            Status::Critical => "critical",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Status> {
        [Status::Passing, Status::Warning, Status::Critical]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// Reads the body of a registration.
pub(super) fn registration(body: &[u8]) -> Result<(Service, Vec<CheckDefinition>), Refusal> {
    let mut fields = Fields::parse(body)?;
    let name = fields.text("Name")?;
    let id = fields.text("ID")?;
    let service = Service {
        id: if id.is_empty() { name.clone() } else { id },
        name,
        tags: fields.texts("Tags")?,
        meta: fields.meta()?,
        address: fields.text("Address")?,
        port: fields.number("Port")?.unwrap_or(0),
        weights: fields.weights()?,
        enable_tag_override: fields.flag("EnableTagOverride")?,
    };
    let mut given: Vec<Value> = fields.take("Check").into_iter().collect();
    match fields.take("Checks") {
        None => {}
        Some(Value::Array(more)) => given.extend(more),
        Some(other) => return Err(mistyped(&other, "Checks", "[]")),
    }
    fields.finish()?;
    let mut checks = Vec::new();
    let several = given.len() > 1;
    if given.len() > MAX_CHECKS {
        return Err(Refusal::full("checks of one service", MAX_CHECKS));
    }
    for (nth, value) in given.into_iter().enumerate() {
        let default = if several {
            format!("service:{}:{}", service.id, nth + 1)
        } else {
            format!("service:{}", service.id)
        };
        checks.push(check(value, &service, default)?);
    }
    validate(&service)?;
    Ok((service, checks))
}

/// Reads the body of a check update: status and output.
pub(super) fn update(body: &[u8]) -> Result<(Status, String), Refusal> {
    let mut fields = Fields::parse(body)?;
    let status = fields.text("Status")?;
    let output = fields.text("Output")?;
    let parsed = Status::parse(&status)
        .ok_or_else(|| Refusal::bad(format!("Invalid check status: '{status}'")))?;
    Ok((parsed, output))
}

fn validate(service: &Service) -> Result<(), Refusal> {
    if service.name.is_empty() {
        return Err(Refusal::bad("Missing service name"));
    }
    if matches!(service.address.as_str(), "0.0.0.0" | "::" | "[::]") {
        return Err(Refusal::bad("Invalid service address"));
    }
    if service.weights.0 == 0 {
        return Err(Refusal::bad(
            "Invalid Weights: Passing must be greater than 0",
        ));
    }
    if service.weights.0 > MAX_WEIGHT || service.weights.1 > MAX_WEIGHT {
        return Err(Refusal::bad(
            "Invalid Weights: DNS Weight must be between 0 and 65535",
        ));
    }
    let meta = service.meta.iter().flatten();
    if meta.clone().count() > MAX_META_PAIRS {
        return Err(Refusal::bad(
            "Invalid Service Meta: Node metadata cannot contain more than 64 key/value pairs",
        ));
    }
    for (key, value) in meta {
        let pair = |why: &str| {
            Refusal::bad(format!(
                "Invalid Service Meta: Couldn't load metadata pair ('{key}', '{value}'): {why}"
            ))
        };
        if key.is_empty()
            || !key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        {
            return Err(pair("Key contains invalid characters"));
        }
        if key.len() > MAX_META_KEY_BYTES {
            return Err(pair("Key is too long (limit: 128 characters)"));
        }
        if key.starts_with("consul-") {
            return Err(pair("Key prefix 'consul-' is reserved for internal use"));
        }
        if value.len() > MAX_META_VALUE_BYTES {
            return Err(pair("Value is too long (limit: 512 characters)"));
        }
    }
    Ok(())
}

fn check(value: Value, service: &Service, default_id: String) -> Result<CheckDefinition, Refusal> {
    let Value::Object(map) = value else {
        return Err(mistyped(&value, "Checks", "structs.CheckType"));
    };
    let mut fields = Fields::of(map);
    let mut definition = CheckDefinition {
        id: fields.text("CheckID")?,
        name: fields.text("Name")?,
        status: Status::Critical,
        notes: fields.text("Notes")?,
        kind: Kind::Maintenance,
        deregister_after: fields.duration("DeregisterCriticalServiceAfter")?,
    };
    let status = fields.text("Status")?;
    if !status.is_empty() {
        let unknown = || Refusal::bad("Status for checks must 'passing', 'warning', 'critical'");
        definition.status = Status::parse(&status).ok_or_else(unknown)?;
    }
    if definition.id.is_empty() {
        definition.id = default_id;
    }
    if definition.name.is_empty() {
        definition.name = format!("Service '{}' check", service.name);
    }
    definition.kind = kind(fields)?;
    Ok(definition)
}

/// Takes what a check does; its fields end with that.
fn kind(mut fields: Fields) -> Result<Kind, Refusal> {
    let (url, ttl, interval) = (
        fields.text("HTTP")?,
        fields.duration("TTL")?,
        fields.duration("Interval")?,
    );
    let (method, timeout) = (fields.text("Method")?, fields.duration("Timeout")?);
    fields.finish()?;
    match (ttl, interval) {
        (Some(_), Some(_)) => Err(Refusal::bad(
            "Invalid check: Interval and TTL cannot both be specified",
        )),
        (Some(ttl), None) if url.is_empty() => Ok(Kind::Ttl(ttl)),
        (None, Some(interval)) if !url.is_empty() => Ok(Kind::Http {
            url,
            method: Some(method)
                .filter(|method| !method.is_empty())
                .unwrap_or_else(|| "GET".to_owned()),
            interval,
            timeout: timeout.unwrap_or(Duration::from_secs(10)),
        }),
        _ if url.is_empty() => Err(Refusal::bad(
            "Invalid check: TTL must be > 0 for TTL checks",
        )),
        _ => Err(Refusal::bad(
            "Invalid check: Interval must be > 0 for Script, HTTP, or TCP checks",
        )),
    }
}

/// An object whose keys are taken one by one; what is left over at the end was not known.
struct Fields {
    /// Lower case without `_`, to the key as written and its value.
    left: BTreeMap<String, (String, Value)>,
}

impl Fields {
    fn parse(body: &[u8]) -> Result<Fields, Refusal> {
        let failed = |why: String| Refusal::bad(format!("Request decode failed: {why}"));
        if body.is_empty() {
            return Err(failed("EOF".to_owned()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields::of(map)),
            Ok(other) => Err(mistyped(&other, "", "structs.ServiceDefinition")),
            Err(error) if error.is_eof() => Err(failed("unexpected EOF".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn of(map: Map<String, Value>) -> Fields {
        let left = map
            .into_iter()
            .map(|(key, value)| (plain(&key), (key, value)))
            .collect();
        Fields { left }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.left
            .remove(&plain(key))
            .map(|(_, value)| value)
            .filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &str) -> Result<String, Refusal> {
        match self.take(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) if text.len() <= MAX_WORD_BYTES => Ok(text),
            Some(Value::String(_)) => Err(Refusal::full("bytes in one field", MAX_WORD_BYTES)),
            Some(other) => Err(mistyped(&other, key, "string")),
        }
    }

    fn texts(&mut self, key: &str) -> Result<Vec<String>, Refusal> {
        let values = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values,
            Some(other) => return Err(mistyped(&other, key, "[]string")),
        };
        if values.len() > MAX_TAGS {
            return Err(Refusal::full("tags of one service", MAX_TAGS));
        }
        let text = |value| match value {
            Value::String(text) => Ok(text),
            other => Err(mistyped(&other, key, "string")),
        };
        values.into_iter().map(text).collect()
    }

    fn number(&mut self, key: &str) -> Result<Option<i64>, Refusal> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => value
                .as_i64()
                .map(Some)
                .ok_or_else(|| mistyped(&value, key, "int")),
        }
    }

    fn flag(&mut self, key: &str) -> Result<bool, Refusal> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(mistyped(&other, key, "bool")),
        }
    }

    /// A Go duration, or a bare number of nanoseconds; zero is as good as none.
    fn duration(&mut self, key: &str) -> Result<Option<Duration>, Refusal> {
        let length = match self.take(key) {
            None => return Ok(None),
            Some(Value::String(text)) => go_duration(&text)
                .map_err(|why| Refusal::bad(format!("Request decode failed: time: {why}")))?,
            Some(value) => match value.as_i64().and_then(|number| u64::try_from(number).ok()) {
                Some(nanoseconds) => Duration::from_nanos(nanoseconds),
                None => return Err(mistyped(&value, key, "time.Duration")),
            },
        };
        Ok(Some(length).filter(|length| !length.is_zero()))
    }

    fn meta(&mut self) -> Result<Option<BTreeMap<String, String>>, Refusal> {
        let map = match self.take("Meta") {
            None => return Ok(None),
            Some(Value::Object(map)) => map,
            Some(other) => return Err(mistyped(&other, "Meta", "map[string]string")),
        };
        let pair = |(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            Value::Null => Ok((key, String::new())),
            other => Err(mistyped(&other, "Meta", "string")),
        };
        map.into_iter()
            .map(pair)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn weights(&mut self) -> Result<(u64, u64), Refusal> {
        let map = match self.take("Weights") {
            None => return Ok((1, 1)),
            Some(Value::Object(map)) => map,
            Some(other) => return Err(mistyped(&other, "Weights", "structs.Weights")),
        };
        let mut fields = Fields::of(map);
        let mut weight = |key| {
            fields
                .number(key)
                .map(|number| number.unwrap_or(0).try_into().unwrap_or(u64::MAX))
        };
        let weights = (weight("Passing")?, weight("Warning")?);
        fields.finish()?;
        Ok(weights)
    }

    fn finish(self) -> Result<(), Refusal> {
        match self.left.into_values().next() {
            None => Ok(()),
            Some((key, _)) => Err(Refusal::bad(format!(
                "Request decode failed: json: unknown field \"{key}\""
            ))),
        }
    }
}

/// A key without what Consul overlooks in it.
fn plain(key: &str) -> String {
    key.to_ascii_lowercase().replace('_', "")
}

fn mistyped(value: &Value, field: &str, wanted: &str) -> Refusal {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    Refusal::bad(format!(
        "Request decode failed: json: cannot unmarshal {found} into Go struct field .{field} of type {wanted}"
    ))
}

/// Reads `1h2m3.5s` and the like; every number needs its unit.
pub(super) fn go_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration \"{text}\"");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() || text.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_error| invalid())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err(format!("missing unit in duration \"{text}\"")),
            unit => return Err(format!("unknown unit \"{unit}\" in duration \"{text}\"")),
        };
        rest = &rest[letters..];
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_error| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
    }
    // Go counts nanoseconds in 64 bits; an instant that far ahead still exists here.
    match i64::try_from(total.as_nanos()) {
        Ok(_) => Ok(total),
        Err(_beyond_go) => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_does() {
        let cases = [
            ("15s", Some(15_000)),
            ("600000ms", Some(600_000)),
            ("1h1m1.5s", Some(3_661_500)),
            ("0", Some(0)),
            ("10", None),
            ("", None),
            ("s", None),
            ("1x", None),
            ("-1s", None),
            ("1e3s", None),
            ("2562047h", Some(9_223_369_200_000)),
            ("2562048h", None),
        ];
        for (text, ms) in cases {
            assert_eq!(
                go_duration(text).ok(),
                ms.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    #[test]
    fn keys_are_read_in_any_case() {
        let body = br#"{"id":"a","NAME":"b","enable_tag_override":true,"checks":[{"ttl":"1s"},{"HTTP":"http://a","interval":"1s"}]}"#;
        let (service, checks) = registration(body).expect("a registration");
        assert_eq!(
            (
                service.id.as_str(),
                service.name.as_str(),
                service.enable_tag_override
            ),
            ("a", "b", true)
        );
        assert_eq!(
            (checks[0].id.as_str(), checks[1].id.as_str()),
            ("service:a:1", "service:a:2")
        );
    }

    #[test]
    fn our_own_bounds_hold() {
        let long = format!(r#"{{"Name":"{}"}}"#, "n".repeat(MAX_WORD_BYTES + 1));
        let checks = format!(
            r#"{{"Name":"a","Checks":[{}{{"TTL":"1s"}}]}}"#,
            r#"{"TTL":"1s"},"#.repeat(MAX_CHECKS)
        );
        let tags = format!(r#"{{"Name":"a","Tags":[{}""]}}"#, r#""","#.repeat(MAX_TAGS));
        for body in [long, checks, tags] {
            let Refusal(_, text) = registration(body.as_bytes()).expect_err("too much");
            assert!(text.contains("dev-registry is full"), "{text}");
        }
    }
}
