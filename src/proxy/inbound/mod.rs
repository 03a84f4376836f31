//! The listener that peers call: contract routes, reserved paths, passthrough.
//!
//! Order of decision: everything under `/hermes/`, then contract routes, then passthrough, then
//! 404. A path that a lenient server might read as a contract's is never passed through.

mod call;
mod passthrough;
mod reserved;

use super::active::Active;
use super::attempt::Recorder;
use super::body::{Body, Counted};
use super::check::Mode;
use super::head;
use super::headers;
use super::intake::{self, Limits, Source};
use super::lasting::{Keeper, Lasting};
use super::respond::{self, Trouble};
use super::target;
use super::tunnel::Tunnels;
use super::upstream::Upstream;
use crate::admission;
use crate::context::{AgentName, Fields};
use crate::contract::Compiled;
use crate::identity::{Allow, Trust};
use crate::lifecycle::Observer;
use crate::socket::{Peer, Serve, Speaks};
use crate::task::Problem;
use crate::telemetry::metrics::{self, Direction};
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, request::Parts};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A contract that this sidecar serves.
#[derive(Debug)]
pub struct Served {
    pub contract: Arc<Compiled>,
    pub method: Method,
    pub path: String,
    pub input: Mode,
    pub output: Mode,
    pub allow: Allow,
    pub standing: admission::Reader,
    pub meters: Arc<metrics::Contract>,
    /// `ID@VERSION`.
    pub name: String,
    /// This copy's id in Consul.
    pub instance: String,
    permits: Arc<Semaphore>,
    limit: usize,
    /// The path as a lenient server might read it.
    reduced: String,
}

impl Served {
    pub fn new(
        contract: Arc<Compiled>,
        route: (Method, String),
        (input, output): (Mode, Mode),
        allow: Allow,
        instance: String,
        standing: admission::Reader,
        meters: Arc<metrics::Contract>,
    ) -> Self {
        let limit = contract.contract.constraints.max_concurrent.get() as usize;
        let limit = limit.min(Semaphore::MAX_PERMITS);
        let (method, path) = route;
        Self {
            name: format!("{}@{}", contract.contract.id, contract.contract.version),
            permits: Arc::new(Semaphore::new(limit)),
            limit,
            reduced: target::reduced(&path),
            contract,
            instance,
            method,
            path,
            input,
            output,
            allow,
            standing,
            meters,
        }
    }

    /// Returns the contract's id.
    pub fn id(&self) -> &str {
        self.contract.contract.id.as_str()
    }
}

/// What the listener is given.
#[derive(Debug)]
pub struct Config {
    pub application: String,
    pub contracts: Vec<Served>,
    /// Path prefixes that go to the application unchecked.
    pub passthrough: Vec<String>,
    pub trust: Trust,
    /// Every peer proves its name by a certificate; one that has none is refused.
    pub is_secured: bool,
    pub forward_path: bool,
    pub protocol: Protocol,
    pub limits: Limits,
    /// The name in `Via` and `Proxy-Status`; unique per process and listener.
    pub pseudonym: HeaderValue,
    /// Fields that every request to the application carries, such as credentials.
    pub added: HeaderMap,
    /// The application is somebody else's: its own `Host`. It is told nothing of the task.
    pub outside: Option<HeaderValue>,
}

/// What the application speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/2 in clear, by prior knowledge.
    H2c,
    /// What the request came in.
    Same,
}

impl Protocol {
    /// Returns what a request that came in `version` is sent on in.
    fn speaks(self, version: Version) -> Speaks {
        match (self, version) {
            (Protocol::H2c, _) | (Protocol::Same, Version::HTTP_2) => Speaks::Http2,
            (Protocol::Http1 | Protocol::Same, _) => Speaks::Http1,
        }
    }
}

/// The inbound service.
#[derive(Debug)]
pub struct Inbound {
    config: Config,
    recorder: Arc<Recorder>,
    upstream: Arc<Upstream>,
    active: Arc<Active>,
    lifecycle: Observer,
    /// For what belongs to no contract.
    meters: Arc<metrics::Contract>,
    keeper: Keeper,
    tunnels: Tunnels,
}

/// Where a request leads.
enum Route {
    Reserved,
    /// A contract by its place in the configuration.
    Contract(usize),
    Passthrough,
    Nowhere(Trouble),
}

impl Inbound {
    pub fn new(
        config: Config,
        recorder: Arc<Recorder>,
        upstream: Arc<Upstream>,
        active: Arc<Active>,
        lifecycle: Observer,
        keeper: Keeper,
        tunnels: Tunnels,
    ) -> Self {
        Self {
            meters: recorder
                .metrics
                .contract(Direction::Inbound, metrics::UNKNOWN),
            config,
            recorder,
            upstream,
            active,
            lifecycle,
            keeper,
            tunnels,
        }
    }

    fn route(&self, head: &Parts, agent: Option<&AgentName>) -> Route {
        let path = head.uri.path();
        if path.starts_with("/hermes/") {
            return Route::Reserved;
        }
        if let Some(agent) = agent
            && !self.config.contracts.iter().any(|c| c.id() == agent.id)
        {
            return Route::Nowhere(misdirected(&agent.id));
        }
        let contracts = self.config.contracts.iter().enumerate();
        let mut here = contracts.filter(|(_, c)| c.path == path).peekable();
        if here.peek().is_some() {
            return route_among(here, &head.method, agent);
        }
        let reduced = target::reduced(path);
        let looks_like_ours = reduced.starts_with("/hermes/")
            || self.config.contracts.iter().any(|c| c.reduced == reduced);
        let passes = |prefix: &String| path.starts_with(prefix.as_str());
        if !looks_like_ours && self.config.passthrough.iter().any(passes) {
            return Route::Passthrough;
        }
        let detail = "no contract route or passthrough prefix fits the path";
        Route::Nowhere(Trouble::new(Problem::NotFound, detail))
    }

    /// Reads the context of a peer that is believed; of others only the name is known, if proven.
    fn context(&self, head: &Parts, peer: &Peer) -> Result<Fields, Trouble> {
        let mut fields = match self.config.trust.believes(peer.ip(), peer.name.is_some()) {
            true => Fields::from_headers(&head.headers)
                .map_err(|bad| Trouble::new(Problem::BadContext, bad.to_string()))?,
            false => Fields::default(),
        };
        if let Some(name) = &peer.name {
            // What the certificate proves goes over what the request says.
            fields.application = Some(name.to_string());
            fields.requester.get_or_insert_with(|| name.to_string());
        }
        Ok(fields)
    }

    /// Refuses a peer that should have proven its name and has not.
    fn check_proof(&self, peer: &Peer) -> Result<(), Trouble> {
        if self.config.is_secured && peer.name.is_none() {
            let detail = "the certificate shown when this connection began proves no name any more";
            return Err(Trouble::new(Problem::Forbidden, detail).executed(false));
        }
        Ok(())
    }

    /// Finishes the head of a request to the application.
    fn address(&self, headers: &mut HeaderMap) {
        if let Some(host) = &self.config.outside {
            headers::strip_context(headers);
            headers.insert(HOST, host.clone());
        }
        for name in self.config.added.keys() {
            headers.remove(name);
        }
        for (name, value) in &self.config.added {
            headers.append(name.clone(), value.clone());
        }
    }

    /// Counts a request that belongs to no contract.
    fn count(&self, status: u16, began: Instant) {
        self.meters.request_ended(Some(status), began.elapsed());
    }

    /// Refuses a request whose body has not been read.
    async fn turn_away(
        &self,
        trouble: &Trouble,
        names: &Fields,
        head: &Parts,
        body: Incoming,
    ) -> Response<Body> {
        let goes_on = intake::turn_away(head, body).await;
        let mut response = self.refuse(trouble, names);
        // A head that two readers could read differently ends its connection, too.
        if !goes_on || trouble.problem == Problem::BadRequest {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    /// Answers a request that was refused before a task came into being.
    fn refuse(&self, trouble: &Trouble, names: &Fields) -> Response<Body> {
        let metrics = &self.recorder.metrics;
        metrics.rejected(Direction::Inbound, trouble.problem);
        respond::trouble(trouble, names, &self.config.pseudonym)
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: &Peer,
        began: Instant,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        if let Err(trouble) = head::check(&head, &self.config.limits.head) {
            let names = Fields::default();
            return self.turn_away(&trouble, &names, &head, body).await;
        }
        if let Err(trouble) = self.check_proof(peer) {
            let names = Fields::default();
            let mut refusal = self.turn_away(&trouble, &names, &head, body).await;
            let close = HeaderValue::from_static("close");
            refusal.headers_mut().insert(CONNECTION, close);
            return refusal;
        }
        if headers::has_passed(&head.headers, &self.config.pseudonym) {
            let detail = "the request has passed this listener before";
            let trouble = Trouble::new(Problem::Loop, detail);
            return self
                .turn_away(&trouble, &Fields::default(), &head, body)
                .await;
        }
        let fields = match self.context(&head, peer) {
            Ok(fields) => fields,
            Err(trouble) => {
                let names = Fields::default();
                return self.turn_away(&trouble, &names, &head, body).await;
            }
        };
        match self.route(&head, fields.agent.as_ref()) {
            Route::Nowhere(trouble) => self.turn_away(&trouble, &fields, &head, body).await,
            Route::Passthrough => {
                let response = self.pass_through(head, body, fields.application).await;
                self.count(response.status().as_u16(), began);
                response
            }
            Route::Reserved => self.clone().reserved(head, body, fields, began).await,
            Route::Contract(at) => {
                if let Err(trouble) = self.config.limits.check(&head) {
                    return self.turn_away(&trouble, &fields, &head, body).await;
                }
                let source = Source::Body(body);
                self.clone().lasting(at, head, source, fields, began).await
            }
        }
    }

    fn lasting(
        self: Arc<Self>,
        at: usize,
        head: Parts,
        source: Source,
        fields: Fields,
        began: Instant,
    ) -> Lasting {
        let presence = Arc::default();
        let keeper = self.keeper.clone();
        let call = call::Call::new(self, at, fields, Arc::clone(&presence), began);
        Lasting::new(keeper, presence, call.run(head, source))
    }

    fn is_draining(&self) -> bool {
        !self.lifecycle.phase().takes_inbound()
    }
}

/// Picks among contracts that share a path: by the agent named, else by the order configured.
fn route_among<'a>(
    here: impl Iterator<Item = (usize, &'a Served)> + Clone,
    method: &Method,
    agent: Option<&AgentName>,
) -> Route {
    let mut fitting = here.clone().filter(|(_, served)| served.method == *method);
    let Some(agent) = agent else {
        return match fitting.next() {
            Some((at, _)) => Route::Contract(at),
            None => Route::Nowhere(method_not_allowed(here)),
        };
    };
    match fitting.find(|(_, served)| served.id() == agent.id) {
        Some((at, _)) => Route::Contract(at),
        None if here.clone().any(|(_, served)| served.method == *method) => {
            Route::Nowhere(misdirected(&agent.id))
        }
        None => Route::Nowhere(method_not_allowed(here)),
    }
}

fn method_not_allowed<'a>(here: impl Iterator<Item = (usize, &'a Served)>) -> Trouble {
    let methods: Vec<&str> = here.map(|(_, served)| served.method.as_str()).collect();
    let allow = methods.join(", ");
    let detail = format!("this contract is called by {allow}");
    Trouble {
        allow: Some(allow),
        ..Trouble::new(Problem::MethodNotAllowed, detail)
    }
}

fn misdirected(agent: &str) -> Trouble {
    let detail = format!("{agent} is not served by this sidecar");
    Trouble::new(Problem::Misdirected, detail).executed(false)
}

impl Serve for Inbound {
    type Body = Body;

    async fn serve(self: Arc<Self>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let began = Instant::now();
        let inflight = self.recorder.metrics.inflight(Direction::Inbound).clone();
        let counted = Counted::new(inflight);
        let response = self.answer(request, &peer, began).await;
        response.map(|body| body.counting(counted))
    }
}

/// The fields a reply repeats.
fn names_of(fields: &Fields) -> Fields {
    Fields {
        task_id: fields.task_id.clone(),
        step_id: fields.step_id.clone(),
        call_id: fields.call_id.clone(),
        attempt: fields.attempt,
        agent: fields.agent.clone(),
        application: fields.application.clone(),
        trace_id: fields.trace_id.clone(),
        region: fields.region.clone(),
        utc_offset: fields.utc_offset.clone(),
        ..Fields::default()
    }
}
