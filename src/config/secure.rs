//! The keys of `[tls]`, and those that mean something only with it.

use super::address;
use super::origin::Origin;
use super::reader::Reader;
use super::settings::Settings;
use crate::identity::{Allow, Trust, tls};

const TRUST: &str = "inbound.trust_context";

/// Takes the three files, which are all needed or none.
pub(super) fn tls(reader: &mut Reader) -> Option<tls::Config> {
    let modes = [("off", false), ("files", true)];
    let is_on = reader.word("tls.mode", &modes, false);
    let mode = reader.effective.get("tls.mode");
    let mode = mode.map(|entry| entry.origin.clone());
    let files = ["tls.cert", "tls.key", "tls.ca"].map(|key| {
        let file = reader.file(key);
        match (is_on, &file) {
            (true, None) => {
                let message = "is required with tls.mode = \"files\"";
                reader.problems.add(mode.clone(), key, message);
            }
            // Whoever names a key believes the traffic to be encrypted.
            (false, Some(_)) => reader.problem(key, "needs tls.mode = \"files\" to be used"),
            _ => {}
        }
        file
    });
    match files {
        [Some(cert), Some(key), Some(ca)] if is_on => Some(tls::Config { cert, key, ca }),
        _ => None,
    }
}

/// Takes the names of those who may call a contract.
pub(super) fn allow(reader: &mut Reader, key: &str) -> Allow {
    let names = reader.texts(key);
    if names.iter().any(|name| name == "*") {
        return Allow::All;
    }
    if names.is_empty() {
        reader.problem(key, "lets nobody call; leave it out to let everybody");
    }
    for name in &names {
        if let Err(why) = address::check_name(name, 1, 63) {
            reader.problem(key, format!("names no application with {name:?}: {why}"));
        }
    }
    Allow::Named(names)
}

/// Holds what only works with TLS, or only without, against what is configured.
pub(super) fn settle(reader: &mut Reader, settings: &mut Settings) {
    let is_on = reader.text("tls.mode") == "files";
    let trust = &mut settings.inbound.trust_context;
    let is_told = reader
        .effective
        .get(TRUST)
        .is_some_and(|entry| entry.origin != Origin::Default);
    if is_on && !is_told {
        *trust = Trust::Mtls;
        reader.derive(TRUST, "mtls", "tls.mode");
    }
    let needs = "needs tls.mode = \"files\": without certificates no name is proven";
    if !is_on && *trust == Trust::Mtls {
        reader.problem(TRUST, needs);
    }
    for (at, contract) in settings.application.contracts.iter().enumerate() {
        if !is_on && contract.allow != Allow::All {
            reader.problem(&format!("application.contract[{at}].allow"), needs);
        }
    }
    if is_on && settings.consul.http_check {
        let message =
            "cannot hold \"http\" with tls.mode = \"files\": Consul has no certificate to show";
        reader.problem("consul.checks", message);
    }
}
