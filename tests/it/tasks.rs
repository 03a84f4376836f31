//! One look at a task says where it is and what became of it: on the command line, at the
//! collector, and where nobody is left to tell.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::command::{Ran, hermes};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::link::Link;
use crate::support::metric::Metrics;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use serde_json::json;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

async fn asked(collector: &Collector, args: &[&str]) -> Ran {
    let url = collector.url();
    let all = args.iter().copied().chain(["--collector", url.as_str()]);
    hermes(&all.collect::<Vec<_>>()).await
}

#[tokio::test]
async fn tasks_are_listed_followed_and_compared() {
    let pair = Pair::start().await;
    assert_eq!(pair.invoke("order-1").await.status, 200);
    let other = json!({"risk_score": 99, "risk_level": "high"});
    pair.application.answer(RISK, Answer::json(&other));
    assert_eq!(pair.invoke("order-2").await.status, 200);
    pair.application.answer(RISK, Answer::Hang);
    assert_eq!(pair.invoke("order-3").await.status, 504);
    for (task, state) in [
        ("order-1", "completed"),
        ("order-2", "completed"),
        ("order-3", "timeout"),
    ] {
        pair.collector.wait_task(task, state, WITHIN).await;
    }

    let all = asked(&pair.collector, &["tasks", "-o", "json"]).await;
    assert_eq!(all.code, Some(0), "{all:?}");
    assert_eq!(all.json()["tasks"].as_array().unwrap().len(), 3, "{all:?}");
    let slow = [
        "tasks", "--state", "timeout", "--min-ms", "400", "--since", "1h",
    ];
    let slow = asked(&pair.collector, &slow).await;
    let lines: Vec<&str> = slow.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{slow:?}");
    for part in ["order-3", "timeout", FRAUD, "shop", "P2"] {
        assert!(lines[1].contains(part), "{part}: {slow:?}");
    }
    let page = asked(&pair.collector, &["tasks", "--limit", "1"]).await;
    assert_eq!(page.stdout.lines().count(), 2, "{page:?}");
    let cursor = page.stderr.trim().strip_prefix("older ones: --after ");
    let rest = asked(&pair.collector, &["tasks", "--after", cursor.unwrap()]).await;
    assert_eq!(rest.stdout.lines().count(), 3, "{rest:?}");
    let bad = asked(&pair.collector, &["tasks", "--limit", "0"]).await;
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(bad.stderr.contains("limit: 1 to 1000"), "{bad:?}");

    let done = asked(&pair.collector, &["task", "order-1", "--follow"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.stdout.contains('\u{1b}'), "{done:?}");
    let last = done.stdout.lines().last().unwrap();
    assert!(
        last.starts_with("task order-1  completed  completed in "),
        "{last}"
    );
    assert!(done.stdout.contains("executing (callee)"), "{done:?}");
    let hung = asked(&pair.collector, &["task", "order-3", "--follow"]).await;
    assert_eq!(hung.code, Some(1), "{hung:?}");
    assert!(
        hung.stdout.contains("its application did not answer"),
        "{hung:?}"
    );
    let nobody = ["task", "nobody", "--follow", "--timeout", "500ms"];
    let nobody = asked(&pair.collector, &nobody).await;
    assert_eq!(nobody.code, Some(4), "{nobody:?}");
    for bad in [
        &["task", ""][..],
        &["task", "a b"],
        &["task", "order-1", "--compare", "a b"],
        &["task", "order-1", "--compare", "order-2", "--timeout", "1s"],
    ] {
        let bad = asked(&pair.collector, bad).await;
        assert_eq!(bad.code, Some(2), "{bad:?}");
    }

    let same = asked(
        &pair.collector,
        &["task", "order-1", "--compare", "order-1"],
    )
    .await;
    assert_eq!(same.code, Some(0), "{same:?}");
    let apart = asked(
        &pair.collector,
        &["task", "order-1", "--compare", "order-2"],
    )
    .await;
    assert_eq!(apart.code, Some(1), "{apart:?}");
    let told = "the same input gave another output";
    assert!(
        apart.stdout.lines().next().unwrap().ends_with(told),
        "{apart:?}"
    );
    let whole = ["task", "order-1", "--compare", "order-2", "-o", "json"];
    let whole = asked(&pair.collector, &whole).await.json();
    assert_eq!(whole["first_difference"], 0, "{whole}");
    assert_eq!(
        (&whole["steps"][0]["input"], &whole["steps"][0]["output"]),
        (&json!("equal"), &json!("different"))
    );
    let missing = asked(
        &pair.collector,
        &["task", "order-1", "--compare", "order-9"],
    )
    .await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("task order-9"), "{missing:?}");
}

#[tokio::test]
async fn a_task_is_followed_while_it_runs() {
    let pair = Pair::start().await;
    let answer = Answer::json(&fraud_output()).delayed(Duration::from_millis(400));
    pair.application.answer(RISK, answer);
    let following = asked(&pair.collector, &["task", "running", "--follow"]);
    let calling = async {
        let reply = pair.invoke("running").await;
        assert_eq!(reply.status, 200);
    };
    let (followed, ()) = tokio::join!(following, calling);
    assert_eq!(followed.code, Some(0), "{followed:?}");
    let places: Vec<usize> = [": pending (", ": executing (", ": completed ("]
        .into_iter()
        .map(|state| {
            let found: Vec<_> = followed.stdout.match_indices(state).collect();
            assert_eq!(found.len(), 1, "{state}: {followed:?}");
            found[0].0
        })
        .collect();
    assert!(places.is_sorted(), "{followed:?}");
}

#[tokio::test]
async fn a_call_is_traced_step_by_step() {
    let pair = Pair::start().await;
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.json");
    std::fs::write(&input, fraud_input().to_string()).unwrap();
    let (outbound, admin) = (pair.caller.outbound_url(), pair.caller.admin_url());
    let input = input.to_str().unwrap();
    let trace = async |input: &[&str]| {
        let mut args = vec![
            "invoke",
            FRAUD,
            "--task-id",
            "traced",
            "--sla",
            "P1",
            "--trace",
        ];
        args.extend(["--outbound", &outbound, "--admin", &admin]);
        args.extend_from_slice(input);
        hermes(&args).await
    };
    let first = trace(&["--input", input]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    assert_eq!(first.stdout, fraud_output().to_string());
    let address = pair.callee.inbound_url().replace("http://", "");
    for part in [
        "contract  fraud-detection-v1.0@1.0.0, not in use here before this call\n",
        "instance  fraud-detection-v1.0-",
        &format!("({address}, 1 fit), chosen in "),
        "context   task traced  step ",
        "sla P1",
        "callee    answered in ",
        "report    completed; its record was waited for ",
        "output    checked again here and held good, sha-256=:",
    ] {
        assert!(first.stderr.contains(part), "{part}: {}", first.stderr);
    }
    let again = trace(&["--input", input]).await;
    let cached = "contract  fraud-detection-v1.0@1.0.0, from the cache: 1.0.0 sha-256:";
    assert!(again.stderr.contains(cached), "{}", again.stderr);
    let refused = trace(&[]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in [
        "refused here in ",
        "callee    not asked\n",
        "problem   input-invalid: ",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert_eq!(pair.application.calls(RISK), 2);
}

#[tokio::test]
async fn an_attempt_whose_sidecars_died_is_marked_until_they_tell_its_end() {
    let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
    let application = Application::start().await;
    let answer = Answer::json(&fraud_output()).delayed(Duration::from_millis(1_500));
    application.answer(RISK, answer);
    let link = Link::to(&collector.url().replace("http://", "")).await;
    let told = format!("http://{}", link.address());
    let mut contract = fraud_detection();
    contract["constraints"]["timeout_ms"] = json!(4_000);
    let callee = Sidecar::named("fraud")
        .consul(&consul.address())
        .collector(&told)
        .application(&application.url())
        .contract(contract, "POST", RISK);
    let caller = Sidecar::named("shop")
        .consul(&consul.address())
        .collector(&told);
    let (mut callee, mut caller) = tokio::join!(callee.start(), caller.start());

    let url = format!("{}/hermes/invoke", caller.outbound_url());
    let body = wrapped(FRAUD, &fraud_input(), json!({"task_id": "orphan"}));
    let request = client()
        .post(url)
        .header("content-type", "application/json");
    let calling = Reply::to(request.body(body));
    let watching = async {
        collector.wait_task("orphan", "executing", WITHIN).await;
        // From here on the collector hears of nobody.
        link.cut();
    };
    let (reply, ()) = tokio::join!(calling, watching);
    assert_eq!(reply.status, 200, "{reply:?}");
    caller.kill9();
    callee.kill9();

    let accepted = async || {
        let metrics = Metrics::of(&collector.url()).await;
        metrics.sum("hermes_collector_reports_total", &[("result", "accepted")])
    };
    let before = accepted().await;
    let marked = collector.wait_task("orphan", "timeout", WITHIN).await;
    let verdict = marked["verdict"].as_str().unwrap();
    assert!(verdict.contains("nobody has reported its end"), "{verdict}");
    assert!(verdict.contains(FRAUD), "{verdict}");
    let states = &marked["steps"][0]["attempts"][0]["states"];
    let last = states.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["state"], &last["reporter"]),
        (&json!("timeout"), &json!("watchdog"))
    );
    let metrics = Metrics::of(&collector.url()).await;
    assert_eq!(metrics.sum("hermes_collector_tasks_stalled", &[]), 1.0);
    assert_eq!(accepted().await, before, "a mark is no report");

    link.restore();
    callee.start_again();
    caller.start_again();
    let real = collector.wait_task("orphan", "completed", WITHIN).await;
    assert!(!real.to_string().contains("watchdog"), "{real}");
    wait_until(WITHIN, "nothing stalled", async || {
        let metrics = Metrics::of(&collector.url()).await;
        metrics.sum("hermes_collector_tasks_stalled", &[]) == 0.0
    })
    .await;
}

#[tokio::test]
async fn what_runs_here_is_shown_with_the_time_it_has_left() {
    let pair = Pair::start().await;
    let answer = Answer::json(&fraud_output()).delayed(Duration::from_millis(400));
    pair.application.answer(RISK, answer);
    let url = format!("{}/tasks/active", pair.callee.admin_url());
    let watching = wait_for(WITHIN, "an active step", async || {
        let active = Reply::to(client().get(&url)).await.json();
        active.as_array().unwrap().first().cloned()
    });
    let (reply, active) = tokio::join!(pair.invoke("active"), watching);
    assert_eq!(reply.status, 200);
    assert_eq!(active["task_id"], "active");
    assert_eq!(active["agent"], FRAUD);
    let left = active["left_ms"].as_u64().unwrap();
    assert!((1..=500).contains(&left), "{active}");
}
