//! Everything is restarted, one after the other, under load, and nobody outside notices.

use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::fleet::{Caller, Member, fraud};
use crate::support::load::{Load, Record};
use crate::support::pair::FRAUD;
use crate::support::sidecar::Setup;
use crate::support::wait::{wait_for, wait_until};
use serde_json::Value;
use std::time::Duration;
use toml::Value as Setting;

const WITHIN: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["fraud-1", "fraud-2"];
const CALLERS: [&str; 2] = ["payment", "shop"];

/// Two of each, but for Consul. In the order in which they end.
pub struct House {
    callers: Vec<Caller>,
    members: Vec<Member>,
    collectors: Vec<Collector>,
    consul: Consul,
}

/// Restarts sidecars, applications and collectors under `rate` calls a second: two collectors where
/// they share the database at this URL, else one with its own.
pub async fn restarted_under_load(rate: u32, shared: Option<&str>) {
    let mut house = House::start(shared).await;
    let load = Load::start(rate, &house.urls(), FRAUD, &contract::fraud_input());
    load.more(rate as usize).await;
    for number in 0..NAMES.len() {
        house.restart_callee(number).await;
        load.more(rate as usize).await;
    }
    for member in &mut house.members {
        member.application.restart().await;
        load.more(rate as usize * 2).await;
    }
    for number in 0..CALLERS.len() {
        house.restart_caller(number, &load).await;
        load.more(rate as usize).await;
    }
    for collector in &mut house.collectors {
        let exit = collector.terminate().await;
        assert!(exit.success(), "{exit:?}:\n{}", collector.log());
        load.more(rate as usize).await;
        collector.start_again().await;
        load.more(rate as usize).await;
    }
    let record = load.stop().await;
    let failed = record.failed();
    let (calls, failures) = (record.0.len(), failed.len());
    assert!(failed.is_empty(), "{failures} of {calls}: {failed:#?}");
    for collector in &house.collectors {
        knows_each_once(collector, &record).await;
    }
    eprintln!("all restarted once under load: {calls} calls, none failed, lost or doubled");
}

impl House {
    async fn start(shared: Option<&str>) -> Self {
        let consul = Consul::start().await;
        let mut settings = vec![("consul.address", Setting::from(consul.address()))];
        settings.extend(shared.map(|url| ("collector.store", url.into())));
        let mut collectors = vec![Collector::start_with(&settings).await];
        if shared.is_some() {
            collectors.push(Collector::start_with(&settings).await);
        }
        let registered = collectors.len();
        consul
            .wait_passing("hermes-collector", registered, WITHIN)
            .await;
        let around = |setup: Setup| {
            let setup = setup.collector("consul:hermes-collector");
            setup.set("spool.retry", "200ms")
        };
        // What was begun when its application or sidecar went may be done again elsewhere.
        let mut body = fraud(FRAUD, "1.0.0");
        body["idempotent"] = true.into();
        let (mut members, mut callers) = (Vec::new(), Vec::new());
        for name in NAMES {
            members.push(Member::start(&consul, name, body.clone(), around).await);
        }
        for name in CALLERS {
            let caller = Caller::start(&consul, name, around).await;
            caller.knows(FRAUD, NAMES.len()).await;
            callers.push(caller);
        }
        Self {
            callers,
            members,
            collectors,
            consul,
        }
    }

    fn urls(&self) -> Vec<String> {
        let sidecars = self.callers.iter().map(|caller| &caller.sidecar);
        sidecars.map(|sidecar| sidecar.outbound_url()).collect()
    }

    async fn restart_callee(&mut self, number: usize) {
        let sidecar = &mut self.members[number].sidecar;
        let exit = sidecar.terminate().await;
        assert!(exit.success(), "{exit:?}:\n{}", sidecar.log());
        sidecar.start_again();
        sidecar.ready(WITHIN).await;
        self.consul.wait_passing(FRAUD, NAMES.len(), WITHIN).await;
        for caller in &self.callers {
            caller.knows(FRAUD, NAMES.len()).await;
        }
    }

    /// Restarts a caller's sidecar; its application's users are served by the other one meanwhile.
    async fn restart_caller(&mut self, number: usize, load: &Load) {
        let urls = self.urls();
        load.turn_to(&[urls[1 - number].clone()]).await;
        let caller = &mut self.callers[number];
        let exit = caller.sidecar.terminate().await;
        assert!(exit.success(), "{exit:?}:\n{}", caller.sidecar.log());
        caller.sidecar.start_again();
        caller.sidecar.ready(WITHIN).await;
        caller.knows(FRAUD, NAMES.len()).await;
        load.turn_to(&urls).await;
    }
}

/// Waits until a collector knows every call of the record as completed, and holds that it knows
/// each once, by one step, and nothing else.
async fn knows_each_once(collector: &Collector, record: &Record) {
    let mut expected = record.tasks();
    expected.sort();
    let known = wait_for(WITHIN, "every task, completed", async || {
        let known = collector.tasks(&expected).await;
        let mut tasks = known.values();
        let all = known.len() == expected.len() && tasks.all(|task| task["state"] == "completed");
        all.then_some(known)
    })
    .await;
    for (id, task) in &known {
        let steps = task["steps"].as_array().unwrap().len();
        assert_eq!(steps, 1, "{id}: {task:#}");
    }
    let mut listed = Vec::new();
    wait_until(WITHIN, "whole list", async || {
        listed = list(collector).await;
        listed.len() >= expected.len()
    })
    .await;
    listed.sort();
    assert_eq!(listed, expected);
}

/// Returns the ids of all tasks that a collector lists, page by page.
async fn list(collector: &Collector) -> Vec<String> {
    let (client, mut ids, mut after) = (client(), Vec::new(), None::<String>);
    loop {
        let mut url = format!("{}/tasks?limit=500", collector.url());
        if let Some(after) = after {
            url.push_str(&format!("&after={after}"));
        }
        let reply = client.get(url).send().await.unwrap();
        let page: Value = reply.error_for_status().unwrap().json().await.unwrap();
        let tasks = page["tasks"].as_array().unwrap();
        ids.extend(
            tasks
                .iter()
                .map(|task| task["task_id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return ids,
        }
    }
}
