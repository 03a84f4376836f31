//! The listener that the application calls others through.

pub mod budget;
mod call;
mod choice;
mod deferred;
mod discover;
mod explain;
mod fleet;
mod foreign;
mod in_flight;
mod inherit;
mod passthrough;
mod place;
mod report;
mod request;
mod route;
mod secure;
mod whom;

pub use explain::{Excluded, Explanation, Question, Unexplained};

use super::active::{Active, Parent, Step};
use super::attempt::Recorder;
use super::body::{Body, Counted};
use super::envelope::Envelope;
use super::head;
use super::headers;
use super::intake::{Limits, Source};
use super::lasting::{Keeper, Lasting};
use super::later::{self, Prefer};
use super::received::Received;
use super::refusal::Refusals;
use super::respond::Trouble;
use super::tunnel::Tunnels;
use super::upstream::{Upstream, Upstreams};
use crate::consul::Instance;
use crate::context::{AgentName, Fields, Origin};
use crate::contract::watch::Directory;
use crate::deferred::Deferred;
use crate::identity::local::Local;
use crate::identity::tls::Tls;
use crate::route::EjectionConfig;
use crate::socket::{Endpoint, Peer, Place, Serve};
use crate::task::{Deadline, Problem};
use crate::telemetry::metrics::{self, Direction};
use budget::Budget;
use bytes::Bytes;
use choice::Asking;
use fleet::Fleets;
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use inherit::Errand;
use route::{Route, Whom};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use whom::Callee;

/// What the listener is given.
#[derive(Debug, Clone)]
pub struct Config {
    pub application: String,
    pub region: String,
    /// Without `team-`; empty for none.
    pub team: String,
    pub local: Local,
    pub limits: Limits,
    pub retry: Retry,
    /// The name in `Via` and `Proxy-Status`; unique per process and listener.
    pub pseudonym: HeaderValue,
    pub ejection: EjectionConfig,
}

/// How failed attempts are followed by others.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub budget: budget::Config,
    /// The bound of the first wait, which doubles with each.
    pub backoff: Duration,
    pub max_backoff: Duration,
}

/// The outbound service under one configuration; a request reads one from start to end.
#[derive(Clone)]
pub struct Outbound {
    config: Config,
    recorder: Arc<Recorder>,
    directory: Arc<Directory>,
    fleets: Arc<Fleets>,
    upstreams: Arc<Upstreams>,
    /// What instances that speak mutual TLS are called with.
    tls: Option<Arc<Tls>>,
    active: Arc<Active>,
    deferred: Deferred,
    /// For what belongs to no contract.
    meters: Arc<metrics::Contract>,
    refusals: Refusals,
    retries: Arc<Budget>,
    keeper: Keeper,
    tunnels: Tunnels,
    /// Places for questions who could serve.
    questions: Arc<Semaphore>,
}

impl Outbound {
    pub fn new(
        config: Config,
        recorder: Arc<Recorder>,
        directory: Arc<Directory>,
        (upstreams, tls): (Upstreams, Option<Arc<Tls>>),
        (active, deferred): (Arc<Active>, Deferred),
        keeper: Keeper,
        tunnels: Tunnels,
    ) -> Self {
        Self {
            meters: recorder
                .metrics
                .contract(Direction::Outbound, metrics::UNKNOWN),
            refusals: Refusals::new(
                Direction::Outbound,
                recorder.clone(),
                config.pseudonym.clone(),
            ),
            fleets: Arc::new(Fleets::new(
                config.ejection.clone(),
                recorder.metrics.clone(),
            )),
            retries: Arc::new(Budget::new(Instant::now())),
            config,
            recorder,
            directory,
            upstreams: Arc::new(upstreams),
            tls,
            active,
            deferred,
            keeper,
            tunnels,
            questions: Arc::new(Semaphore::new(discover::MOST_QUESTIONS)),
        }
    }

    /// Returns the same service under another configuration; what it has in common with this one,
    /// such as connections and what is known of instances, is shared. Ejections count by the new one
    /// at once.
    pub fn with(&self, config: Config, silence: Duration) -> Self {
        let mut other = self.clone();
        self.fleets.follow(&config.ejection);
        other.config = config;
        other.tunnels.silence = silence;
        other
    }

    /// Returns the configuration that requests are served by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the connections to another sidecar.
    fn peer(&self, instance: &Instance) -> Result<Arc<Upstream>, Trouble> {
        let tls = secure::client(self.tls.as_ref(), instance).map_err(|error| {
            tracing::warn!(instance = &*instance.id, %error, "an instance cannot be called");
            Trouble::new(Problem::UpstreamUnreachable, error.to_string()).executed(false)
        })?;
        Ok(self.upstreams.at(Endpoint {
            place: Place::Tcp(instance.authority()),
            tls,
        }))
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, began: Instant) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let body = Received::new(body, head.version);
        match self.admit(&mut head) {
            Ok(fields) => self.lead(head, body, fields, began).await,
            Err(trouble) => {
                let names = Fields::default();
                self.refusals.turn_away(&trouble, &names, &head, body).await
            }
        }
    }

    /// Checks the head and reads its context; the application is always believed.
    fn admit(&self, head: &mut Parts) -> Result<Fields, Trouble> {
        head::check(head, &self.config.limits.head)?;
        let checked = self.config.local.check(&head.headers, &head.uri);
        checked.map_err(|refused| Trouble::new(Problem::HostRefused, refused.to_string()))?;
        head::check_loop(&head.headers, &self.config.pseudonym)?;
        headers::take_off_named(&mut head.headers);
        Fields::from_headers(&head.headers)
            .map_err(|bad| Trouble::new(Problem::BadContext, bad.to_string()))
    }

    async fn lead(
        self: Arc<Self>,
        mut head: Parts,
        body: Received,
        mut fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        // An application that hands on the headers it was sent hands on its task's deadline, which
        // is inherited anyway; it does not name one for this call.
        if fields.deadline.is_some() && self.serves(&fields, &head).is_some() {
            fields.deadline = None;
        }
        match self.route(&head, &fields) {
            Ok(Route::Invoke) => match self.unwrap(&mut head, body, fields.clone()).await {
                Ok((whom, input, fields)) => {
                    head.uri = Uri::default();
                    let source = Source::Input(input);
                    self.call(whom, head, source, fields, began).await
                }
                Err(trouble) => self.refusals.refuse(&trouble, &fields),
            },
            Ok(Route::Report) => self.report_status(head, body, &fields).await,
            Ok(Route::Discover) => {
                let response = self.discover(head, body, &fields).await;
                self.count(response.status().as_u16(), began);
                response
            }
            Ok(Route::Reply(call_id)) => {
                let response = self.fetch(call_id, &head).await;
                self.count(response.status().as_u16(), began);
                response
            }
            Ok(Route::Agent { whom, target }) => {
                head.uri = target;
                self.native(whom, head, body, fields, began).await
            }
            Ok(Route::Foreign { host, port }) => {
                let response = self.pass_on(&host, port, head, body, &fields).await;
                self.count(response.status().as_u16(), began);
                response
            }
            Err(trouble) => {
                self.refusals
                    .turn_away(&trouble, &fields, &head, body)
                    .await
            }
        }
    }

    /// Finds out where a request leads; `Hermes-Agent` may narrow the agent it names.
    fn route(&self, head: &Parts, fields: &Fields) -> Result<Route, Trouble> {
        let route = route::route(head, &self.config.local)?;
        let Route::Agent { whom, target } = route else {
            return Ok(route);
        };
        // An application that hands on the headers it was sent names the contract it serves.
        let handed_on = |agent: &&AgentName| {
            let served = self.serves(fields, head);
            served.is_some_and(|step| step.agent == agent.id)
        };
        let beside = fields.agent.as_ref().filter(|agent| !handed_on(agent));
        let whom = whom.narrowed(beside)?;
        Ok(Route::Agent { whom, target })
    }

    /// Returns a step that a request is made for.
    fn serves(&self, fields: &Fields, head: &Parts) -> Option<Arc<Step>> {
        match self.active.parent_of(fields, &Origin::of(&head.headers)) {
            Parent::Step(step) | Parent::Task(step) => Some(step),
            Parent::None | Parent::Unknown => None,
        }
    }

    /// Counts a request that belongs to no contract.
    fn count(&self, status: u16, began: Instant) {
        self.meters.request_ended(Some(status), began.elapsed());
    }

    /// Makes a checked call; it outlives its connection.
    async fn call(
        self: Arc<Self>,
        whom: Whom,
        head: Parts,
        source: Source,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let errand = self.errand(fields, &head.headers);
        match self.lead_to(whom, &errand, began).await {
            Ok(callee) => self.made(callee, head, source, errand, began).await,
            Err(trouble) => self.unanswered(&trouble, &errand.names(), began),
        }
    }

    async fn lead_to(
        &self,
        whom: Whom,
        errand: &Errand,
        began: Instant,
    ) -> Result<Callee, Trouble> {
        let asking = Asking::first(&errand.fields, errand.key);
        let until = patience(&errand.fields, began);
        self.whom(whom, &asking, until).await
    }

    /// Serves a path of an agent: a contract's own route is a checked call, the rest passes.
    async fn native(
        self: Arc<Self>,
        whom: Whom,
        head: Parts,
        body: Received,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let errand = self.errand(fields, &head.headers);
        let callee = match self.lead_to(whom, &errand, began).await {
            Ok(callee) => callee,
            Err(trouble) => return self.unanswered(&trouble, &errand.names(), began),
        };
        if !choice::is_contract_route(&callee.found, &head.method, head.uri.path()) {
            let response = self.pass_through(&callee, &errand, head, body).await;
            self.count(response.status().as_u16(), began);
            return response;
        }
        if let Err(trouble) = self.config.limits.check(&head) {
            let names = errand.names();
            return self.refusals.turn_away(&trouble, &names, &head, body).await;
        }
        let source = Source::Body(body);
        self.made(callee, head, source, errand, began).await
    }

    /// Reads a wrapper and finds out whom it is for.
    async fn unwrap(
        &self,
        head: &mut Parts,
        body: Received,
        fields: Fields,
    ) -> Result<(Whom, Bytes, Fields), Trouble> {
        let config = &self.config;
        config.limits.check(head)?;
        let body = config.limits.read(body).await?;
        super::check::wrapper(&mut head.headers, &body)?;
        let envelope = Envelope::read(&body, &config.limits.body)?;
        let whom = match (envelope.agent.as_deref(), &fields.agent) {
            (Some(name), _) => Whom::parse(name)?,
            (None, Some(agent)) => Whom::Contract(agent.clone()),
            (None, None) => {
                let detail = "name the agent to call, as \"agent\" in the body";
                return Err(Trouble::new(Problem::BadContext, detail));
            }
        };
        let joined = fields
            .join(envelope.context)
            .map_err(|differs| Trouble::new(Problem::BadContext, differs.to_string()))?;
        Ok((whom, envelope.input, joined))
    }

    /// Has a call made, and waits for its reply unless the application prefers not to.
    async fn made(
        self: Arc<Self>,
        callee: Callee,
        mut head: Parts,
        mut source: Source,
        errand: Errand,
        began: Instant,
    ) -> Response<Body> {
        let prefer = Prefer::take(&mut head.headers);
        if prefer.respond_async {
            match self.deferred.seat() {
                Some(seat) => {
                    let made = (callee, head, source, errand, began);
                    return self.deferred(prefer, seat, made).await;
                }
                None => source = Source::Refused(Box::new(later::crowded())),
            }
        }
        let keeper = self.keeper.clone();
        let call = call::Call::new(self, callee, errand, None, began);
        let presence = call.presence();
        Lasting::new(keeper, presence, call.run(head, source)).await
    }

    /// Answers a call to a contract that is not known; it counts as a call made.
    fn unanswered(&self, trouble: &Trouble, names: &Fields, began: Instant) -> Response<Body> {
        self.count(trouble.problem.status(), began);
        self.refusals.refuse(trouble, names)
    }
}

/// Until when a call may wait for its contract to be known: its own deadline, if it names one.
fn patience(own: &Fields, began: Instant) -> Instant {
    let asked = own.deadline.unwrap_or(Duration::from_secs(3600));
    Deadline::after(began, asked).instant()
}

impl Serve for Outbound {
    type Body = Body;

    async fn serve(self: Arc<Self>, request: Request<Incoming>, _: Peer) -> Response<Body> {
        let began = Instant::now();
        let inflight = self.recorder.metrics.inflight(Direction::Outbound).clone();
        let counted = Counted::new(inflight);
        let response = self.answer(request, began).await;
        response.map(|body| body.counting(counted))
    }
}
