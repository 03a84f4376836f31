//! Our own certificate chain with its private key.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use super::dates::{Dates, is_authority};
use super::names::{Identity, NameError};
use super::roots::Roots;
use crate::task::Timestamp;

/// A chain and a key that belong together.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) identity: Identity,
    pub(super) dates: Dates,
}

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("the certificate file is no sound PEM")]
    Chain(#[source] pem::Error),
    #[error("the certificate file holds no certificate")]
    NoCertificate,
    #[error("the certificate cannot be read")]
    Certificate(#[source] webpki::Error),
    #[error("the key file holds no private key that is not encrypted (PKCS #8, PKCS #1 or SEC 1)")]
    NoKey(#[source] pem::Error),
    #[error("the private key cannot be used")]
    Key(#[source] rustls::Error),
    #[error("certificate and private key do not belong together")]
    Mismatch,
    #[error("the certificate may issue others and is therefore none for a peer")]
    IsAuthority,
    #[error("the certificate's name cannot be used")]
    Name(#[source] NameError),
    #[error(
        "the certificate's name {0:?} cannot be asked for: it must not consist of digits alone, nor begin or end with a hyphen"
    )]
    Unaskable(Arc<str>),
    #[error("the certificate holds from {from} to {until}")]
    OutOfDate { from: Timestamp, until: Timestamp },
    #[error(
        "the certificate is for {found:?}; this process runs as {ours:?} and would have to be restarted"
    )]
    Renamed { ours: Arc<str>, found: Arc<str> },
}

impl Pair {
    /// Reads both and checks what peers would refuse, so that they need not.
    pub(super) fn read(
        chain: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
        now: Timestamp,
    ) -> Result<Self, PairError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(PairError::Chain)?;
        let leaf = chain.first().ok_or(PairError::NoCertificate)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(PairError::Certificate)?;
        let dates = Dates::of(&leaf).map_err(PairError::Certificate)?;
        let identity = Identity::of(&leaf).map_err(PairError::Name)?;
        if is_authority(&leaf, dates) {
            return Err(PairError::IsAuthority);
        }
        if DnsName::try_from(&*identity.name).is_err() {
            return Err(PairError::Unaskable(identity.name));
        }
        if !dates.hold(now) {
            let Dates { from, until } = dates;
            return Err(PairError::OutOfDate { from, until });
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(PairError::NoKey)?;
        let key = provider.key_provider.load_private_key(key);
        let certified = CertifiedKey::new(chain, key.map_err(PairError::Key)?);
        if certified.keys_match().is_err() {
            return Err(PairError::Mismatch);
        }
        Ok(Self {
            certified: Arc::new(certified),
            identity,
            dates,
        })
    }

    /// Names what peers that trust the same roots would refuse.
    pub(super) fn doubts(&self, roots: &Roots, provider: &CryptoProvider) -> Vec<String> {
        let uses = [
            ("callers", KeyUsage::server_auth()),
            ("those we call", KeyUsage::client_auth()),
        ];
        let refused = uses.into_iter().filter_map(|(who, usage)| {
            let error = self.verify(usage, roots, provider).err()?;
            Some(format!(
                "{who} with the same tls.ca would refuse the certificate of tls.cert: {error}"
            ))
        });
        refused.collect()
    }

    /// Verifies our own chain as a peer does.
    fn verify(
        &self,
        usage: KeyUsage,
        roots: &Roots,
        provider: &CryptoProvider,
    ) -> Result<(), webpki::Error> {
        let (leaf, chain) = self
            .certified
            .cert
            .split_first()
            .ok_or(webpki::Error::BadDer)?;
        let algorithms = provider.signature_verification_algorithms.all;
        let anchors = &roots.store.roots;
        EndEntityCert::try_from(leaf)?
            .verify_for_usage(
                algorithms,
                anchors,
                chain,
                UnixTime::now(),
                usage,
                None,
                None,
            )
            .map(|_path| ())
    }
}
