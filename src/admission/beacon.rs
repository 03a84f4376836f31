//! A plain service kept in Consul: one that lives and says so, without a contract.

use super::standing;
use crate::backoff::Backoff;
use crate::consul::{Check, CheckKind, CheckStatus, Client, ErrorKind, Registration};
use crate::lifecycle::{Observer, Phase};
use crate::telemetry::log::Chain;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is registered.
#[derive(Debug, Clone)]
pub struct Beacon {
    /// The service's name before the prefix's own is put in front.
    pub service: String,
    pub instance: String,
    /// Empty: the address of the node.
    pub host: String,
    pub port: u16,
    /// What callers speak: `http`, or `https` for mutual TLS.
    pub proto: &'static str,
    /// Empty keys below these prefixes keep watches on them from waking on unrelated writes.
    pub keep: Vec<String>,
}

/// Keeps `beacon` registered and passing until the process leaves.
pub async fn shine(client: Client, beacon: Beacon, mut lifecycle: Observer) {
    let service = client.layout().service(&beacon.service);
    let id = format!("{service}-{}", beacon.instance);
    let keeping = async {
        let mut retry = Backoff::new(Duration::from_millis(500), standing::BEAT);
        let mut said = String::new();
        loop {
            match keep(&client, &beacon, &service, &id).await {
                Ok(()) => retry.reset(),
                Err(error) => {
                    let text = Chain(&error).to_string();
                    if text != said {
                        tracing::warn!(id, error = text, "Consul's record could not be kept");
                        said = text;
                    }
                    tokio::time::sleep(retry.next_wait()).await;
                }
            }
        }
    };
    tokio::select! {
        () = keeping => {}
        () = lifecycle.reached(Phase::Leaving) => {}
    }
    if let Err(error) = client.deregister(&id).await {
        tracing::warn!(id, error = %Chain(&error), "not deregistered");
    }
}

/// Registers and beats; returns when Consul has forgotten the check, so that it starts over.
async fn keep(
    client: &Client,
    beacon: &Beacon,
    service: &str,
    id: &str,
) -> Result<(), crate::consul::Error> {
    let host = match beacon.host.as_str() {
        "" => client.node_address().await?,
        host => Some(host.to_owned()),
    };
    let check = format!("{id}:ttl");
    let registration = Registration {
        id: id.to_owned(),
        name: service.to_owned(),
        address: host.unwrap_or_else(|| "127.0.0.1".to_owned()),
        port: beacon.port,
        tags: vec!["hermes".to_owned()],
        weight: 1,
        meta: BTreeMap::from([("hermes_proto".to_owned(), beacon.proto.to_owned())]),
        checks: vec![Check {
            id: check.clone(),
            name: "alive".to_owned(),
            kind: CheckKind::Ttl(standing::TTL),
            status: CheckStatus::Passing,
            deregister_after: Some(standing::DEREGISTER_AFTER),
        }],
    };
    client.register(&registration).await?;
    tracing::info!(id, "registered in Consul");
    let mut owed = beacon.keep.clone();
    loop {
        write_keys(client, id, &mut owed).await;
        match client
            .update_check(&check, CheckStatus::Passing, "alive")
            .await
        {
            Err(error) if error.is_unknown_check() => return Ok(()),
            outcome => outcome?,
        }
        tokio::time::sleep(standing::BEAT).await;
    }
}

/// Writes the keys that are not there yet. They only make watches cheaper: without the right to
/// write them the service lives all the same, and they are not tried again.
async fn write_keys(client: &Client, id: &str, owed: &mut Vec<String>) {
    while let Some(key) = owed.last() {
        match client.kv_put(key, "", Some(0)).await {
            Ok(_written_or_there) => {}
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(
                    id, key, error = %Chain(&error),
                    "the token may not write a key that keeps a watched prefix from being empty; \
                     consul/policy-collector.hcl has the rule"
                );
            }
            // The next beat tries again.
            Err(_) => return,
        }
        owed.pop();
    }
}
