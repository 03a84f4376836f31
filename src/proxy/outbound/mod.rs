//! The listener that the application calls others through.

mod call;
mod choice;
mod inherit;
mod passthrough;
mod request;
mod secure;

use super::active::{Active, Parent};
use super::attempt::Recorder;
use super::body::{Body, Counted};
use super::envelope::Envelope;
use super::head;
use super::intake::{self, Limits, Source};
use super::lasting::{Keeper, Lasting};
use super::respond::{self, Trouble};
use super::tunnel::Tunnels;
use super::upstream::{Upstream, Upstreams};
use crate::consul::Instance;
use crate::context::{AgentName, Fields};
use crate::contract::watch::{Agent, Directory};
use crate::identity::local;
use crate::identity::tls::Tls;
use crate::socket::{Address, Endpoint, Peer, Place, Serve};
use crate::task::{Deadline, Problem};
use crate::telemetry::metrics::{self, Direction};
use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What the listener is given.
#[derive(Debug)]
pub struct Config {
    pub application: String,
    pub region: String,
    /// Without `team-`; empty for none.
    pub team: String,
    pub own_address: Address,
    pub limits: Limits,
    /// The name in `Via` and `Proxy-Status`; unique per process and listener.
    pub pseudonym: HeaderValue,
}

/// The outbound service.
pub struct Outbound {
    config: Config,
    recorder: Arc<Recorder>,
    directory: Arc<Directory>,
    upstreams: Upstreams,
    /// What instances that speak mutual TLS are called with.
    tls: Option<Arc<Tls>>,
    active: Arc<Active>,
    /// For what belongs to no contract.
    meters: Arc<metrics::Contract>,
    keeper: Keeper,
    tunnels: Tunnels,
}

/// Where a request leads.
enum Route<'a> {
    Invoke,
    /// A contract by name and the path at it.
    Agent {
        name: &'a str,
        path: &'a str,
    },
    Nowhere(Trouble),
}

impl Outbound {
    pub fn new(
        config: Config,
        recorder: Arc<Recorder>,
        directory: Arc<Directory>,
        (upstreams, tls): (Upstreams, Option<Arc<Tls>>),
        active: Arc<Active>,
        keeper: Keeper,
        tunnels: Tunnels,
    ) -> Self {
        Self {
            meters: recorder
                .metrics
                .contract(Direction::Outbound, metrics::UNKNOWN),
            config,
            recorder,
            directory,
            upstreams,
            tls,
            active,
            keeper,
            tunnels,
        }
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
        let (head, body) = request.into_parts();
        match self.admit(&head) {
            Ok(fields) => self.lead(head, body, fields, began).await,
            Err(trouble) => {
                let names = Fields::default();
                self.turn_away(&trouble, &names, &head, body).await
            }
        }
    }

    /// Checks the head and reads its context; the application is always believed.
    fn admit(&self, head: &Parts) -> Result<Fields, Trouble> {
        head::check(head, &self.config.limits.head)?;
        local::check(&head.headers, &head.uri, self.config.own_address.ip())
            .map_err(|refused| Trouble::new(Problem::HostRefused, refused.to_string()))?;
        if super::headers::has_passed(&head.headers, &self.config.pseudonym) {
            let detail = "the request has passed this listener before";
            return Err(Trouble::new(Problem::Loop, detail));
        }
        Fields::from_headers(&head.headers)
            .map_err(|bad| Trouble::new(Problem::BadContext, bad.to_string()))
    }

    async fn lead(
        self: Arc<Self>,
        mut head: Parts,
        body: Incoming,
        mut fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        // An application that hands on the headers it was sent hands on its task's deadline, which
        // is inherited anyway; it does not name one for this call.
        if fields.deadline.is_some() && !matches!(self.active.parent_of(&fields), Parent::None) {
            fields.deadline = None;
        }
        match route(&head) {
            Route::Invoke => match self.unwrap(&mut head, body, fields.clone()).await {
                Ok((agent, input, fields)) => {
                    let source = Source::Input(input);
                    self.call(agent, head, source, fields, began).await
                }
                Err(trouble) => self.refuse(&trouble, &fields),
            },
            Route::Agent { name, path } => {
                let Some(agent) = AgentName::parse(name) else {
                    let trouble = not_an_agent(name);
                    return self.turn_away(&trouble, &fields, &head, body).await;
                };
                let path = path.to_owned();
                self.native(agent, &path, head, body, fields, began).await
            }
            Route::Nowhere(trouble) => self.turn_away(&trouble, &fields, &head, body).await,
        }
    }

    /// Makes a checked call; it outlives its connection.
    async fn call(
        self: Arc<Self>,
        agent: AgentName,
        head: Parts,
        source: Source,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        match self.find(&agent, patience(&fields, began)).await {
            Ok(found) => {
                self.lasting((found, agent), head, source, fields, began)
                    .await
            }
            Err(trouble) => self.unanswered(&trouble, &fields, began),
        }
    }

    /// Serves `/agents/NAME/PATH`: a contract's own route is a checked call, the rest passes.
    async fn native(
        self: Arc<Self>,
        agent: AgentName,
        path: &str,
        head: Parts,
        body: Incoming,
        fields: Fields,
        began: Instant,
    ) -> Response<Body> {
        let found = match self.find(&agent, patience(&fields, began)).await {
            Ok(found) => found,
            Err(trouble) => return self.unanswered(&trouble, &fields, began),
        };
        if !choice::is_contract_route(&found, &head.method, path) {
            let passed = self.pass_through(&found, &agent, path, head, body, fields);
            let response = passed.await;
            let status = response.status().as_u16();
            self.meters.request_ended(Some(status), began.elapsed());
            return response;
        }
        if let Err(trouble) = self.config.limits.check(&head) {
            return self.turn_away(&trouble, &fields, &head, body).await;
        }
        let source = Source::Body(body);
        self.lasting((found, agent), head, source, fields, began)
            .await
    }

    /// Reads a wrapper and finds out whom it is for.
    async fn unwrap(
        &self,
        head: &mut Parts,
        body: Incoming,
        fields: Fields,
    ) -> Result<(AgentName, Bytes, Fields), Trouble> {
        let config = &self.config;
        config.limits.check(head)?;
        let body = config.limits.read(body).await?;
        super::check::wrapper(&mut head.headers, &body)?;
        let envelope = Envelope::read(&body, &config.limits.body)?;
        let agent = match envelope.agent.as_deref() {
            Some(name) => AgentName::parse(name).ok_or_else(|| not_an_agent(name))?,
            None => fields.agent.clone().ok_or_else(|| {
                let detail = "name the agent to call, as \"agent\" in the body";
                Trouble::new(Problem::BadContext, detail)
            })?,
        };
        let joined = fields
            .join(envelope.context)
            .map_err(|differs| Trouble::new(Problem::BadContext, differs.to_string()))?;
        Ok((agent, envelope.input, joined))
    }

    fn lasting(
        self: Arc<Self>,
        whom: (Arc<Agent>, AgentName),
        head: Parts,
        source: Source,
        fields: Fields,
        began: Instant,
    ) -> Lasting {
        let keeper = self.keeper.clone();
        let call = call::Call::new(self, whom, fields, &head.headers, began);
        let presence = call.presence();
        Lasting::new(keeper, presence, call.run(head, source))
    }

    /// Answers a call to a contract that is not known; it counts as a call made.
    fn unanswered(&self, trouble: &Trouble, names: &Fields, began: Instant) -> Response<Body> {
        let status = trouble.problem.status();
        self.meters.request_ended(Some(status), began.elapsed());
        self.refuse(trouble, names)
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
        metrics.rejected(Direction::Outbound, trouble.problem);
        respond::trouble(trouble, names, &self.config.pseudonym)
    }
}

/// Until when a call may wait for its contract to be known: its own deadline, if it names one.
fn patience(own: &Fields, began: Instant) -> Instant {
    let asked = own.deadline.unwrap_or(Duration::from_secs(3600));
    Deadline::after(began, asked).instant()
}

fn route(head: &Parts) -> Route<'_> {
    let path = head.uri.path();
    if path == "/hermes/invoke" {
        return match head.method {
            Method::POST => Route::Invoke,
            _ => Route::Nowhere(Trouble {
                allow: Some("POST".to_owned()),
                ..Trouble::new(Problem::MethodNotAllowed, "use POST")
            }),
        };
    }
    match path.strip_prefix("/agents/") {
        Some(rest) => {
            let (name, path) = match rest.find('/') {
                Some(slash) => rest.split_at(slash),
                None => (rest, "/"),
            };
            Route::Agent { name, path }
        }
        None => {
            let detail = "here are POST /hermes/invoke and /agents/{agent}/{path}";
            Route::Nowhere(Trouble::new(Problem::NotFound, detail))
        }
    }
}

fn not_an_agent(name: &str) -> Trouble {
    let detail = if name.contains("@^") {
        "version ranges are not served by this version; name the contract id"
    } else {
        "an agent is named by a contract id such as fraud-detection-v1.0, or id@version"
    };
    Trouble::new(Problem::BadContext, detail)
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
