//! The listener that peers call: contract routes, reserved paths, passthrough.
//!
//! Order of decision: everything under `/hermes/` but the routes of wrapped contracts, then
//! contract routes, then passthrough, then 404. A path that a lenient server might read as a
//! contract's is never passed through.

mod call;
mod deferred;
mod described;
mod passthrough;
mod permits;
mod repeat;
mod reserved;
mod roster;
mod served;

pub use roster::{Place, Roster, Rosters};
pub use served::{Served, Style};

use super::active::Active;
use super::attempt::Recorder;
use super::body::{Body, Counted};
use super::head;
use super::headers;
use super::intake::{Limits, Source};
use super::lasting::{Keeper, Lasting};
use super::later::{self, Prefer};
use super::received::Received;
use super::refusal::Refusals;
use super::respond::Trouble;
use super::target;
use super::tunnel::Tunnels;
use super::upstream::Upstream;
use crate::context::{AgentName, Fields};
use crate::deferred::Deferred;
use crate::identity::Trust;
use crate::lifecycle::Observer;
use crate::reply::Replies;
use crate::socket::{Peer, Serve, Speaks};
use crate::task::Problem;
use crate::telemetry::metrics::{self, Direction};
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, request::Parts};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What the listener is given.
#[derive(Debug, Clone)]
pub struct Config {
    pub application: String,
    pub contracts: watch::Receiver<Roster>,
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

/// The inbound service under one configuration; a request reads one from start to end.
#[derive(Clone)]
pub struct Inbound {
    config: Config,
    recorder: Arc<Recorder>,
    upstream: Arc<Upstream>,
    active: Arc<Active>,
    replies: Replies,
    deferred: Deferred,
    lifecycle: Observer,
    /// For what belongs to no contract.
    meters: Arc<metrics::Contract>,
    refusals: Refusals,
    keeper: Keeper,
    tunnels: Tunnels,
}

/// Where a request leads.
enum Route {
    Reserved,
    Contract(Arc<Served>),
    Passthrough,
    Nowhere(Trouble),
}

impl Inbound {
    pub fn new(
        config: Config,
        recorder: Arc<Recorder>,
        upstream: Arc<Upstream>,
        (active, replies, deferred): (Arc<Active>, Replies, Deferred),
        lifecycle: Observer,
        keeper: Keeper,
        tunnels: Tunnels,
    ) -> Self {
        Self {
            meters: recorder
                .metrics
                .contract(Direction::Inbound, metrics::UNKNOWN),
            refusals: Refusals::new(
                Direction::Inbound,
                recorder.clone(),
                config.pseudonym.clone(),
            ),
            config,
            recorder,
            upstream,
            active,
            replies,
            deferred,
            lifecycle,
            keeper,
            tunnels,
        }
    }

    /// Returns the same service under another configuration; what it has in common with this one,
    /// such as connections and calls under way, is shared.
    pub fn with(&self, config: Config, silence: Duration) -> Self {
        let mut other = self.clone();
        other.config = config;
        other.tunnels.silence = silence;
        other
    }

    /// Returns the configuration that requests are served by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn route(&self, head: &Parts, agent: Option<&AgentName>) -> Route {
        let path = head.uri.path();
        if path.starts_with("/hermes/") && !path.starts_with(served::AGENTS) {
            return Route::Reserved;
        }
        let roster = self.roster();
        if let Some(agent) = agent
            && roster.find(&agent.id).is_none()
        {
            let not_yet = roster.not_yet();
            return Route::Nowhere(not_yet.unwrap_or_else(|| misdirected(&agent.id)));
        }
        let mut here = roster.served().filter(|c| c.path == path).peekable();
        if here.peek().is_some() {
            return route_among(here, &head.method, agent);
        }
        if let Some(not_yet) = roster.not_yet_at(path) {
            return Route::Nowhere(not_yet);
        }
        let reduced = target::reduced(path);
        let looks_like_ours = reduced.starts_with("/hermes/") || roster.claims(&reduced);
        let passes = |prefix: &String| path.starts_with(prefix.as_str());
        if !looks_like_ours && self.config.passthrough.iter().any(passes) {
            return Route::Passthrough;
        }
        let detail = "no contract route or passthrough prefix fits the path";
        Route::Nowhere(Trouble::new(Problem::NotFound, detail))
    }

    /// Returns the contracts as they are now.
    fn roster(&self) -> Roster {
        self.config.contracts.borrow().clone()
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
            headers::strip_forwarded(headers);
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

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: &Peer,
        began: Instant,
    ) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let body = Received::new(body, head.version);
        let trouble = match self.admit(&mut head, peer) {
            Ok(fields) => return self.lead(head, body, fields, began).await,
            Err(trouble) => trouble,
        };
        let names = Fields::default();
        let turned = self.refusals.turn_away(&trouble, &names, &head, body);
        let mut refusal = turned.await;
        // Only a proof is missed as forbidden here, and no later request of the connection has it.
        if trouble.problem == Problem::Forbidden {
            let close = HeaderValue::from_static("close");
            refusal.headers_mut().insert(CONNECTION, close);
        }
        refusal
    }

    /// Checks the head and who sends it, and reads its context.
    fn admit(&self, head: &mut Parts, peer: &Peer) -> Result<Fields, Trouble> {
        head::check(head, &self.config.limits.head)?;
        self.check_proof(peer)?;
        head::check_loop(&head.headers, &self.config.pseudonym)?;
        headers::take_off_named(&mut head.headers);
        headers::add_forwarded(&mut head.headers, peer.ip(), peer.scheme());
        self.context(head, peer)
    }

    async fn lead(
        self: Arc<Self>,
        head: Parts,
        body: Received,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let refused = match self.route(&head, fields.agent.as_ref()) {
            Route::Reserved => return self.reserved(head, body, fields, began).await,
            Route::Passthrough => {
                let response = self.pass_through(head, body, fields.application).await;
                self.count(response.status().as_u16(), began);
                return response;
            }
            Route::Contract(served) => match self.check(&head) {
                Ok(()) => {
                    let source = Source::Body(body);
                    return self.made(served, head, source, fields, began).await;
                }
                Err(trouble) => trouble,
            },
            Route::Nowhere(trouble) => trouble,
        };
        let refusal = self.refusals.turn_away(&refused, &fields, &head, body);
        refusal.await
    }

    /// Refuses what the head alone shows to be no contract call, or none that could be recorded.
    fn check(&self, head: &Parts) -> Result<(), Trouble> {
        self.config.limits.check(head)?;
        repeat::check_key(&head.headers)
    }

    /// Has a call carried out, and waits for its reply unless the caller prefers not to.
    async fn made(
        self: Arc<Self>,
        served: Arc<Served>,
        mut head: Parts,
        mut source: Source,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let prefer = Prefer::take(&mut head.headers);
        if prefer.respond_async && later::can_be_fetched(fields.call_id.as_ref()) {
            match self.seat(&served, &fields, &head) {
                Ok(seat) => {
                    let called = (served, head, source, fields, began);
                    return self.deferred(prefer, seat, called).await;
                }
                Err(trouble) => source = Source::Refused(Box::new(trouble)),
            }
        }
        let presence = Arc::default();
        let keeper = self.keeper.clone();
        let call = call::Call::new(self, served, fields, Arc::clone(&presence), None, began);
        Lasting::new(keeper, presence, call.run(head, source)).await
    }

    fn is_draining(&self) -> bool {
        !self.lifecycle.phase().takes_inbound()
    }
}

/// Picks among contracts that share a path: by the agent named, else by the order configured.
fn route_among<'a>(
    here: impl Iterator<Item = &'a Arc<Served>> + Clone,
    method: &Method,
    agent: Option<&AgentName>,
) -> Route {
    let mut fitting = here.clone().filter(|served| served.method == *method);
    let Some(agent) = agent else {
        return match fitting.next() {
            Some(served) => Route::Contract(served.clone()),
            None => Route::Nowhere(method_not_allowed(here)),
        };
    };
    match fitting.find(|served| served.id() == agent.id) {
        Some(served) => Route::Contract(served.clone()),
        None if here.clone().any(|served| served.method == *method) => {
            Route::Nowhere(misdirected(&agent.id))
        }
        None => Route::Nowhere(method_not_allowed(here)),
    }
}

fn method_not_allowed<'a>(here: impl Iterator<Item = &'a Arc<Served>>) -> Trouble {
    let methods: Vec<&str> = here.map(|served| served.method.as_str()).collect();
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
