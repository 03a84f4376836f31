//! Mutual TLS from three files: certificate chain, private key, trusted roots.
//!
//! - who peers are is read from verified certificates alone (`names`), never from what they say
//! - files are read again and again; what is new and sound is used from the next handshake on, a
//!   part that is not sound leaves the last good one in use, is said once and counted
//! - both ends are swapped together, with fresh sessions: a resumed one is not verified again
//! - elsewhere: sockets and their handshakes, which ask for a configuration each time

mod dates;
mod files;
mod names;
mod pair;
mod parties;
mod renew;
mod roots;
#[cfg(test)]
mod tests;
mod verify;

pub use files::Config;
pub use names::{NameError, peer_name, peer_time_left};
pub use pair::PairError;
pub use parties::{Alpn, COLLECTOR, Clients, Found, SetUpError};
pub use renew::{Event, Expiry, Observe, Part};
pub use roots::RootsError;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::task::Timestamp;
use files::{Content, Files};
use pair::Pair;
use parties::Parties;
use renew::Refused;
use roots::Roots;

/// The process's own certificate and whom it trusts, as the files have it now.
pub struct Tls {
    config: Config,
    provider: Arc<CryptoProvider>,
    name: Arc<str>,
    in_use: ArcSwap<InUse>,
    generation: watch::Sender<u64>,
    refused: Mutex<Refused>,
    observe: OnceLock<Observe>,
}

/// What handshakes use until the next change.
struct InUse {
    pair: Pair,
    roots: Roots,
    parties: Parties,
    /// What the files held that pair and roots were read from.
    content: (Content, Content),
}

/// Why TLS cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{key}: read {}", path.display())]
    Read {
        key: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("tls.cert {} with tls.key {}", cert.display(), key.display())]
    Pair {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        source: PairError,
    },
    #[error("tls.ca {}", path.display())]
    Roots {
        path: PathBuf,
        #[source]
        source: RootsError,
    },
    #[error(transparent)]
    SetUp(#[from] SetUpError),
}

impl Tls {
    /// Reads all three files; what is unusable now is refused, later only reported.
    pub fn open(config: Config) -> Result<Arc<Self>, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let files = Files::read(&config);
        let now = Timestamp::now();
        let pair = read_pair(&config, &files, &provider, now)?;
        let roots = read_roots(&config, &files, now)?;
        let tls = Self {
            name: pair.identity.name.clone(),
            in_use: ArcSwap::from_pointee(InUse {
                parties: Parties::build(&pair, &roots, &provider)?,
                content: (files.pair(), files.bundle()),
                pair,
                roots,
            }),
            config,
            provider,
            generation: watch::Sender::new(0),
            refused: Mutex::default(),
            observe: OnceLock::new(),
        };
        Ok(Arc::new(tls))
    }

    /// Returns the name that our own certificate speaks for.
    pub fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Returns what the next connection that comes in is to be met with.
    pub fn server(&self, clients: Clients) -> Arc<ServerConfig> {
        self.in_use.load().parties.server(clients).clone()
    }

    /// Returns what the next connection to a peer is to be made with; the server name to give
    /// with it is the name of the application that must answer, never an address.
    pub fn client(&self, alpn: Alpn) -> Arc<ClientConfig> {
        self.in_use.load().parties.client(alpn).clone()
    }

    /// Returns what connections to a collector are to be made with, whatever the server name.
    pub fn reporter(&self, found: Found) -> Arc<ClientConfig> {
        self.in_use.load().parties.reporter(found).clone()
    }

    /// Tells by a growing number that configurations returned earlier are no longer in use.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Tells when our certificate, and when the first of the roots, expires.
    pub fn expiry(&self) -> Expiry {
        self.in_use.load().expiry()
    }

    /// Names what works here but may be meant otherwise, or fail with peers.
    pub fn doubts(&self) -> Vec<String> {
        let in_use = self.in_use.load();
        let mut doubts = in_use.roots.doubts();
        doubts.extend(in_use.pair.doubts(&in_use.roots, &self.provider));
        doubts.extend(doubt_key(&self.config.key));
        doubts
    }
}

fn doubt_key(path: &Path) -> Option<String> {
    let shown = path.display();
    files::is_open_to_all(path).then(|| {
        format!("tls.key {shown} can be read by every user of this machine; take that right away")
    })
}

fn read_pair(
    config: &Config,
    files: &Files,
    provider: &CryptoProvider,
    now: Timestamp,
) -> Result<Pair, Error> {
    let cert = bytes("tls.cert", &config.cert, &files.cert)?;
    let key = bytes("tls.key", &config.key, &files.key)?;
    Pair::read(cert, key, provider, now).map_err(|source| Error::Pair {
        cert: config.cert.clone(),
        key: config.key.clone(),
        source,
    })
}

fn read_roots(config: &Config, files: &Files, now: Timestamp) -> Result<Roots, Error> {
    let bundle = bytes("tls.ca", &config.ca, &files.ca)?;
    Roots::read(bundle, now).map_err(|source| Error::Roots {
        path: config.ca.clone(),
        source,
    })
}

fn bytes<'f>(
    key: &'static str,
    path: &Path,
    read: &'f io::Result<Vec<u8>>,
) -> Result<&'f [u8], Error> {
    read.as_deref().map_err(|error| Error::Read {
        key,
        path: path.to_owned(),
        // The error itself stays with what was read.
        source: io::Error::new(error.kind(), error.to_string()),
    })
}
