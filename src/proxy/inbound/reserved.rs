//! The paths under `/hermes/`: handshake, health, description, and calls in a wrapper.

use super::{Inbound, Roster, Served};
use crate::context::{AgentName, Fields};
use crate::proxy::body::Body;
use crate::proxy::check;
use crate::proxy::envelope::Envelope;
use crate::proxy::intake::Source;
use crate::proxy::later::CALLS;
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use crate::telemetry::metrics::Admission;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use tokio::time::Instant;

#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    agents: Vec<AgentHealth<'a>>,
}

#[derive(Serialize)]
struct AgentHealth<'a> {
    id: &'a str,
    version: String,
}

impl Inbound {
    pub(super) async fn reserved(
        self: Arc<Self>,
        head: Parts,
        body: Received,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let answered = match (head.uri.path(), &head.method) {
            ("/hermes/health" | "/hermes/heartbeat", &Method::GET | &Method::HEAD) => {
                self.health(&head)
            }
            ("/hermes/handshake", &Method::GET | &Method::HEAD) => self.handshake(&head),
            ("/hermes/openapi.json", &Method::GET | &Method::HEAD) => Ok(json(
                StatusCode::OK,
                self.roster().document(&self.config.application),
            )),
            ("/hermes/invoke", &Method::POST) => {
                return self.invoke(head, body, fields, began).await;
            }
            (
                "/hermes/health"
                | "/hermes/heartbeat"
                | "/hermes/handshake"
                | "/hermes/openapi.json",
                _,
            ) => Err(wrong_method("GET")),
            ("/hermes/invoke", _) => Err(wrong_method("POST")),
            (path, method) if path.starts_with(CALLS) => match *method {
                Method::GET | Method::HEAD => return self.fetch(&head, &fields).await,
                _ => Err(wrong_method("GET")),
            },
            _ => Err(Trouble::new(
                Problem::NotFound,
                "no such path under /hermes/",
            )),
        };
        answered.unwrap_or_else(|trouble| self.refusals.refuse(&trouble, &fields))
    }

    /// Finds the contract that the query's `agent` names, if it names one.
    fn asked(roster: &Roster, head: &Parts) -> Result<Option<Arc<Served>>, Trouble> {
        let query = head.uri.query().unwrap_or_default();
        let Some(agent) = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("agent="))
        else {
            return Ok(None);
        };
        match roster.find(agent) {
            Some(served) => Ok(Some(served.clone())),
            None => Err(roster.unknown()),
        }
    }

    fn health(&self, head: &Parts) -> Result<Response<Body>, Trouble> {
        let roster = self.roster();
        let looked_at: Vec<Arc<Served>> = match Self::asked(&roster, head)? {
            Some(served) => vec![served],
            None => roster.served().cloned().collect(),
        };
        let is_admitted = |s: &&Arc<Served>| s.standing.borrow().state == Admission::Admitted;
        let admitted: Vec<&Arc<Served>> = looked_at.iter().filter(is_admitted).collect();
        let first = looked_at.first();
        let leaving = self.lifecycle.phase().closes_connections();
        let ready = !leaving && !admitted.is_empty();
        let standing = first.map(|served| served.standing.borrow().clone());
        let status = match standing.as_ref().map(|standing| standing.state) {
            _ if ready => "ready",
            _ if leaving => "draining",
            Some(Admission::Draining) => "draining",
            Some(Admission::Unhealthy) => "unhealthy",
            Some(Admission::Admitting) => "admitting",
            _ => "starting",
        };
        let reason = standing.map(|standing| standing.reason);
        let reason = reason.or_else(|| roster.awaits().map(str::to_owned));
        let health = Health {
            status,
            version: first.map(|served| served.contract.contract.version.to_string()),
            reason: reason.filter(|_| !ready),
            agents: admitted
                .into_iter()
                .map(|served| AgentHealth {
                    id: served.id(),
                    version: served.contract.contract.version.to_string(),
                })
                .collect(),
        };
        let body = serde_json::to_vec(&health).unwrap_or_default();
        let code = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Ok(json(code, Bytes::from(body)))
    }

    fn handshake(&self, head: &Parts) -> Result<Response<Body>, Trouble> {
        let roster = self.roster();
        let asked = Self::asked(&roster, head)?;
        let served = match asked.as_ref().or_else(|| roster.only()) {
            Some(served) => served,
            None if roster.is_waiting() => return Err(roster.unknown()),
            None => {
                let detail = format!("name one with ?agent=: {}", roster.ids());
                return Err(Trouble::new(Problem::BadRequest, detail));
            }
        };
        Ok(json(
            StatusCode::OK,
            served.contract.contract.body().clone(),
        ))
    }

    async fn invoke(
        self: Arc<Self>,
        mut head: Parts,
        body: Received,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let roster = self.roster();
        let refused = match roster.not_yet() {
            Some(not_yet) if roster.is_waiting() => Err(not_yet),
            _ => self.check(&head),
        };
        if let Err(trouble) = refused {
            return self
                .refusals
                .turn_away(&trouble, &fields, &head, body)
                .await;
        }
        let read = self.config.limits.read(body).await;
        let unwrapped = self.unwrap(&mut head, read);
        match meant(&roster, unwrapped, &fields) {
            Ok((served, source, fields)) => self.made(served, head, source, fields, began).await,
            Err(trouble) => self.refusals.refuse(&trouble, &fields),
        }
    }

    /// Reads a wrapper as far as that is possible, and what is wrong with it.
    fn unwrap(
        &self,
        head: &mut Parts,
        read: Result<Bytes, Trouble>,
    ) -> (Option<Envelope>, Option<Trouble>) {
        let body = match read {
            Ok(body) => body,
            Err(trouble) => return (None, Some(trouble)),
        };
        let whole = check::wrapper(&mut head.headers, &body);
        match Envelope::read(&body, &self.config.limits.body) {
            Ok(envelope) => (Some(envelope), whole.err()),
            Err(trouble) => (None, Some(whole.err().unwrap_or(trouble))),
        }
    }
}

/// Finds the contract that a wrapper is meant for.
///
/// A fault of the wrapper is the end of that contract's call where it can be found; otherwise, and
/// where the fault means that there is no task, it is all there is to say.
fn meant(
    roster: &Roster,
    (envelope, fault): (Option<Envelope>, Option<Trouble>),
    fields: &Fields,
) -> Result<(Arc<Served>, Source, Fields), Trouble> {
    let refused = |fault: Option<Trouble>, own: Trouble| Err(fault.unwrap_or(own));
    let agent = envelope.as_ref().and_then(|call| call.agent.as_deref());
    let named = match agent.map(AgentName::parse) {
        Some(None) => return refused(fault, roster.unknown()),
        Some(named) => named,
        None => fields.agent.clone(),
    };
    let served = match roster.meant(named.as_ref()) {
        Ok(served) => served.clone(),
        Err(unknown) => return refused(fault, unknown),
    };
    let (input, context) = match envelope {
        Some(envelope) => (envelope.input, envelope.context),
        None => (Bytes::new(), Fields::default()),
    };
    let joined = match fields.clone().join(context) {
        Ok(joined) => joined,
        Err(differs) => {
            let differs = Trouble::new(Problem::BadContext, differs.to_string());
            return refused(fault, differs);
        }
    };
    let source = match fault {
        None => Source::Input(input),
        Some(fault) if leaves_a_report(fault.problem) => Source::Refused(Box::new(fault)),
        Some(fault) => return Err(fault),
    };
    Ok((served, source, joined))
}

/// Says whether a fault is the end of a task: a malformed context means that there is none.
fn leaves_a_report(problem: Problem) -> bool {
    problem.state().is_some() && problem != Problem::BadContext
}

fn wrong_method(allow: &str) -> Trouble {
    Trouble {
        allow: Some(allow.to_owned()),
        ..Trouble::new(Problem::MethodNotAllowed, format!("use {allow}"))
    }
}

fn json(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    let value = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
