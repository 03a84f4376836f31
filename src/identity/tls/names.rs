//! Who a certificate speaks for.
//!
//! - a certificate with a URI name speaks for that one: `spiffe://TRUSTDOMAIN/…/svc/NAME`; a second
//!   URI or another form speaks for nobody, whatever DNS names stand beside it
//! - without a URI its first DNS name counts; the common name never does
//! - elsewhere: whether the certificate is genuine (`verify`)

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::dates::Dates;
use crate::task::Timestamp;

/// The longest SPIFFE id and trust domain, as their standard has them.
const LONGEST_ID: usize = 2048;
const LONGEST_DOMAIN: usize = 255;
/// As long as an application's name may be.
const LONGEST_NAME: usize = 63;

/// The one a certificate speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: Arc<str>,
    /// Only a SPIFFE id has one.
    pub(super) domain: Option<Arc<str>>,
}

/// Why a certificate does not speak for the one it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the peer shows no certificate")]
    NoCertificate,
    #[error("the certificate cannot be read")]
    Unreadable(#[source] webpki::Error),
    #[error("the certificate has {0} URI names where exactly one is right")]
    SeveralUris(usize),
    #[error("the URI name {0:?} has not the form spiffe://TRUSTDOMAIN/…/svc/NAME")]
    ForeignUri(String),
    #[error("the certificate has neither a URI nor a DNS name")]
    NoName,
    #[error("the first DNS name {0:?} is no application name ([a-z0-9-], at most 63)")]
    ForeignDnsName(String),
    #[error("the certificate holds from {from} to {until}")]
    OutOfDate { from: Timestamp, until: Timestamp },
    #[error("the certificate is not of our trust domain {ours:?} but of {theirs:?}")]
    ForeignDomain { ours: Arc<str>, theirs: Arc<str> },
    #[error("the certificate has no trust domain; ours is {0:?}")]
    NoDomain(Arc<str>),
    #[error("the peer is {found:?} where {expected:?} was looked for")]
    Unexpected { expected: String, found: Arc<str> },
    #[error("every root has expired, the last one at {0}")]
    NoRoot(Timestamp),
}

/// Tells who the peer of a handshake is.
///
/// The chain was verified when the session began; a resumed session is not verified again, so
/// the dates are looked at once more.
pub fn peer_name(chain: &[CertificateDer<'_>]) -> Result<Arc<str>, NameError> {
    let leaf = chain.first().ok_or(NameError::NoCertificate)?;
    let leaf = EndEntityCert::try_from(leaf).map_err(NameError::Unreadable)?;
    let dates = Dates::of(&leaf).map_err(NameError::Unreadable)?;
    if !dates.hold(Timestamp::now()) {
        let Dates { from, until } = dates;
        return Err(NameError::OutOfDate { from, until });
    }
    Identity::of(&leaf).map(|identity| identity.name)
}

/// Tells how long the certificate that a peer has shown still holds.
pub fn peer_time_left(chain: &[CertificateDer<'_>]) -> Option<Duration> {
    let leaf = EndEntityCert::try_from(chain.first()?).ok()?;
    let until = Dates::of(&leaf).ok()?.until.millis();
    let left = until.saturating_sub(Timestamp::now().millis());
    Some(Duration::from_millis(left))
}

impl Identity {
    /// Reads the name that counts.
    pub(super) fn of(cert: &EndEntityCert<'_>) -> Result<Self, NameError> {
        let mut uris = cert.valid_uri_names();
        if let Some(uri) = uris.next() {
            return match uris.count() {
                0 => spiffe(uri).ok_or_else(|| NameError::ForeignUri(shown(uri))),
                more => Err(NameError::SeveralUris(more + 1)),
            };
        }
        let name = cert.valid_dns_names().next().ok_or(NameError::NoName)?;
        if !is_name(name) {
            return Err(NameError::ForeignDnsName(shown(name)));
        }
        Ok(Self {
            name: name.into(),
            domain: None,
        })
    }
}

/// Reads `spiffe://TRUSTDOMAIN/…/svc/NAME`.
fn spiffe(uri: &str) -> Option<Identity> {
    if uri.len() > LONGEST_ID {
        return None;
    }
    let (domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    let in_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let is_domain = (1..=LONGEST_DOMAIN).contains(&domain.len()) && domain.bytes().all(in_domain);
    let in_path = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let is_segment = |s: &str| !matches!(s, "" | "." | "..") && s.bytes().all(in_path);
    if !is_domain || !path.split('/').all(is_segment) {
        return None;
    }
    let (before, name) = path.rsplit_once('/')?;
    let kind = before.rsplit('/').next();
    (kind == Some("svc") && is_name(name)).then(|| Identity {
        name: name.into(),
        domain: Some(domain.into()),
    })
}

/// Says whether a text can be an application's name.
fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(fits)
}

/// Cuts what a stranger wrote to what a log line bears.
fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spiffe_id_names_a_service() {
        for (uri, expected) in [
            ("spiffe://td/svc/fraud", Some(("td", "fraud"))),
            (
                "spiffe://11-22.consul/ns/default/dc/dc1/svc/orders",
                Some(("11-22.consul", "orders")),
            ),
            ("spiffe://td/ns/a.b_C-1/svc/x-9", Some(("td", "x-9"))),
            ("spiffe://td/svc/svc/svc", Some(("td", "svc"))),
            // not of a service
            ("spiffe://td/sa/fraud", None),
            ("spiffe://td/fraud", None),
            ("spiffe://td/svc", None),
            ("spiffe://td/svc/fraud/more", None),
            ("spiffe://td", None),
            // not of the form
            ("https://td/svc/fraud", None),
            ("SPIFFE://td/svc/fraud", None),
            ("spiffe:///svc/fraud", None),
            ("spiffe://TD/svc/fraud", None),
            ("spiffe://td:1/svc/fraud", None),
            ("spiffe://me@td/svc/fraud", None),
            ("spiffe://td/svc/fraud/", None),
            ("spiffe://td//svc/fraud", None),
            ("spiffe://td/../svc/fraud", None),
            ("spiffe://td/svc/fraud?x", None),
            ("spiffe://td/svc/fraud#x", None),
            ("spiffe://td/svc/fr%61ud", None),
            ("spiffe://td/svc/Fraud", None),
            ("spiffe://td/svc/fraud.v1", None),
            ("", None),
        ] {
            let found = spiffe(uri);
            let found = found.as_ref().map(|id| (id.domain.as_deref(), &*id.name));
            let expected = expected.map(|(domain, name)| (Some(domain), name));
            assert_eq!(found, expected, "{uri}");
        }
    }

    #[test]
    fn ids_and_names_have_a_longest_length() {
        let name = "a".repeat(63);
        assert!(spiffe(&format!("spiffe://td/svc/{name}")).is_some());
        assert!(spiffe(&format!("spiffe://td/svc/{name}a")).is_none());
        let path = "p/".repeat(1100);
        assert!(spiffe(&format!("spiffe://td/{path}svc/a")).is_none());
        let domain = "d".repeat(256);
        assert!(spiffe(&format!("spiffe://{domain}/svc/a")).is_none());
    }
}
