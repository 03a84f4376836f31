//! Several instances of one contract, each with an application that says which instance it is.

use super::application::{Answer, Application};
use super::client::client;
use super::consul::Consul;
use super::contract;
use super::pair::RISK;
use super::reply::Reply;
use super::sidecar::{Setup, Sidecar};
use super::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;

/// The header by which an instance says who it is.
const WHO: &str = "x-who";

/// For a view that follows Consul: a poll answers in milliseconds, a loaded machine takes longer.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// One instance; ends with its value.
pub struct Member {
    pub name: &'static str,
    pub sidecar: Sidecar,
    pub application: Application,
}

/// Writes the fraud contract for this id and version, with time enough for a loaded machine.
pub fn fraud(id: &str, version: &str) -> Value {
    let mut body = contract::fraud_detection();
    body["id"] = id.into();
    body["version"] = version.into();
    body["constraints"] = json!({"timeout_ms": 10_000, "max_concurrent": 100});
    body
}

impl Member {
    /// Starts an instance of `body` and waits until it passes in Consul.
    pub async fn start(
        consul: &Consul,
        name: &'static str,
        body: Value,
        more: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let application = Application::start().await;
        let answer = Answer::json(&contract::fraud_output()).with(WHO, name);
        application.answer(RISK, answer);
        let setup = Sidecar::named("fraud")
            .consul(&consul.address())
            .application(&application.url())
            .set("application.instance", name)
            .contract(body, "POST", RISK);
        let sidecar = more(setup).start().await;
        Self {
            name,
            sidecar,
            application,
        }
    }
}

/// An application's sidecar through which the instances are called.
pub struct Caller {
    pub sidecar: Sidecar,
    pub line: Line,
}

/// The way to a caller's outbound listener.
#[derive(Clone)]
pub struct Line {
    client: reqwest::Client,
    url: String,
}

impl Line {
    /// Makes a call with this context.
    pub async fn call(&self, agent: &str, context: Value) -> Reply {
        let url = format!("{}/hermes/invoke", self.url);
        let body = json!({"agent": agent, "input": contract::fraud_input(), "context": context});
        Reply::to(self.client.post(url).json(&body)).await
    }

    /// Returns the instance that answers a call with this context, which must succeed.
    pub async fn who(&self, agent: &str, context: Value) -> String {
        let reply = self.call(agent, context).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.header(WHO).to_owned()
    }
}

impl Caller {
    /// Starts one.
    pub async fn start(consul: &Consul, name: &str, more: impl FnOnce(Setup) -> Setup) -> Self {
        let setup = Sidecar::named(name).consul(&consul.address());
        let sidecar = more(setup).start().await;
        let line = Line {
            client: client(),
            url: sidecar.outbound_url(),
        };
        Self { sidecar, line }
    }

    /// Asks where a task's calls go.
    pub async fn explain(&self, agent: &str, task: &str, more: &str) -> Reply {
        let admin = self.sidecar.admin_url();
        let url = format!("{admin}/explain?agent={agent}&task_id={task}{more}");
        Reply::to(client().get(url)).await
    }

    /// Asks who could serve.
    pub async fn discover(&self, question: &Value) -> Reply {
        let url = format!("{}/hermes/discover", self.sidecar.outbound_url());
        Reply::to(client().post(url).json(question)).await
    }

    /// Waits until it knows so many instances of a contract, fitting or not.
    pub async fn knows(&self, agent: &str, count: usize) {
        let what = format!("view of {count} instances of {agent}");
        wait_for(KNOWN_WITHIN, &what, async || {
            let told = self.explain(agent, "t", "").await.json();
            let fitting = told["ranking"].as_array()?.len();
            let excluded = told["excluded"].as_array()?.len();
            (fitting + excluded == count).then_some(())
        })
        .await;
    }
}
