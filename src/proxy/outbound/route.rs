//! What a request asks for: an agent by path or by host name, a listed host, or the listener.
//!
//! One authority decides, the target's before the Host, and what was decided is what goes on: from
//! here on a request for an agent carries only the path at that agent.

use crate::context::AgentName;
use crate::contract::{ContractId, Range};
use crate::identity::local::{Asked, Local};
use crate::proxy::later::{self, CALLS};
use crate::proxy::respond::Trouble;
use crate::task::{Id, Problem};
use http::request::Parts;
use http::uri::Scheme;
use http::{Method, Uri, Version};

const FORMS: &str = "an agent is named by a contract id such as fraud-detection-v1.0, by \
                     id@version, or by a range such as fraud-detection@^1";

/// Where a request leads.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// A call in a wrapper, which names its agent.
    Invoke,
    /// What the application tells of its own work.
    Report,
    /// The question which agents there are.
    Discover,
    /// The reply of a call that is answered later.
    Reply(Id),
    /// An agent, and the target there.
    Agent { whom: Whom, target: Uri },
    /// A listed host and its port.
    Foreign { host: String, port: u16 },
}

/// Whom a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    Contract(AgentName),
    /// Whichever minor of the range can serve.
    Range(Range),
}

/// Finds out where a request leads; its authority has been checked.
pub fn route(head: &Parts, local: &Local) -> Result<Route, Trouble> {
    let path = head.uri.path();
    if !path.starts_with('/') {
        let detail = "the target is no path; a listener as a whole has no options";
        return Err(Trouble::new(Problem::NotFound, detail));
    }
    if head.version < Version::HTTP_2 && head.uri.scheme().is_some_and(|s| *s != Scheme::HTTP) {
        let detail = "a target that begins with another scheme than http:// is refused: what is \
                      called could not be checked";
        return Err(Trouble::new(Problem::HostRefused, detail));
    }
    let asked = local.asked(&head.headers, &head.uri);
    match asked.map_err(|refused| Trouble::new(Problem::HostRefused, refused.to_string()))? {
        Asked::Agent(label) => {
            let whom = Whom::of_host(&label)?;
            // Where a 202 was given under the agent's name, its Location leads here.
            if let (&Method::GET | &Method::HEAD, Some(call_id)) =
                (&head.method, later::call_at(path))
            {
                return Ok(Route::Reply(call_id));
            }
            let target = target(path, &head.uri)?;
            Ok(Route::Agent { whom, target })
        }
        Asked::Allowed(authority) => Ok(Route::Foreign {
            host: authority.host.to_owned(),
            port: authority.port.unwrap_or(80),
        }),
        Asked::Us => own(path, head),
    }
}

fn own(path: &str, head: &Parts) -> Result<Route, Trouble> {
    let posted = match path {
        "/hermes/invoke" => Some(Route::Invoke),
        "/report-status" => Some(Route::Report),
        "/hermes/discover" => Some(Route::Discover),
        _ => None,
    };
    if let Some(route) = posted {
        return match head.method {
            Method::POST => Ok(route),
            _ => Err(Trouble {
                allow: Some("POST".to_owned()),
                ..Trouble::new(Problem::MethodNotAllowed, "use POST")
            }),
        };
    }
    if path.starts_with(CALLS) {
        return match head.method {
            Method::GET | Method::HEAD => later::call_at(path)
                .map(Route::Reply)
                .ok_or_else(later::unknown),
            _ => Err(Trouble {
                allow: Some("GET".to_owned()),
                ..Trouble::new(Problem::MethodNotAllowed, "use GET")
            }),
        };
    }
    let Some(rest) = path.strip_prefix("/agents/") else {
        let detail = "here are POST /hermes/invoke, POST /hermes/discover, POST /report-status, \
                      GET /hermes/calls/{call_id}, /agents/{agent}/{path}, and as a proxy \
                      http://{agent}.hermes/{path}; other listeners of this machine are reached \
                      if outbound.allow_hosts lists them";
        return Err(Trouble::new(Problem::NotFound, detail));
    };
    let (name, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    Ok(Route::Agent {
        whom: Whom::of_segment(name)?,
        target: target(path, &head.uri)?,
    })
}

/// The target at the agent: the bytes that came, without what named the agent.
fn target(path: &str, uri: &Uri) -> Result<Uri, Trouble> {
    let parsed = match uri.query() {
        Some(query) => format!("{path}?{query}").parse(),
        None => path.parse(),
    };
    parsed.map_err(|_invalid| Trouble::new(Problem::BadRequest, "the path is malformed"))
}

impl Whom {
    /// Reads a name: an id, `id@version`, or `family@^N`.
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        if let Ok(range) = text.parse() {
            return Ok(Whom::Range(range));
        }
        AgentName::parse(text)
            .map(Whom::Contract)
            .ok_or_else(|| Trouble::new(Problem::BadContext, FORMS))
    }

    /// Reads a path segment; some clients escape what a range is written with.
    fn of_segment(segment: &str) -> Result<Self, Trouble> {
        let plain = segment.replace("%40", "@").replace("%5E", "^");
        Self::parse(&plain.replace("%5e", "^"))
    }

    /// Reads what stands before `.hermes`: an id, or `family-vN` for any minor of major N.
    fn of_host(label: &str) -> Result<Self, Trouble> {
        if label.parse::<ContractId>().is_ok() {
            let (id, version) = (label.to_owned(), None);
            return Ok(Whom::Contract(AgentName { id, version }));
        }
        Range::of_label(label)
            .map(Whom::Range)
            .map_err(|_no_range| {
                let shown: String = label.chars().take(80).collect();
                let detail = format!(
                    "{shown:?} names no agent; before .hermes stands a contract id such as \
                 fraud-detection-v1.0, or fraud-detection-v1 for the highest minor of major 1"
                );
                Trouble::new(Problem::UnknownAgent, detail).executed(false)
            })
    }

    /// Takes in what `Hermes-Agent` says beside the host or path: it may narrow the version.
    pub fn narrowed(self, beside: Option<&AgentName>) -> Result<Self, Trouble> {
        let Some(beside) = beside else {
            return Ok(self);
        };
        let agrees = match &self {
            Whom::Contract(agent) => {
                let versions = (&agent.version, &beside.version);
                let same = !matches!(versions, (Some(one), Some(other)) if one != other);
                agent.id == beside.id && same
            }
            Whom::Range(range) => beside.id.parse().is_ok_and(|id| range.holds(&id)),
        };
        if !agrees {
            let detail = "Hermes-Agent names another agent than the host or path; leave it out, \
                          or let it add only the version";
            return Err(Trouble::new(Problem::BadContext, detail));
        }
        Ok(match self {
            Whom::Contract(agent) if beside.version.is_none() => Whom::Contract(agent),
            _ => Whom::Contract(beside.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Hosts;
    use http::Request;

    fn verdict(method: &str, host: &str, uri: &str) -> String {
        let local = Local {
            own: Some("127.0.0.1:7402".parse().unwrap()),
            allowed: Hosts::new(vec!["api.example".parse().unwrap()]),
        };
        let request = Request::builder().method(method).uri(uri);
        let (head, ()) = request.header("host", host).body(()).unwrap().into_parts();
        match route(&head, &local) {
            Ok(Route::Invoke) => "invoke".to_owned(),
            Ok(Route::Report) => "report".to_owned(),
            Ok(Route::Discover) => "discover".to_owned(),
            Ok(Route::Reply(call_id)) => format!("reply of {}", call_id.as_str()),
            Ok(Route::Foreign { host, port }) => format!("to {host}:{port}"),
            Ok(Route::Agent { whom, target }) => match whom {
                Whom::Contract(agent) => match agent.version {
                    Some(version) => format!("{}@{version} {target}", agent.id),
                    None => format!("{} {target}", agent.id),
                },
                Whom::Range(range) => format!("{range} {target}"),
            },
            Err(trouble) => trouble.problem.as_str().to_owned(),
        }
    }

    #[test]
    fn requests_and_where_they_lead() {
        for (method, host, uri, leads) in [
            ("POST", "localhost", "/hermes/invoke", "invoke"),
            ("GET", "localhost", "/hermes/invoke", "method-not-allowed"),
            ("POST", "localhost", "/report-status", "report"),
            ("GET", "localhost", "/report-status", "method-not-allowed"),
            ("POST", "localhost", "/hermes/discover", "discover"),
            ("GET", "localhost", "/hermes/discover", "method-not-allowed"),
            ("GET", "localhost", "/hermes/calls/c-1:~", "reply of c-1:~"),
            ("HEAD", "localhost", "/hermes/calls/c", "reply of c"),
            ("GET", "localhost", "/hermes/calls/", "not-found"),
            ("GET", "localhost", "/hermes/calls/a/b", "not-found"),
            ("POST", "localhost", "/hermes/calls/c", "method-not-allowed"),
            ("GET", "a-v1.0.hermes", "/hermes/calls/c?x", "reply of c"),
            ("HEAD", "a-v1.hermes", "/hermes/calls/c", "reply of c"),
            (
                "GET",
                "x",
                "http://a-v1.0.hermes/hermes/calls/c",
                "reply of c",
            ),
            ("GET", "a.hermes", "/hermes/calls/c", "unknown-agent"),
            (
                "POST",
                "a-v1.0.hermes",
                "/hermes/calls/c",
                "a-v1.0 /hermes/calls/c",
            ),
            (
                "GET",
                "a-v1.0.hermes",
                "/hermes/calls/c/d",
                "a-v1.0 /hermes/calls/c/d",
            ),
            (
                "POST",
                "a-v1.0.hermes",
                "/hermes/discover",
                "a-v1.0 /hermes/discover",
            ),
            (
                "POST",
                "a-v1.0.hermes",
                "/report-status",
                "a-v1.0 /report-status",
            ),
            (
                "GET",
                "localhost",
                "/agents/a-v1.0/x?q=%2F&q",
                "a-v1.0 /x?q=%2F&q",
            ),
            ("GET", "localhost", "/agents/a-v1.0", "a-v1.0 /"),
            (
                "GET",
                "localhost",
                "/agents/a-v1.0@1.0.3/x",
                "a-v1.0@1.0.3 /x",
            ),
            ("GET", "localhost", "/agents/a@^1/x", "a@^1 /x"),
            ("GET", "localhost", "/agents/a%40%5e1/x", "a@^1 /x"),
            ("GET", "localhost", "/agents/a%5E1/x", "bad-context"),
            ("GET", "localhost", "/agents//x", "bad-context"),
            (
                "GET",
                "localhost",
                "/agents/a-v1.0//evil.example/x",
                "a-v1.0 //evil.example/x",
            ),
            ("GET", "localhost", "/else", "not-found"),
            ("OPTIONS", "localhost", "*", "not-found"),
            ("OPTIONS", "a-v1.0.hermes", "*", "not-found"),
            ("GET", "a-v1.0.hermes", "/x?q", "a-v1.0 /x?q"),
            ("GET", "A-V1.0.Hermes:80", "/X", "a-v1.0 /X"),
            ("GET", "a-b-v1.hermes", "/x", "a-b@^1 /x"),
            ("GET", "a.hermes", "/x", "unknown-agent"),
            ("GET", "a-v1.0@1.0.0.hermes", "/x", "host-refused"),
            (
                "GET",
                "a-v1.0.hermes",
                "/agents/b-v1.0/x",
                "a-v1.0 /agents/b-v1.0/x",
            ),
            (
                "POST",
                "a-v1.0.hermes",
                "/hermes/invoke",
                "a-v1.0 /hermes/invoke",
            ),
            (
                "GET",
                "b-v1.0.hermes",
                "http://a-v1.0.hermes/x",
                "a-v1.0 /x",
            ),
            ("GET", "b-v1.0.hermes", "http://a-v1.0.hermes", "a-v1.0 /"),
            ("GET", "x", "http://a-v1.0.hermes?q", "a-v1.0 /?q"),
            ("GET", "x", "http://a-v1.0.hermes./x", "host-refused"),
            (
                "GET",
                "a-v1.0.hermes",
                "http://localhost/agents/b-v1.0/x",
                "b-v1.0 /x",
            ),
            (
                "GET",
                "a-v1.0.hermes",
                "https://a-v1.0.hermes/x",
                "host-refused",
            ),
            (
                "GET",
                "a-v1.0.hermes",
                "http://api.example/x",
                "to api.example:80",
            ),
            ("GET", "x", "http://API.example:81/x", "to API.example:81"),
            (
                "GET",
                "a-v1.0.hermes",
                "http://evil.example/x",
                "host-refused",
            ),
            ("GET", "localhost", "ftp://api.example/x", "host-refused"),
        ] {
            assert_eq!(verdict(method, host, uri), leads, "{method} {host} {uri}");
        }
    }

    #[test]
    fn the_field_beside_may_only_narrow() {
        for (name, beside, whom) in [
            ("a-v1.0", None, Some("a-v1.0")),
            ("a-v1.0", Some("a-v1.0"), Some("a-v1.0")),
            ("a-v1.0", Some("a-v1.0@1.0.2"), Some("a-v1.0@1.0.2")),
            ("a-v1.0@1.0.2", Some("a-v1.0"), Some("a-v1.0@1.0.2")),
            ("a-v1.0@1.0.2", Some("a-v1.0@1.0.2"), Some("a-v1.0@1.0.2")),
            ("a-v1.0@1.0.2", Some("a-v1.0@1.0.3"), None),
            ("a-v1.0", Some("b-v1.0"), None),
            ("a@^1", None, Some("a@^1")),
            ("a@^1", Some("a-v1.4"), Some("a-v1.4")),
            ("a@^1", Some("a-v1.4@1.4.1"), Some("a-v1.4@1.4.1")),
            ("a@^1", Some("a-v2.0"), None),
            ("a@^1", Some("x"), None),
        ] {
            let beside = beside.map(|text| AgentName::parse(text).unwrap());
            let narrowed = Whom::parse(name).unwrap().narrowed(beside.as_ref());
            let whom = whom.map(|text| Whom::parse(text).unwrap());
            assert_eq!(narrowed.ok(), whom, "{name} {beside:?}");
        }
    }
}
