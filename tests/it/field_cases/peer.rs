//! A server of bare bytes: what it is sent is kept as it came, what it answers is written out.

use super::message::{self, Framing};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Asked for by the sidecar's health checks; answered 200 and not kept.
pub const HEALTH: &str = "/healthy";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// Request line and fields, to the last line end.
    pub head: String,
    /// The content, without the framing of its chunks.
    pub body: Vec<u8>,
    /// It said nothing about content.
    pub is_unframed: bool,
}

impl Heard {
    /// Returns the request's method and target.
    pub fn line(&self) -> (&str, &str) {
        let line = self.head.lines().next().unwrap();
        let mut words = line.splitn(2, ' ');
        let method = words.next().unwrap();
        let target = words.next().unwrap().rsplit_once(' ').unwrap().0;
        (method, target)
    }

    /// Returns what each line of the field `name` says.
    pub fn values(&self, name: &str) -> Vec<String> {
        message::values(&self.head, name)
    }

    /// Returns what the one line of the field `name` says.
    pub fn value(&self, name: &str) -> String {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "{name} in {}", self.head);
        values.into_iter().next().unwrap()
    }
}

/// What the server does, in order.
#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    /// Lets this much time pass: a server that is slow on purpose. What comes meanwhile is kept.
    After(Duration),
    /// Leaves Nagle's rule on from now on: a piece waits for the one before to be acknowledged.
    Reluctant,
    /// Sends back whatever comes from now on.
    Echo,
    /// Waits until the other side has gone.
    Hang,
}

type Steps = Arc<dyn Fn(&Heard) -> Vec<Step> + Send + Sync>;

#[derive(Clone)]
struct Script {
    steps: Steps,
    /// It does not wait for the content.
    is_early: bool,
}

#[derive(Default)]
struct State {
    scripts: Mutex<HashMap<String, Script>>,
    heard: Mutex<Vec<Heard>>,
    left: Mutex<Vec<usize>>,
    sent: Mutex<Vec<Instant>>,
    early: Mutex<Vec<u8>>,
}

/// The running server; unknown paths get 404. Ends with its value.
pub struct Peer {
    address: SocketAddr,
    state: Arc<State>,
    _worker: JoinSet<()>,
}

impl Peer {
    /// Starts it on a free port of 127.0.0.1.
    pub async fn start() -> Self {
        Self::on("127.0.0.1:0").await
    }

    /// Starts it on this address.
    pub async fn on(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let mut worker = JoinSet::new();
        worker.spawn(accept(listener, Arc::clone(&state)));
        Self {
            address,
            state,
            _worker: worker,
        }
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its address as `application.upstream` takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes these bytes as the answer to every request on `path` from now on.
    pub fn answer(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        self.script(path, move |_| vec![Step::Send(bytes.clone())]);
    }

    /// Goes through these steps at every request on `path` from now on.
    pub fn does(&self, path: &str, steps: Vec<Step>) {
        self.script(path, move |_| steps.clone());
    }

    /// Asks `steps` what to do at each request on `path` from now on.
    pub fn script(&self, path: &str, steps: impl Fn(&Heard) -> Vec<Step> + Send + Sync + 'static) {
        self.put(path, false, Arc::new(steps));
    }

    /// Goes through these steps once the head of a request on `path` is there, and closes.
    pub fn at_head(&self, path: &str, steps: Vec<Step>) {
        self.put(path, true, Arc::new(move |_: &Heard| steps.clone()));
    }

    fn put(&self, path: &str, is_early: bool, steps: Steps) {
        let script = Script { steps, is_early };
        let mut scripts = self.state.scripts.lock().unwrap();
        scripts.insert(path.to_owned(), script);
    }

    /// Returns the requests so far, oldest first.
    pub fn heard(&self) -> Vec<Heard> {
        self.state.heard.lock().unwrap().clone()
    }

    /// Returns the requests since it was last asked, oldest first.
    pub fn news(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.state.heard.lock().unwrap())
    }

    /// Returns the one request since it was last asked.
    pub fn only(&self) -> Heard {
        let mut news = self.news();
        assert_eq!(news.len(), 1, "{news:#?}");
        news.remove(0)
    }

    /// Returns when each piece was sent so far.
    pub fn sent(&self) -> Vec<Instant> {
        self.state.sent.lock().unwrap().clone()
    }

    /// Returns what came while an answer was on its way, outside any request.
    pub fn early(&self) -> Vec<u8> {
        self.state.early.lock().unwrap().clone()
    }

    /// Forgets all that it was sent, has sent, and who has left.
    pub fn forget(&self) {
        self.state.heard.lock().unwrap().clear();
        self.state.left.lock().unwrap().clear();
        self.state.sent.lock().unwrap().clear();
    }

    /// Returns the connections that were let go while a request on them was not answered whole.
    pub fn left(&self) -> Vec<usize> {
        self.state.left.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    for connection in 0.. {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        stream.set_nodelay(true).unwrap();
        let state = Arc::clone(&state);
        connections.spawn(async move {
            serve(stream, connection, &state).await;
        });
    }
}

/// Answers requests until the other side goes or a script closes; `None` is its end.
async fn serve(mut stream: TcpStream, connection: usize, state: &State) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let end = fill(&mut stream, &mut bytes, |bytes| {
            message::find(bytes, b"\r\n\r\n").map(|at| at + 4)
        })
        .await?;
        let head: Vec<u8> = bytes.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let framing = message::request_framing(&head);
        let is_unframed = ["content-length", "transfer-encoding"]
            .iter()
            .all(|name| message::values(&head, name).is_empty());
        let mut heard = Heard {
            connection,
            head,
            body: Vec::new(),
            is_unframed,
        };
        let (_, target) = heard.line();
        let path = target.split('?').next().unwrap().to_owned();
        let is_health = path == HEALTH;
        let script = state.scripts.lock().unwrap().get(&path).cloned();
        let is_early = script.as_ref().is_some_and(|script| script.is_early);
        if !is_early {
            heard.body = body(&mut stream, &mut bytes, framing).await?;
        }
        if is_health {
            stream.write_all(&message::answer(200, "", "")).await.ok()?;
            continue;
        }
        state.heard.lock().unwrap().push(heard.clone());
        let steps = match &script {
            Some(script) => (script.steps)(&heard),
            None => vec![Step::Send(message::answer(404, "", ""))],
        };
        if carry_out(&mut stream, steps, state).await.is_none() {
            state.left.lock().unwrap().push(connection);
            return None;
        }
        if is_early {
            // Whoever still writes is read, or a reset could overtake the answer.
            stream.shutdown().await.ok()?;
            let mut chunk = [0; 16 * 1024];
            while let Ok(1..) = stream.read(&mut chunk).await {}
            return None;
        }
    }
}

/// Goes through the steps; `None` if the other side goes before they are done.
async fn carry_out(stream: &mut TcpStream, steps: Vec<Step>, state: &State) -> Option<()> {
    for step in steps {
        match step {
            Step::Send(bytes) => {
                state.sent.lock().unwrap().push(Instant::now());
                stream.write_all(&bytes).await.ok()?;
            }
            Step::After(time) => tokio::select! {
                () = sleep(time) => {}
                () = gone(stream, Some(&state.early)) => return None,
            },
            Step::Reluctant => stream.set_nodelay(false).unwrap(),
            Step::Echo => {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok();
                return None;
            }
            Step::Hang => {
                gone(stream, None).await;
                return None;
            }
        }
    }
    Some(())
}

/// Waits until the other side has closed; what it says until then is kept in `early`.
async fn gone(stream: &mut TcpStream, early: Option<&Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        if let Some(early) = early {
            early.lock().unwrap().extend_from_slice(&chunk[..length]);
        }
    }
}

async fn body(stream: &mut TcpStream, bytes: &mut Vec<u8>, framing: Framing) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    match framing {
        Framing::ToTheEnd => unreachable!("no request ends with its connection"),
        Framing::Length(length) => {
            fill(stream, bytes, |bytes| (bytes.len() >= length).then_some(0)).await?;
            body.extend(bytes.drain(..length));
        }
        Framing::Chunked => loop {
            let line = fill(stream, bytes, |bytes| {
                message::find(bytes, b"\r\n").map(|at| at + 2)
            });
            let end = line.await?;
            let line: Vec<u8> = bytes.drain(..end).collect();
            let size = message::chunk_size(&line);
            fill(stream, bytes, |bytes| {
                (bytes.len() >= size + 2).then_some(0)
            })
            .await?;
            body.extend(bytes.drain(..size));
            bytes.drain(..2);
            if size == 0 {
                break;
            }
        },
    }
    Some(body)
}

/// Reads until `found` gives a place; `None` when the other side closes before.
async fn fill(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    found: impl Fn(&[u8]) -> Option<usize>,
) -> Option<usize> {
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some(at) = found(bytes) {
            return Some(at);
        }
        match stream.read(&mut chunk).await {
            Ok(length @ 1..) => bytes.extend_from_slice(&chunk[..length]),
            _ => return None,
        }
    }
}
