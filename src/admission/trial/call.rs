//! One trial call: sent as a real one is, and its reply held against the contract.

use super::{Limits, OwnRoute, expect};
use crate::context::{self, AgentName, Fields, Ids, Trace, header};
use crate::contract::{Compiled, Probe, Violations, guard};
use crate::identity::Digest;
use crate::task::Id;
use crate::telemetry::log::Chain;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Replies above this are checked off the threads that move other traffic along.
const LARGE: usize = 256 * 1024;

/// Why a call failed; no text holds anything of the reply but its status.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{}", Chain(.0))]
    Sent(reqwest::Error),
    #[error("there was no whole reply within {0:?}")]
    Late(Duration),
    #[error("the application answered {0}, not 2xx")]
    Status(u16),
    #[error("the reply is coded although identity was asked for")]
    Coded,
    #[error("the reply is longer than limits.max_body_bytes, {0} bytes")]
    TooLong(usize),
    #[error("the reply is no acceptable JSON: {0}")]
    NoJson(String),
    #[error("the reply breaks output_schema: {0}")]
    Violates(Violations),
    #[error("the reply is not as probe.expect says at {}", shown(.0))]
    Unexpected(String),
}

fn shown(pointer: &str) -> &str {
    match pointer {
        "" => "its root",
        pointer => pointer,
    }
}

/// What all calls of one trial have in common.
pub struct Call {
    pub client: reqwest::Client,
    pub url: Url,
    pub route: OwnRoute,
    pub contract: Arc<Compiled>,
    pub probe: Probe,
    /// For one call, from its connection to the last byte of the reply.
    pub within: Duration,
    /// The task that the application is told.
    pub task: Id,
    /// The application is somebody else's and is told nothing of tasks.
    pub is_outside: bool,
    /// Fields that the settings give every request.
    pub added: Vec<HeaderName>,
    pub limits: Limits,
}

impl Call {
    /// Makes one call.
    pub async fn make(&self) -> Result<(), Fault> {
        let (headers, body) = self.request();
        let request = self
            .client
            .request(self.route.method.clone(), self.url.clone())
            .timeout(self.within)
            .headers(headers)
            .body(body);
        let response = request.send().await.map_err(|e| self.broken(e))?;
        if !response.status().is_success() {
            return Err(Fault::Status(response.status().as_u16()));
        }
        let codings = response.headers().get_all(CONTENT_ENCODING);
        if codings.iter().any(|coding| coding != "identity") {
            return Err(Fault::Coded);
        }
        let reply = self.read(response).await?;
        if reply.len() <= LARGE {
            return judge(&self.contract, &self.probe, &self.limits, &reply);
        }
        let (contract, probe, limits) = (self.contract.clone(), self.probe.clone(), self.limits);
        let judged =
            tokio::task::spawn_blocking(move || judge(&contract, &probe, &limits, &reply)).await;
        judged.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    fn request(&self) -> (HeaderMap, Bytes) {
        let contract = &self.contract.contract;
        let mut fields = Fields {
            task_id: Some(self.task.clone()),
            agent: Some(AgentName {
                id: contract.id.to_string(),
                version: Some(contract.version.to_string()),
            }),
            deadline: Some(self.within),
            ..Fields::default()
        };
        let ids = Ids::settle(&mut fields);
        let trace = Trace::of(&HeaderMap::new(), None);
        let input = self.probe.input.to_string();
        let body = match self.route.is_wrapped {
            false => Bytes::from(input),
            true => {
                let told = (!self.is_outside).then(|| (&fields, trace.reported_id()));
                context::wrap(input.as_bytes(), told)
            }
        };
        let mut headers = HeaderMap::new();
        if !self.is_outside {
            fields.write(&mut headers);
        }
        trace.write(&mut headers);
        headers.insert(header::SANDBOX, HeaderValue::from_static("?1"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let digest = HeaderValue::try_from(Digest::of(&body).to_content_digest());
        let key = HeaderValue::from_str(ids.call_id.as_str());
        for (name, value) in [
            (header::CONTENT_DIGEST, digest.ok()),
            (header::IDEMPOTENCY_KEY, key.ok()),
        ] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        // The client adds those of the settings where there is none of that name.
        for name in &self.added {
            headers.remove(name);
        }
        (headers, body)
    }

    async fn read(&self, mut response: Response) -> Result<Bytes, Fault> {
        let most = self.limits.max_body_bytes;
        if response.content_length() > Some(most as u64) {
            return Err(Fault::TooLong(most));
        }
        let mut reply = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|e| self.broken(e))? {
            if reply.len() + piece.len() > most {
                return Err(Fault::TooLong(most));
            }
            reply.extend_from_slice(&piece);
        }
        Ok(reply.into())
    }

    fn broken(&self, error: reqwest::Error) -> Fault {
        match error.is_timeout() {
            true => Fault::Late(self.within),
            // What is called is known from the settings.
            false => Fault::Sent(error.without_url()),
        }
    }
}

/// Holds a reply against the contract and the probe, strictly whatever `validate` says.
fn judge(contract: &Compiled, probe: &Probe, limits: &Limits, reply: &[u8]) -> Result<(), Fault> {
    // A reply without content stands for null where the contract accepts that.
    let text = match reply.trim_ascii() {
        [] => b"null",
        _ => reply,
    };
    let document = guard::parse(text, &limits.json)
        .map_err(|refusal| Fault::NoJson(refusal.message().to_owned()))?;
    contract.output.check(&document).map_err(Fault::Violates)?;
    let Some(expected) = &probe.expect else {
        return Ok(());
    };
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return Err(Fault::NoJson(
            "it is nested too deep to be compared".to_owned(),
        ));
    };
    match expect::difference(expected, &value) {
        None => Ok(()),
        Some(place) => Err(Fault::Unexpected(place)),
    }
}
