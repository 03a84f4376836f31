//! A scripted HTTP application: the unchanged service beside a sidecar.

use super::client::client;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A request as the application received it.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: Method,
    /// Path and query as sent.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Which of its connections it came on, counted from 0.
    pub connection: usize,
}

/// What the application does with a request.
#[derive(Clone)]
pub enum Answer {
    /// Sends this after the delay.
    Reply {
        delay: Duration,
        status: u16,
        headers: Vec<(String, String)>,
        body: Bytes,
    },
    /// Posts `body` to `url` first and waits for what comes back, then goes on with `then`.
    Call {
        url: String,
        headers: Vec<(String, String)>,
        body: Value,
        then: Box<Answer>,
    },
    /// Posts `body` to `url` and answers with what comes back, wrapped; 502 if that is a failure.
    Relay {
        url: String,
        headers: Vec<(String, String)>,
        body: Bytes,
        /// Who answers.
        by: &'static str,
        relay: Relay,
    },
    /// Never answers; the connection stays open.
    Hang,
    /// Closes the connection without an answer.
    Close,
}

impl Answer {
    /// A JSON body with status 200.
    pub fn json(body: &Value) -> Self {
        Self::bytes(200, "application/json", body.to_string())
    }

    /// These bytes with this status and media type.
    pub fn bytes(status: u16, media_type: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![(CONTENT_TYPE.to_string(), media_type.to_owned())];
        Self::Reply {
            delay: Duration::ZERO,
            status,
            headers,
            body: body.into(),
        }
    }

    /// The same reply with one more header field.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if let Self::Reply { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// The same reply, `by` later.
    pub fn delayed(mut self, by: Duration) -> Self {
        if let Self::Reply { delay, .. } = &mut self {
            *delay = by;
        }
        self
    }
}

/// What an application that asks another one waits for, and has heard.
#[derive(Clone, Default)]
pub struct Relay(Arc<Asked>);

#[derive(Default)]
struct Asked {
    heard: Mutex<Vec<(u16, Duration)>>,
    /// Nobody asks before so many are about to.
    gate: Mutex<Option<Arc<Barrier>>>,
}

impl Relay {
    /// Holds requests back until there are `count`, from now on; 1 holds none.
    pub fn together(&self, count: usize) {
        *self.0.gate.lock().unwrap() = Some(Arc::new(Barrier::new(count)));
    }

    /// Returns each answer's status and how long it took, oldest first.
    pub fn heard(&self) -> Vec<(u16, Duration)> {
        self.0.heard.lock().unwrap().clone()
    }

    /// Forgets what was heard.
    pub fn forget(&self) {
        self.0.heard.lock().unwrap().clear();
    }

    async fn ask(
        &self,
        url: String,
        headers: Vec<(String, String)>,
        body: Bytes,
    ) -> Result<(u16, Bytes), reqwest::Error> {
        let gate = self.0.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.wait().await;
        }
        let mut call = client().post(url).header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            call = call.header(name, value);
        }
        let began = Instant::now();
        let answer = call.body(body).send().await?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await?;
        self.0.heard.lock().unwrap().push((status, began.elapsed()));
        Ok((status, body))
    }
}

type Script = Arc<dyn Fn(&Received) -> Answer + Send + Sync>;

#[derive(Default)]
struct State {
    scripts: Mutex<HashMap<String, Script>>,
    received: Mutex<Vec<Received>>,
    /// Requests that were not answered because the other side went away.
    abandoned: AtomicUsize,
    connections: AtomicUsize,
    /// By path: the requests under way, and the most there ever were.
    at_once: Mutex<HashMap<String, (usize, usize)>>,
}

/// The running application; unknown paths get 404. Ends with its value.
pub struct Application {
    address: SocketAddr,
    state: Arc<State>,
    closing: watch::Sender<bool>,
    worker: JoinSet<()>,
}

impl Application {
    /// Starts it on a free port, with no path known.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut application = Self {
            address,
            state: Arc::default(),
            closing: watch::Sender::new(false),
            worker: JoinSet::new(),
        };
        application.serve(listener);
        application
    }

    fn serve(&mut self, listener: TcpListener) {
        let (state, closing) = (Arc::clone(&self.state), self.closing.subscribe());
        self.worker.spawn(accept(listener, state, closing));
    }

    /// Ends it as a crash would: nothing under way is answered. What it has received stays known.
    pub async fn kill(&mut self) {
        self.worker.shutdown().await;
    }

    /// Ends it as an operator does, once what is under way is answered, and starts it again.
    pub async fn restart(&mut self) {
        self.closing.send_replace(true);
        while self.worker.join_next().await.is_some() {}
        self.closing.send_replace(false);
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(listener);
    }

    /// Returns its address as `application.upstream` takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Gives `answer` to every request on `path` from now on.
    pub fn answer(&self, path: &str, answer: Answer) {
        self.script(path, move |_| answer.clone());
    }

    /// Asks `script` for the answer to each request on `path` from now on.
    pub fn script(&self, path: &str, script: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        self.state
            .scripts
            .lock()
            .unwrap()
            .insert(path.to_owned(), Arc::new(script));
    }

    /// Returns the requests received on `path` so far, oldest first.
    pub fn received(&self, path: &str) -> Vec<Received> {
        let received = self.state.received.lock().unwrap();
        received
            .iter()
            .filter(|request| path_of(&request.target) == path)
            .cloned()
            .collect()
    }

    /// Counts the requests whose sender went away before they were answered.
    pub fn abandoned(&self) -> usize {
        self.state.abandoned.load(Ordering::SeqCst)
    }

    /// Returns the most requests on `path` that were ever under way at once.
    pub fn at_once(&self, path: &str) -> usize {
        let at_once = self.state.at_once.lock().unwrap();
        at_once.get(path).map_or(0, |(_, most)| *most)
    }

    /// Counts the requests received on `path` so far.
    pub fn calls(&self, path: &str) -> usize {
        self.received(path).len()
    }
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or(target)
}

async fn accept(listener: TcpListener, state: Arc<State>, mut closing: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = is_told(&mut closing) => break,
        };
        let Ok((stream, _)) = stream else { return };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, Arc::clone(&state), closing.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(stream: TcpStream, state: Arc<State>, mut closing: watch::Receiver<bool>) {
    let connection = state.connections.fetch_add(1, Ordering::SeqCst);
    let service = service_fn(|request| respond(request, connection, &state));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A peer that goes away, or an answer that is a closed connection, ends it with an error.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = is_told(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
}

async fn is_told(closing: &mut watch::Receiver<bool>) {
    closing.wait_for(|closing| *closing).await.ok();
}

async fn respond(
    request: Request<Incoming>,
    connection: usize,
    state: &State,
) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let target = head
        .uri
        .path_and_query()
        .map_or("*", |target| target.as_str())
        .to_owned();
    let received = Received {
        method: head.method,
        target,
        headers: head.headers,
        body,
        connection,
    };
    state.received.lock().unwrap().push(received.clone());
    let script = state
        .scripts
        .lock()
        .unwrap()
        .get(path_of(&received.target))
        .cloned();
    let mut waiting = Waiting::on(path_of(&received.target), state);
    let answer = script.map(|script| script(&received));
    let answered = carry_out(answer).await;
    waiting.is_over = true;
    answered
}

/// Counts a request while its answer is made, and notices when that is dropped before its end.
struct Waiting<'a> {
    path: String,
    state: &'a State,
    is_over: bool,
}

impl<'a> Waiting<'a> {
    fn on(path: &str, state: &'a State) -> Self {
        let mut at_once = state.at_once.lock().unwrap();
        let (now, most) = at_once.entry(path.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Self {
            path: path.to_owned(),
            state,
            is_over: false,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut at_once = self.state.at_once.lock().unwrap();
        if let Some((now, _)) = at_once.get_mut(&self.path) {
            *now -= 1;
        }
        if !self.is_over {
            self.state.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn carry_out(
    answer: Option<Answer>,
) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
    let Some(mut answer) = answer else {
        return Ok(reply(404, &[], Bytes::new()));
    };
    loop {
        match answer {
            Answer::Hang => std::future::pending().await,
            Answer::Close => return Err("closed on purpose".into()),
            Answer::Call {
                url,
                headers,
                body,
                then,
            } => {
                let mut call = client().post(url).json(&body);
                for (name, value) in headers {
                    call = call.header(name, value);
                }
                call.send().await?.bytes().await?;
                answer = *then;
            }
            Answer::Relay {
                url,
                headers,
                body,
                by,
                relay,
            } => {
                let (status, body) = relay.ask(url, headers, body).await?;
                let next = serde_json::from_slice::<Value>(&body)?;
                let told = serde_json::json!({"by": by, "next": next}).to_string();
                let status = if status < 300 { 200 } else { 502 };
                answer = Answer::bytes(status, "application/json", told);
            }
            Answer::Reply {
                delay,
                status,
                headers,
                body,
            } => {
                tokio::time::sleep(delay).await;
                return Ok(reply(status, &headers, body));
            }
        }
    }
}

fn reply(status: u16, headers: &[(String, String)], body: Bytes) -> Response<Full<Bytes>> {
    let mut reply = Response::builder().status(status);
    for (name, value) in headers {
        reply = reply.header(name, value);
    }
    reply.body(Full::new(body)).unwrap()
}
