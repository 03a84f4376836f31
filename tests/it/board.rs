//! What the collector says of contracts: who publishes, who runs, who is behind, and what was
//! changed by hand.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_output};
use crate::support::metric::Metrics;
use crate::support::port::free_port;
use crate::support::prometheus::Prometheus;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::{wait_for, wait_until};
use hermes_sidecar::contract::Contract;
use hermes_sidecar::identity::jws::{Payload, Signature};
use hermes_sidecar::identity::key::KeyPair;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;
use toml::Value as Setting;

const WITHIN: Duration = Duration::from_secs(20);
/// The promise: whatever is changed in a published body is on the board by then.
const FOUND_WITHIN: Duration = Duration::from_secs(60);
const FRAUD: &str = "fraud-detection-v1.0";
const RISK: &str = "/api/v1/risk";

async fn collector(consul: &Consul, settings: &[(&str, Setting)]) -> Collector {
    let mut all = vec![("consul.address", Setting::from(consul.address()))];
    all.extend_from_slice(settings);
    Collector::start_with(&all).await
}

async fn ask(collector: &Collector, path: &str) -> Reply {
    Reply::to(client().get(collector.url() + path)).await
}

/// Returns the board by contract id.
async fn board(collector: &Collector) -> serde_json::Map<String, Value> {
    let reply = ask(collector, "/contracts").await;
    // Until Consul has answered once there is no board.
    if reply.status == 503 {
        reply.problem(503, "consul-unavailable");
        return serde_json::Map::new();
    }
    assert_eq!(reply.status, 200, "{reply:?}");
    let rows = reply.json();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (row["agent"].as_str().unwrap().to_owned(), row.clone()))
        .collect()
}

/// Waits until a contract's row is as it should be, and returns it.
async fn row(
    collector: &Collector,
    id: &str,
    within: Duration,
    is_right: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    let deadline = Instant::now() + within;
    wait_for(
        within + Duration::from_secs(5),
        &format!("right row of {id}"),
        async || {
            last = board(collector).await.remove(id).unwrap_or_default();
            assert!(Instant::now() < deadline, "{id} after {within:?}: {last:#}");
            is_right(&last).then(|| last.clone())
        },
    )
    .await
}

fn in_state(state: &str) -> impl Fn(&Value) -> bool {
    move |row| row["audit"]["state"] == state
}

fn digest(contract: &Value) -> String {
    let contract = Contract::from_slice(contract.to_string().as_bytes()).unwrap();
    contract.digest().to_string()
}

fn version(id: &str, version: &str) -> Value {
    let mut contract = fraud_detection();
    (contract["id"], contract["version"]) = (id.into(), version.into());
    contract
}

fn published(contract: &Value) -> Value {
    json!({
        "contract": contract, "digest": digest(contract),
        "published_at": "2026-12-01T00:00:00.000Z", "published_by": "a-test",
    })
}

async fn write(consul: &Consul, key: &str, value: impl ToString) {
    let wrote = consul
        .put(&format!("/v1/kv/hermes/{key}"), value.to_string())
        .await;
    assert_eq!(wrote, "true", "{key}");
}

fn body_key(contract: &Value) -> String {
    let text = |name: &str| contract[name].as_str().unwrap().to_owned();
    format!("contracts/{}/{}", text("id"), text("version"))
}

/// Publishes by hand, in the order in which a sidecar does.
async fn publish(consul: &Consul, contract: &Value) {
    let (id, version) = (
        contract["id"].as_str().unwrap(),
        contract["version"].as_str().unwrap(),
    );
    write(consul, &body_key(contract), published(contract)).await;
    write(consul, &format!("contracts/{id}/version"), version).await;
    let entry = json!({
        "version": version, "digest": digest(contract), "team": "finance",
        "updated_at": "2026-12-01T00:00:01.000Z",
    });
    write(consul, &format!("index/{id}"), entry).await;
}

/// Begins a sidecar that serves this contract.
fn serving(consul: &Consul, application: &Application, contract: Value) -> Setup {
    Sidecar::named("fraud")
        .set("application.team", "finance")
        .consul(&consul.address())
        .application(&application.url())
        .contract(contract, "POST", RISK)
}

async fn application() -> Application {
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    application
}

#[tokio::test]
async fn the_board_tells_who_is_behind_and_who_runs_something_else() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let collector = collector(&consul, &[]).await;
    let old = serving(&consul, &application, version(FRAUD, "1.0.0"))
        .start()
        .await;
    let before = row(&collector, FRAUD, WITHIN, |row| row["instances"] == 1).await;
    assert_eq!(
        (&before["drift"], &before["drifted"]),
        (&json!(false), &json!(0)),
        "{before:#}"
    );
    let patched = version(FRAUD, "1.0.1");
    let new = serving(&consul, &application, patched.clone())
        .start()
        .await;
    for (id, number) in [
        ("fraud-detection-v1.1", "1.1.0"),
        ("fraud-detection-v2.0", "2.0.0"),
    ] {
        publish(&consul, &version(id, number)).await;
    }
    publish(&consul, &version("other-v9.9", "9.9.9")).await;
    // What is new is not left unread until the next pass over all.
    let soon = Duration::from_secs(10);
    row(&collector, "other-v9.9", soon, in_state("unsigned")).await;

    let found = row(&collector, FRAUD, WITHIN, |row| {
        row["instances"] == 2 && row["version"] == "1.0.1" && row["behind"]["major"] == 1
    })
    .await;
    assert_eq!(found["family"], "fraud-detection");
    assert_eq!(found["team"], "finance");
    assert_eq!(found["digest"], digest(&patched));
    assert_eq!(found["behind"], json!({"major": 1, "minor": 1}));
    assert_eq!(
        (&found["drift"], &found["drifted"]),
        (&json!(true), &json!(1))
    );
    assert!(
        found["last_updated"].as_str().unwrap().ends_with('Z'),
        "{found:#}"
    );
    let board = board(&collector).await;
    assert_eq!(
        board["fraud-detection-v1.1"]["behind"],
        json!({"major": 1, "minor": 0})
    );
    assert_eq!(
        board["fraud-detection-v2.0"]["behind"],
        json!({"major": 0, "minor": 0})
    );
    assert_eq!(board["other-v9.9"]["instances"], 0);
    assert_eq!(board["other-v9.9"]["drift"], false);
    assert_eq!(board.len(), 4, "{board:#?}");

    let agents = ask(&collector, "/agents").await.json();
    assert_eq!(agents.as_array().unwrap().len(), 1, "{agents:#}");
    assert_eq!(
        (&agents[0]["application"], &agents[0]["team"]),
        (&json!("fraud"), &json!("finance"))
    );
    let contracts: Vec<_> = agents[0]["contracts"].as_array().unwrap().iter().collect();
    let versions: Vec<_> = contracts.iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, ["1.0.0", "1.0.1"], "{agents:#}");
    assert!(
        contracts.iter().all(|one| one["instances"] == 1),
        "{agents:#}"
    );
    let instances = agents[0]["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 2);
    assert!(
        instances.iter().all(|one| one["state"] == "passing"),
        "{agents:#}"
    );

    drop(old);
    // Killed, it is still registered; its check is critical once its beats are overdue.
    row(&collector, FRAUD, FOUND_WITHIN, |row| {
        row["instances"] == 1 && row["drift"] == false
    })
    .await;
    drop(new);
}

/// Signs a contract under this name of the key.
fn signed(mut contract: Value, pair: &KeyPair, kid: &str) -> Value {
    let read = Contract::from_slice(contract.to_string().as_bytes()).unwrap();
    let payload = Payload::new(read.canonical());
    contract["signatures"] = json!([Signature::sign(pair, kid, &payload).to_json()]);
    contract
}

/// The incident: other words in the output, and everything else as it was.
fn altered(contract: &Value) -> Value {
    let mut altered = contract.clone();
    let levels = altered.pointer_mut("/output_schema/properties/risk_level/enum");
    *levels.unwrap() = json!(["safe", "risky", "dangerous"]);
    altered
}

#[tokio::test]
async fn a_body_changed_by_hand_is_on_the_board_within_a_minute() {
    let (ours, theirs) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let made = |id: &str| version(id, "1.0.0");
    let good = signed(fraud_detection(), &ours, "finance-1");
    let noted = made("noted-v1.0");
    let indexed = made("indexed-v1.0");
    let covered = signed(made("covered-v1.0"), &ours, "finance-1");
    let stolen = signed(made("stolen-v1.0"), &ours, "finance-1");
    let untouched = made("untouched-v1.0");
    let consul = Consul::start().await;
    for contract in [&good, &noted, &indexed, &covered, &stolen, &untouched] {
        publish(&consul, contract).await;
    }
    let collector = collector(&consul, &[]).await;
    for (id, state) in [
        (FRAUD, "ok"),
        ("noted-v1.0", "unsigned"),
        ("stolen-v1.0", "ok"),
    ] {
        row(&collector, id, WITHIN, in_state(state)).await;
    }

    // The body alone; its note with it; the index too, which leaves what was read before; the
    // same under a signature; and all of it signed anew by somebody else.
    let mut wrong = published(&good);
    wrong["contract"] = altered(&good);
    write(&consul, &body_key(&good), &wrong).await;
    write(&consul, &body_key(&noted), published(&altered(&noted))).await;
    publish(&consul, &altered(&indexed)).await;
    publish(&consul, &altered(&covered)).await;
    publish(&consul, &signed(altered(&stolen), &theirs, "thief")).await;
    let found = digest(&wrong["contract"]);
    let shown = row(&collector, FRAUD, FOUND_WITHIN, in_state("mismatch")).await;
    assert_eq!(
        (&shown["drift"], &shown["audit"]["version"]),
        (&json!(true), &json!("1.0.0"))
    );
    assert_eq!(
        (&shown["audit"]["kid"], &shown["bodies"][0]["digest"]),
        (&json!("finance-1"), &json!(found))
    );
    for (id, state, part) in [
        (FRAUD, "mismatch", found.as_str()),
        (FRAUD, "mismatch", &digest(&good)),
        ("noted-v1.0", "mismatch", "the index names"),
        ("indexed-v1.0", "mismatch", "when first read here"),
        ("covered-v1.0", "mismatch", "finance-1"),
        ("stolen-v1.0", "untrusted", "thief"),
    ] {
        let shown = row(&collector, id, WITHIN, in_state(state)).await;
        let detail = shown["audit"]["detail"].as_str().unwrap();
        assert!(detail.contains(part), "{part}: {detail}");
        assert_eq!(shown["drift"], state == "mismatch", "{shown:#}");
        let path = format!("/v1/contract/{id}/1.0.0");
        ask(&collector, &path)
            .await
            .problem(503, "untrusted-contract");
    }
    let errors = |id: &str| -> Vec<String> {
        let log = collector.log();
        let lines = log
            .lines()
            .filter(|line| line.contains(r#""level":"ERROR""#));
        lines
            .filter(|line| line.contains(id))
            .map(str::to_owned)
            .collect()
    };
    let line = errors(FRAUD).concat();
    for part in ["finance-1", found.as_str(), r#""version":"1.0.0""#] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let count = async |state: &str| {
        let metrics = Metrics::of(&collector.url()).await;
        metrics.sum("hermes_collector_contract_audits", &[("state", state)])
    };
    assert_eq!(
        (
            count("mismatch").await,
            count("untrusted").await,
            count("unsigned").await
        ),
        (4.0, 1.0, 1.0)
    );

    write(&consul, &body_key(&good), published(&good)).await;
    let mended = row(&collector, FRAUD, FOUND_WITHIN, in_state("ok")).await;
    assert_eq!(mended["drift"], false, "{mended:#}");
    assert!(collector.log().contains("as it should be again"));
    assert_eq!(count("mismatch").await, 3.0);
    for id in [FRAUD, "noted-v1.0", "stolen-v1.0"] {
        assert_eq!(errors(id).len(), 1, "said once: {:#?}", errors(id));
    }
    assert_eq!(errors("untouched-v1.0"), Vec::<String>::new());
}

#[tokio::test]
async fn garbage_among_the_published_contracts_is_named_and_bothers_nothing_else() {
    let consul = Consul::start().await;
    publish(&consul, &fraud_detection()).await;
    let misplaced = published(&version("elsewhere-v1.0", "1.0.0"));
    for (key, value) in [
        ("contracts/broken-v1.0/1.0.0", "{".to_owned()),
        ("contracts/empty-v1.0/1.0.0", String::new()),
        ("contracts/list-v1.0/1.0.0", "[1,2]".to_owned()),
        ("contracts/wrong-v1.0/1.0.0", misplaced.to_string()),
        ("contracts/Not_An_Id/1.0.0", "x".to_owned()),
        ("contracts/broken-v1.0/latest", "x".to_owned()),
        ("contracts/deep-v1.0/1.0.0", "[".repeat(100_000)),
        ("contracts/long-v1.0/1.0.0", "x".repeat(500_000)),
        ("contracts/lost-v1.0/version", "1.0.7".to_owned()),
        ("index/unread-v1.0", "7".to_owned()),
        ("index/_keep", String::new()),
        ("index/-", "{}".to_owned()),
    ] {
        write(&consul, key, value).await;
    }
    // Buried under more than one answer may hold, and among more versions than are read at once.
    let buried = version("buried-v1.0", "1.0.0");
    publish(&consul, &buried).await;
    for n in 0..50 {
        let junk = format!("contracts/buried-v1.0/junk-{n}");
        write(&consul, &junk, "x".repeat(512 * 1024)).await;
    }
    for patch in 0..40 {
        publish(&consul, &version("often-v1.0", &format!("1.0.{patch}"))).await;
    }
    let collector = collector(&consul, &[]).await;
    row(&collector, FRAUD, WITHIN, in_state("unsigned")).await;
    let board = board(&collector).await;
    assert_eq!(board["often-v1.0"]["version"], "1.0.39");
    let shown: Vec<_> = board
        .iter()
        .map(|(id, row)| (id.as_str(), row["audit"]["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            ("broken-v1.0", "unreadable"),
            ("buried-v1.0", "unsigned"),
            ("deep-v1.0", "unreadable"),
            ("empty-v1.0", "unreadable"),
            (FRAUD, "unsigned"),
            ("list-v1.0", "unreadable"),
            ("long-v1.0", "unreadable"),
            ("lost-v1.0", "unreadable"),
            ("often-v1.0", "unsigned"),
            ("unread-v1.0", "unreadable"),
            ("wrong-v1.0", "mismatch"),
        ]
    );
    let detail = |id: &str| board[id]["audit"]["detail"].as_str().unwrap().to_owned();
    assert!(
        detail("lost-v1.0").contains("nothing is published at hermes/contracts/lost-v1.0/1.0.7")
    );
    assert!(detail("unread-v1.0").contains("its index entry cannot be read"));
    assert!(detail("wrong-v1.0").contains("elsewhere-v1.0"));
    let log = collector.log();
    assert!(
        log.contains("Not_An_Id") && log.contains("broken-v1.0/latest"),
        "{log}"
    );
    ask(&collector, "/v1/contract/broken-v1.0/1.0.0")
        .await
        .problem(503, "untrusted-contract");
}

#[tokio::test]
async fn three_hundred_contracts_cost_three_polls_and_bounded_reads() {
    const COUNT: usize = 300;
    let consul = Consul::start().await;
    for n in 0..COUNT {
        let contract = version(&format!("many{n}-v1.0"), "1.0.0");
        publish(&consul, &contract).await;
        let name = contract["id"].as_str().unwrap();
        let service = json!({
            "Name": name, "ID": format!("{name}-a"), "Port": 7401, "Address": "127.0.0.1",
            "Tags": ["hermes"],
            "Meta": {"hermes_digest": digest(&contract), "hermes_version": "1.0.0", "hermes_app": "many"},
        });
        consul
            .put("/v1/agent/service/register", service.to_string())
            .await;
    }
    let began = Instant::now();
    // A fourth poll would have to be a plain read every ten seconds.
    let collector = collector(&consul, &[("consul.watches", 3.into())]).await;
    wait_until(WITHIN, "audit of all", async || {
        let metrics = Metrics::of(&collector.url()).await;
        let sound = metrics.sum("hermes_collector_contract_audits", &[("state", "unsigned")]);
        sound == COUNT as f64
    })
    .await;
    let audited = began.elapsed();
    wait_until(FOUND_WITHIN, "all instances", async || {
        let board = board(&collector).await;
        let whole = board
            .values()
            .filter(|row| row["instances"] == 1 && row["drift"] == false);
        whole.count() == COUNT
    })
    .await;
    let metrics = Metrics::of(&collector.url()).await;
    let elapsed = began.elapsed();
    let asked = |operation: &str| {
        metrics.sum(
            "hermes_collector_consul_requests_total",
            &[("operation", operation)],
        )
    };
    eprintln!(
        "{COUNT} contracts audited after {audited:?}, with instances after {elapsed:?}: {} reads of \
         keys, {} of instances, {} polls",
        asked("kv_read"),
        asked("health"),
        asked("watch")
    );
    let passes = 1.0 + (elapsed.as_secs_f64() / 30.0).floor();
    // One read a contract and pass, and the first answers of the polls.
    assert!(
        asked("kv_read") <= passes * COUNT as f64 + 20.0,
        "{}",
        asked("kv_read")
    );
    assert!(
        asked("health") <= elapsed.as_secs_f64() * 50.0 + 1.0,
        "{}",
        asked("health")
    );
    assert!(asked("watch") <= 20.0, "{}", asked("watch"));
    let agents = ask(&collector, "/agents").await.json();
    assert_eq!(agents[0]["contracts"].as_array().unwrap().len(), COUNT);
}

#[tokio::test]
async fn the_board_stays_while_consul_is_away_and_says_how_old_it_is() {
    let mut consul = Consul::start().await;
    let contract = fraud_detection();
    publish(&consul, &contract).await;
    let collector = collector(&consul, &[]).await;
    row(&collector, FRAUD, WITHIN, in_state("unsigned")).await;
    let fresh = ask(&collector, "/contracts").await;
    assert_eq!(
        (fresh.header("age"), fresh.header("hermes-stale")),
        ("0", "")
    );
    consul.kill9();
    let stale = wait_for(WITHIN, "stale board", async || {
        let reply = ask(&collector, "/contracts").await;
        (reply.header("hermes-stale") == "?1" && reply.header("age") != "0").then_some(reply)
    })
    .await;
    assert_eq!(stale.json(), fresh.json());
    let kept = ask(&collector, &format!("/v1/contract/{FRAUD}/1.0.0")).await;
    assert_eq!(
        (kept.status, kept.header("hermes-stale")),
        (200, "?1"),
        "{kept:?}"
    );
    assert_eq!(kept.json(), contract);
    let current = ask(&collector, &format!("/v1/contract/{FRAUD}/current")).await;
    assert_eq!(
        (current.status, current.header("hermes-version")),
        (200, "1.0.0")
    );
    let none = ask(&collector, "/v1/contract/never-v1.0/1.0.0").await;
    none.problem(503, "consul-unavailable");

    consul.restart_empty().await;
    wait_until(FOUND_WITHIN, "board of an empty Consul", async || {
        let reply = ask(&collector, "/contracts").await;
        reply.header("hermes-stale").is_empty() && reply.json() == json!([])
    })
    .await;
    for key in ["canary/_keep", "index/_keep"] {
        wait_until(WITHIN, key, async || {
            let entry = consul.get(&format!("/v1/kv/hermes/{key}")).await;
            entry.is_some_and(|entry| entry[0]["Value"].is_null())
        })
        .await;
    }
    // Under the same version another body, in another store: that is no change of the first.
    let mut other = contract.clone();
    other["description"] = "another".into();
    publish(&consul, &other).await;
    let shown = row(&collector, FRAUD, FOUND_WITHIN, in_state("unsigned")).await;
    assert_eq!(
        (&shown["digest"], &shown["drift"]),
        (&digest(&other).into(), &json!(false))
    );
}

#[tokio::test]
async fn a_published_body_is_had_by_its_version() {
    let consul = Consul::start().await;
    let (old, new) = (version(FRAUD, "1.0.0"), version(FRAUD, "1.0.1"));
    publish(&consul, &old).await;
    publish(&consul, &new).await;
    let collector = collector(&consul, &[]).await;
    for (name, contract) in [("1.0.0", &old), ("1.0.1", &new), ("current", &new)] {
        let reply = ask(&collector, &format!("/v1/contract/{FRAUD}/{name}")).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("content-type"), "application/json");
        assert_eq!(reply.json(), *contract, "{name}");
        assert_eq!(reply.header("etag"), format!("\"{}\"", digest(contract)));
        assert_eq!(reply.header("hermes-version"), contract["version"]);
        let url = format!("{}/v1/contract/{FRAUD}/{name}", collector.url());
        let again = client()
            .get(url)
            .header("if-none-match", reply.header("etag"));
        let again = Reply::to(again).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{name}");
    }
    wait_until(WITHIN, "board", async || {
        !board(&collector).await.is_empty()
    })
    .await;
    for wrong in ["1.0.7", "7.0.0", "latest", "1.0", "1.0.0-rc1"] {
        let reply = ask(&collector, &format!("/v1/contract/{FRAUD}/{wrong}")).await;
        let detail = reply.problem(404, "not-found")["detail"].to_string();
        assert!(detail.contains("1.0.1, 1.0.0"), "{wrong}: {detail}");
    }
    for (id, part) in [
        ("other-v1.0", "is not published"),
        ("Other", "a contract id is"),
    ] {
        let reply = ask(&collector, &format!("/v1/contract/{id}/1.0.0")).await;
        let detail = reply.problem(404, "not-found")["detail"].to_string();
        assert!(detail.contains(part), "{detail}");
    }
    let url = format!("{}/v1/contract/{FRAUD}/1.0.0", collector.url());
    Reply::to(client().put(url))
        .await
        .problem(405, "method-not-allowed");
}

#[tokio::test]
async fn prometheus_finds_the_sidecars_that_can_be_scraped() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let (collector, public) = (
        collector(&consul, &[]).await,
        format!("127.0.0.1:{}", free_port()),
    );
    let _open = serving(&consul, &application, fraud_detection())
        .set("admin.public_listen", public.as_str())
        .contract(version("fraud-rules-v2.3", "2.3.4"), "POST", "/rules")
        .start()
        .await;
    let _closed = serving(&consul, &application, fraud_detection())
        .start()
        .await;
    let both = |row: &Value| row["instances"] == 2;
    row(&collector, FRAUD, WITHIN, both).await;
    row(&collector, "fraud-rules-v2.3", WITHIN, |row| {
        row["instances"] == 1
    })
    .await;
    let groups = ask(&collector, "/sd").await.json();
    assert_eq!(groups.as_array().unwrap().len(), 1, "{groups:#}");
    assert_eq!(groups[0]["targets"], json!([public]));
    let labels = &groups[0]["labels"];
    assert_eq!(labels["__meta_hermes_application"], "fraud");
    assert_eq!(labels["__meta_hermes_team"], "finance");
    assert_eq!(
        labels["__meta_hermes_contracts"],
        ",fraud-detection-v1.0@1.0.0,fraud-rules-v2.3@2.3.4,"
    );

    let prometheus = Prometheus::discovering(&format!("{}/sd", collector.url())).await;
    prometheus.wait_scraped(1, 2, FOUND_WITHIN).await;
    let up = prometheus.query("up == 1").await;
    assert_eq!(up.len(), 1, "{up:?}");
    assert_eq!(up[0]["metric"]["instance"], public);
    assert_eq!(up[0]["metric"]["team"], "finance", "{up:?}");
    let known = prometheus
        .query("hermes_sidecar_info{application=\"fraud\"}")
        .await;
    assert_eq!(known.len(), 2, "{known:?}");
}

#[tokio::test]
async fn who_may_not_look_is_refused_and_without_consul_it_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let token = (
        "collector.token_file",
        Setting::from(file.to_str().unwrap()),
    );
    let alone = Collector::start_with(&[("collector.consul", false.into()), token]).await;
    for path in ["/contracts", "/agents", "/sd", "/v1/contract/a-v1.0/1.0.0"] {
        ask(&alone, path).await.problem(401, "unauthorized");
        let known = client().get(alone.url() + path).bearer_auth("s3cret");
        let reply = Reply::to(known).await;
        let detail = reply.problem(404, "not-found")["detail"].to_string();
        assert!(detail.contains("collector.consul"), "{detail}");
    }
    // Port 1 refuses: a Consul that was never there.
    let waiting = Collector::start_with(&[]).await;
    for path in ["/contracts", "/agents", "/sd"] {
        let reply = ask(&waiting, path).await;
        let detail = reply.problem(503, "consul-unavailable")["detail"].to_string();
        assert!(detail.contains("has not said yet"), "{detail}");
    }
}
