//! Two prefixes on one Consul are isolated from each other by tokens of their own.

use crate::support::agent::{Agent, rules};
use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::pair::{FRAUD, RISK, wrapped};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::{wait_for, wait_until};
use hermes_sidecar::consul::{
    Check, CheckKind, CheckStatus, Client, Config, ErrorKind, Poll, Registration,
};
use hermes_sidecar::identity::Secret;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

/// One shard: its prefix and what its members may do.
struct Shard<'a> {
    agent: &'a Agent,
    prefix: &'static str,
    sidecar: String,
    collector: String,
}

impl<'a> Shard<'a> {
    async fn of(agent: &'a Agent, prefix: &'static str) -> Self {
        let token = async |file: &str| {
            let rules = rules(file).concat();
            assert!(rules.contains("PREFIX"), "{file} is a template");
            agent.token(&rules.replace("PREFIX", prefix)).await
        };
        Self {
            agent,
            prefix,
            sidecar: token("policy-shard-sidecar.hcl").await,
            collector: token("policy-shard-collector.hcl").await,
        }
    }

    fn around(&self, setup: Setup) -> Setup {
        setup
            .consul(&self.agent.address)
            .set("consul.prefix", self.prefix)
            .set("spool.collector", "consul:hermes-collector")
            .set("spool.retry", "100ms")
            .variable("CONSUL_HTTP_TOKEN", &self.sidecar)
    }

    /// Starts the fraud service with a contract that only this shard knows.
    async fn callee(&self, application: &Application) -> Sidecar {
        let mut contract = fraud_detection();
        contract["description"] = format!("as {} has it", self.prefix).into();
        let setup = Sidecar::named("fraud")
            .application(&application.url())
            .contract(contract, "POST", RISK);
        self.around(setup).start().await
    }

    async fn caller(&self) -> Sidecar {
        self.around(Sidecar::named("shop")).start().await
    }

    async fn collector(&self) -> Collector {
        let file = self.agent.directory.path().join(self.prefix);
        std::fs::write(&file, &self.collector).unwrap();
        Collector::start_with(&[
            ("consul.address", self.agent.address.clone().into()),
            ("consul.prefix", self.prefix.into()),
            ("consul.token_file", file.to_str().unwrap().into()),
        ])
        .await
    }

    /// A client with this shard's token that asks for what is another's.
    fn client(&self, token: &str) -> Client {
        let config = Config {
            token: Some(Secret::new(token)),
            prefix: self.prefix.to_owned(),
            ..self.agent.config()
        };
        Client::new(config, Arc::new(|_, _, _| {})).unwrap()
    }

    fn command(&self, token: &str, args: &[&str]) -> Output {
        let mut command = Command::new(program::hermes());
        command
            .arg("contract")
            .args(args)
            .current_dir(self.agent.directory.path())
            .env_clear()
            .env("CONSUL_HTTP_ADDR", &self.agent.address)
            .env("CONSUL_HTTP_TOKEN", token)
            .env("HERMES_CONSUL__PREFIX", self.prefix);
        command.output().unwrap()
    }
}

async fn call(caller: &Sidecar, task: &str) -> Reply {
    let body = wrapped(FRAUD, &fraud_input(), json!({"task_id": task}));
    let request = client().post(format!("{}/hermes/invoke", caller.outbound_url()));
    let request = request.header("content-type", "application/json");
    Reply::to(request.body(body)).await
}

fn registration(name: &str) -> Registration {
    let id = format!("{name}-intruder");
    Registration {
        checks: vec![Check {
            id: format!("{id}:ttl"),
            name: "sidecar".to_owned(),
            kind: CheckKind::Ttl(Duration::from_secs(15)),
            status: CheckStatus::Critical,
            deregister_after: None,
        }],
        id,
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 7401,
        tags: Vec::new(),
        weight: 1,
        meta: BTreeMap::new(),
    }
}

#[tokio::test]
async fn shards_neither_see_nor_touch_each_other() {
    let agent = Agent::start();
    let (blue, green) = (
        Shard::of(&agent, "blue").await,
        Shard::of(&agent, "green").await,
    );
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    let (_blue_collector, _green_collector) = tokio::join!(blue.collector(), green.collector());
    let (blue_callee, blue_caller, green_caller) =
        tokio::join!(blue.callee(&application), blue.caller(), green.caller());
    wait_until(WITHIN, "a call within the shard", async || {
        call(&blue_caller, "b-1").await.status == 200
    })
    .await;

    // What the other shard serves is unknown here.
    let calls = application.calls(RISK);
    call(&green_caller, "g-1")
        .await
        .problem(404, "unknown-agent");
    assert_eq!(application.calls(RISK), calls);

    // The very same version with another body: each shard has its own.
    let green_callee = green.callee(&application).await;
    wait_until(WITHIN, "a call within the other shard", async || {
        call(&green_caller, "g-2").await.status == 200
    })
    .await;
    assert_eq!(call(&blue_caller, "b-2").await.status, 200);
    for (shard, callee) in [(&blue, &blue_callee), (&green, &green_callee)] {
        let output = shard.command(&shard.sidecar, &["get", FRAUD]);
        let there: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(there["description"], format!("as {} has it", shard.prefix));
        assert!(
            !callee.log().contains("could not be kept"),
            "{}",
            callee.log()
        );
    }
    // Collectors too: reports stay in the shard.
    for (shard, mine, other) in [
        (&_blue_collector, "b-2", "g-2"),
        (&_green_collector, "g-2", "b-2"),
    ] {
        shard.wait_task(mine, "completed", WITHIN).await;
        let reply = client()
            .get(format!("{}/tasks/{other}", shard.url()))
            .send()
            .await
            .unwrap();
        assert_eq!(reply.status(), 404);
    }
}

#[tokio::test]
async fn the_token_of_one_shard_opens_nothing_of_another() {
    let agent = Agent::start();
    let (blue, green) = (
        Shard::of(&agent, "blue").await,
        Shard::of(&agent, "green").await,
    );
    let application = Application::start().await;
    let mut blue_collector = blue.collector().await;
    let _callee = blue.callee(&application).await;
    let own = blue.client(&blue.sidecar);
    let services = ["blue-fraud-detection-v1.0", "blue-hermes-collector"];
    for service in services {
        wait_for(WITHIN, service, async || {
            let there = own.health(service, Poll::NOW).await.unwrap().value;
            there.iter().any(|one| one.passing).then_some(())
        })
        .await;
    }
    let body = format!("blue/contracts/{FRAUD}/1.0.0");
    let published = own.kv_get(&body, Poll::NOW).await.unwrap().value.unwrap();

    for token in [&green.sidecar, &green.collector] {
        let intruder = blue.client(token);
        for service in services {
            assert_eq!(intruder.health(service, Poll::NOW).await.unwrap().value, []);
            let denied = intruder.register(&registration(service)).await;
            assert_eq!(
                denied.map_err(|error| error.kind()),
                Err(ErrorKind::Denied),
                "{service}"
            );
            // An agent lists nothing to a token that may not read it; ids can be guessed.
            let there = own.health(service, Poll::NOW).await.unwrap().value;
            let id = &there[0].id;
            let denied = intruder.deregister(id).await;
            assert_eq!(
                denied.map_err(|error| error.kind()),
                Err(ErrorKind::Denied),
                "{id}"
            );
            let denied = intruder
                .update_check(&format!("{id}:ttl"), CheckStatus::Critical, "out")
                .await;
            assert_eq!(
                denied.map_err(|error| error.kind()),
                Err(ErrorKind::Denied),
                "{id}"
            );
        }
        for key in [
            body.clone(),
            format!("blue/contracts/{FRAUD}/1.0.1"),
            format!("blue/contracts/{FRAUD}/version"),
            format!("blue/index/{FRAUD}"),
            format!("blue/canary/{FRAUD}"),
            "blue/canary/_keep".to_owned(),
        ] {
            let denied = intruder.kv_put(&key, "x", None).await;
            assert_eq!(
                denied.map_err(|error| error.kind()),
                Err(ErrorKind::Denied),
                "{key}"
            );
            let denied = intruder.kv_get(&key, Poll::NOW).await;
            assert_eq!(
                denied.map_err(|error| error.kind()),
                Err(ErrorKind::Denied),
                "{key}"
            );
        }
        let keys = intruder.kv_keys("blue/", Poll::NOW).await.unwrap();
        assert_eq!(keys.value, Vec::<String>::new());

        let file = agent.directory.path().join("contract.json");
        std::fs::write(&file, fraud_detection().to_string()).unwrap();
        let file = file.to_str().unwrap();
        for args in [&["publish", file][..], &["get", FRAUD]] {
            let output = blue.command(token, args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("the token may not do this"), "{said}");
        }
        let listed = blue.command(token, &["list", "-o", "json"]);
        assert_eq!(listed.stdout, b"[]\n");
    }

    // A whole sidecar with the wrong token gets nowhere and says so.
    let setup = Sidecar::named("fraud")
        .application(&application.url())
        .contract(fraud_detection(), "POST", RISK);
    let setup = blue.around(setup).set("application.instance", "intruder");
    let setup = setup.variable("CONSUL_HTTP_TOKEN", &green.sidecar);
    let intruder = setup.start_unready().await;
    wait_until(WITHIN, "the denial in /ready", async || {
        let reply = Reply::to(client().get(format!("{}/ready", intruder.admin_url()))).await;
        reply.status == 503 && String::from_utf8_lossy(&reply.body).contains("denied")
    })
    .await;
    let there = own.health(services[0], Poll::NOW).await.unwrap().value;
    assert_eq!(there.len(), 1, "the shard's own instance alone");
    assert_eq!(
        own.kv_get(&body, Poll::NOW).await.unwrap().value,
        Some(published)
    );
    blue_collector.terminate().await;
}
