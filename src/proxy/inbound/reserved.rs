//! The paths under `/hermes/`: handshake, health, and calls in a wrapper.

use super::{Inbound, Served};
use crate::context::{AgentName, Fields};
use crate::proxy::body::Body;
use crate::proxy::check;
use crate::proxy::envelope::Envelope;
use crate::proxy::intake::Source;
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use crate::telemetry::metrics::Admission;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
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
        body: Incoming,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let answered = match (head.uri.path(), &head.method) {
            ("/hermes/health" | "/hermes/heartbeat", &Method::GET | &Method::HEAD) => {
                self.health(&head)
            }
            ("/hermes/handshake", &Method::GET | &Method::HEAD) => self.handshake(&head),
            ("/hermes/invoke", &Method::POST) => {
                return self.invoke(head, body, fields, began).await;
            }
            ("/hermes/health" | "/hermes/heartbeat" | "/hermes/handshake", _) => {
                Err(wrong_method("GET"))
            }
            ("/hermes/invoke", _) => Err(wrong_method("POST")),
            _ => Err(Trouble::new(
                Problem::NotFound,
                "no such path under /hermes/",
            )),
        };
        answered.unwrap_or_else(|trouble| self.refusals.refuse(&trouble, &fields))
    }

    /// Finds the contract that the query's `agent` names, if it names one.
    fn asked(&self, head: &Parts) -> Result<Option<&Served>, Trouble> {
        let query = head.uri.query().unwrap_or_default();
        let Some(agent) = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("agent="))
        else {
            return Ok(None);
        };
        let found = self
            .config
            .contracts
            .iter()
            .find(|served| served.id() == agent);
        match found {
            Some(served) => Ok(Some(served)),
            None => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Trouble {
        let detail = format!("served here: {}", self.ids());
        Trouble::new(Problem::UnknownAgent, detail).executed(false)
    }

    fn ids(&self) -> String {
        let ids: Vec<&str> = self.config.contracts.iter().map(Served::id).collect();
        ids.join(", ")
    }

    fn health(&self, head: &Parts) -> Result<Response<Body>, Trouble> {
        let asked = self.asked(head)?;
        let all = || self.config.contracts.iter();
        let looked_at: Vec<&Served> = match asked {
            Some(served) => vec![served],
            None => all().collect(),
        };
        let is_admitted = |s: &&&Served| s.standing.borrow().state == Admission::Admitted;
        let admitted: Vec<&&Served> = looked_at.iter().filter(is_admitted).collect();
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
        let health = Health {
            status,
            version: first.map(|served| served.contract.contract.version.to_string()),
            reason: standing.filter(|_| !ready).map(|standing| standing.reason),
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
        let served = match (self.asked(head)?, self.config.contracts.as_slice()) {
            (Some(served), _) => served,
            (None, [only]) => only,
            (None, _) => {
                let detail = format!("name one with ?agent=: {}", self.ids());
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
        body: Incoming,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        match self.unwrap(&mut head, body, fields.clone()).await {
            Ok((at, input, fields)) => {
                self.lasting(at, head, Source::Input(input), fields, began)
                    .await
            }
            Err(trouble) => self.refusals.refuse(&trouble, &fields),
        }
    }

    /// Reads a wrapper and finds the contract it is meant for.
    async fn unwrap(
        &self,
        head: &mut Parts,
        body: Incoming,
        fields: Fields,
    ) -> Result<(usize, Bytes, Fields), Trouble> {
        let config = &self.config;
        config.limits.check(head)?;
        let body = config.limits.read(body).await?;
        check::wrapper(&mut head.headers, &body)?;
        let envelope = Envelope::read(&body, &config.limits.body)?;
        let named = match envelope.agent.as_deref() {
            Some(text) => Some(AgentName::parse(text).ok_or_else(|| self.unknown())?),
            None => fields.agent.clone(),
        };
        let at = match (named, config.contracts.len()) {
            (Some(agent), _) => {
                let mut ids = config.contracts.iter().map(Served::id);
                ids.position(|id| id == agent.id)
                    .ok_or_else(|| self.unknown())?
            }
            (None, 1) => 0,
            (None, _) => {
                let detail = format!("name the agent, one of: {}", self.ids());
                return Err(Trouble::new(Problem::BadRequest, detail));
            }
        };
        let joined = fields
            .join(envelope.context)
            .map_err(|differs| Trouble::new(Problem::BadContext, differs.to_string()))?;
        Ok((at, envelope.input, joined))
    }
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
