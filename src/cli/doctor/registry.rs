//! How the registry does: whether it has one leader for long, and how fast it answers.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::findings::{Findings, Step};
use crate::cli::quantile::{Times, shown};
use crate::consul::{Client, Error, ErrorKind, Load, Poll};
use crate::telemetry::log::Chain;

/// Between two samples.
const PACE: Duration = Duration::from_millis(500);
/// A registry that takes longer for one answer is as good as away.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request that asks the leader takes a few milliseconds; a routing decision must not take this.
const SLOW: Duration = Duration::from_millis(100);

/// What was seen of the registry.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub address: String,
    pub is_reachable: bool,
    pub samples: usize,
    /// Every leader that was named, and how many samples named none.
    pub leaders: BTreeSet<String>,
    pub leaderless: usize,
    pub peers: Vec<String>,
    /// Answers of the agent's own, and reads that go to the leader.
    pub status: Times,
    pub reads: Times,
    /// What the agent tells of its own, where it may be asked.
    pub load: Option<Load>,
}

/// What the samples gave, before it is judged.
#[derive(Default)]
struct Samples {
    leaders: Vec<Option<String>>,
    peers: Vec<Vec<String>>,
    status: Vec<Duration>,
    reads: Vec<Duration>,
    denied: Option<String>,
    failures: Vec<String>,
    /// The last thing that kept an answer from coming.
    silence: Option<String>,
}

pub(super) async fn examine(
    client: &Client,
    address: &str,
    samples: u64,
    until: Instant,
    found: &mut Findings,
) -> Seen {
    let mut taken = Samples::default();
    let began = Instant::now();
    for nth in 0..samples {
        let due = began + PACE * nth as u32;
        if due >= until {
            found.cut(Step::Registry);
            break;
        }
        sleep_until(due).await;
        taken.take(client, until).await;
        // Who does not answer at all is not waited for again and again.
        if taken.silence.is_some() && taken.leaders.is_empty() {
            break;
        }
    }
    let mut seen = Seen {
        address: address.to_owned(),
        is_reachable: !taken.leaders.is_empty() || taken.silence.is_none(),
        ..taken.seen()
    };
    if !seen.is_reachable {
        let told = taken.silence.unwrap_or_default();
        found.consul_is_away(format!("Consul at {address}: {told}"));
        return seen;
    }
    seen.load = load(client, until, found).await;
    judge(&seen, &taken, began.elapsed(), found);
    seen
}

impl Samples {
    /// Asks for leader, servers and one key, which the leader itself must answer for.
    async fn take(&mut self, client: &Client, until: Instant) {
        let began = Instant::now();
        let until = until.min(began + PATIENCE);
        match timeout_at(until, client.leader()).await {
            Ok(Ok(leader)) => {
                self.status.push(began.elapsed());
                self.leaders.push(leader);
            }
            Ok(Err(error)) if error.kind() == ErrorKind::NoLeader => self.leaders.push(None),
            failed => return self.failed(failed.map(|answer| answer.map(drop))),
        }
        let peers = timeout_at(until, client.peers()).await;
        match peers {
            Ok(Ok(peers)) => self.peers.push(peers),
            failed => self.failed(failed.map(|answer| answer.map(drop))),
        }
        if self.leaders.last().is_some_and(Option::is_none) {
            // A read would only wait for the leader that is not there.
            return;
        }
        let keys = client.layout().keep();
        let key = keys.first().map(String::as_str).unwrap_or_default();
        let began = Instant::now();
        match timeout_at(until, client.kv_get(key, Poll::CONSISTENT)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Denied => {
                self.denied = Some(Chain(&error).to_string());
            }
            Ok(Ok(_)) => self.reads.push(began.elapsed()),
            failed => self.failed(failed.map(|answer| answer.map(drop))),
        }
    }

    fn failed(&mut self, failed: Result<Result<(), Error>, tokio::time::error::Elapsed>) {
        match failed {
            Err(_elapsed) => self.silence = Some(format!("no answer within {}", shown(PATIENCE))),
            Ok(Err(error)) => {
                let told = Chain(&error).to_string();
                match error.kind() {
                    ErrorKind::Unreachable | ErrorKind::Timeout => self.silence = Some(told),
                    _ => self.failures.push(told),
                }
            }
            Ok(Ok(())) => {}
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            samples: self.leaders.len(),
            leaders: self.leaders.iter().flatten().cloned().collect(),
            leaderless: self.leaders.iter().filter(|one| one.is_none()).count(),
            peers: self.peers.last().cloned().unwrap_or_default(),
            status: Times::of(self.status.iter().copied()),
            reads: Times::of(self.reads.iter().copied()),
            ..Seen::default()
        }
    }

    /// Counts how often one leader followed another.
    fn changes(&self) -> usize {
        let named: Vec<&String> = self.leaders.iter().flatten().collect();
        named.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}

async fn load(client: &Client, until: Instant, found: &mut Findings) -> Option<Load> {
    let until = until.min(Instant::now() + PATIENCE);
    let (told, remedy) = match timeout_at(until, client.load()).await {
        Ok(Ok(load)) => return Some(load),
        Ok(Err(error)) if error.kind() == ErrorKind::Denied => (
            "the token may not read the agent's metrics".to_owned(),
            "to see the agent's own request times, give the token agent:read (agent_prefix \"\" { \
             policy = \"read\" })",
        ),
        // Such as the stand-in of `dev-registry`.
        Ok(Err(Error::Status { status: 404, .. })) => (
            "this agent tells no metrics".to_owned(),
            "nothing is needed: its answers were timed from here",
        ),
        Ok(Err(error)) => (
            format!("the agent's metrics cannot be read: {}", Chain(&error)),
            "nothing is needed: its answers were timed from here",
        ),
        Err(_elapsed) => (
            "the agent's metrics did not come in time".to_owned(),
            "look at them yourself: GET /v1/agent/metrics",
        ),
    };
    found.note(Step::Registry, told, remedy);
    None
}

fn judge(seen: &Seen, taken: &Samples, span: Duration, found: &mut Findings) {
    let step = Step::Registry;
    if seen.leaderless > 0 {
        found.add(
            step,
            format!(
                "the cluster had no leader in {} of {} samples",
                seen.leaderless, seen.samples
            ),
            "see that most of the servers run and reach each other (consul operator raft \
             list-peers); until then nothing can register and no change is seen",
        );
    }
    let changes = taken.changes();
    if changes > 0 {
        found.add(
            step,
            format!("the leader changed {changes} times within {}", shown(span)),
            "look at the servers' CPU, disk and the network between them; each election stops the \
             registry for a moment",
        );
    }
    if taken.peers.windows(2).any(|pair| pair[0] != pair[1]) {
        found.add(
            step,
            "the set of servers changed while it was looked at",
            "see which server comes and goes (consul members), and why",
        );
    }
    if seen.peers.len() == 2 {
        found.note(
            step,
            "the cluster has two servers: when either stops, there is no leader",
            "run one, three or five",
        );
    }
    judge_failures(taken, found);
    judge_times(seen, found);
}

fn judge_failures(taken: &Samples, found: &mut Findings) {
    let step = Step::Registry;
    if let Some(told) = &taken.denied {
        found.add(
            step,
            format!("the token may not read our keys: {told}"),
            "give the token the rights of consul/policy-sidecar.hcl; see consul.token_file",
        );
    }
    if let Some(told) = taken.failures.last() {
        found.add(
            step,
            format!("{} requests failed, the last: {told}", taken.failures.len()),
            "look at the agent's log",
        );
    }
    if let Some(told) = &taken.silence {
        found.add(
            step,
            format!("an answer did not come: {told}"),
            "look at the agent's load and log",
        );
    }
}

fn judge_times(seen: &Seen, found: &mut Findings) {
    let step = Step::Registry;
    let slow = |times: &Times| times.median().filter(|median| *median > SLOW);
    let told = seen.load.as_ref();
    let own: Vec<String> = told
        .into_iter()
        .flat_map(|load| &load.requests)
        .filter(|one| one.is_work() && one.mean > SLOW)
        .map(|one| format!("{} takes {} on average", one.what, shown(one.mean)))
        .collect();
    for (what, median) in [
        ("answers of the agent", slow(&seen.status)),
        ("reads that the leader answers", slow(&seen.reads)),
    ] {
        let Some(median) = median else { continue };
        let remedy = match (told, own.is_empty()) {
            (Some(_), true) => {
                "the agent itself is fast, by its own account: look at the way to it, DNS first, \
                 and let sidecars use an agent on their own machine"
            }
            _ => {
                "look at the CPU and disk of agent and leader, and at who asks so often: \
                 applications should ask their sidecar, which polls once for all"
            }
        };
        let message = format!("{what} take {} (median)", shown(median));
        found.add(step, message, remedy);
    }
    if !own.is_empty() {
        found.add(
            step,
            format!("the agent is slow by its own account: {}", own.join(", ")),
            "look at its CPU and disk, and at the leader's",
        );
    }
    let elections = told.map_or(0, |load| load.elections);
    let message = format!("this server stood for election lately ({elections})");
    match elections {
        0 => {}
        1 => found.note(
            step,
            message,
            "nothing, if a server was started just now; else look again in a minute",
        ),
        _ => found.add(
            step,
            message,
            "look at the servers' CPU, disk and the network between them",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::RequestTimes;

    fn samples(leaders: &[Option<&str>]) -> Samples {
        Samples {
            leaders: leaders.iter().map(|one| one.map(str::to_owned)).collect(),
            ..Samples::default()
        }
    }

    fn found(taken: &Samples, load: Option<Load>) -> Vec<String> {
        let mut found = Findings::default();
        let seen = Seen {
            load,
            ..taken.seen()
        };
        judge(&seen, taken, Duration::from_secs(2), &mut found);
        found.all.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn leaders_that_come_and_go_are_found() {
        let steady = samples(&[Some("a"), Some("a")]);
        assert!(found(&steady, None).is_empty());
        let churn = samples(&[Some("a"), None, Some("b"), Some("a")]);
        assert_eq!(
            found(&churn, None),
            [
                "the cluster had no leader in 1 of 4 samples",
                "the leader changed 2 times within 2.00 s"
            ]
        );
    }

    #[test]
    fn slow_answers_are_found_by_their_median() {
        let mut taken = samples(&[Some("a"); 3]);
        taken.reads = vec![SLOW, SLOW * 2, SLOW / 2];
        assert!(found(&taken, None).is_empty());
        taken.reads = vec![SLOW * 3, SLOW * 3, SLOW / 2];
        assert_eq!(
            found(&taken, None),
            ["reads that the leader answers take 300 ms (median)"]
        );
    }

    #[test]
    fn one_election_is_a_start_and_several_are_churn() {
        let level = |elections| {
            let (taken, mut found) = (samples(&[Some("a")]), Findings::default());
            let load = Load {
                elections,
                ..Load::default()
            };
            let seen = Seen {
                load: Some(load),
                ..taken.seen()
            };
            judge(&seen, &taken, Duration::ZERO, &mut found);
            (found.all.len(), found.count())
        };
        assert_eq!([0, 1, 2].map(level), [(0, 0), (1, 0), (1, 1)]);
    }

    #[test]
    fn polls_that_wait_are_not_taken_for_slow_work() {
        let times = |what: &str| RequestTimes {
            what: what.to_owned(),
            count: 3,
            mean: Duration::from_secs(60),
            max: Duration::from_secs(60),
        };
        let load = |what| Load {
            requests: vec![times(what)],
            elections: 0,
        };
        let taken = samples(&[Some("a")]);
        assert!(found(&taken, Some(load("GET v1.health.service._"))).is_empty());
        let slow = found(&taken, Some(load("PUT v1.agent.check.update._")));
        assert!(slow[0].contains("check.update._ takes 60.00 s"), "{slow:?}");
    }
}
