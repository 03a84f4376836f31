//! `invoke --trace`: what became of a call step by step, from what its reply tells.
//!
//! Times are those of the sidecars: `Server-Timing` has the caller's own parts first, then those
//! of whoever was behind it. The admin listener is asked what is known of the contract; where it
//! cannot be reached, the rest is told all the same.
//!
//! - only what the reply proves is told: a reply without times is of a call that was not begun
//! - times of the caller are of all attempts together; only of a first that succeeds are they its own

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Method, Url};
use serde_json::Value;

use crate::cli::client::{self, Answer};
use crate::cli::exit::Failure;
use crate::cli::local::ask_at;
use crate::cli::output::plain;

/// What was known of the contract before the call.
pub(super) struct Before {
    agent: String,
    /// Where to ask what else is known; none where nobody answers.
    admin: Option<String>,
    /// The bodies of called contracts that were in use.
    cached: Vec<Body>,
}

/// A contract's body as a sidecar holds it.
#[derive(Debug, PartialEq, Eq)]
struct Body {
    agent: String,
    version: String,
    digest: String,
}

/// A call that was made.
pub(super) struct Call<'a> {
    pub answer: &'a Answer,
    pub took: Duration,
    pub tags: &'a [String],
    pub sla: Option<&'a str>,
}

/// The parts of one hop.
#[derive(Debug, Default, Clone, PartialEq)]
struct Hop {
    validate: f64,
    route: f64,
    upstream: f64,
    record: f64,
}

impl Before {
    /// Asks what is known of a contract; an admin listener that is not there is no fault.
    pub fn look(
        admin: Option<String>,
        config: Option<PathBuf>,
        agent: &str,
    ) -> Result<Self, Failure> {
        let base = client::base(admin, "admin", config, |addresses| addresses.admin.clone())?;
        let (agent, asked) = (
            agent.to_owned(),
            ask_at(&base, Method::GET, "/contracts", None),
        );
        let known: Option<Value> = match asked {
            Ok(answer) if answer.status.is_success() => serde_json::from_slice(&answer.body).ok(),
            Ok(_) | Err(_) => None,
        };
        let cached = known.as_ref().map_or_else(Vec::new, in_use);
        Ok(Self {
            admin: known.is_some().then_some(base),
            agent,
            cached,
        })
    }

    /// Tells the steps of a call, a line each.
    pub fn told(&self, call: &Call<'_>) -> String {
        let answer = call.answer;
        let hops = hops(answer);
        let (ours, theirs) = (hops.first(), hops.get(1));
        let problem = problem(answer);
        let kind = problem.as_ref().map_or("", |(kind, _)| kind.as_str());
        let mut text = String::new();
        let mut line = |name: &str, told: String| {
            // Writing to a string cannot fail.
            writeln!(text, "{name:<9} {}", plain(&told)).ok();
        };
        line("contract", self.contract(answer));
        line("input", input(answer, ours, theirs, kind));
        line("instance", self.instance(answer, ours, theirs.is_some()));
        line("context", context(call));
        if let Some(told) = attempts(answer) {
            line("attempts", told);
        }
        line("callee", callee(answer, ours, theirs));
        line("report", report(answer, ours, theirs));
        line("output", output(answer, kind));
        if let Some((kind, detail)) = &problem {
            line("problem", format!("{kind}: {detail}"));
        }
        line("total", millis(call.took.as_secs_f64() * 1000.0));
        text
    }

    fn contract(&self, answer: &Answer) -> String {
        let named = answer.header("hermes-agent").unwrap_or(&self.agent);
        let stand_in = match is_degraded(answer) {
            true => format!(", a fallback of {}", self.agent),
            false => String::new(),
        };
        if self.admin.is_none() {
            return format!("{named}{stand_in} (the admin listener tells no more)");
        }
        let (id, version) = match named.split_once('@') {
            Some((id, version)) => (id, Some(version)),
            None => (named, None),
        };
        let is_it = |body: &&Body| {
            body.agent == id && version.is_none_or(|version| body.version == version)
        };
        match self.cached.iter().find(is_it) {
            Some(Body {
                version, digest, ..
            }) => format!("{named}{stand_in}, from the cache: {version} {digest}"),
            None => format!("{named}{stand_in}, not in use here before this call"),
        }
    }

    fn instance(&self, answer: &Answer, ours: Option<&Hop>, was_reached: bool) -> String {
        let chosen = ours.map_or_else(String::new, |ours| {
            format!(", chosen in {}", millis(ours.route))
        });
        let explained = self.explained(answer);
        let address = |instance: &str| {
            let ranking = explained.as_ref()?["ranking"].as_array()?;
            let found = ranking.iter().find(|one| one["instance"] == instance)?;
            Some(format!(
                "{}, {} fit",
                found["address"].as_str()?,
                ranking.len()
            ))
        };
        if let Some(instance) = answered(answer).filter(|_| was_reached) {
            let place = address(&instance).map_or_else(String::new, |place| format!(" ({place})"));
            return format!("{instance}{place}{chosen}");
        }
        let would = explained
            .as_ref()
            .and_then(|explained| explained["instance"].as_str());
        match would {
            Some(instance) => {
                let place = address(instance).unwrap_or_default();
                format!("none has answered; now it would be {instance} ({place})")
            }
            None => "none has answered".to_owned(),
        }
    }

    /// Asks where calls of the task go; the reply itself says who has answered.
    fn explained(&self, answer: &Answer) -> Option<Value> {
        let (base, task) = (self.admin.as_ref()?, answer.header("hermes-task-id")?);
        let named = answer.header("hermes-agent").unwrap_or(&self.agent);
        let mut url = Url::parse("http://localhost/explain").ok()?;
        let agent = named.split('@').next().unwrap_or(named);
        url.query_pairs_mut()
            .append_pair("agent", agent)
            .append_pair("task_id", task);
        let path = format!("/explain?{}", url.query().unwrap_or_default());
        let told = ask_at(base, Method::GET, &path, None).ok()?;
        serde_json::from_slice(&told.body).ok()
    }
}

/// Lists the bodies of called contracts that are in use.
fn in_use(contracts: &Value) -> Vec<Body> {
    let all = contracts.as_array().into_iter().flatten();
    let called = all.filter(|one| one["use"] == "called");
    let bodies = called.flat_map(|one| {
        let bodies = one["bodies"].as_array().into_iter().flatten();
        bodies.filter_map(|body| {
            Some(Body {
                agent: one["agent"].as_str()?.to_owned(),
                version: body["version"].as_str()?.to_owned(),
                digest: body["digest"].as_str()?.to_owned(),
            })
        })
    });
    bodies.collect()
}

/// Says whether a fallback has answered.
fn is_degraded(answer: &Answer) -> bool {
    answer.header("hermes-degraded") == Some("?1")
}

fn input(answer: &Answer, ours: Option<&Hop>, theirs: Option<&Hop>, kind: &str) -> String {
    const SENT: [&str; 4] = ["input-invalid", "bad-json", "body-required", "too-large"];
    let is_refused = SENT.contains(&kind);
    let Some(ours) = ours else {
        return match is_refused {
            true => "refused here, nothing was sent".to_owned(),
            false => "not checked: the call was not begun".to_owned(),
        };
    };
    let took = millis(ours.validate);
    match (is_refused, theirs) {
        (true, Some(theirs)) => format!(
            "held good here, refused by the callee in {}",
            millis(theirs.validate)
        ),
        (true, None) if ours.upstream > 0.0 => "held good here, refused by the callee".to_owned(),
        (true, None) => format!("refused here in {took}, nothing was sent"),
        (false, _) if answer.status.is_success() => {
            format!("checked here; with the output {took}")
        }
        (false, _) if ours.validate > 0.0 => format!("checked here; all checks took {took}"),
        (false, _) => "the reply tells of no check here".to_owned(),
    }
}

/// Tells how many attempts there were, as far as the reply knows: after a failure it is the reply
/// of the agent asked for, whatever fallbacks were tried after it.
fn attempts(answer: &Answer) -> Option<String> {
    let number = answer.header("hermes-attempt")?;
    Some(match (is_degraded(answer), answer.status.is_success()) {
        (true, _) => format!("{number}, the last of them by a fallback"),
        (false, true) => number.to_owned(),
        (false, false) => {
            let task = answer.header("hermes-task-id").unwrap_or("ID");
            format!("{number} at least; fallbacks that failed too: hermes-sidecar task {task}")
        }
    })
}

fn context(call: &Call<'_>) -> String {
    let names = [
        ("task", "hermes-task-id"),
        ("step", "hermes-step-id"),
        ("call", "hermes-call-id"),
        ("attempt", "hermes-attempt"),
        ("trace", "hermes-trace-id"),
    ];
    let told = names.into_iter().filter_map(|(name, header)| {
        let value = call.answer.header(header)?;
        Some(format!("{name} {value}"))
    });
    let sla = call.sla.map(|level| format!("sla {level}"));
    let tags = (!call.tags.is_empty()).then(|| format!("tags {}", call.tags.join(" ")));
    let all: Vec<String> = told.chain(sla).chain(tags).collect();
    all.join("  ")
}

fn callee(answer: &Answer, ours: Option<&Hop>, theirs: Option<&Hop>) -> String {
    let Some(ours) = ours.filter(|ours| ours.upstream > 0.0) else {
        return "not asked".to_owned();
    };
    let waited = millis(ours.upstream);
    let Some(theirs) = theirs else {
        return format!("no answer of its sidecar; all attempts together took {waited}");
    };
    let is_first = answer.header("hermes-attempt") == Some("1") && answer.status.is_success();
    let (answered, together) = match is_first {
        true => (format!("answered in {waited}"), String::new()),
        false => (
            "answered".to_owned(),
            format!("; all attempts together took {waited}"),
        ),
    };
    format!(
        "{answered}: validate {}, application {}, record {}{together}",
        millis(theirs.validate),
        millis(theirs.upstream),
        millis(theirs.record)
    )
}

fn report(answer: &Answer, ours: Option<&Hop>, theirs: Option<&Hop>) -> String {
    let Some(ours) = ours else {
        return "none: there was no attempt".to_owned();
    };
    let state = answer
        .header("hermes-state")
        .unwrap_or("no state in the reply");
    // The reply goes out after a while whether the report is stored or not.
    let theirs = theirs.map(|hop| format!(", {} by the callee", millis(hop.record)));
    format!(
        "{state}; its record was waited for {} here{}",
        millis(ours.record),
        theirs.unwrap_or_default()
    )
}

fn output(answer: &Answer, kind: &str) -> String {
    match (answer.status.is_success(), kind) {
        (true, _) => {
            let digest = answer.header("content-digest").unwrap_or("no digest");
            format!("checked again here and held good, {digest}")
        }
        (false, "output-invalid") => "broke the contract".to_owned(),
        (false, _) => format!("none to check: status {}", answer.status.as_u16()),
    }
}

/// Returns the kind and the detail of a sidecar's own problem.
fn problem(answer: &Answer) -> Option<(String, String)> {
    if answer.status.is_success() {
        return None;
    }
    let told: Value = serde_json::from_slice(&answer.body).ok()?;
    let kind = told["type"]
        .as_str()?
        .strip_prefix(crate::task::Problem::TYPE)?;
    let detail = told["detail"].as_str().unwrap_or_default();
    Some((kind.to_owned(), detail.to_owned()))
}

/// Reads the parts of each hop, nearest first; an application's own parts are none of ours.
fn hops(answer: &Answer) -> Vec<Hop> {
    let mut hops: Vec<Hop> = Vec::new();
    for member in members(answer) {
        let mut parts = member.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let took = parts.find_map(|part| part.strip_prefix("dur=")?.parse::<f64>().ok());
        let took = took.unwrap_or(0.0);
        // Every hop of ours begins with this one.
        if name == "validate" {
            hops.push(Hop::default());
        }
        let Some(hop) = hops.last_mut() else { continue };
        match name {
            "validate" => hop.validate = took,
            "route" => hop.route = took,
            "upstream" => hop.upstream = took,
            "record" => hop.record = took,
            _ => {}
        }
    }
    hops
}

/// Returns the instance that says it has answered.
fn answered(answer: &Answer) -> Option<String> {
    let named = members(answer).into_iter().find_map(|member| {
        let quoted = member.strip_prefix("instance;desc=\"")?;
        Some(quoted.strip_suffix('"')?.to_owned())
    });
    named.filter(|name| !name.is_empty())
}

fn members(answer: &Answer) -> Vec<String> {
    let values = answer.headers.get_all("server-timing").iter();
    let text = values.filter_map(|value| value.to_str().ok());
    let members = text.flat_map(|value| value.split(','));
    members.map(|member| member.trim().to_owned()).collect()
}

fn millis(length: f64) -> String {
    format!("{length:.3} ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;
    use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Answer {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_static(name);
            map.append(name, HeaderValue::from_static(value));
        }
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: map,
            body: body.into(),
        }
    }

    fn told(answer: &Answer) -> String {
        let before = Before {
            agent: "fraud-v1.0".into(),
            admin: None,
            cached: Vec::new(),
        };
        before.told(&Call {
            answer,
            took: Duration::from_millis(9),
            tags: &["gpu".to_owned()],
            sla: Some("P0"),
        })
    }

    const OURS: (&str, &str) = (
        "server-timing",
        "validate;dur=0.500, route;dur=0.100, upstream;dur=7.000, record;dur=0.300",
    );

    #[test]
    fn a_whole_call_is_told_step_by_step() {
        let reply = answer(
            200,
            &[
                OURS,
                (
                    "server-timing",
                    "validate;dur=0.200, route;dur=0.000, upstream;dur=5.000, record;dur=0.400",
                ),
                ("server-timing", "instance;desc=\"fraud-1\""),
                ("server-timing", "db;dur=4"),
                ("hermes-agent", "fraud-v1.0@1.0.0"),
                ("hermes-task-id", "t-1"),
                ("hermes-attempt", "1"),
                ("hermes-state", "completed"),
                ("content-digest", "sha-256=:abc:"),
            ],
            "{}",
        );
        // One line says the same as several.
        let lines = reply.headers.get_all("server-timing").iter();
        let line: Vec<&str> = lines.map(|line| line.to_str().unwrap()).collect();
        let line = HeaderValue::from_str(&line.join(", ")).unwrap();
        let mut joined = reply.headers.clone();
        joined.insert("server-timing", line);
        let joined = Answer {
            headers: joined,
            body: reply.body.clone(),
            ..reply
        };
        let expected = "\
contract  fraud-v1.0@1.0.0 (the admin listener tells no more)
input     checked here; with the output 0.500 ms
instance  fraud-1, chosen in 0.100 ms
context   task t-1  attempt 1  sla P0  tags gpu
attempts  1
callee    answered in 7.000 ms: validate 0.200 ms, application 5.000 ms, record 0.400 ms
report    completed; its record was waited for 0.300 ms here, 0.400 ms by the callee
output    checked again here and held good, sha-256=:abc:
total     9.000 ms
";
        assert_eq!(told(&reply), expected);
        assert_eq!(told(&joined), expected);
    }

    #[test]
    fn a_refusal_and_a_silence_are_told_apart() {
        let problem =
            |kind: &str| format!(r#"{{"type":"urn:hermes:problem:{kind}","detail":"because"}}"#);
        let refused = answer(
            400,
            &[(
                "server-timing",
                "validate;dur=0.500, route;dur=0.100, upstream;dur=0.000, record;dur=0.300",
            )],
            &problem("input-invalid"),
        );
        let text = told(&refused);
        for line in [
            "input     refused here in 0.500 ms, nothing was sent\n",
            "instance  none has answered\n",
            "callee    not asked\n",
            "report    no state in the reply; its record was waited for 0.300 ms here\n",
            "problem   input-invalid: because\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let silent = answer(
            504,
            &[OURS, ("hermes-state", "timeout")],
            &problem("timeout"),
        );
        let text = told(&silent);
        for line in [
            "callee    no answer of its sidecar; all attempts together took 7.000 ms\n",
            "report    timeout; its record was waited for 0.300 ms here\n",
            "output    none to check: status 504\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
    #[test]
    fn a_call_that_was_not_begun_has_no_report_and_no_check() {
        for (kind, state) in [
            ("unknown-agent", None),
            ("no-instance", Some("failed_execution")),
        ] {
            let mut reply = answer(
                503,
                &[],
                &format!(r#"{{"type":"urn:hermes:problem:{kind}","detail":"because"}}"#),
            );
            if let Some(state) = state {
                let state = HeaderValue::from_static(state);
                reply.headers.insert("hermes-state", state);
            }
            let text = told(&reply);
            for line in [
                "input     not checked: the call was not begun\n",
                "instance  none has answered\n",
                "callee    not asked\n",
                "report    none: there was no attempt\n",
            ] {
                assert!(text.contains(line), "{line}{text}");
            }
        }
    }

    #[test]
    fn retries_and_fallbacks_are_told_and_share_their_times() {
        const THEIRS: (&str, &str) = (
            "server-timing",
            "validate;dur=0.200, route;dur=0.000, upstream;dur=5.000, record;dur=0.400",
        );
        let together = "; all attempts together took 7.000 ms\n";
        for (status, attempt, degraded, line) in [
            (200, "2", "?0", "attempts  2\n"),
            (
                200,
                "3",
                "?1",
                "attempts  3, the last of them by a fallback\n",
            ),
            (
                502,
                "1",
                "?0",
                "attempts  1 at least; fallbacks that failed too: hermes-sidecar task t-1\n",
            ),
        ] {
            let reply = answer(
                status,
                &[
                    OURS,
                    THEIRS,
                    ("hermes-task-id", "t-1"),
                    ("hermes-attempt", attempt),
                    ("hermes-degraded", degraded),
                ],
                "{}",
            );
            let text = told(&reply);
            assert!(text.contains(line), "{line}{text}");
            assert!(text.contains(together), "{text}");
            assert!(text.contains("callee    answered: validate"), "{text}");
        }
    }

    #[test]
    fn the_digest_shown_is_of_the_body_that_answered() {
        let contracts = serde_json::json!([
            {"use": "served", "agent": "own-v1.0"},
            {"use": "called", "agent": "fraud-v1.0", "bodies": [
                {"version": "1.0.0", "digest": "sha-256:a"}, {"version": "1.0.1", "digest": "sha-256:b"}]},
        ]);
        let before = Before {
            agent: "fraud-v1.0".into(),
            admin: Some("http://127.0.0.1:1".into()),
            cached: in_use(&contracts),
        };
        for (named, degraded, line) in [
            (
                "fraud-v1.0@1.0.1",
                "?0",
                "fraud-v1.0@1.0.1, from the cache: 1.0.1 sha-256:b",
            ),
            (
                "fraud-v1.0@1.0.2",
                "?0",
                "fraud-v1.0@1.0.2, not in use here before this call",
            ),
            (
                "rules-v1.0@1.0.0",
                "?1",
                "rules-v1.0@1.0.0, a fallback of fraud-v1.0, not in use here before this call",
            ),
        ] {
            let reply = answer(
                200,
                &[("hermes-agent", named), ("hermes-degraded", degraded)],
                "{}",
            );
            assert_eq!(before.contract(&reply), line);
        }
    }
}
