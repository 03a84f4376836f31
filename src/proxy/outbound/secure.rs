//! What an instance that speaks mutual TLS is called with.

use crate::consul::Instance;
use crate::identity::tls::{Alpn, Tls};
use crate::socket::{ClientTls, Speaks};
use rustls::pki_types::ServerName;
use std::sync::Arc;

/// Why an instance cannot be called in the way it registered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unspeakable {
    #[error("the instance speaks mutual TLS, and this sidecar has no certificate (tls.mode)")]
    NoTls,
    #[error("the instance speaks mutual TLS but does not say for which application")]
    NoName,
    #[error("the instance's application {0:?} is no name that TLS can ask for")]
    BadName(String),
    #[error("the instance speaks {0:?}, which is neither http nor https")]
    Unknown(String),
}

/// Returns how connections to `instance` are secured: whoever answers at its address must be the
/// application that it is registered for.
pub fn client(
    tls: Option<&Arc<Tls>>,
    instance: &Instance,
) -> Result<Option<ClientTls>, Unspeakable> {
    match instance.proto() {
        "http" => return Ok(None),
        "https" => {}
        other => return Err(Unspeakable::Unknown(other.to_owned())),
    }
    let tls = tls.ok_or(Unspeakable::NoTls)?.clone();
    let app = instance.app().ok_or(Unspeakable::NoName)?;
    let name = ServerName::try_from(app.to_owned());
    let name = name.map_err(|_error| Unspeakable::BadName(app.to_owned()))?;
    let changed = tls.changed();
    Ok(Some(ClientTls {
        name,
        config: Arc::new(move |speaks| match speaks {
            Speaks::Http1 => tls.client(Alpn::Http1),
            Speaks::Http2 => tls.client(Alpn::Http2),
            Speaks::Either => tls.client(Alpn::Any),
        }),
        generation: Arc::new(move || *changed.borrow()),
    }))
}
