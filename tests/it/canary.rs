//! A share of the tasks is tried on canaries, always the same ones, as Consul says.

use crate::support::client::{client, succeeds};
use crate::support::consul::Consul;
use crate::support::contract::fraud_input;
use crate::support::fleet::{Caller, Member, fraud};
use crate::support::pair::{FRAUD, RISK};
use crate::support::reply::Reply;
use crate::support::wait::{wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A ratio that is written counts by then.
const LIVE_WITHIN: Duration = Duration::from_secs(2);
/// For what Consul has lost and gets back.
const BACK_WITHIN: Duration = Duration::from_secs(30);
const WITHIN: Duration = Duration::from_secs(10);
const RATIO: &str = "/v1/kv/hermes/canary/fraud-detection-v1.0";
/// Calls under way at a time, below what an instance grants.
const AT_ONCE: usize = 16;

/// One stable instance and one canary of the fraud contract.
struct Stand {
    consul: Consul,
    stable: Member,
    canary: Member,
}

impl Stand {
    async fn start() -> Self {
        let consul = Consul::start().await;
        let body = || fraud(FRAUD, "1.0.0");
        let (stable, canary) = tokio::join!(
            Member::start(&consul, "stable", body(), |setup| setup),
            Member::start(&consul, "new", body(), |setup| {
                setup.set("application.tags", vec!["canary"])
            }),
        );
        consul.wait_passing(FRAUD, 2, WITHIN).await;
        Self {
            consul,
            stable,
            canary,
        }
    }

    async fn caller(&self, name: &str) -> Caller {
        let caller = Caller::start(&self.consul, name, |setup| setup).await;
        caller.knows(FRAUD, 2).await;
        caller
    }

    async fn set_ratio(&self, ratio: &str) {
        self.consul.put(RATIO, ratio.to_owned()).await;
    }
}

/// Asserts that many tasks are all served by this instance.
async fn served(caller: &Caller, who: &str) {
    for task in 0..20 {
        let task = format!("t-{task}");
        let served = caller.line.who(FRAUD, json!({"task_id": task})).await;
        assert_eq!(served, who);
    }
}

async fn ratio_of(caller: &Caller) -> Value {
    caller.explain(FRAUD, "t", "").await.json()["canary"].clone()
}

/// Waits until the ratio is in force, at most as long as it may take.
async fn live(caller: &Caller, ratio: u16, within: Duration) {
    wait_until(within, "ratio in force", async || {
        ratio_of(caller).await["ratio"] == ratio
    })
    .await;
}

/// Calls for tasks of these numbers, and returns those that the canary answered.
async fn picked(caller: &Caller, numbers: Range<u32>) -> BTreeSet<u32> {
    let mut lanes = JoinSet::new();
    for first in numbers.clone().take(AT_ONCE) {
        let (line, end) = (caller.line.clone(), numbers.end);
        lanes.spawn(async move {
            let mut picked = BTreeSet::new();
            for number in (first..end).step_by(AT_ONCE) {
                let task = format!("order-{number}");
                match line.who(FRAUD, json!({"task_id": task})).await.as_str() {
                    "new" => assert!(picked.insert(number)),
                    who => assert_eq!(who, "stable"),
                }
            }
            picked
        });
    }
    lanes.join_all().await.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_tenth_of_the_tasks_are_tried_on_the_canary_and_always_the_same() {
    a_tenth_is_picked(3_000, 0.02, 500).await;
}

/// Calls for `tasks` tasks; the canary's share is a tenth, give or take `within`. Another sidecar,
/// and the same one after a restart, pick the same of the first `again`.
pub async fn a_tenth_is_picked(tasks: u32, within: f64, again: u32) {
    let stand = Stand::start().await;
    stand.set_ratio("1000").await;
    let mut caller = stand.caller("shop").await;
    let begun = Instant::now();
    let first = picked(&caller, 0..tasks).await;
    let share = first.len() as f64 / f64::from(tasks);
    eprintln!(
        "{share} of {tasks} tasks on the canary, in {:?}",
        begun.elapsed()
    );
    assert!((share - 0.1).abs() <= within, "{share}");
    for (cohort, count) in [
        ("canary", first.len()),
        ("stable", tasks as usize - first.len()),
    ] {
        let labels = [("cohort", cohort)];
        let counted = caller.sidecar.metric("route_selections_total", &labels);
        assert_eq!(counted.await, count as f64, "{cohort}");
    }
    let expected: BTreeSet<u32> = first.range(..again).copied().collect();
    let other = stand.caller("store").await;
    assert_eq!(picked(&other, 0..again).await, expected);
    caller.sidecar.start_again();
    caller.sidecar.ready(BACK_WITHIN).await;
    // From the very first call on, before anything was known to it.
    assert_eq!(picked(&caller, 0..again).await, expected);
}

#[tokio::test]
async fn a_ratio_counts_within_two_seconds_also_after_the_agents_restart() {
    let mut stand = Stand::start().await;
    let mut caller = stand.caller("shop").await;
    served(&caller, "stable").await;
    for (ratio, who) in [("10000", "new"), ("0", "stable"), ("10000", "new")] {
        stand.set_ratio(ratio).await;
        live(&caller, ratio.parse().unwrap(), LIVE_WITHIN).await;
        served(&caller, who).await;
    }
    // What cannot be read changes nothing, and is shown.
    for garbage in ["ten", "10001", "-1", ""] {
        stand.set_ratio(garbage).await;
        let canary = wait_for(LIVE_WITHIN, "fault of the ratio", async || {
            let canary = ratio_of(&caller).await;
            let shown = format!("{garbage:?} is no ratio");
            let fault = canary["fault"].as_str().unwrap_or_default();
            fault.starts_with(&shown).then_some(canary)
        })
        .await;
        assert_eq!(canary["ratio"], 10_000);
        served(&caller, "new").await;
    }
    let told = caller.sidecar.log();
    assert_eq!(told.matches("a canary ratio cannot be read").count(), 4);
    // The last ratio outlives Consul, and one that has forgotten it for a while.
    stand.consul.kill9();
    served(&caller, "new").await;
    stand.consul.restart_empty().await;
    served(&caller, "new").await;
    stand.consul.wait_passing(FRAUD, 2, BACK_WITHIN).await;
    served(&caller, "new").await;
    // A watch that failed asks again after a pause, of 5 s at most; from then on it is live again.
    stand.set_ratio("0").await;
    live(&caller, 0, WITHIN).await;
    served(&caller, "stable").await;
    stand.set_ratio("10000").await;
    live(&caller, 10_000, LIVE_WITHIN).await;
    served(&caller, "new").await;
    // A start without Consul knows its instances from before and no ratio: nothing is tried.
    stand.consul.kill9();
    caller.sidecar.start_again();
    let admin = caller.sidecar.admin_url();
    wait_until(WITHIN, "admin listener", async || {
        succeeds(&client(), &format!("{admin}/live")).await
    })
    .await;
    served(&caller, "stable").await;
}

#[tokio::test]
async fn writes_elsewhere_do_not_keep_the_watch_of_an_empty_prefix_busy() {
    const WRITES: u32 = 200;
    let stand = Stand::start().await;
    let caller = stand.caller("shop").await;
    assert!(
        stand
            .consul
            .get("/v1/kv/hermes/canary?keys")
            .await
            .is_none()
    );
    let watch = [("operation", "watch")];
    let asked = async || caller.sidecar.metric("consul_requests_total", &watch).await;
    let (before, begun) = (asked().await, Instant::now());
    for write in 0..WRITES {
        stand
            .consul
            .put("/v1/kv/hermes/elsewhere", write.to_string())
            .await;
    }
    // What was asked last is answered by now, and counted.
    live_at_all(&caller, &stand).await;
    let (asked, took) = (asked().await - before, begun.elapsed().as_secs_f64());
    // Two watches, of the instances and of the ratios: three questions at once, then two a second.
    let most = 2.0 * (3.0 + 2.0 * took) + 1.0;
    assert!(
        asked <= most && most < f64::from(WRITES) / 2.0,
        "{asked} in {took} s"
    );
}

/// Waits until the ratios' watch has come round.
async fn live_at_all(caller: &Caller, stand: &Stand) {
    stand.set_ratio("1").await;
    live(caller, 1, WITHIN).await;
}

#[tokio::test]
async fn canaries_serve_who_is_picked_or_asks_and_nobody_else() {
    let mut stand = Stand::start().await;
    let caller = stand.caller("shop").await;
    // Not picked: never, whatever the task.
    assert!(picked(&caller, 0..100).await.is_empty());
    for spelling in ["canary", "tag-canary"] {
        let context = json!({"required_tags": [spelling]});
        assert_eq!(caller.line.who(FRAUD, context).await, "new");
    }
    stand.set_ratio("10000").await;
    live(&caller, 10_000, LIVE_WITHIN).await;
    assert_eq!(picked(&caller, 0..20).await.len(), 20);
    let asked = [("cohort", "canary")];
    let counted = caller
        .sidecar
        .metric("route_selections_total", &asked)
        .await;
    assert_eq!(counted, 22.0);
    // None there: who is picked is served by the others, who asks is not.
    stand.canary.sidecar.terminate().await;
    caller.knows(FRAUD, 1).await;
    assert!(picked(&caller, 0..20).await.is_empty());
    let reply = caller
        .line
        .call(FRAUD, json!({"required_tags": ["canary"]}))
        .await;
    reply.problem(503, "no-instance");
    let told = caller.explain(FRAUD, "t", "").await.json();
    assert_eq!(
        (&told["canary"]["cohort"], &told["instance"]),
        (&json!("canary"), &json!("fraud-detection-v1.0-stable"))
    );
}

#[tokio::test]
async fn a_canary_that_is_gone_fails_no_task_while_others_serve() {
    let mut stand = Stand::start().await;
    stand.set_ratio("10000").await;
    let caller = stand.caller("shop").await;
    live(&caller, 10_000, BACK_WITHIN).await;
    // Consul lists it for as long as its check lasts.
    stand.canary.sidecar.kill9();
    let reply = caller.line.call(FRAUD, json!({"task_id": "t"})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("hermes-attempt"), "2", "{reply:?}");
    assert_eq!(stand.stable.application.calls(RISK), 1);
}

#[tokio::test]
async fn a_key_of_the_application_pins_a_task_without_an_id() {
    let stand = Stand::start().await;
    stand.set_ratio("5000").await;
    let caller = stand.caller("shop").await;
    let url = format!("{}/hermes/invoke", caller.sidecar.outbound_url());
    let body = json!({"agent": FRAUD, "input": fraud_input()});
    let by_key = async |key: &str| {
        let request = client().post(&url).json(&body);
        let reply = Reply::to(request.header("idempotency-key", key)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.header("x-who").to_owned()
    };
    for number in 0..20 {
        let key = format!("order-{number}");
        let who = by_key(&key).await;
        // A key and a task of the same text go the same way.
        assert_eq!(
            who,
            caller.line.who(FRAUD, json!({"task_id": key})).await,
            "{key}"
        );
        assert_eq!(who, by_key(&format!("\"{key}\"")).await, "{key}");
    }
}

#[tokio::test]
async fn a_minor_with_canaries_alone_is_for_picked_tasks() {
    const HIGHER: &str = "fraud-detection-v1.1";
    let consul = Consul::start().await;
    let (_stable, _canary) = tokio::join!(
        Member::start(&consul, "stable", fraud(FRAUD, "1.0.0"), |setup| setup),
        Member::start(&consul, "new", fraud(HIGHER, "1.1.0"), |setup| {
            setup.set("application.tags", vec!["tag-canary"])
        }),
    );
    let caller = Caller::start(&consul, "shop", |setup| setup).await;
    let range = "fraud-detection@^1";
    let split = async || {
        let mut split = (0, 0);
        for task in 0..40 {
            let task = format!("t-{task}");
            match caller
                .line
                .who(range, json!({"task_id": task}))
                .await
                .as_str()
            {
                "stable" => split.0 += 1,
                _ => split.1 += 1,
            }
        }
        split
    };
    caller.knows(FRAUD, 1).await;
    caller.knows(HIGHER, 1).await;
    wait_until(WITHIN, "index of both minors", async || {
        let told = caller.explain(range, "t", "").await.json();
        told["excluded"][0]["agent"] == HIGHER
    })
    .await;
    assert_eq!(split().await, (40, 0));
    // The ratio of the lower minor says nothing of the higher one.
    consul.put(RATIO, "10000").await;
    live(&caller, 10_000, LIVE_WITHIN).await;
    assert_eq!(split().await, (40, 0));
    consul
        .put(&format!("/v1/kv/hermes/canary/{HIGHER}"), "5000")
        .await;
    wait_until(LIVE_WITHIN, "ratio of the higher minor", async || {
        caller.explain(HIGHER, "t", "").await.json()["canary"]["ratio"] == 5_000
    })
    .await;
    let (stable, new) = split().await;
    assert!(stable > 5 && new > 5, "{stable} and {new}");
    let context = json!({"required_tags": ["canary"]});
    assert_eq!(caller.line.who(range, context).await, "new");
}
