//! The roots that peers' certificates must lead to.
//!
//! One unusable entry costs no other: it is skipped and said.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use webpki::EndEntityCert;

use super::dates::{Dates, is_authority};
use crate::task::Timestamp;

/// Roots that were all valid when they were read.
#[derive(Debug, Clone)]
pub(super) struct Roots {
    pub(super) store: Arc<RootCertStore>,
    /// When the next one expires, and the last one.
    pub(super) next_end: Timestamp,
    pub(super) last_end: Timestamp,
    pub(super) skipped: Vec<Skipped>,
}

/// An entry of the bundle that is not used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("entry {entry} of tls.ca is not used: {why}")]
pub(super) struct Skipped {
    /// Counted from 1.
    entry: usize,
    why: Unusable,
}

#[derive(Debug, Clone, thiserror::Error)]
enum Unusable {
    #[error("it is no sound PEM ({0})")]
    Pem(Arc<pem::Error>),
    #[error("it is no certificate that can be read ({0})")]
    Unreadable(webpki::Error),
    #[error("it is the certificate of a peer, not of one who issues them")]
    IsNoAuthority,
    #[error("it holds from {from} to {until}")]
    OutOfDate { from: Timestamp, until: Timestamp },
}

/// Why a bundle cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    #[error("the bundle holds no certificate")]
    Empty,
    #[error("none of the bundle's {0} certificates can be used; the first: {1}")]
    NoneUsable(usize, String),
}

impl Roots {
    /// Takes every entry that is a valid issuer at `now`.
    pub(super) fn read(bundle: &[u8], now: Timestamp) -> Result<Self, RootsError> {
        let mut store = RootCertStore::empty();
        let mut ends = Vec::new();
        let mut skipped = Vec::new();
        for (at, entry) in CertificateDer::pem_slice_iter(bundle).enumerate() {
            let root = entry.map_err(|error| Unusable::Pem(Arc::new(error)));
            match root.and_then(|root| take(root, &mut store, now)) {
                Ok(end) => ends.push(end),
                Err(why) => skipped.push(Skipped { entry: at + 1, why }),
            }
        }
        match (ends.iter().min(), ends.iter().max(), skipped.first()) {
            (Some(next), Some(last), _) => Ok(Self {
                store: Arc::new(store),
                next_end: *next,
                last_end: *last,
                skipped,
            }),
            (_, _, Some(first)) => {
                Err(RootsError::NoneUsable(skipped.len(), first.why.to_string()))
            }
            _ => Err(RootsError::Empty),
        }
    }

    /// Names the entries that are not used.
    pub(super) fn doubts(&self) -> Vec<String> {
        self.skipped.iter().map(Skipped::to_string).collect()
    }
}

/// Adds one root and returns when it expires.
fn take(
    root: CertificateDer<'_>,
    store: &mut RootCertStore,
    now: Timestamp,
) -> Result<Timestamp, Unusable> {
    let cert = EndEntityCert::try_from(&root).map_err(Unusable::Unreadable)?;
    let dates = Dates::of(&cert).map_err(Unusable::Unreadable)?;
    // Verification never looks at what a root says about itself: neither at its dates nor at its
    // right to issue, so whoever held a peer's certificate in here could issue any.
    if !is_authority(&cert, dates) {
        return Err(Unusable::IsNoAuthority);
    }
    if !dates.hold(now) {
        let Dates { from, until } = dates;
        return Err(Unusable::OutOfDate { from, until });
    }
    store
        .add(root)
        .map_err(|_error| Unusable::Unreadable(webpki::Error::BadDer))?;
    Ok(dates.until)
}
