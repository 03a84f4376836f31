//! Every report reaches the collector once, or is kept where a person finds it; no call waits
//! for it and none fails over it.

use crate::restart::{admitted, call};
use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::contract;
use crate::support::link::Link;
use crate::support::load::Load;
use crate::support::metric::Metrics;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::road::{AGENT, Road, application, callee};
use crate::support::sidecar::Sidecar;
use crate::support::wait::wait_until;
use flate2::read::GzDecoder;
use rusqlite::Connection;
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const DELIVERED_WITHIN: Duration = Duration::from_secs(30);
/// What a second process needs to be refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_collector_away_under_load_costs_no_call_and_no_report() {
    collector_away_under_load(50, Duration::from_secs(5), None).await;
}

#[tokio::test]
async fn a_report_whose_receipt_was_lost_counts_once() {
    let (application, collector) = tokio::join!(application(), Collector::start());
    let link = Link::to(&collector.url().replace("http://", "")).await;
    let sidecar = callee(&application)
        .collector(&format!("http://{}", link.address()))
        .set("spool.retry", "100ms")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    link.mute();
    call(&sidecar, "lost-receipt").await;
    let within = DELIVERED_WITHIN;
    collector
        .wait_task("lost-receipt", "completed", within)
        .await;
    assert_eq!(
        value(&sidecar, "hermes_spool_reports", &[("state", "waiting")]).await,
        1.0
    );
    link.cut();
    link.restore();

    wait_until(within, "receipt", async || {
        value(
            &sidecar,
            "hermes_spool_delivered_total",
            &[("result", "duplicate")],
        )
        .await
            == 1.0
    })
    .await;
    let told = Metrics::of(&collector.url()).await;
    for (result, count) in [("accepted", 1.0), ("duplicate", 1.0), ("conflict", 0.0)] {
        let labels = [("result", result)];
        assert_eq!(
            told.sum("hermes_collector_reports_total", &labels),
            count,
            "{result}"
        );
    }
    assert_eq!(collector.ends().of("lost-receipt", "callee"), 1);
    assert_eq!(
        value(&sidecar, "hermes_spool_reports", &[("state", "waiting")]).await,
        0.0
    );
}

#[tokio::test]
async fn a_report_that_is_refused_bothers_no_other() {
    for refusal in [Refusal::OfTheReport, Refusal::OfTheWholeRequest] {
        let (application, picky) = tokio::join!(application(), PickyCollector::start(refusal));
        let sidecar = callee(&application)
            .collector(&picky.application.url())
            .set("spool.retry", "100ms")
            .start_unready()
            .await;
        admitted(&sidecar).await;
        let tasks: Vec<String> = (0..20).map(|number| format!("good-{number}")).collect();
        for (number, task) in tasks.iter().enumerate() {
            if number == 7 {
                call(&sidecar, POISON).await;
            }
            call(&sidecar, task).await;
        }
        wait_until(DELIVERED_WITHIN, "the other reports", async || {
            picky.took(&tasks)
        })
        .await;
        wait_until(DELIVERED_WITHIN, "one dead letter", async || {
            let rejected = [("reason", "rejected")];
            value(&sidecar, "hermes_spool_dead_letters_total", &rejected).await == 1.0
        })
        .await;
        let page = metrics(&sidecar).await;
        assert_eq!(page.sum("hermes_spool_reports", &[("state", "dead")]), 1.0);
        assert_eq!(
            page.sum("hermes_spool_reports", &[("state", "waiting")]),
            0.0
        );
        assert_eq!(
            page.sum("hermes_spool_delivered_total", &[("result", "accepted")]),
            20.0
        );
        assert_eq!(page.sum("hermes_spool_appended_total", &[]), 21.0);
    }
}

#[tokio::test]
async fn reports_past_their_age_are_kept_as_dead_letters() {
    let application = application().await;
    let mut sidecar = callee(&application)
        .collector("http://127.0.0.1:1")
        .set("spool.retry", "100ms")
        .set("spool.expire", "1s")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    for number in 0..5 {
        call(&sidecar, &format!("aged-{number}")).await;
    }
    wait_until(DELIVERED_WITHIN, "five expired reports", async || {
        let expired = [("reason", "expired")];
        value(&sidecar, "hermes_spool_dead_letters_total", &expired).await == 5.0
    })
    .await;
    let page = metrics(&sidecar).await;
    assert_eq!(page.sum("hermes_spool_reports", &[("state", "dead")]), 5.0);
    assert_eq!(
        page.sum("hermes_spool_reports", &[("state", "waiting")]),
        0.0
    );
    assert!(page.sum("hermes_spool_failures_total", &[("reason", "unreachable")]) > 0.0);

    sidecar.kill9();
    sidecar.start_again();
    admitted(&sidecar).await;
    let kept = value(&sidecar, "hermes_spool_reports", &[("state", "dead")]).await;
    assert_eq!(kept, 5.0);
}

#[tokio::test]
async fn a_spool_that_cannot_be_written_delays_calls_by_its_patience_only() {
    let (application, collector) = tokio::join!(application(), Collector::start());
    let sidecar = callee(&application)
        .collector(&collector.url())
        .set("spool.retry", "100ms")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    call(&sidecar, "before").await;

    let lock = locked(&sidecar);
    let recording = async || {
        let family = "hermes_proxy_phase_duration_seconds_sum";
        value(&sidecar, family, &[("phase", "record")]).await
    };
    let before = recording().await;
    for number in 0..20 {
        call(&sidecar, &format!("meanwhile-{number}")).await;
    }
    // The first waits its 50 ms in vain; after that nobody waits until a commit has succeeded.
    let waited = recording().await - before;
    assert!((0.05..0.15).contains(&waited), "20 calls waited {waited} s");
    let degraded = value(&sidecar, "hermes_durability_degraded_total", &[]).await;
    assert_eq!(degraded, 20.0);
    drop(lock);

    let tasks: Vec<String> = (0..20)
        .map(|number| format!("meanwhile-{number}"))
        .collect();
    wait_until(
        DELIVERED_WITHIN,
        "reports of the calls meanwhile",
        async || collector.tasks(&tasks).await.len() == tasks.len(),
    )
    .await;
    call(&sidecar, "afterwards").await;
    let degraded = value(&sidecar, "hermes_durability_degraded_total", &[]).await;
    assert_eq!(degraded, 20.0);
}

#[tokio::test]
async fn a_full_spool_refuses_reports_and_no_calls() {
    let application = application().await;
    let sidecar = callee(&application)
        .set("spool.max_bytes", 65_536)
        .start_unready()
        .await;
    admitted(&sidecar).await;
    let mut calls = 0.0;
    wait_until(DELIVERED_WITHIN, "full spool", async || {
        call(&sidecar, &format!("filling-{calls}")).await;
        calls += 1.0;
        value(
            &sidecar,
            "hermes_spool_failures_total",
            &[("reason", "quota")],
        )
        .await
            > 0.0
    })
    .await;
    // Nor does it say that it took what an application tells of its work.
    for state in ["executing", "success"] {
        let told = client().post(format!("{}/report-status", sidecar.outbound_url()));
        let told = told.json(&json!({"task_id": "own", "status": state}));
        let reply = Reply::to(told).await;
        reply.problem(503, "spool-unavailable");
        calls += 1.0;
    }
    let page = metrics(&sidecar).await;
    let stored = page.sum("hermes_spool_appended_total", &[]);
    let refused = page.sum("hermes_spool_failures_total", &[("reason", "quota")]);
    assert_eq!(stored + refused, calls);
    assert_eq!(
        page.sum("hermes_spool_reports", &[("state", "waiting")]),
        stored
    );
    assert_eq!(page.sum("hermes_ready", &[("check", "store")]), 0.0);
}

#[tokio::test]
async fn a_spool_whose_directory_is_removed_stops_no_call_and_is_noticed() {
    let (application, collector) = tokio::join!(application(), Collector::start());
    let sidecar = callee(&application)
        .collector(&collector.url())
        .start_unready()
        .await;
    admitted(&sidecar).await;
    call(&sidecar, "before").await;
    assert_eq!(
        value(&sidecar, "hermes_ready", &[("check", "store")]).await,
        1.0
    );
    std::fs::remove_dir_all(sidecar.state_directory()).unwrap();
    let mut calls = 0;
    wait_until(DELIVERED_WITHIN, "loss that is noticed", async || {
        call(&sidecar, &format!("without-{calls}")).await;
        calls += 1;
        value(&sidecar, "hermes_durability_degraded_total", &[]).await > 0.0
    })
    .await;
    assert_eq!(
        value(&sidecar, "hermes_ready", &[("check", "store")]).await,
        0.0
    );
    // As long as the process lives nothing is lost.
    for number in 0..calls {
        let task = format!("without-{number}");
        collector
            .wait_task(&task, "completed", DELIVERED_WITHIN)
            .await;
    }
}

#[tokio::test]
async fn every_durability_delivers_and_all_but_async_survive_a_kill() {
    for durability in ["process", "disk", "async"] {
        let (application, collector) = tokio::join!(application(), Collector::start());
        let link = Link::to(&collector.url().replace("http://", "")).await;
        let mut sidecar = callee(&application)
            .collector(&format!("http://{}", link.address()))
            .set("spool.retry", "100ms")
            .set("spool.durability", durability)
            .start_unready()
            .await;
        admitted(&sidecar).await;
        call(&sidecar, "direct").await;
        let within = DELIVERED_WITHIN;
        collector.wait_task("direct", "completed", within).await;
        link.cut();
        call(&sidecar, "killed").await;
        if durability == "async" {
            let owed = [("state", "waiting")];
            wait_until(within, "commit", async || {
                value(&sidecar, "hermes_spool_reports", &owed).await == 1.0
            })
            .await;
        }
        sidecar.kill9();
        link.restore();
        sidecar.start_again();
        collector.wait_task("killed", "completed", within).await;
        let degraded = async || value(&sidecar, "hermes_durability_degraded_total", &[]).await;
        admitted(&sidecar).await;
        assert_eq!(degraded().await, 0.0, "{durability}");
    }
}

#[tokio::test]
async fn a_second_sidecar_on_the_same_spool_is_refused() {
    let application = application().await;
    let sidecar = callee(&application).start_unready().await;
    let config = std::fs::read_to_string(sidecar.config_file()).unwrap();
    let mut config: toml::Table = config.parse().unwrap();
    for section in ["inbound", "outbound", "admin"] {
        config[section]["listen"] = format!("127.0.0.1:{}", free_port()).into();
    }
    let file = sidecar.config_file().with_file_name("second.toml");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(program::hermes());
    command
        .args(["run", "-c"])
        .arg(&file)
        .env("STATE_DIRECTORY", sidecar.state_directory());
    let mut second = Process::spawn("second", command, &file.with_extension("log"));
    let ended = second.ended(REFUSED_WITHIN).await;
    assert_eq!(ended.code(), Some(2), "{}", second.log());
    let log = second.log();
    assert!(
        log.contains("spool.path") && log.contains("in use by another process"),
        "{log}"
    );
    call(&sidecar, "first-goes-on").await;
}

/// Ends the collector for `away` under `rate` calls a second, with as long before it.
///
/// With a `floor`, the 99th percentile may not double, unless it stays below the floor: a machine
/// that runs other tests beside this one shows its own scheduling there.
pub async fn collector_away_under_load(rate: u32, away: Duration, floor: Option<Duration>) {
    let mut road = Road::start().await;
    let input = contract::fraud_input();
    let load = Load::start(rate, &[road.caller.outbound_url()], AGENT, &input);
    let calls = (away.as_secs_f64() * f64::from(rate)) as usize;
    // The first calls open connections and warm caches.
    load.more(rate as usize).await;
    let began = Instant::now();
    load.more(calls).await;
    let gone = Instant::now();
    road.collector.kill9();
    load.more(calls).await;
    let back = Instant::now();
    road.collector.start_again().await;
    load.more(rate as usize).await;
    let record = load.stop().await;

    assert_eq!(record.failed().len(), 0, "{:#?}", record.failed());
    let before = record.quantile(0.99, began..gone);
    let meanwhile = record.quantile(0.99, gone..back);
    let shown = format!("p99 {before:?} before, {meanwhile:?} meanwhile");
    eprintln!("{shown}");
    if let Some(floor) = floor {
        assert!(meanwhile <= (before * 2).max(floor), "{shown}");
    }
    let tasks = record.tasks();
    recorded_once(&road, &tasks).await;
    eprintln!("{} tasks, all recorded once", tasks.len());
}

/// Waits until nothing is owed, and holds the collector's record against the tasks and metrics.
async fn recorded_once(road: &Road, tasks: &[String]) {
    for sidecar in [&road.caller, &road.callee] {
        wait_until(DELIVERED_WITHIN, "empty spool", async || {
            value(sidecar, "hermes_spool_reports", &[]).await == 0.0
        })
        .await;
        let page = metrics(sidecar).await;
        let delivered = page.sum("hermes_spool_delivered_total", &[]);
        let appended = page.sum("hermes_spool_appended_total", &[]);
        // An attempt reported while open has one row but may be delivered twice.
        assert!(
            delivered >= appended,
            "{appended} appended, {delivered} delivered"
        );
        assert_eq!(page.sum("hermes_spool_dead_letters_total", &[]), 0.0);
    }
    let known = road.collector.tasks(tasks).await;
    let ends = road.collector.ends();
    for id in tasks {
        let task = known
            .get(id)
            .unwrap_or_else(|| panic!("{id} is not recorded"));
        assert_eq!(task["state"], "completed", "{task}");
        assert_eq!(task["steps"].as_array().unwrap().len(), 1, "{task}");
        assert_eq!(
            task["steps"][0]["attempts"].as_array().unwrap().len(),
            1,
            "{task}"
        );
        assert_eq!(
            (ends.of(id, "caller"), ends.of(id, "callee")),
            (1, 1),
            "{task}"
        );
    }
}

async fn metrics(sidecar: &Sidecar) -> Metrics {
    Metrics::of(&sidecar.admin_url()).await
}

async fn value(sidecar: &Sidecar, family: &str, labels: &[(&str, &str)]) -> f64 {
    metrics(sidecar).await.sum(family, labels)
}

/// Holds the sidecar's spool locked, as a hanging disk would hold its commits up.
fn locked(sidecar: &Sidecar) -> Connection {
    #[expect(clippy::disallowed_methods, reason = "a stranger in the file")]
    let connection = Connection::open(sidecar.state_directory().join("spool.db")).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

/// The task whose report the picky collector does not take.
const POISON: &str = "poison";

#[derive(Clone, Copy)]
enum Refusal {
    OfTheReport,
    OfTheWholeRequest,
}

/// A collector that takes everything but the report of one task.
struct PickyCollector {
    application: Application,
    taken: Arc<Mutex<Vec<String>>>,
}

impl PickyCollector {
    async fn start(refusal: Refusal) -> Self {
        let application = Application::start().await;
        let taken = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&taken);
        application.script("/report-status", move |received| {
            let reports = reports(
                &received.body,
                received.headers.contains_key("content-encoding"),
            );
            let poison = reports
                .iter()
                .position(|report| report["task_id"] == POISON);
            if poison.is_some() && matches!(refusal, Refusal::OfTheWholeRequest) {
                return Answer::bytes(400, "text/plain", "no");
            }
            let good = reports.iter().filter(|report| report["task_id"] != POISON);
            let good: Vec<String> = good
                .map(|report| report["task_id"].as_str().unwrap().to_owned())
                .collect();
            let rejected = poison.map(|index| json!({"index": index, "reason": "poison"}));
            let receipt = json!({
                "accepted": good.len(), "duplicates": 0, "conflicts": 0,
                "rejected": Vec::from_iter(rejected),
            });
            kept.lock().unwrap().extend(good);
            Answer::json(&receipt)
        });
        Self { application, taken }
    }

    fn took(&self, tasks: &[String]) -> bool {
        let taken = self.taken.lock().unwrap();
        tasks.iter().all(|task| taken.contains(task))
    }
}

fn reports(body: &[u8], packed: bool) -> Vec<Value> {
    let mut text = Vec::new();
    if packed {
        GzDecoder::new(body).read_to_end(&mut text).unwrap();
    } else {
        text.extend_from_slice(body);
    }
    serde_json::from_slice(&text).unwrap()
}
