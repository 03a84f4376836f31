//! Asking the application for its contract.

use super::health;
use crate::contract::openapi::Wanted;
use crate::contract::{self, Compiled, Problems};
use bytes::Bytes;
use reqwest::{StatusCode, Url};
use std::sync::Arc;
use std::time::Duration;

/// Where an application hands its contract out.
pub const PATH: &str = "/hermes/handshake";

/// The longest reply that is read; a contract's text has no more.
const MOST_BYTES: usize = 1 << 20;
/// For one reply, from the connection to its last byte.
const WITHIN: Duration = Duration::from_secs(5);

/// Why there is no contract; the text ends up in `/ready`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("set up a client")]
    Client(#[source] reqwest::Error),
    #[error("ask the application for {PATH}")]
    Ask(#[source] reqwest::Error),
    #[error("the application answers {PATH} with {0}, not with 200 and its contract")]
    Status(u16),
    #[error("the application's answer to {PATH} is longer than {MOST_BYTES} bytes")]
    TooLong,
    #[error("the contract that the application hands out has faults: {0}")]
    Contract(Problems),
}

/// Asks one application.
#[derive(Debug, Clone)]
pub struct Handshake {
    client: reqwest::Client,
    url: Url,
}

impl Handshake {
    /// Asks the application whose health is asked for like this.
    pub fn new(application: &health::Config) -> Result<Self, Error> {
        let client = application.client(WITHIN).map_err(Error::Client)?;
        let mut url = application.upstream.clone();
        url.set_path(PATH);
        Ok(Self { client, url })
    }

    /// Reads what the application hands out now.
    pub async fn ask(&self) -> Result<Bytes, Error> {
        let asked = self.client.get(self.url.clone()).send().await;
        let mut response = asked.map_err(Error::Ask)?;
        if response.status() != StatusCode::OK {
            return Err(Error::Status(response.status().as_u16()));
        }
        let mut reply = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(Error::Ask)? {
            reply.extend_from_slice(&piece);
            if reply.len() > MOST_BYTES {
                return Err(Error::TooLong);
            }
        }
        Ok(reply.into())
    }
}

/// Makes a contract of what an application hands out: the one place that knows its forms.
///
/// The route tells which of an OpenAPI document's contracts it is. Compiling a large one takes
/// milliseconds of a processor.
pub fn contract_of(reply: &[u8], method: &str, path: &str) -> Result<Arc<Compiled>, Error> {
    let wanted = Wanted {
        agent: None,
        method,
        path,
    };
    let read = contract::from_reply(reply, &wanted);
    let (contract, warnings) = read.map_err(Error::Contract)?;
    for warning in warnings {
        let contract = contract.id.as_str();
        tracing::warn!(contract, "in what the application hands out: {warning}");
    }
    let compiled = Compiled::new(contract).map_err(Error::Contract)?;
    Ok(Arc::new(compiled))
}
