use super::*;
use crate::task::{Id, Reporter, SlaLevel, State, StateAt};
use proptest::prelude::*;
use std::collections::HashMap;
use tempfile::TempDir;

struct Place {
    directory: TempDir,
    config: Config,
    metrics: Arc<Sidecar>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            path: directory.path().join("spool.db"),
            mode: Mode::Process,
            max_bytes: 1 << 30,
        };
        Self {
            directory,
            config,
            metrics: Arc::new(Sidecar::new("test")),
        }
    }

    async fn spool(&self) -> Spool {
        let opened = Spool::open(self.config.clone(), self.metrics.clone()).await;
        opened.unwrap().0
    }

    fn shows(&self, series: &str) {
        let text = self.metrics.render();
        assert!(text.contains(series), "no {series}");
    }
}

fn report(call: &str, state: State) -> Report {
    let at = Timestamp::from_millis(1_700_000_000_000);
    Report {
        call_id: Id::parse(call).unwrap(),
        task_id: Id::parse("task-1").unwrap(),
        step_id: Id::parse("step-1").unwrap(),
        parent_step: None,
        attempt: 1,
        state,
        states: vec![StateAt { state, at }],
        reporter: Reporter::Callee,
        agent: "fraud-detection-v1.0".into(),
        agent_version: "1.0.0".into(),
        instance: "fraud-7401".into(),
        deadline_at: at,
        duration_ms: 12,
        input_digest: None,
        output_digest: None,
        degraded: false,
        undelivered: false,
        error: None,
        detail: None,
        sla_level: SlaLevel::P2,
        scenario: None,
        requester: None,
        trace_id: String::new(),
        application: "fraud".into(),
    }
}

async fn claim_all(spool: &Spool) -> Vec<Row> {
    spool.claim(10_000, usize::MAX).await.unwrap()
}

fn states(rows: &[Row]) -> Vec<(String, State)> {
    let read = |row: &Row| serde_json::from_slice::<Report>(&row.body).unwrap();
    let reports = rows.iter().map(read);
    reports.map(|r| (r.call_id.to_string(), r.state)).collect()
}

#[tokio::test]
async fn a_stored_end_state_is_there_after_a_crash() {
    let place = Place::new();
    let spool = place.spool().await;
    for n in 0..20 {
        let stored = spool.append(report(&format!("call-{n}"), State::Completed));
        stored.await;
    }
    // On a busy machine a commit may take longer than anybody waits for it.
    spool.owes(20).await;
    drop(spool);
    let spool = place.spool().await;
    assert_eq!(spool.owed(), 20);
    let rows = claim_all(&spool).await;
    let order: Vec<String> = states(&rows).into_iter().map(|(call, _)| call).collect();
    let expected: Vec<String> = (0..20).map(|n| format!("call-{n}")).collect();
    assert_eq!(order, expected);
}

#[tokio::test]
async fn the_first_end_state_wins_and_open_states_give_way() {
    let place = Place::new();
    let spool = place.spool().await;
    spool.offer(report("a", State::Dispatched)).unwrap();
    spool.offer(report("a", State::Executing)).unwrap();
    spool.append(report("a", State::Timeout)).await;
    for (state, repeated) in [(State::Completed, false), (State::Timeout, true)] {
        let kept = spool.append(report("a", state)).await;
        assert_eq!(kept, Durability::Known { repeated });
    }
    spool.offer(report("a", State::Executing)).unwrap();
    spool.append(report("b", State::Completed)).await;
    let rows = claim_all(&spool).await;
    let expected = [
        ("a".to_owned(), State::Timeout),
        ("b".to_owned(), State::Completed),
    ];
    assert_eq!(states(&rows), expected);
    let stats = spool.stats().await.unwrap();
    assert_eq!((stats.waiting, stats.open, stats.dead), (2, 0, 0));
}

#[tokio::test]
async fn an_acknowledged_row_that_has_changed_stays() {
    let place = Place::new();
    let spool = place.spool().await;
    spool.offer(report("a", State::Executing)).unwrap();
    spool.append(report("b", State::Completed)).await;
    let old = claim_all(&spool).await;
    spool.append(report("a", State::Completed)).await;
    let claims: Vec<Claimed> = old.iter().map(|row| row.claimed).collect();
    spool.acknowledge(claims.clone()).await.unwrap();
    let rows = claim_all(&spool).await;
    assert_eq!(states(&rows), [("a".to_owned(), State::Completed)]);
    spool.acknowledge(claims).await.unwrap();
    assert_eq!(spool.owed(), 1);
    spool.acknowledge(vec![rows[0].claimed]).await.unwrap();
    assert_eq!(spool.stats().await.unwrap().oldest, None);
    assert_eq!(spool.owed(), 0);
}

#[tokio::test]
async fn refused_and_expired_rows_are_kept_as_dead_letters() {
    let place = Place::new();
    let spool = place.spool().await;
    for call in ["a", "b", "c"] {
        spool.append(report(call, State::Completed)).await;
    }
    let rows = claim_all(&spool).await;
    let parked = vec![(rows[1].claimed, "no agent".to_owned())];
    spool.park(parked).await.unwrap();
    let before = spool.expire(Timestamp::from_millis(5)).await.unwrap();
    assert_eq!(before, 0);
    let cutoff = Timestamp::now().plus(Duration::from_secs(1));
    assert_eq!(spool.expire(cutoff).await.unwrap(), 2);

    let dead = spool.dead_letters_newest(10).await.unwrap();
    let reasons: Vec<&str> = dead.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["expired", "expired", "no agent"]);
    assert_eq!(dead[2].body, rows[1].body);
    drop(spool);
    let stats = place.spool().await.stats().await.unwrap();
    assert_eq!((stats.waiting, stats.dead), (0, 3));
    place.shows(r#"hermes_spool_dead_letters_total{reason="expired",application="test"} 2"#);
    place.shows(r#"hermes_spool_dead_letters_total{reason="rejected",application="test"} 1"#);
    place.shows(r#"hermes_spool_reports{state="dead",application="test"} 3"#);
}

#[tokio::test]
async fn the_quota_refuses_new_reports_and_never_deletes_owed_ones() {
    let mut place = Place::new();
    place.config.max_bytes = 128 << 10;
    let spool = place.spool().await;
    let mut stored = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        assert!(tokio::time::Instant::now() < deadline, "no quota");
        let call = format!("call-{}", stored.len());
        match spool.append(report(&call, State::Completed)).await {
            Durability::Lost(loss) => break assert_eq!(loss, SpoolLoss::Quota),
            _ => stored.push(call),
        }
    }
    assert!(!spool.is_healthy());
    let rows = claim_all(&spool).await;
    assert_eq!(rows.len(), stored.len());
    let claims = rows.iter().map(|row| row.claimed).collect();
    spool.acknowledge(claims).await.unwrap();
    // Sizes are read again within milliseconds of a commit, at the latest by the idle writer.
    while spool.append(report("late", State::Completed)).await == Durability::Lost(SpoolLoss::Quota)
    {
        assert!(tokio::time::Instant::now() < deadline, "never room again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(spool.is_healthy());
    place.shows(r#"reason="quota""#);
}

#[tokio::test]
async fn dead_letters_are_bounded_and_the_oldest_go() {
    let mut place = Place::new();
    place.config.max_bytes = 10 * DEAD_LETTER_BYTES + (1 << 20);
    let most = place.config.max_bytes / DEAD_LETTER_BYTES;
    let spool = place.spool().await;
    for n in 0..most + 5 {
        spool
            .append(report(&format!("call-{n}"), State::Completed))
            .await;
    }
    let cutoff = Timestamp::now().plus(Duration::from_secs(1));
    assert_eq!(spool.expire(cutoff).await.unwrap(), most + 5);
    let dead = spool.dead_letters_newest(10_000).await.unwrap();
    assert_eq!(dead.len() as u64, most);
    let newest: Report = serde_json::from_slice(&dead[0].body).unwrap();
    assert_eq!(newest.call_id.as_str(), format!("call-{}", most + 4));
    assert_eq!(spool.stats().await.unwrap().dead, most);
}

#[tokio::test]
async fn nobody_waits_for_a_stalled_writer_twice() {
    let place = Place::new();
    let spool = place.spool().await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let stall = spool.store.append(move |_| {
        held.recv().ok();
        Ok(())
    });
    let first = spool.append(report("a", State::Completed)).await;
    assert_eq!(first, Durability::Degraded);
    let started = tokio::time::Instant::now();
    for n in 0..100 {
        let stored = spool.append(report(&format!("b{n}"), State::Completed));
        assert_eq!(stored.await, Durability::Degraded);
    }
    // Waiting each time would take a hundred times the patience.
    assert!(started.elapsed() < 50 * PATIENCE, "{:?}", started.elapsed());
    drop(release);
    stall.await.unwrap();
    spool.owes(101).await;
    let again = spool.append(report("c", State::Completed)).await;
    assert_eq!(again, Durability::Stored);
    place.shows(r#"hermes_durability_degraded_total{application="test"} 101"#);
}

#[tokio::test]
async fn async_mode_only_queues() {
    let mut place = Place::new();
    place.config.mode = Mode::Async;
    let spool = place.spool().await;
    let queued = spool.append(report("a", State::Completed)).await;
    assert_eq!(queued, Durability::Queued);
    spool.close().await.unwrap();
    let refused = spool.append(report("b", State::Completed)).await;
    assert_eq!(refused, Durability::Lost(SpoolLoss::Io));
    assert_eq!(place.spool().await.owed(), 1);
}

#[tokio::test]
async fn a_row_takes_at_most_400_bytes_beside_its_json() {
    let place = Place::new();
    let spool = place.spool().await;
    let mut json = 0;
    const ROWS: usize = 5_000;
    let mut last = None;
    for _ in 0..ROWS {
        let report = report(Id::mint().as_str(), State::Completed);
        json += serde_json::to_vec(&report).unwrap().len();
        last = Some(spool.append(report));
    }
    last.unwrap().await;
    spool.close().await.unwrap();
    let file = std::fs::metadata(place.directory.path().join("spool.db")).unwrap();
    let beside = (file.len() as usize - json) / ROWS;
    assert!(beside <= 400, "{beside} bytes");
}

#[derive(Debug, Clone)]
enum Step {
    Tell(u8, State),
    Claim,
    Acknowledge,
    Crash,
}

fn any_step() -> impl Strategy<Value = Step> {
    let state = proptest::sample::select(&State::ALL[..]);
    prop_oneof![
        6 => (0u8..6, state).prop_map(|(call, state)| Step::Tell(call, state)),
        2 => Just(Step::Claim),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens in whatever order, every stored end state is either owed or acknowledged
    /// as it was, and the counts agree with the rows.
    #[test]
    fn no_end_state_gets_lost(steps in proptest::collection::vec(any_step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let place = Place::new();
            let mut spool = place.spool().await;
            let mut ends: HashMap<String, Vec<(State, bool)>> = HashMap::new();
            let mut delivered: HashMap<String, Vec<State>> = HashMap::new();
            let mut claimed: Vec<Row> = Vec::new();
            for step in steps {
                match step {
                    Step::Tell(call, state) if state.is_end() => {
                        let call = format!("call-{call}");
                        let stored = spool.append(report(&call, state)).await;
                        // On a busy machine a commit may take longer than the patience.
                        let sure = stored == Durability::Stored;
                        ends.entry(call).or_default().push((state, sure));
                    }
                    Step::Tell(call, state) => {
                        spool.offer(report(&format!("call-{call}"), state)).unwrap();
                    }
                    Step::Claim => claimed = claim_all(&spool).await,
                    Step::Acknowledge => {
                        for (call, state) in states(&claimed) {
                            delivered.entry(call).or_default().push(state);
                        }
                        let claims = claimed.drain(..).map(|row| row.claimed).collect();
                        spool.acknowledge(claims).await.unwrap();
                    }
                    Step::Crash => {
                        drop(spool);
                        claimed.clear();
                        spool = place.spool().await;
                    }
                }
            }
            let rows = claim_all(&spool).await;
            let owed = states(&rows);
            for (call, ends) in ends {
                let (first, sure) = ends[0];
                if !sure {
                    continue;
                }
                let is_owed = owed.contains(&(call.clone(), first));
                let is_delivered = delivered.get(&call).is_some_and(|d| d.contains(&first));
                assert!(is_owed || is_delivered, "{call} {first:?} is gone");
            }
            spool.close().await.unwrap();
            let rows = claim_all(&place.spool().await).await.len() as u64;
            assert_eq!(spool.owed(), rows);
        });
    }
}
