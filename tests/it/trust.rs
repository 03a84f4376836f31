//! Contracts are used only if those who signed them are trusted.

mod files;

use crate::support::application::{Answer, Application};
use crate::support::client::{client, get_text};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::digest::hex_digest;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::signer::Signer;
use crate::support::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;
use toml::{Table, Value as Setting};

/// A body that was refused is asked for again after at most ten seconds.
const WITHIN: Duration = Duration::from_secs(30);

/// A registry with contracts and instances that nobody's sidecar put there.
struct Stage {
    consul: Consul,
    application: Application,
}

impl Stage {
    async fn start() -> Self {
        let (consul, application) = tokio::join!(Consul::start(), Application::start());
        application.answer(RISK, Answer::json(&fraud_output()));
        Self {
            consul,
            application,
        }
    }

    /// Writes the body as it is, beside this digest.
    async fn put_body(&self, contract: &Value, digest: &str) {
        let (id, version) = (text(contract, "id"), text(contract, "version"));
        let published = json!({
            "contract": contract, "digest": digest,
            "published_at": "2026-01-01T00:00:00.000Z", "published_by": "test"
        });
        let key = format!("/v1/kv/hermes/contracts/{id}/{version}");
        self.consul.put(&key, published.to_string()).await;
    }

    /// Registers an instance that names this digest.
    async fn register(&self, contract: &Value, digest: &str, kid: &str) {
        let (id, version) = (text(contract, "id"), text(contract, "version"));
        let port = self
            .application
            .url()
            .rsplit_once(':')
            .unwrap()
            .1
            .to_owned();
        let service = json!({
            "Name": id, "ID": format!("{id}-bare"), "Address": "127.0.0.1",
            "Port": port.parse::<u16>().unwrap(), "Tags": ["hermes"],
            "Meta": {
                "hermes_version": version, "hermes_digest": digest, "hermes_kid": kid,
                "hermes_route": format!("POST {RISK}"), "hermes_app": "fraud",
            }
        });
        let path = "/v1/agent/service/register";
        self.consul.put(path, service.to_string()).await;
    }

    /// Publishes and registers as a sidecar would.
    async fn offer(&self, contract: &Value, kid: &str) {
        let digest = digest(contract);
        self.put_body(contract, &digest).await;
        self.register(contract, &digest, kid).await;
    }

    fn caller(&self) -> Setup {
        Sidecar::named("shop").consul(&self.consul.address())
    }
}

fn text<'a>(contract: &'a Value, name: &str) -> &'a str {
    contract[name].as_str().unwrap()
}

fn digest(contract: &Value) -> String {
    let mut unsigned = contract.clone();
    unsigned.as_object_mut().unwrap().remove("signatures");
    hex_digest(&serde_json_canonicalizer::to_vec(&unsigned).unwrap())
}

/// The fraud contract under another id.
fn named(id: &str) -> Value {
    let mut contract = fraud_detection();
    let version = id.rsplit_once("-v").unwrap().1;
    contract["id"] = id.into();
    contract["version"] = format!("{version}.0").into();
    contract
}

/// The incident: other words in the output, the signatures left as they were.
fn altered(mut contract: Value) -> Value {
    contract["output_schema"]["properties"]["risk_level"]["enum"] =
        json!(["safe", "risky", "dangerous"]);
    contract
}

fn listed(signer: &Signer, kid: &str, ids: &[&str]) -> Setting {
    let mut key = Table::new();
    let file = signer.public_file();
    key.insert("file".into(), file.to_str().unwrap().into());
    key.insert("kid".into(), kid.into());
    let ids = ids.iter().map(|id| Setting::from(*id)).collect();
    key.insert("ids".into(), Setting::Array(ids));
    Setting::Array(vec![Setting::Table(key)])
}

async fn call(sidecar: &Sidecar, id: &str) -> Reply {
    let body = wrapped(id, &fraud_input(), json!({}));
    let request = client().post(format!("{}/hermes/invoke", sidecar.outbound_url()));
    Reply::to(
        request
            .header("content-type", "application/json")
            .body(body),
    )
    .await
}

/// What `/contracts` shows of a contract that is called.
async fn shown(sidecar: &Sidecar, id: &str) -> Option<Value> {
    let shown = get_text(&format!("{}/contracts", sidecar.admin_url())).await;
    let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
    let mut shown = shown.into_iter();
    shown.find(|entry| entry["agent"] == id && entry["use"] == "called")
}

async fn wait_refused(sidecar: &Sidecar, id: &str) -> Value {
    wait_for(WITHIN, "refused body in /contracts", async || {
        let refused = shown(sidecar, id).await?["untrusted"].get(0)?.clone();
        Some(refused)
    })
    .await
}

/// The refusal is told to the caller, counted, shown, and logged once with all it takes to act.
async fn refuses(sidecar: &Sidecar, digest: &str, kid: &str) {
    let reply = call(sidecar, FRAUD).await;
    let problem = reply.problem(503, "untrusted-contract");
    let detail = text(&problem, "detail");
    for part in [FRAUD, digest, kid] {
        assert!(detail.contains(part), "{part}: {problem}");
    }
    assert_eq!(reply.header("hermes-executed"), "?0");
    let refused = wait_refused(sidecar, FRAUD).await;
    assert_eq!(
        (
            text(&refused, "id"),
            text(&refused, "digest"),
            text(&refused, "kid")
        ),
        (FRAUD, digest, kid)
    );
    assert_eq!(refused["reason"], problem["detail"]);
    let labels = [("result", "untrusted")];
    let counted = sidecar
        .metric("contract_cache_requests_total", &labels)
        .await;
    assert!(counted >= 1.0, "{counted}");
    let log = sidecar.log();
    let told = log
        .lines()
        .filter(|line| line.contains("a published contract is not used"));
    let told: Vec<Value> = told
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    let fields = told[0].to_string();
    for part in [FRAUD, digest, kid] {
        assert!(fields.contains(part), "{part}: {fields}");
    }
}

async fn wait_served(sidecar: &Sidecar, id: &str) {
    wait_for(WITHIN, "call that goes through", async || {
        (call(sidecar, id).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_body_changed_by_hand_is_not_used() {
    let stage = Stage::start().await;
    let finance = Signer::new();
    let good = finance.sign(fraud_detection());
    let (bad, good_digest, bad_digest) = (
        altered(good.clone()),
        digest(&good),
        digest(&altered(good.clone())),
    );
    stage.offer(&good, finance.kid()).await;
    let mut knowing = stage.caller().start().await;
    assert_eq!(call(&knowing, FRAUD).await.status, 200);

    // The body alone is changed; the digest beside it and the instance name the good one.
    stage.put_body(&bad, &good_digest).await;
    let newcomer = stage.caller().start().await;
    refuses(&newcomer, &bad_digest, finance.kid()).await;
    assert_eq!(call(&knowing, FRAUD).await.status, 200);

    // Whoever can write everything makes body, digest and registration agree; not the signature.
    stage.put_body(&bad, &bad_digest).await;
    stage.register(&bad, &bad_digest, finance.kid()).await;
    let latecomer = stage.caller().start().await;
    refuses(&latecomer, &bad_digest, finance.kid()).await;
    let refused = wait_refused(&knowing, FRAUD).await;
    assert_eq!(text(&refused, "digest"), bad_digest);
    assert_eq!(call(&knowing, FRAUD).await.status, 200);
    let bodies = shown(&knowing, FRAUD).await.unwrap()["bodies"].clone();
    assert_eq!(bodies[0]["digest"], good_digest, "{bodies}");
    // What it knew is still good after a crash.
    knowing.start_again();
    knowing.ready(WITHIN).await;
    assert_eq!(call(&knowing, FRAUD).await.status, 200);
    assert_eq!(call(&latecomer, FRAUD).await.status, 503);

    // Put right, it is taken up without a restart.
    stage.offer(&good, finance.kid()).await;
    wait_served(&newcomer, FRAUD).await;
    wait_served(&latecomer, FRAUD).await;
    let untrusted = shown(&newcomer, FRAUD).await.unwrap()["untrusted"].clone();
    assert_eq!(untrusted, json!([]));
}

#[tokio::test]
async fn a_body_of_another_contract_is_not_used() {
    let stage = Stage::start().await;
    let finance = Signer::new();
    let good = finance.sign(named("fraud-rules-v1.0"));
    // Well signed, and the digest fits, but it was promised elsewhere.
    let key = format!("/v1/kv/hermes/contracts/{FRAUD}/1.0.0");
    let published = json!({
        "contract": good, "digest": digest(&good),
        "published_at": "2026-01-01T00:00:00.000Z", "published_by": "test"
    });
    stage.consul.put(&key, published.to_string()).await;
    let contract = fraud_detection();
    stage
        .register(&contract, &digest(&good), finance.kid())
        .await;
    let caller = stage.caller().start().await;
    let problem = call(&caller, FRAUD)
        .await
        .problem(503, "untrusted-contract");
    assert!(
        text(&problem, "detail").contains("fraud-rules-v1.0@1.0.0"),
        "{problem}"
    );
}

#[tokio::test]
async fn each_mode_trusts_whom_it_says() {
    let stage = Stage::start().await;
    let (finance, stranger) = (Signer::new(), Signer::new());
    let offered = [
        ("plain-v1.0", named("plain-v1.0"), ""),
        ("good-v1.0", finance.sign(named("good-v1.0")), finance.kid()),
        (
            "strange-v1.0",
            stranger.sign(named("strange-v1.0")),
            stranger.kid(),
        ),
        (
            "bad-v1.0",
            altered(finance.sign(named("bad-v1.0"))),
            finance.kid(),
        ),
    ];
    for (_, contract, kid) in &offered {
        stage.offer(contract, kid).await;
    }
    let mode = |mode: &str| stage.caller().set("trust.mode", mode);
    let with_key =
        |setup: Setup, ids: &[&str]| setup.set("trust.key", listed(&finance, "finance-1", ids));
    let (pinned, tofu, tofu_listed, off) = tokio::join!(
        with_key(mode("pinned"), &["*"]).start(),
        stage.caller().start(),
        with_key(mode("tofu"), &["good-*", "strange-*"]).start(),
        mode("off").start(),
    );
    for (name, sidecar, expected) in [
        ("pinned", &pinned, [503, 200, 503, 503]),
        ("tofu", &tofu, [200, 200, 200, 503]),
        ("tofu with a key", &tofu_listed, [200, 200, 503, 503]),
        // The altered words are taken for the contract, and the application for its breaker.
        ("off", &off, [200, 200, 200, 502]),
    ] {
        for ((id, _, _), status) in offered.iter().zip(expected) {
            let reply = call(sidecar, id).await;
            assert_eq!(reply.status, status, "{name}, {id}: {reply:?}");
            if status == 503 {
                reply.problem(503, "untrusted-contract");
            }
        }
    }
    // Once per family, however often it is called.
    for _ in 0..3 {
        assert_eq!(call(&tofu, "plain-v1.0").await.status, 200);
    }
    stage.offer(&named("plain-v1.1"), "").await;
    assert_eq!(call(&tofu, "plain-v1.1").await.status, 200);
    let log = tofu.log();
    let warnings = log
        .lines()
        .filter(|line| line.contains("bears no signature"));
    assert_eq!(warnings.count(), 1, "{log}");
    assert!(!off.log().contains("bears no signature"));
}

#[tokio::test]
async fn a_first_key_outlives_a_kill() {
    let stage = Stage::start().await;
    let (first, second) = (Signer::new(), Signer::new());
    stage
        .offer(&first.sign(fraud_detection()), first.kid())
        .await;
    let mut caller = stage.caller().start().await;
    assert_eq!(call(&caller, FRAUD).await.status, 200);
    caller.kill9();
    let (v1_1, v1_2) = ("fraud-detection-v1.1", "fraud-detection-v1.2");
    stage.offer(&second.sign(named(v1_1)), second.kid()).await;
    stage.offer(&named(v1_2), "").await;
    stage
        .offer(&second.sign(named("loans-v1.0")), second.kid())
        .await;
    caller.start_again();
    caller.ready(WITHIN).await;
    let problem = call(&caller, v1_1).await.problem(503, "untrusted-contract");
    let detail = text(&problem, "detail");
    assert!(
        detail.contains(first.kid()) && detail.contains("[[trust.key]]"),
        "{problem}"
    );
    let problem = call(&caller, v1_2).await.problem(503, "untrusted-contract");
    assert!(
        text(&problem, "detail").contains("signed before"),
        "{problem}"
    );
    for id in [FRAUD, "loans-v1.0"] {
        assert_eq!(call(&caller, id).await.status, 200, "{id}");
    }

    // The remedy that the refusal names: the new key is listed.
    caller.reconfigure(
        "trust.key",
        listed(&second, "second", &["fraud-detection-v1.1"]),
    );
    caller.start_again();
    caller.ready(WITHIN).await;
    assert_eq!(call(&caller, v1_1).await.status, 200);
    assert_eq!(call(&caller, v1_2).await.status, 503);
    // What was known before counts only as long as it is trusted.
    caller.reconfigure("trust.mode", "pinned");
    caller.start_again();
    caller.ready(WITHIN).await;
    assert_eq!(call(&caller, v1_1).await.status, 200);
    let problem = call(&caller, FRAUD)
        .await
        .problem(503, "untrusted-contract");
    assert!(
        text(&problem, "detail").contains("ids that match"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_renewed_signature_is_taken_up() {
    let stage = Stage::start().await;
    let (old, new) = (Signer::new(), Signer::new());
    let once = old.sign(fraud_detection());
    stage.offer(&once, old.kid()).await;
    let caller = stage.caller().set("trust.mode", "pinned");
    let caller = caller
        .set("trust.key", listed(&new, "new", &["fraud-*"]))
        .start()
        .await;
    refuses(&caller, &digest(&once), old.kid()).await;
    let twice = new.sign(once.clone());
    assert_eq!(digest(&twice), digest(&once));
    stage.put_body(&twice, &digest(&twice)).await;
    wait_served(&caller, FRAUD).await;
}

#[tokio::test]
async fn a_served_contract_names_its_key() {
    let finance = Signer::new();
    let rules = "fraud-rules-v1.0";
    let signed = finance.sign(named(rules));
    let pair = Pair::with(|callee| callee.contract(signed.clone(), "POST", "/rules")).await;
    for (id, kid) in [(rules, finance.kid()), (FRAUD, "")] {
        let instances = pair.consul.passing(id).await;
        assert_eq!(instances[0]["Service"]["Meta"]["hermes_kid"], kid, "{id}");
    }
    let key = format!("/v1/kv/hermes/contracts/{rules}/1.0.0?raw");
    let published = pair.consul.get(&key).await.unwrap();
    assert_eq!(published["contract"], signed);
    let url = format!(
        "{}/hermes/handshake?agent={rules}",
        pair.callee.inbound_url()
    );
    let told: Value = serde_json::from_str(&get_text(&url).await).unwrap();
    assert_eq!(told, signed);
}
