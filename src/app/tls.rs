//! TLS of a process: opened at its start, counted, watched for new files.

use super::Error;
use crate::identity::tls::{self, Clients, Event, Tls};
use crate::socket::ServerTls;
use crate::telemetry::metrics::TlsSeries;
use std::sync::Arc;

/// Opens TLS, if it is configured, and shows it in the metrics.
pub fn open(config: Option<&tls::Config>, series: &TlsSeries) -> Result<Option<Arc<Tls>>, Error> {
    let Some(config) = config else {
        return Ok(None);
    };
    let tls = Tls::open(config.clone())?;
    let series = series.clone();
    series.begin();
    tls.observe(Box::new(move |event| match event {
        Event::InUse(expiry) => series.expire(expiry.own, expiry.ca),
        Event::Taken(part) => series.reloaded(part.as_str(), true),
        Event::Refused(part) => series.reloaded(part.as_str(), false),
    }));
    tls.say_doubts();
    Ok(Some(tls))
}

/// Returns how a listener's connections are secured.
pub fn listener(tls: &Arc<Tls>, clients: Clients) -> ServerTls {
    let (config, generation) = (tls.clone(), tls.changed());
    ServerTls {
        config: Arc::new(move || config.server(clients)),
        name: |chain| match tls::peer_name(chain) {
            Ok(name) => Some(name),
            Err(error) => {
                tracing::warn!(%error, "a peer's certificate proves no name");
                None
            }
        },
        time_left: tls::peer_time_left,
        generation,
    }
}

/// Says whether peers will find in our certificate the name that they dial us by.
pub fn check_name(tls: Option<&Arc<Tls>>, application: &str) -> Result<(), Error> {
    match tls.map(|tls| tls.name()) {
        Some(name) if *name != *application => Err(Error::TlsName {
            application: application.to_owned(),
            name,
        }),
        _ => Ok(()),
    }
}
