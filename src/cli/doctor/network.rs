//! The way to the registry and to each instance: name lookup, TCP, TLS and the first byte, each timed apart.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::findings::{Findings, Step};
use super::known::{Known, Speaks, Target};
use crate::cli::quantile::{Times, shown};
use crate::identity::tls::{self, Alpn, Tls};
use crate::telemetry::log::Chain;

/// Addresses looked at; those beyond are told.
const MOST_PLACES: usize = 64;
const AT_ONCE: usize = 8;
const TRIES: usize = 5;
/// For each part of one try.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is read of an answer at most: its first line matters.
const MOST_READ: usize = 1024;

/// One part of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Dns,
    Tcp,
    Tls,
    FirstByte,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::Dns, Part::Tcp, Part::Tls, Part::FirstByte];

    pub fn as_str(self) -> &'static str {
        match self {
            Part::Dns => "dns",
            Part::Tcp => "tcp",
            Part::Tls => "tls",
            Part::FirstByte => "first_byte",
        }
    }

    /// A median above it is worth looking at: between sidecars of one site each takes a few
    /// milliseconds, and a health answer touches no application.
    fn slow(self) -> Duration {
        Duration::from_millis(match self {
            Part::Dns => 50,
            Part::Tcp => 100,
            Part::Tls | Part::FirstByte => 200,
        })
    }

    fn remedy(self) -> &'static str {
        match self {
            Part::Dns => {
                "ask a nearer DNS server, or let the instance advertise an address \
                 (inbound.advertise)"
            }
            Part::Tcp => {
                "look at the distance, firewalls and lost packets between the two machines"
            }
            Part::Tls => {
                "look at the CPU of both machines, and at the length of certificate chains"
            }
            Part::FirstByte => {
                "look at the load of that machine and its sidecar, and at the network between; the \
                 application is not asked for this answer"
            }
        }
    }
}

/// An address, the contracts served there, and what was measured.
#[derive(Debug)]
pub(super) struct Seen {
    pub host: String,
    pub port: u16,
    pub agents: Vec<String>,
    pub passing: Option<bool>,
    pub parts: BTreeMap<Part, Times>,
    /// Of the health answer.
    pub status: Option<u16>,
    pub tries: usize,
    /// Tries that ended early, and why the last of them did.
    pub failed: usize,
    pub trouble: Option<(Part, String)>,
}

impl Seen {
    /// Writes the address as it stands in a URL.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}

fn authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// What one try gave.
#[derive(Debug, Default)]
struct Try {
    times: Vec<(Part, Duration)>,
    status: Option<u16>,
    trouble: Option<(Part, String)>,
}

/// Where to go, and with what.
#[derive(Clone)]
struct Way {
    host: String,
    port: u16,
    path: String,
    secure: Secure,
}

#[derive(Clone)]
enum Secure {
    Clear,
    Tls(Arc<ClientConfig>, ServerName<'static>),
    /// Not known, or impossible for this reason: TLS is not tried.
    Untried(Option<String>),
}

pub(super) async fn examine(
    known: &Known,
    files: Option<&tls::Config>,
    until: Instant,
    found: &mut Findings,
) -> Vec<Seen> {
    let places = places(&known.targets);
    if places.len() > MOST_PLACES {
        let left = places.len() - MOST_PLACES;
        let message = format!("{left} of {} addresses were not looked at", places.len());
        found.note(Step::Network, message, "name one contract with --agent");
    }
    let config = client_config(files, &places, found);
    let mut waiting = places.into_iter().take(MOST_PLACES);
    let mut running = JoinSet::new();
    let mut seen = Vec::new();
    loop {
        while running.len() < AT_ONCE
            && let Some((targets, speaks)) = waiting.next()
        {
            let secure = secure(&speaks, config.as_ref());
            running.spawn(look(targets, secure, until));
        }
        match running.join_next().await {
            None => break,
            Some(Ok(one)) => seen.push(one),
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    seen.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
    seen.iter().for_each(|one| judge(one, &seen, found));
    seen
}

/// Puts together what is at one address: several contracts of one sidecar share theirs.
fn places(targets: &[Target]) -> Vec<(Vec<Target>, Speaks)> {
    let mut places: BTreeMap<(&str, u16, &Speaks), Vec<Target>> = BTreeMap::new();
    for target in targets {
        let place = (target.host.as_str(), target.port, &target.speaks);
        places.entry(place).or_default().push(target.clone());
    }
    let places = places.into_iter();
    places
        .map(|((_, _, speaks), targets)| (targets, speaks.clone()))
        .collect()
}

/// Returns what TLS is spoken with; without resumption, or all tries but the first would be cheap.
fn client_config(
    files: Option<&tls::Config>,
    places: &[(Vec<Target>, Speaks)],
    found: &mut Findings,
) -> Option<Arc<ClientConfig>> {
    let is_secured = |(_, speaks): &&(_, Speaks)| matches!(speaks, Speaks::Https(_));
    places.iter().find(is_secured)?;
    let opened = files.map(|files| Tls::open(files.clone()));
    match opened {
        Some(Ok(tls)) => {
            let mut config = (*tls.client(Alpn::Http1)).clone();
            config.resumption = Resumption::disabled();
            Some(Arc::new(config))
        }
        Some(Err(error)) => {
            let told = format!("our certificate cannot be used: {}", Chain(&error));
            found.add(Step::Network, told, "see hermes-sidecar check");
            None
        }
        None => {
            let told = "instances speak mutual TLS, and the settings here have no certificate";
            found.note(
                Step::Network,
                told,
                "give the sidecar's own config with -c, or set [tls]",
            );
            None
        }
    }
}

fn secure(speaks: &Speaks, config: Option<&Arc<ClientConfig>>) -> Secure {
    let (app, config) = match (speaks, config) {
        (Speaks::Http, _) => return Secure::Clear,
        (Speaks::Unknown, _) | (Speaks::Https(_), None) => return Secure::Untried(None),
        (Speaks::Https(app), Some(config)) => (app, config),
    };
    let Some(app) = app else {
        let told = "its entry in Consul does not say for which application";
        return Secure::Untried(Some(told.to_owned()));
    };
    match ServerName::try_from(app.clone()) {
        Ok(name) => Secure::Tls(config.clone(), name),
        Err(_error) => Secure::Untried(Some(format!("{app:?} is no name that TLS can ask for"))),
    }
}

async fn look(targets: Vec<Target>, secure: Secure, until: Instant) -> Seen {
    let first = &targets[0];
    let way = Way {
        host: first.host.clone(),
        port: first.port,
        path: first.path.clone(),
        secure,
    };
    let mut seen = Seen {
        host: way.host.clone(),
        port: way.port,
        passing: targets.iter().map(|target| target.passing).min().flatten(),
        agents: targets.into_iter().map(|target| target.agent).collect(),
        parts: BTreeMap::new(),
        status: None,
        tries: 0,
        failed: 0,
        trouble: None,
    };
    let mut times: BTreeMap<Part, Vec<Duration>> = BTreeMap::new();
    for _ in 0..TRIES {
        let Ok(tried) = timeout_at(until, way.try_once()).await else {
            break;
        };
        for (part, time) in tried.times {
            times.entry(part).or_default().push(time);
        }
        seen.tries += 1;
        seen.status = tried.status.or(seen.status);
        if tried.trouble.is_some() {
            seen.failed += 1;
            seen.trouble = tried.trouble;
        }
    }
    let times = times.into_iter();
    seen.parts = times
        .map(|(part, times)| (part, Times::of(times)))
        .collect();
    seen
}

impl Way {
    async fn try_once(&self) -> Try {
        let mut tried = Try::default();
        if let Err(trouble) = self.go(&mut tried).await {
            tried.trouble = Some(trouble);
        }
        tried
    }

    async fn go(&self, tried: &mut Try) -> Result<(), (Part, String)> {
        let address = self.resolve(tried).await?;
        let connecting = TcpStream::connect(address);
        let stream = timed(Part::Tcp, connecting, tried).await?;
        // Our few bytes must not wait for an acknowledgement; a refusal costs latency.
        stream.set_nodelay(true).ok();
        match &self.secure {
            Secure::Untried(None) => Ok(()),
            Secure::Untried(Some(told)) => Err((Part::Tls, told.clone())),
            Secure::Clear => self.ask(stream, tried).await,
            Secure::Tls(config, name) => {
                let connector = TlsConnector::from(config.clone());
                let securing = connector.connect(name.clone(), stream);
                let stream = timed(Part::Tls, securing, tried).await?;
                self.ask(stream, tried).await
            }
        }
    }

    /// Looks the host up, if it is a name; the first address is the one that is tried.
    async fn resolve(&self, tried: &mut Try) -> Result<SocketAddr, (Part, String)> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, self.port));
        }
        let looking = async {
            let mut found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
            let none = || io::Error::other("the name has no address");
            found.next().ok_or_else(none)
        };
        timed(Part::Dns, looking, tried).await
    }

    async fn ask(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        tried: &mut Try,
    ) -> Result<(), (Part, String)> {
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             user-agent: hermes-sidecar-doctor\r\n\r\n",
            self.path,
            authority(&self.host, self.port)
        );
        let mut head = vec![0; MOST_READ];
        let answering = async {
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            match stream.read(&mut head).await? {
                0 => Err(io::Error::other(
                    "it closed the connection without an answer",
                )),
                length => Ok(length),
            }
        };
        let length = timed(Part::FirstByte, answering, tried).await?;
        let line = String::from_utf8_lossy(&head[..length]);
        let status = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3));
        tried.status = status.and_then(|status| status.parse().ok());
        match tried.status {
            Some(_) => Ok(()),
            None => Err((
                Part::FirstByte,
                "what answers does not speak HTTP/1.1".to_owned(),
            )),
        }
    }
}

/// Waits for one part, within its bound, and notes how long it took.
async fn timed<T>(
    part: Part,
    work: impl Future<Output = io::Result<T>>,
    tried: &mut Try,
) -> Result<T, (Part, String)> {
    let began = Instant::now();
    match timeout(PATIENCE, work).await {
        Ok(Ok(done)) => {
            tried.times.push((part, began.elapsed()));
            Ok(done)
        }
        Ok(Err(error)) => Err((part, Chain(&error).to_string())),
        Err(_elapsed) => Err((part, format!("nothing within {}", shown(PATIENCE)))),
    }
}

/// Judges one address; `all` says who else there is.
fn judge(seen: &Seen, all: &[Seen], found: &mut Findings) {
    let (place, agents) = (seen.authority(), seen.agents.join(", "));
    if let Some((part, told)) = &seen.trouble {
        let known = match seen.passing {
            Some(true) => {
                "Consul shows it as passing, so calls are sent there: see that this machine \
                           may reach it, and that inbound.advertise names an address others can use"
            }
            Some(false) => {
                "Consul shows it as failing, so no calls are sent there: start it again, \
                            or deregister it"
            }
            None => "see that it runs and that this machine may reach it",
        };
        let message = format!(
            "{place} ({agents}): {} of {} tries failed, the last at {}: {told}",
            seen.failed,
            seen.tries,
            part.as_str()
        );
        return found.add(Step::Network, message, known);
    }
    for (part, times) in &seen.parts {
        let Some(median) = times.median().filter(|median| *median > part.slow()) else {
            continue;
        };
        let message = format!(
            "{place} ({agents}): {} takes {}",
            part.as_str(),
            shown(median)
        );
        found.add(Step::Network, message, part.remedy());
    }
    match seen.status {
        Some(200) | None => {}
        Some(status) => {
            let message = format!("{place} ({agents}) is not ready: it answers {status}");
            let alone = alone(seen, all);
            if alone.is_empty() {
                let remedy = "GET /hermes/health there says why; calls go to the others";
                return found.note(Step::Network, message, remedy);
            }
            let message = format!(
                "{message}, and no other of {} is found ready",
                alone.join(", ")
            );
            let remedy = "GET /hermes/health there says why; until one is ready, calls of it fail";
            found.add(Step::Network, message, remedy);
        }
    }
}

/// Names the contracts at an address that nobody else can serve. Whoever was not asked may.
fn alone<'a>(seen: &'a Seen, all: &[Seen]) -> Vec<&'a str> {
    let may_serve = |other: &&Seen| {
        other.trouble.is_none()
            && other.status.is_none_or(|status| status == 200)
            && other.passing != Some(false)
    };
    let others: Vec<&Seen> = all.iter().filter(may_serve).collect();
    let is_alone = |agent: &&String| !others.iter().any(|other| other.agents.contains(agent));
    let alone = seen.agents.iter().filter(is_alone);
    alone.map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(agent: &str, port: u16) -> Target {
        Target {
            agent: agent.to_owned(),
            host: "127.0.0.1".to_owned(),
            port,
            speaks: Speaks::Http,
            path: "/".to_owned(),
            passing: Some(true),
        }
    }

    fn seen(part: Part, ms: u64) -> Seen {
        Seen {
            host: "2001:db8::1".to_owned(),
            port: 7401,
            agents: vec!["a-v1.0".to_owned()],
            passing: Some(true),
            parts: [(part, Times::of([Duration::from_millis(ms)]))].into(),
            status: Some(200),
            tries: 1,
            failed: 0,
            trouble: None,
        }
    }

    fn messages(seen: &Seen) -> Vec<String> {
        let mut found = Findings::default();
        judge(seen, std::slice::from_ref(seen), &mut found);
        found.all.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn contracts_at_one_address_are_looked_at_once() {
        let places = places(&[
            target("a-v1.0", 1),
            target("b-v1.0", 1),
            target("a-v1.0", 2),
        ]);
        let agents: Vec<usize> = places.iter().map(|(targets, _)| targets.len()).collect();
        assert_eq!(agents, [2, 1]);
    }

    #[test]
    fn the_slow_part_is_named_with_its_place() {
        assert_eq!(
            messages(&seen(Part::Dns, 51)),
            ["[2001:db8::1]:7401 (a-v1.0): dns takes 51.0 ms"]
        );
        for part in Part::ALL {
            assert!(messages(&seen(part, 40)).is_empty(), "{part:?}");
            assert_eq!(messages(&seen(part, 300)).len(), 1, "{part:?}");
        }
    }

    #[test]
    fn the_only_instance_that_is_not_ready_is_a_finding() {
        let at = |port: u16, status: u16, passing: bool| Seen {
            port,
            status: Some(status),
            passing: Some(passing),
            ..seen(Part::Tcp, 1)
        };
        for (others, findings) in [
            (vec![], 1),
            (vec![at(2, 200, true)], 0),
            (vec![at(2, 200, false)], 1),
            (vec![at(2, 503, true)], 1),
            (
                vec![Seen {
                    agents: vec!["b-v1.0".to_owned()],
                    ..at(2, 200, true)
                }],
                1,
            ),
            (
                vec![Seen {
                    status: None,
                    ..at(2, 200, true)
                }],
                0,
            ),
        ] {
            let mut found = Findings::default();
            let all: Vec<Seen> = std::iter::once(at(1, 503, true)).chain(others).collect();
            judge(&all[0], &all, &mut found);
            assert_eq!((found.all.len(), found.count()), (1, findings), "{all:?}");
        }
    }

    #[tokio::test]
    async fn nobody_there_is_told_with_the_part_that_failed() {
        let known = Known {
            contracts: Vec::new(),
            targets: vec![target("a-v1.0", 1)],
        };
        let mut found = Findings::default();
        let until = Instant::now() + Duration::from_secs(20);
        let seen = examine(&known, None, until, &mut found).await;
        assert_eq!(seen[0].trouble.as_ref().unwrap().0, Part::Tcp);
        assert_eq!(found.count(), 1, "{found:?}");
    }
}
