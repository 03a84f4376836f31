//! Two sidecars, a collector and a Consul, all under one authority.

use crate::support::application::Application;
use crate::support::authority::{Authority, Leaf, Order, TlsFiles};
use crate::support::client::secure_client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::road;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(20);

/// All of it running and ready. In the order in which it ends.
pub struct House {
    pub caller: Sidecar,
    pub callee: Sidecar,
    pub application: Application,
    pub collector: Collector,
    pub consul: Consul,
    pub files: Files,
    pub ca: Authority,
    _directory: TempDir,
}

/// The certificates of each process.
pub struct Files {
    pub caller: TlsFiles,
    pub callee: TlsFiles,
    pub collector: TlsFiles,
}

impl House {
    pub async fn start() -> Self {
        Self::start_with(|callee| callee).await
    }

    /// Starts it with more set at the callee; the sidecars look the collector up.
    pub async fn start_with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let ca = Authority::new("root");
        let directory = TempDir::with_prefix("hermes-tls-").unwrap();
        let files = Files {
            caller: write(directory.path(), "payment", &ca),
            callee: write(directory.path(), "fraud", &ca),
            collector: write(directory.path(), "hermes-collector", &ca),
        };
        let (application, consul) = tokio::join!(road::application(), Consul::start());
        let settings = [("consul.address", consul.address().into())];
        let client = client_of(&ca, "payment");
        let collector = Collector::start_secured(&settings, &files.collector, client).await;
        consul.wait_passing("hermes-collector", 1, WITHIN).await;
        let joined = |setup: Setup, files: &TlsFiles| {
            setup
                .consul(&consul.address())
                .collector("consul:hermes-collector")
                .set("spool.retry", "200ms")
                .tls(files)
        };
        let callee = change(joined(road::callee(&application), &files.callee));
        let caller = joined(Sidecar::named("payment"), &files.caller);
        let (callee, caller) = tokio::join!(callee.start(), caller.start());
        road::wait_known(&caller, 1).await;
        Self {
            caller,
            callee,
            application,
            collector,
            consul,
            files,
            ca,
            _directory: directory,
        }
    }

    /// Returns every process's files.
    pub fn all_files(&self) -> [(&'static str, &TlsFiles); 3] {
        [
            ("payment", &self.files.caller),
            ("fraud", &self.files.callee),
            ("hermes-collector", &self.files.collector),
        ]
    }

    /// Returns what the sidecars have warned of, the callee's first.
    pub fn warnings(&self) -> String {
        let logs = [self.callee.log(), self.caller.log()];
        let lines = logs.iter().flat_map(|log| log.lines());
        let lines = lines.filter(|line| !line.contains(r#""level":"INFO""#));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until both sidecars have counted this many changes of their files.
    pub async fn taken(&self, certificate: &str, count: usize) {
        wait_until(WITHIN, "new certificates in use", async || {
            let labels = [("certificate", certificate), ("result", "taken")];
            let callee = self.callee.metric("tls_reloads_total", &labels).await;
            let caller = self.caller.metric("tls_reloads_total", &labels).await;
            callee.min(caller) >= count as f64
        })
        .await;
    }
}

/// Orders what a process of this name shows; the test's own clients know it by its address.
pub fn leaf(ca: &Authority, name: &str) -> Leaf {
    ca.issue(Order::spiffe(name).address(Ipv4Addr::LOCALHOST.into()))
}

/// Returns a client that shows a certificate for `name`.
pub fn client_of(ca: &Authority, name: &str) -> reqwest::Client {
    secure_client(ca, Some(&ca.spiffe(name))).build().unwrap()
}

fn write(directory: &Path, name: &str, ca: &Authority) -> TlsFiles {
    let folder = directory.join(name);
    std::fs::create_dir(&folder).unwrap();
    TlsFiles::write(&folder, &leaf(ca, name), &ca.pem())
}
