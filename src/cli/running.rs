//! Processes of ours that run already, as their own listeners tell.

use std::time::Duration;

use serde_json::Value;

use crate::config::Settings;
use crate::identity::tls;
use crate::socket::Address;

use super::client;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Shown by a collector to anybody.
const COLLECTORS_FAMILY: &str = "hermes_collector_reports_total";

/// What runs with the settings in question.
pub(super) struct Running {
    /// The settings of the sidecar at our admin address, if it serves our application.
    sidecar: Option<Value>,
    collector: bool,
}

impl Running {
    /// Asks at the addresses of the settings.
    pub async fn ask(settings: &Settings) -> Self {
        let told = get(&settings.admin.listen.to_url(), "/config", None).await;
        let told = told.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let config = told.map(|mut told| told["config"].take());
        let name = settings.application.name.as_str();
        let tls = settings.tls.clone();
        let collector = settings.collector.listen.to_url();
        let collector = match tls {
            Some(_) => collector.replacen("http://", "https://", 1),
            None => collector,
        };
        let metrics = get(&collector, "/metrics", tls).await;
        let metrics = metrics.unwrap_or_default();
        Self {
            sidecar: config.filter(|config| config["application"]["name"] == name),
            collector: String::from_utf8_lossy(&metrics).contains(COLLECTORS_FAMILY),
        }
    }

    /// Names the process of ours that has a listener's address.
    pub fn owner(&self, listener: &str, address: &Address) -> Option<&'static str> {
        let key = match listener {
            "collector" => return self.collector.then_some("collector"),
            "public admin" => "/admin/public_listen",
            "admin" => "/admin/listen",
            "outbound" => "/outbound/listen",
            _ => "/inbound/listen",
        };
        let told = self.sidecar.as_ref()?.pointer(key)?.as_str()?;
        (told == address.to_string()).then_some("sidecar")
    }
}

async fn get(base: &str, path: &str, tls: Option<tls::Config>) -> Option<Vec<u8>> {
    let request = client::collector(base, TIMEOUT, tls).ok()?;
    let request = request.get(client::url(base, path));
    // Whoever does not answer as we would is not one of ours.
    let answer = client::send("a process of ours", base, request)
        .await
        .ok()?;
    answer.status.is_success().then_some(answer.body)
}
