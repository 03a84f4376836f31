//! Reports of made-up tasks, as several reporters would tell them.

use serde_json::{Value, json};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The instant from which all tales count: a full hour about half a day ahead, so that no watchdog
/// finds anything overdue, and no collector holds it for the word of a broken clock.
static BEGINNING: LazyLock<SystemTime> = LazyLock::new(|| {
    const HOUR: u64 = 3600;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    UNIX_EPOCH + Duration::from_secs((now.as_secs() / HOUR + 12) * HOUR)
});

/// Writes an instant as reports do.
pub fn time(millis: u64) -> String {
    let time = *BEGINNING + Duration::from_millis(millis);
    humantime::format_rfc3339_millis(time).to_string()
}

/// Makes one report that ends in the last of `states`.
pub fn report(
    task: &str,
    call: &str,
    attempt: u32,
    reporter: &str,
    states: &[(&str, u64)],
) -> Value {
    let (first, last) = (states[0], states[states.len() - 1]);
    let seen: Vec<Value> = states
        .iter()
        .map(|(state, at)| json!({"state": state, "at": time(*at)}))
        .collect();
    json!({
        "call_id": format!("{task}:{call}"), "task_id": task, "step_id": call,
        "attempt": attempt, "state": last.0, "states": seen, "reporter": reporter,
        "agent": format!("agent-{call}-v1.0"), "agent_version": "1.0.0",
        "instance": format!("{reporter}-1"), "application": format!("{reporter}-app"),
        "deadline_at": time(first.1 + 500), "duration_ms": last.1 - first.1,
        "input_digest": "sha-256:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:",
        "sla_level": "P1",
    })
}

/// Tells some task: up to four calls, some retried, some open, some contradicted, some told by the
/// application alone, some with a body that the two sides saw differently.
pub fn any(random: &mut fastrand::Rng, task: &str) -> Vec<Value> {
    const ENDS: [&str; 5] = [
        "completed",
        "timeout",
        "failed_execution",
        "failed_validation",
        "",
    ];
    let mut told = Vec::new();
    let calls = random.usize(1..5);
    for call in 0..calls {
        let name = format!("step-{call}");
        if random.u8(0..6) == 0 {
            let at = random.u64(0..9_000);
            let end = *random.choice(&["completed", "executing"]).unwrap();
            told.push(report(
                task,
                &name,
                1,
                "application",
                &[("executing", at), (end, at + 9)][usize::from(end == "executing")..],
            ));
            continue;
        }
        let is_root = call == 0 || random.bool();
        for attempt in 1..=random.u32(1..4) {
            let at = 1_000 * (call as u64 + 10 * u64::from(attempt)) + random.u64(0..500);
            for reporter in ["caller", "callee"] {
                if random.u8(0..8) == 0 {
                    continue;
                }
                let mut states = vec![("pending", at), ("dispatched", at + 2)];
                let mut stages = vec![states.clone()];
                let end = *random.choice(&ENDS).unwrap();
                if !end.is_empty() {
                    states.push((end, at + 3 + random.u64(0..700)));
                    stages.push(states);
                }
                if !end.is_empty() && random.u8(0..5) == 0 {
                    // Another end by the same reporter.
                    let other = if end == "completed" {
                        "timeout"
                    } else {
                        "completed"
                    };
                    stages.push(vec![("pending", at), (other, at + 900)]);
                }
                for stage in stages {
                    let mut one = report(task, &name, attempt, reporter, &stage);
                    if !is_root {
                        one["parent_step"] = "step-0".into();
                    }
                    if reporter == "callee" && random.u8(0..6) == 0 {
                        one["input_digest"] = "sha-256:other".into();
                    }
                    if random.u8(0..9) == 0 {
                        one["degraded"] = true.into();
                    }
                    told.push(one);
                }
            }
        }
    }
    told
}
