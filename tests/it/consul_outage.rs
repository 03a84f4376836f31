//! Consul is away: calls go on, and what it has forgotten comes back by itself.

use crate::support::contract;
use crate::support::load::Load;
use crate::support::road::{AGENT, Road};
use crate::support::wait::wait_until;
use std::time::Duration;
use tokio::time::Instant;

/// A registration that Consul has lost is back by then.
const BACK_WITHIN: Duration = Duration::from_secs(15);

#[tokio::test]
async fn no_call_fails_while_consul_is_killed_and_comes_back_empty() {
    consul_killed_under_load(50, 100, 1).await;
}

/// Kills Consul `times` times under `rate` calls a second and restarts it empty, with `calls`
/// calls before, without and after it.
pub async fn consul_killed_under_load(rate: u32, calls: usize, times: usize) {
    let mut road = Road::start().await;
    let input = contract::fraud_input();
    let load = Load::start(rate, &[road.caller.outbound_url()], AGENT, &input);
    for _ in 0..times {
        load.more(calls).await;
        road.consul.kill9();
        load.more(calls).await;
        let restarted = Instant::now();
        road.consul.restart_empty().await;
        road.consul.wait_passing(AGENT, 1, BACK_WITHIN).await;
        let body = format!("/v1/kv/hermes/contracts/{AGENT}/1.0.0?raw");
        let version = format!("/v1/kv/hermes/contracts/{AGENT}/version");
        let index = format!("/v1/kv/hermes/index/{AGENT}");
        for key in [&body, &version, &index] {
            let left = BACK_WITHIN.saturating_sub(restarted.elapsed());
            wait_until(left, key, async || road.consul.get(key).await.is_some()).await;
        }
        eprintln!("Consul knows all again after {:?}", restarted.elapsed());
        load.more(calls).await;
    }
    let record = load.stop().await;
    assert_eq!(record.failed().len(), 0, "{:#?}", record.failed());
    eprintln!("{} calls, none failed", record.0.len());
}
