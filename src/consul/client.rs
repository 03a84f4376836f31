//! The verbs: what we ask of the local agent and, through it, of the cluster.

mod load;

pub use load::{Load, RequestTimes};

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::Mutex;

use super::answer::{Answer, Poll};
use super::error::{Error, ErrorKind};
use super::instance::{self, Instance};
use super::kv::{self, KvEntry};
use super::layout::Layout;
use super::observe::{Observe, Operation, Outcome};
use super::service::{CheckStatus, RawService, Registered, Registration, go_duration};
use super::transport::{CALL_TIMEOUT, Call, Config, Reply, Transport};
use super::watch::Budget;

/// Consul cuts a check's output here.
const MAX_CHECK_OUTPUT_BYTES: usize = 4096;

/// A handle on one agent; clones share connections, token and watch budget.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    /// Held over each call that makes the agent write. Without a leader such calls queue in the
    /// agent for 7 s each; a second one of ours would only lengthen the queue.
    writes: Mutex<()>,
    budget: Budget,
    layout: Layout,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("layout", &self.inner.layout)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Reads certificates and token, connects to nothing.
    pub fn new(config: Config, observe: Observe) -> Result<Client, Error> {
        let budget = Budget::new(config.watches);
        let watches = budget.clone();
        let observe: Observe = Arc::new(move |operation, outcome, took| {
            if outcome == Outcome::Failed(ErrorKind::Unreachable) {
                watches.note_loss();
            }
            observe(operation, outcome, took);
        });
        let transport = Transport::new(&config, observe)?;
        Ok(Client {
            inner: Arc::new(Inner {
                transport,
                writes: Mutex::new(()),
                budget,
                layout: Layout::new(&config.prefix),
            }),
        })
    }

    /// Names our services and keys.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Gives the number of blocking polls we may hold, shared by all clones.
    pub fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    /// Registers or replaces a service with its checks.
    ///
    /// Returns when the local agent has it, which is before the catalogue does. A check that
    /// exists already keeps its state, so `update_check` must follow.
    pub async fn register(&self, registration: &Registration) -> Result<(), Error> {
        registration.validate()?;
        let doing = format!("register {}", registration.id);
        let body = to_json(&doing, registration)?;
        let mut url = self.url(["agent", "service", "register"]);
        // Takes away checks that a former version of us had; but also an operator's maintenance,
        // so not while that is on.
        if !self.is_in_maintenance(&registration.id).await? {
            url.set_query(Some("replace-existing-checks=true"));
        }
        self.write(Operation::Register, &doing, url, body).await
    }

    /// Removes a service from the local agent; one that is not there is fine.
    pub async fn deregister(&self, id: &str) -> Result<(), Error> {
        let doing = format!("deregister {id}");
        let url = self.url(["agent", "service", "deregister", id]);
        let result = self
            .write(Operation::Deregister, &doing, url, Bytes::new())
            .await;
        match result {
            // Later versions say so instead of 200.
            Err(Error::Status {
                status: 404,
                kind: ErrorKind::Refused,
                ..
            }) => Ok(()),
            other => other,
        }
    }

    /// Sets a TTL check and restarts its time. Keep `output` constant: Consul writes changes of
    /// it to the whole cluster.
    pub async fn update_check(
        &self,
        check_id: &str,
        status: CheckStatus,
        output: &str,
    ) -> Result<(), Error> {
        let doing = format!("set check {check_id}");
        let output = &output[..output.floor_char_boundary(MAX_CHECK_OUTPUT_BYTES)];
        let body = to_json(
            &doing,
            &serde_json::json!({"Status": status, "Output": output}),
        )?;
        let url = self.url(["agent", "check", "update", check_id]);
        self.write(Operation::Check, &doing, url, body).await
    }

    /// Reads a service from the local agent, which needs no leader for it; `None`: not there.
    ///
    /// With the `hash` of a former answer it blocks until the definition differs or is gone, at
    /// most for `wait`.
    pub async fn service_by_id(
        &self,
        id: &str,
        hash: Option<&str>,
        wait: Duration,
    ) -> Result<Option<Registered>, Error> {
        let doing = format!("read own service {id}");
        let mut url = self.url(["agent", "service", id]);
        let mut operation = Operation::Service;
        let mut timeout = CALL_TIMEOUT;
        if let Some(hash) = hash {
            url.query_pairs_mut()
                .append_pair("hash", hash)
                .append_pair("wait", &go_duration(wait));
            operation = Operation::Watch;
            timeout = answer_timeout(wait);
        }
        let call = Call {
            operation,
            doing: &doing,
            method: Method::GET,
            url,
            body: Bytes::new(),
            timeout,
            may_miss: true,
        };
        let reply = self.inner.transport.call(call).await?;
        if reply.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let raw: RawService = from_json(&doing, &reply.body)?;
        Ok(Some(raw.into()))
    }

    /// Reads the address that the agent's node has in the cluster; `None` where our token may
    /// not read it (`agent:read`).
    pub async fn node_address(&self) -> Result<Option<String>, Error> {
        let agent = self.agent().await?;
        Ok(agent
            .map(|agent| agent.member.addr)
            .filter(|address| !address.is_empty()))
    }

    /// Reads Consul's version; `None` where our token may read neither place that tells it.
    pub async fn version(&self) -> Result<Option<String>, Error> {
        if let Some(agent) = self.agent().await? {
            return Ok(Some(agent.config.version).filter(|version| !version.is_empty()));
        }
        let servers = self.health("consul", Poll::NOW).await?.value;
        Ok(servers
            .into_iter()
            .find_map(|server| server.meta.get("version").cloned()))
    }

    /// Reads all instances of a service, passing or not.
    pub async fn health(&self, service: &str, poll: Poll) -> Result<Answer<Vec<Instance>>, Error> {
        let doing = format!("read the health of {service}");
        let url = self.url(["health", "service", service]);
        let reply = self.read(Operation::Health, &doing, url, poll).await?;
        let raw: Option<Vec<instance::RawEntry>> = from_json(&doing, &reply.body)?;
        let mut instances: Vec<Instance> = raw
            .into_iter()
            .flatten()
            .filter_map(instance::RawEntry::decode)
            .collect();
        // The order is not Consul's promise; ours makes equal answers equal.
        instances.sort_unstable_by(|a, b| (&a.id, &a.node).cmp(&(&b.id, &b.node)));
        Ok(Answer::new(&reply.headers, instances))
    }

    /// Reads the names of all services with every tag that an instance of them has.
    pub async fn services(
        &self,
        poll: Poll,
    ) -> Result<Answer<BTreeMap<String, Vec<String>>>, Error> {
        let doing = "list the services";
        let url = self.url(["catalog", "services"]);
        let reply = self.read(Operation::Catalog, doing, url, poll).await?;
        let raw: BTreeMap<String, Option<Vec<String>>> = from_json(doing, &reply.body)?;
        let named = raw.into_iter();
        let services = named.map(|(name, tags)| (name, tags.unwrap_or_default()));
        Ok(Answer::new(&reply.headers, services.collect()))
    }

    /// Reads one key; `None`: not there.
    pub async fn kv_get(&self, key: &str, poll: Poll) -> Result<Answer<Option<KvEntry>>, Error> {
        let mut answer = self.kv_entries(key, None, poll).await?;
        let value = answer.value.pop();
        Ok(answer.with(value))
    }

    /// Reads every entry below a prefix, in key order.
    pub async fn kv_list(&self, prefix: &str, poll: Poll) -> Result<Answer<Vec<KvEntry>>, Error> {
        self.kv_entries(prefix, Some("recurse"), poll).await
    }

    /// Reads the keys below a prefix without their values, in order.
    pub async fn kv_keys(&self, prefix: &str, poll: Poll) -> Result<Answer<Vec<String>>, Error> {
        let doing = format!("list keys {prefix:?}");
        let reply = self
            .read(
                Operation::KvRead,
                &doing,
                self.kv_url(prefix, Some("keys"))?,
                poll,
            )
            .await?;
        let keys = if reply.status == StatusCode::NOT_FOUND {
            Vec::new()
        } else {
            from_json(&doing, &reply.body)?
        };
        Ok(Answer::new(&reply.headers, keys))
    }

    /// Writes a key. With `cas` only where its `modify_index` is still that, 0 meaning that there
    /// is no such key; false: it was not, nothing is written.
    pub async fn kv_put(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        cas: Option<u64>,
    ) -> Result<bool, Error> {
        let value = value.into();
        kv::check_value(key, &value)?;
        let doing = format!("write key {key:?}");
        let mut url = self.kv_url(key, None)?;
        if let Some(index) = cas {
            url.set_query(Some(&format!("cas={index}")));
        }
        let call = Call {
            operation: Operation::KvWrite,
            doing: &doing,
            method: Method::PUT,
            url,
            body: value,
            timeout: CALL_TIMEOUT,
            may_miss: false,
        };
        let reply = self.inner.transport.call(call).await?;
        from_json(&doing, &reply.body)
    }

    /// Deletes a key unless it was changed since `index`; false: it was.
    pub async fn kv_delete(&self, key: &str, index: NonZeroU64) -> Result<bool, Error> {
        let doing = format!("delete key {key:?}");
        let mut url = self.kv_url(key, None)?;
        // 0 would mean "whatever stands there".
        url.set_query(Some(&format!("cas={index}")));
        let call = Call {
            operation: Operation::KvWrite,
            doing: &doing,
            method: Method::DELETE,
            url,
            body: Bytes::new(),
            timeout: CALL_TIMEOUT,
            may_miss: false,
        };
        let reply = self.inner.transport.call(call).await?;
        from_json(&doing, &reply.body)
    }

    /// Reads the leader's address; `None`: the cluster has none. Needs no token.
    pub async fn leader(&self) -> Result<Option<String>, Error> {
        let doing = "ask for the leader";
        let url = self.url(["status", "leader"]);
        let reply = self
            .read(Operation::Status, doing, url, Poll::CONSISTENT)
            .await?;
        let address: String = from_json(doing, &reply.body)?;
        Ok(Some(address).filter(|address| !address.is_empty()))
    }

    async fn is_in_maintenance(&self, id: &str) -> Result<bool, Error> {
        let doing = format!("look for maintenance of {id}");
        let url = self.url(["agent", "checks"]);
        let reply = self
            .read(Operation::Service, &doing, url, Poll::CONSISTENT)
            .await?;
        let checks: BTreeMap<String, IgnoredAny> = from_json(&doing, &reply.body)?;
        Ok(checks.contains_key(&format!("_service_maintenance:{id}")))
    }

    async fn agent(&self) -> Result<Option<RawAgent>, Error> {
        let doing = "read the agent's own data";
        let url = self.url(["agent", "self"]);
        match self
            .read(Operation::Agent, doing, url, Poll::CONSISTENT)
            .await
        {
            Ok(reply) => from_json(doing, &reply.body).map(Some),
            Err(error) if error.kind() == ErrorKind::Denied => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn kv_entries(
        &self,
        key: &str,
        mode: Option<&str>,
        poll: Poll,
    ) -> Result<Answer<Vec<KvEntry>>, Error> {
        let doing = format!("read key {key:?}");
        let reply = self
            .read(Operation::KvRead, &doing, self.kv_url(key, mode)?, poll)
            .await?;
        if reply.status == StatusCode::NOT_FOUND {
            return Ok(Answer::new(&reply.headers, Vec::new()));
        }
        let raw: Vec<kv::RawEntry> = from_json(&doing, &reply.body)?;
        let entries: Result<Vec<KvEntry>, String> =
            raw.into_iter().map(kv::RawEntry::decode).collect();
        let entries = entries.map_err(|reason| Error::BadAnswer { doing, reason })?;
        Ok(Answer::new(&reply.headers, entries))
    }

    fn kv_url(&self, key: &str, mode: Option<&str>) -> Result<Url, Error> {
        kv::check_key(key)?;
        let mut url = self.url(std::iter::once("kv").chain(key.split('/')));
        url.set_query(mode);
        Ok(url)
    }

    fn url<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        self.inner.transport.url(segments)
    }

    async fn read(
        &self,
        operation: Operation,
        doing: &str,
        mut url: Url,
        poll: Poll,
    ) -> Result<Reply, Error> {
        let mut call_timeout = CALL_TIMEOUT;
        if poll.stale {
            url.query_pairs_mut().append_key_only("stale");
        }
        if let Some(index) = poll.index {
            let wait = go_duration(poll.wait);
            url.query_pairs_mut()
                .append_pair("index", &index.to_string())
                .append_pair("wait", &wait);
            call_timeout = answer_timeout(poll.wait);
        }
        let call = Call {
            operation: if poll.is_blocking() {
                Operation::Watch
            } else {
                operation
            },
            doing,
            method: Method::GET,
            url,
            body: Bytes::new(),
            timeout: call_timeout,
            may_miss: operation == Operation::KvRead,
        };
        self.inner.transport.call(call).await
    }

    async fn write(
        &self,
        operation: Operation,
        doing: &str,
        url: Url,
        body: Bytes,
    ) -> Result<(), Error> {
        let _one_at_a_time = self.inner.writes.lock().await;
        let call = Call {
            operation,
            doing,
            method: Method::PUT,
            url,
            body,
            timeout: CALL_TIMEOUT,
            may_miss: false,
        };
        self.inner.transport.call(call).await.map(|_reply| ())
    }
}

/// Consul adds up to a sixteenth to a wait; the rest is for the network and a busy agent.
fn answer_timeout(wait: Duration) -> Duration {
    wait * 17 / 16 + Duration::from_secs(10)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawAgent {
    config: RawAgentConfig,
    member: RawMember,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawAgentConfig {
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawMember {
    addr: String,
}

fn to_json(doing: &str, value: &impl serde::Serialize) -> Result<Bytes, Error> {
    let body = serde_json::to_vec(value).map_err(|error| Error::Invalid {
        what: doing.to_owned(),
        problems: vec![error.to_string()],
    })?;
    Ok(body.into())
}

fn from_json<T: DeserializeOwned>(doing: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::BadAnswer {
        doing: doing.to_owned(),
        reason: error.to_string(),
    })
}
