//! `Prefer: respond-async`: calls that are acknowledged and answered later (RFC 7240).
//!
//! - the call is carried out by itself from the start; whoever asked for it may hang up
//! - one that ends before the application had it is answered as it would be without the wish
//! - otherwise the answer is 202, and the reply is fetched at `/hermes/calls/{call_id}`, status,
//!   fields and bytes as the call would have been answered
//! - its time counts from the acknowledgement, which has `ACKNOWLEDGED_WITHIN`
//! - elsewhere: what is kept, and for how long (`deferred`)

mod fetch;
mod prefer;

pub use fetch::{Fetching, fetch, is_acknowledgement};
pub use prefer::{PREFER, Prefer, RESPOND_ASYNC};

use super::attempt::{Attempt, Presence, deadline_at};
use super::body::Body;
use super::lasting::Keeper;
use super::refusal::Refusals;
use super::respond::Trouble;
use crate::context::{Fields, header};
use crate::deferred::{Deferred, Found, Name, Open, Reply, Seat, Stage};
use crate::task::{Deadline, Id, Problem, State};
use crate::telemetry::metrics;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::body::Body as HttpBody;
use prefer::PREFERENCE_APPLIED;
use serde_json::json;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Where a reply is fetched; the call's id follows.
pub const CALLS: &str = "/hermes/calls/";
/// How long an attempt may take until its application has the request.
pub const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(3);
/// How long anybody is kept waiting for an end; who wants to wait longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A call that is answered later, as those see it who carry it out.
#[derive(Debug, Clone)]
pub struct Later {
    open: Arc<Open>,
    /// When its first attempt was acknowledged.
    since: Arc<OnceLock<Instant>>,
}

/// What the asker of a late call is told at first.
pub struct Asked<'a> {
    /// Who may fetch the reply.
    pub scope: Arc<str>,
    pub names: Fields,
    pub prefer: Prefer,
    pub began: Instant,
    pub meters: Arc<metrics::Contract>,
    pub refusals: &'a Refusals,
    pub seat: Seat,
}

impl Later {
    pub fn new(task_id: Id, call_id: Id) -> Self {
        Self {
            open: Open::new(task_id, call_id),
            since: Arc::default(),
        }
    }

    /// Returns what the call's attempts tell of their states.
    pub fn presence(&self) -> Presence {
        Presence::watched(self.open.clone())
    }

    pub fn call_id(&self) -> Id {
        self.open.call_id.clone()
    }

    /// Returns when it was acknowledged; until then the present.
    pub fn since(&self) -> Instant {
        self.since.get().copied().unwrap_or_else(Instant::now)
    }

    /// Hears that the application has the request; from now on the attempt has until `deadline`.
    pub fn acknowledged(&self, attempt: &mut Attempt, deadline: Deadline) {
        self.since.get_or_init(Instant::now);
        attempt.note(|report| report.deadline_at = deadline_at(deadline));
        self.open.acknowledge();
    }

    /// Says whether the request is still to be counted, which is done once: with its 202, or with
    /// the end of the call if that is told instead.
    pub fn is_to_be_counted(&self) -> bool {
        self.open.is_to_be_counted()
    }
}

/// Carries `call` out by itself and returns what its asker is told at first.
pub async fn defer(
    deferred: &Deferred,
    keeper: &Keeper,
    later: Later,
    asked: Asked<'_>,
    call: impl Future<Output = Response<Body>> + Send + 'static,
) -> Response<Body> {
    let open = later.open;
    let name = Name {
        scope: asked.scope.clone(),
        call_id: open.call_id.clone(),
    };
    let carried = carry_out(deferred.clone(), name, open.clone(), asked.seat, call);
    if !keeper.begin(carried) {
        return asked.refusals.refuse(&stopping(), &asked.names);
    }
    let wait = asked.prefer.wait.unwrap_or_default().min(LONGEST_WAIT);
    let stage = match open.entered().await {
        Stage::Entered => {
            let until = asked.began + wait;
            let ended = tokio::time::timeout_at(until, open.ended()).await;
            ended.unwrap_or(Stage::Entered)
        }
        stage => stage,
    };
    match stage {
        // Ended while it was entered: who did not offer to wait is told where to fetch it.
        Stage::Ended(reply) if !wait.is_zero() || !open.is_acknowledged() => given(&reply),
        Stage::Lost => asked.refusals.refuse(&lost(), &asked.names),
        _ => {
            if open.is_to_be_counted() {
                let took = asked.began.elapsed();
                asked.meters.request_ended(Some(202), took);
            }
            accepted(&open, &asked.names)
        }
    }
}

/// Carries a call out; once the application has it, its row is written.
async fn carry_out(
    deferred: Deferred,
    name: Name,
    open: Arc<Open>,
    seat: Seat,
    call: impl Future<Output = Response<Body>> + Send,
) {
    let mut unended = Unended(Some(open.clone()));
    let entering = async {
        open.acknowledged().await;
        let entry = deferred.begin(name, open.clone(), seat).await;
        open.enter();
        entry
    };
    let (mut call, mut entering) = (std::pin::pin!(call), std::pin::pin!(entering));
    let mut entered = None;
    let response = loop {
        tokio::select! {
            biased;
            response = call.as_mut() => break response,
            entry = entering.as_mut(), if entered.is_none() => entered = Some(entry),
        }
    };
    let reply = kept(response);
    if entered.is_none() && open.is_acknowledged() {
        entered = Some(entering.await);
    }
    unended.0 = None;
    match entered {
        Some(entry) => entry.answered(reply).await,
        None => open.end(Stage::Ended(Arc::new(reply))),
    }
}

/// Tells those who wait that a call was given up, if it is.
struct Unended(Option<Arc<Open>>);

impl Drop for Unended {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end(Stage::Lost);
        }
    }
}

/// Answers a request for the reply of a call; HEAD gets it without its body.
pub async fn answer(
    deferred: &Deferred,
    name: &Name,
    head: &Parts,
) -> Result<Response<Body>, Withheld> {
    let wait = Prefer::read(&head.headers).wait;
    let answered = looked_up(deferred, name, wait).await?;
    match head.method {
        Method::HEAD => Ok(bodiless(answered)),
        _ => Ok(answered),
    }
}

async fn looked_up(
    deferred: &Deferred,
    name: &Name,
    wait: Option<Duration>,
) -> Result<Response<Body>, Withheld> {
    match deferred.find(name).await {
        Ok(Found::Open(open)) => {
            let wait = wait.unwrap_or_default().min(LONGEST_WAIT);
            match tokio::time::timeout(wait, open.ended()).await {
                Ok(Stage::Ended(reply)) => Ok(given(&reply)),
                Ok(_lost) => Err(in_doubt(open.task_id.clone(), State::FailedExecution, name)),
                Err(_elapsed) => Ok(accepted(&open, &names(&open.task_id, name))),
            }
        }
        Ok(Found::Ended(reply)) => Ok(given(&reply)),
        Ok(Found::InDoubt { task_id, state }) => Err(in_doubt(task_id, state, name)),
        Ok(Found::Unknown) => Err(Withheld {
            trouble: unknown(),
            names: Fields::default(),
        }),
        Err(error) => {
            tracing::warn!(%error, "the record of calls could not be read");
            let detail = "the record of calls could not be read; ask again";
            let trouble = Trouble::new(Problem::Internal, detail);
            Err(Withheld {
                trouble: trouble.retry_after(Duration::from_secs(1)),
                names: Fields::default(),
            })
        }
    }
}

/// A refusal to hand a reply out, and the ids that it repeats.
pub struct Withheld {
    pub trouble: Trouble,
    pub names: Fields,
}

fn in_doubt(task_id: Id, state: State, name: &Name) -> Withheld {
    let detail = "the sidecar that made this call stopped before its end, or could not keep its \
                  reply; what came of it is not known here, and its reports at the collector say \
                  how far it had come";
    Withheld {
        trouble: Trouble::new(Problem::InDoubt, detail).stands(state),
        names: names(&task_id, name),
    }
}

/// Refuses what asks for a call that is not there.
pub fn unknown() -> Trouble {
    let detail = "no call of this id is known to this sidecar for this asker; a reply is kept for \
                  an hour after the call's end and fetched at the Location that its 202 named; \
                  the collector shows the task at /tasks/{task_id}";
    Trouble::new(Problem::NotFound, detail)
}

/// Refuses a call because too many are open.
pub fn crowded() -> Trouble {
    let detail = "too many calls that are answered later are open; wait for some of them, or make \
                  the call without Prefer: respond-async";
    let overloaded = Trouble::new(Problem::Overloaded, detail).executed(false);
    overloaded.retry_after(Duration::from_secs(5))
}

/// Refuses a call that came too late to be begun.
fn stopping() -> Trouble {
    let detail = "the sidecar is stopping; the call was not begun";
    Trouble::new(Problem::Draining, detail).executed(false)
}

/// Says of a call that had begun that nobody sees it to its end.
fn lost() -> Trouble {
    let detail = "the sidecar is stopping; the call was given up";
    Trouble::new(Problem::Draining, detail)
}

/// Says whether a call of this id can be asked for: a client takes dots alone for a step in the
/// path. Without an id it is given one that can.
pub fn can_be_fetched(call_id: Option<&Id>) -> bool {
    call_id.is_none_or(|call_id| !matches!(call_id.as_str(), "." | ".."))
}

/// Reads the call that a path asks for.
pub fn call_at(path: &str) -> Option<Id> {
    Id::parse(path.strip_prefix(CALLS)?).ok()
}

fn names(task_id: &Id, name: &Name) -> Fields {
    Fields {
        task_id: Some(task_id.clone()),
        call_id: Some(name.call_id.clone()),
        ..Fields::default()
    }
}

/// Says that a call goes on, and where its reply will be.
fn accepted(open: &Open, names: &Fields) -> Response<Body> {
    let state = match open.state() {
        // What was acknowledged is executing, whatever has been heard of it.
        State::Pending => State::Executing,
        state => state,
    };
    let body = json!({"task_id": open.task_id, "call_id": open.call_id, "state": state});
    let mut response = Response::new(Body::whole(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    names.write(headers);
    let json = HeaderValue::from_static("application/json");
    headers.insert(CONTENT_TYPE, json);
    let location = HeaderValue::try_from(format!("{CALLS}{}", open.call_id.as_str()));
    if let Ok(location) = location {
        headers.insert(LOCATION, location);
    }
    headers.insert(PREFERENCE_APPLIED, RESPOND_ASYNC);
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(header::EXECUTED, HeaderValue::from_static("?1"));
    headers.insert(header::STATE, HeaderValue::from_static(state.as_str()));
    response
}

fn given(reply: &Reply) -> Response<Body> {
    let mut response = Response::new(Body::whole(reply.body.clone()));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers.clone();
    response
}

/// Takes the body off, and says how long it would have been.
fn bodiless(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, Body::empty())
}

fn kept(response: Response<Body>) -> Reply {
    let (head, body) = response.into_parts();
    let body = match body {
        Body::Whole(bytes) | Body::Marked(bytes, _) => bytes.unwrap_or_default(),
        // The reply of a call is never streamed.
        Body::Stream(_) => Bytes::new(),
    };
    Reply {
        status: head.status,
        headers: head.headers,
        body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deferred::{MIGRATION, Side};
    use crate::lifecycle::{Lifecycle, Phase};
    use crate::proxy::attempt::Recorder;
    use crate::store::{Bounds, Options, Schema, Store};
    use metrics::Direction;
    use tokio_util::task::TaskTracker;

    static SCHEMA: Schema = Schema {
        name: "test",
        application_id: 1,
        migrations: &[MIGRATION],
    };

    #[tokio::test]
    async fn a_call_that_comes_too_late_to_be_begun_may_go_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state.db");
        let store = Store::open(&state, &SCHEMA, Options::default()).unwrap().0;
        let deferred = Deferred::new(
            Side::Callee,
            store,
            "boot-1",
            Bounds::default(),
            Arc::new(|| {}),
        );
        let recorder = Recorder::sample(&directory.path().join("spool.db")).await;
        let metrics = recorder.metrics.clone();
        let meters = metrics.contract(Direction::Inbound, "a-v1.0");
        let proxy = HeaderValue::from_static("hermes-in-a-1");
        let refusals = Refusals::new(Direction::Inbound, recorder, proxy);
        let (lifecycle, phase) = Lifecycle::new();
        let keeper = Keeper::new(TaskTracker::new(), phase);
        lifecycle.advance(Phase::Stopping);
        let asked = Asked {
            scope: Arc::from(""),
            names: Fields::default(),
            prefer: Prefer::default(),
            began: Instant::now(),
            meters,
            refusals: &refusals,
            seat: deferred.seat().unwrap(),
        };
        let later = Later::new(Id::mint(), Id::mint());
        let call = async { panic!("it is not begun") };
        let response = defer(&deferred, &keeper, later, asked, call).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::EXECUTED], "?0");
        assert_eq!(response.headers()[header::STATE], "failed_execution");
        let text = metrics.render();
        let mut rejections = text.lines().filter(|line| {
            line.starts_with("hermes_proxy_rejections_total") && line.contains("draining")
        });
        assert!(rejections.any(|line| line.ends_with(" 1")), "{text}");
    }
}
