//! Several instances of one contract that fail as they are told to, and a caller that knows them.

use super::application::{Answer, Application, Received};
use super::collector::Collector;
use super::consul::Consul;
use super::fleet::{Caller, Member};
use super::pair::RISK;
use super::reply::Reply;
use super::sidecar::Setup;
use super::wait::wait_for;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// All of it running and known to the caller; ends with its value.
pub struct Crew {
    pub caller: Caller,
    pub members: Vec<Member>,
    pub collector: Collector,
    pub consul: Consul,
    pub agent: String,
}

impl Crew {
    /// Starts an instance of `contract` for each name.
    pub async fn start(contract: Value, names: &[&'static str]) -> Self {
        Self::start_with(contract, names, |caller| caller).await
    }

    /// Starts it with more set at the caller.
    pub async fn start_with(
        contract: Value,
        names: &[&'static str],
        more: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let agent = contract["id"].as_str().unwrap().to_owned();
        let url = collector.url();
        // Who fails as told stays in the choice, and a few calls are not held to a budget.
        let caller = Caller::start(&consul, "shop", |setup| {
            let setup = setup
                .set("ejection.consecutive", 1_000)
                .set("ejection.success_rate", 0.0)
                .set("retry.budget_percent", 100)
                .set("retry.budget_min_per_second", 1_000)
                .collector(&url);
            more(setup)
        });
        let caller = caller.await;
        let mut crew = Self {
            caller,
            members: Vec::new(),
            collector,
            consul,
            agent,
        };
        for name in names {
            crew.join(contract.clone(), name).await;
        }
        if !names.is_empty() {
            crew.caller.knows(&crew.agent, names.len()).await;
        }
        crew
    }

    /// Adds an instance of a contract.
    pub async fn join(&mut self, contract: Value, name: &'static str) {
        let url = self.collector.url();
        let member = Member::start(&self.consul, name, contract, |setup| setup.collector(&url));
        let member = member.await;
        self.members.push(member);
    }

    pub fn member(&mut self, name: &str) -> &mut Member {
        let mut members = self.members.iter_mut();
        members.find(|member| member.name == name).unwrap()
    }

    /// Answers the calls of all instances by their number, from 0.
    pub fn answer(&self, script: impl Fn(usize) -> Answer + Send + Sync + Clone + 'static) {
        let number = Arc::new(AtomicUsize::new(0));
        for member in &self.members {
            let (number, script) = (number.clone(), script.clone());
            member
                .application
                .script(RISK, move |_| script(number.fetch_add(1, Ordering::SeqCst)));
        }
    }

    /// Returns what the applications received for a task, each with the instance's name.
    pub fn received(&self, task: &str) -> Vec<(&'static str, Received)> {
        let of = |member: &Member| {
            let name = member.name;
            let received = member.application.received(RISK).into_iter();
            received.map(move |request| (name, request))
        };
        let all = self.members.iter().flat_map(of);
        all.filter(|(_, request)| request.headers["hermes-task-id"] == *task)
            .collect()
    }

    /// Makes a call for a task.
    pub async fn call(&self, task: &str) -> Reply {
        let context = json!({"task_id": task});
        self.caller.line.call(&self.agent, context).await
    }

    /// Returns a task of this prefix whose first choice is that instance.
    pub async fn task_for(&self, name: &str, prefix: &str) -> String {
        let wanted = format!("{}-{name}", self.agent);
        for number in 0..200 {
            let task = format!("{prefix}-{number}");
            let told = self.caller.explain(&self.agent, &task, "").await.json();
            if told["instance"] == wanted.as_str() {
                return task;
            }
        }
        panic!("no task prefers {wanted}");
    }

    /// Returns the attempts of a task's one step, once the collector knows so many, all ended.
    pub async fn attempts(&self, task: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} attempts of {task}");
        wait_for(TOLD_WITHIN, &what, async || {
            let shown = self.collector.task(task).await?;
            let attempts = shown["steps"][0]["attempts"].as_array()?.clone();
            let ends = [
                "completed",
                "failed_execution",
                "failed_validation",
                "timeout",
            ];
            let ended = |one: &Value| ends.contains(&one["state"].as_str().unwrap());
            (attempts.len() == count && attempts.iter().all(ended)).then_some(attempts)
        })
        .await
    }
}

/// An application that stands in Consul as an instance of a contract, in place of a sidecar.
pub async fn stand_in(consul: &Consul, agent: &str, name: &str, application: &Application) {
    let real = consul.passing(agent).await;
    let real = &real[0]["Service"];
    let address = application.url();
    let (host, port) = address["http://".len()..].split_once(':').unwrap();
    let registration = json!({
        "ID": format!("{agent}-{name}"), "Name": agent, "Address": host,
        "Port": port.parse::<u16>().unwrap(), "Tags": ["hermes", "stand-in"],
        "Meta": real["Meta"], "Weights": {"Passing": 100, "Warning": 1},
    });
    let path = "/v1/agent/service/register";
    consul.put(path, registration.to_string()).await;
}
