//! `doctor` finds what makes tasks slow, and finds nothing where nothing is.

use crate::support::authority::{Authority, TlsFiles};
use crate::support::client::client;
use crate::support::command::{Ran, hermes};
use crate::support::consul::Consul;
use crate::support::contract::fraud_detection;
use crate::support::link::Link;
use crate::support::port::free_port;
use crate::support::road::{AGENT, ROUTE, application, callee, wait_known};
use crate::support::sidecar::Sidecar;
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;

const WITHIN: Duration = Duration::from_secs(60);

/// Examines with the settings of `sidecar`.
async fn doctor(sidecar: &Sidecar, args: &[&str]) -> Ran {
    let config = sidecar.config_file();
    let all = [&["doctor", "-c", config.to_str().unwrap()], args].concat();
    hermes(&all).await
}

/// Returns the messages of the findings of one step; notes are none.
fn found<'a>(told: &'a Value, step: &str) -> Vec<&'a str> {
    let findings = told["findings"].as_array().unwrap().iter();
    findings
        .filter(|one| one["step"] == step && one["level"] == "finding")
        .map(|one| one["message"].as_str().unwrap())
        .collect()
}

/// Returns what was measured on the way to the first instance of the contract.
fn instance(told: &Value) -> &Value {
    let places = told["network"].as_array().unwrap().iter();
    let mut of_agent = places.filter(|place| place["agents"] == json!([AGENT]));
    of_agent
        .next()
        .unwrap_or_else(|| panic!("no instance: {told}"))
}

/// A config that names this Consul and, where given, a contract of its own.
struct Config(TempDir);

impl Config {
    fn of(consul: &str, contract: Option<&Value>) -> Self {
        let folder = TempDir::with_prefix("hermes-doctor-").unwrap();
        let mut text = format!(
            "[application]\nname = \"payment\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
             [consul]\naddress = \"{consul}\"\n",
            free_port()
        );
        if let Some(contract) = contract {
            std::fs::write(folder.path().join("own.json"), contract.to_string()).unwrap();
            text = text.replace(
                "[admin]",
                "upstream = \"http://127.0.0.1:1\"\n[[application.contract]]\n\
                 file = \"own.json\"\npath = \"/x\"\n[admin]",
            );
        }
        std::fs::write(folder.path().join("hermes.toml"), text).unwrap();
        Self(folder)
    }

    async fn doctor(&self, args: &[&str]) -> Ran {
        let file = self.0.path().join("hermes.toml");
        let all = [
            &["doctor", "-c", file.to_str().unwrap(), "-o", "json"],
            args,
        ]
        .concat();
        hermes(&all).await
    }
}

#[tokio::test]
async fn nothing_is_found_where_all_is_well() {
    let (served, consul) = tokio::join!(application(), Consul::start());
    let callee = callee(&served).consul(&consul.address()).start();
    let caller = Sidecar::named("payment").consul(&consul.address()).start();
    let (callee, caller) = tokio::join!(callee, caller);
    wait_known(&caller, 1).await;
    let calls = served.calls(ROUTE);
    let ran = doctor(&caller, &["--samples", "3", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.json();
    assert_eq!(told["healthy"], true);
    let registry = &told["registry"];
    assert_eq!(
        (&registry["samples"], &registry["leaderless"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(
        registry["leaders"].as_array().unwrap().len(),
        1,
        "{registry}"
    );
    assert_eq!(registry["peers"], registry["leaders"], "{registry}");
    assert_eq!(registry["leader_ms"]["count"], 3, "{registry}");
    let cost = &told["validation"][0];
    assert_eq!(
        (&cost["agent"], &cost["version"]),
        (&json!(AGENT), &json!("1.0.0"))
    );
    assert_eq!(
        (&cost["input"]["body"], &cost["input"]["conforms"]),
        (&json!("derived"), &json!(true))
    );
    assert!(cost["compile_ms"].as_f64().unwrap() > 0.0, "{cost}");
    let place = instance(&told);
    assert_eq!(
        format!("http://{}", place["address"].as_str().unwrap()),
        callee.inbound_url()
    );
    assert_eq!(
        (&place["status"], &place["passing"]),
        (&json!(200), &json!(true))
    );
    assert_eq!(place["ms"]["first_byte"]["count"], 5, "{place}");
    assert_eq!(
        (&place["ms"]["dns"], &place["ms"]["tls"]),
        (&json!(null), &json!(null))
    );

    let to_consul = &told["network"].as_array().unwrap();
    let to_consul = to_consul
        .iter()
        .find(|place| place["agents"] == json!(["consul"]));
    assert_eq!(to_consul.unwrap()["status"], 200, "{told}");

    // For people: one block per step, in the order of the article.
    let ran = doctor(&callee, &["--samples", "3"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let places = ["1 registry", "2 validation", "3 network"].map(|title| ran.stdout.find(title));
    assert!(places.is_sorted() && places[0].is_some(), "{ran:?}");
    assert!(ran.stderr.contains("nothing was found"), "{ran:?}");
    assert_eq!(served.calls(ROUTE), calls, "no call is made");
}

#[tokio::test]
async fn the_only_instance_that_is_not_ready_is_found() {
    let (mut served, consul) = tokio::join!(application(), Consul::start());
    let callee = callee(&served)
        .consul(&consul.address())
        .set("application.health_interval", "100ms")
        .start();
    let caller = Sidecar::named("payment").consul(&consul.address()).start();
    let (callee, caller) = tokio::join!(callee, caller);
    wait_known(&caller, 1).await;
    served.kill().await;
    let health = format!("{}/hermes/health?agent={AGENT}", callee.inbound_url());
    wait_until(WITHIN, "the callee is not ready", async || {
        let answer = client().get(&health).send().await.unwrap();
        answer.status() == 503
    })
    .await;
    let ran = doctor(&caller, &["--samples", "3", "-o", "json", "--agent", AGENT]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let messages = found(&told, "network").join("\n");
    let alone = format!("answers 503, and no other of {AGENT} is found ready");
    assert!(messages.contains(&alone), "{told}");
}

#[tokio::test]
async fn an_instance_behind_a_slow_way_is_named() {
    let (served, consul) = tokio::join!(application(), Consul::start());
    let port = free_port();
    let link = Link::to(&format!("127.0.0.1:{port}")).await;
    let near = callee(&served).consul(&consul.address()).start();
    let far = callee(&served)
        .consul(&consul.address())
        .set("application.instance", "far")
        .set("inbound.listen", format!("127.0.0.1:{port}"))
        .set("inbound.advertise", link.address().to_string())
        .start();
    let caller = Sidecar::named("payment").consul(&consul.address()).start();
    let (near, far, caller) = tokio::join!(near, far, caller);
    wait_known(&caller, 2).await;
    link.delay(Duration::from_millis(300));
    let ran = doctor(&caller, &["--samples", "3", "-o", "json"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let messages = found(&told, "network");
    assert_eq!(messages.len(), 1, "{told}");
    let named = format!("{} ({AGENT}): first_byte takes", link.address());
    assert!(messages[0].starts_with(&named), "{messages:?}");

    // Killed, it is registered for a while yet: not a slow way, but none.
    link.cut();
    let ran = doctor(&caller, &["--samples", "3", "-o", "json"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let messages = found(&told, "network").join("\n");
    assert!(
        messages.contains("5 of 5 tries failed, the last at first_byte"),
        "{messages}"
    );
    drop((near, far));
}

#[tokio::test]
async fn the_handshake_with_a_secured_instance_is_timed_apart() {
    let (served, consul) = tokio::join!(application(), Consul::start());
    let ca = Authority::new("root");
    let folder = TempDir::with_prefix("hermes-tls-").unwrap();
    let files = |name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        TlsFiles::write(&folder, &ca.spiffe(name), &ca.pem())
    };
    let callee = callee(&served)
        .consul(&consul.address())
        .tls(&files("fraud"))
        .start();
    let caller = Sidecar::named("payment")
        .consul(&consul.address())
        .tls(&files("payment"))
        .start();
    let (callee, caller) = tokio::join!(callee, caller);
    wait_known(&caller, 1).await;
    let ran = doctor(&caller, &["--samples", "3", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.json();
    let place = instance(&told);
    assert_eq!(place["ms"]["tls"]["count"], 5, "{place}");
    assert_eq!(place["status"], 200, "{place}");

    // Who has no certificate sees the way up to it.
    let config = Config::of(&consul.address(), None);
    let ran = config.doctor(&["--samples", "3", "--agent", AGENT]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.json();
    assert_eq!(instance(&told)["ms"]["tls"], json!(null), "{told}");
    assert_eq!(instance(&told)["ms"]["tcp"]["count"], 5, "{told}");
    assert!(
        told["findings"].to_string().contains("speak mutual TLS"),
        "{told}"
    );
    drop(callee);
}

#[tokio::test]
async fn a_registry_without_a_leader_is_found() {
    let consul = Consul::start_leaderless().await;
    let config = Config::of(&consul.address(), None);
    let ran = config.doctor(&["--samples", "3"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let messages = found(&told, "registry");
    assert_eq!(
        messages,
        ["the cluster had no leader in 3 of 3 samples"],
        "{told}"
    );
    assert_eq!(told["registry"]["reachable"], true);
}

#[tokio::test]
async fn a_token_without_rights_is_found() {
    let consul = Consul::start_closed().await;
    let config = Config::of(&consul.address(), None);
    let ran = config.doctor(&["--samples", "3", "--agent", AGENT]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let denied = found(&told, "registry").join("\n");
    assert!(denied.contains("the token may not read our keys"), "{told}");
    let notes = told["findings"].to_string();
    assert!(notes.contains("agent:read"), "{told}");
    assert!(found(&told, "network")[0].contains("no instance"), "{told}");
}

#[tokio::test]
async fn the_rest_is_examined_while_consul_is_away() {
    let config = Config::of("http://127.0.0.1:1", Some(&fraud_detection()));
    let ran = config.doctor(&[]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let told = ran.json();
    assert_eq!(told["registry"]["reachable"], false);
    assert_eq!(told["validation"][0]["agent"], AGENT, "{told}");
    assert!(
        found(&told, "registry")[0].contains("cannot be reached"),
        "{told}"
    );

    // What the sidecar still knows is looked at, as far as it is known.
    let (served, mut consul) = tokio::join!(application(), Consul::start());
    let callee = callee(&served).consul(&consul.address()).start();
    let caller = Sidecar::named("payment").consul(&consul.address()).start();
    let (callee, caller) = tokio::join!(callee, caller);
    wait_known(&caller, 1).await;
    consul.kill9();
    let ran = doctor(&caller, &["-o", "json"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let told = ran.json();
    assert_eq!(instance(&told)["ms"]["tcp"]["count"], 5, "{told}");
    drop(callee);
}

#[tokio::test]
async fn a_contract_that_is_costly_to_check_is_found() {
    let consul = Consul::start().await;
    let mut contract = fraud_detection();
    contract["input_schema"] = json!({
        "type": "array", "uniqueItems": true,
        "items": {"type": "object", "required": ["user_id"], "properties": {
            "user_id": {"type": "string", "pattern": "^u-([0-9]{1,8})$"}
        }}
    });
    let users: Vec<Value> = (0..5000)
        .map(|n| json!({"user_id": format!("u-{n}")}))
        .collect();
    contract["probe"] = json!({"input": users});
    contract["constraints"] = json!({"timeout_ms": 5, "max_concurrent": 1});
    let config = Config::of(&consul.address(), Some(&contract));
    let ran = config.doctor(&["--samples", "3"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let messages = found(&told, "validation");
    assert_eq!(messages.len(), 1, "{told}");
    assert!(
        messages[0].contains(&format!("% of the timeout of {AGENT} 1.0.0")),
        "{messages:?}"
    );
    let cost = &told["validation"][0];
    assert_eq!(
        (&cost["input"]["body"], &cost["input"]["conforms"]),
        (&json!("probe"), &json!(true))
    );
    assert!(cost["share_of_timeout"].as_f64().unwrap() > 0.1, "{cost}");

    // Within a patient contract the same check is nothing.
    contract["constraints"] = json!({"timeout_ms": 60_000, "max_concurrent": 1});
    contract["probe"] = json!({"input": [{"user_id": "u-1"}]});
    let config = Config::of(&consul.address(), Some(&contract));
    let ran = config.doctor(&["--samples", "3"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn a_registry_that_says_nothing_does_not_hold_it_up() {
    // The kernel takes the connections; nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let config = Config::of(&address, None);
    let began = tokio::time::Instant::now();
    let ran = config.doctor(&["--timeout", "2s"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn what_could_not_be_examined_in_time_has_a_code_of_its_own() {
    let consul = Consul::start().await;
    let config = Config::of(&consul.address(), Some(&fraud_detection()));
    let ran = config
        .doctor(&["--samples", "600", "--timeout", "1s"])
        .await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let told = ran.json();
    assert_eq!(told["registry"]["reachable"], true, "{told}");
    assert!(told["registry"]["samples"].as_u64().unwrap() < 10, "{told}");
    let messages = told["findings"].to_string();
    assert!(messages.contains("time was over"), "{told}");
}

#[tokio::test]
async fn settings_that_say_nothing_usable_are_refused() {
    let config = Config::of("nonsense://x", None);
    let ran = config.doctor(&[]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("consul.address"), "{ran:?}");
    for wrong in [
        ["--agent", "fraud"],
        ["--samples", "2"],
        ["--admin", "localhost"],
    ] {
        let ran = Config::of("http://127.0.0.1:1", None).doctor(&wrong).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}
