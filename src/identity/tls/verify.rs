//! Who is let in, and who is believed to be the one we dialled.
//!
//! Chain, dates and the leaf's not being an issuer are webpki's to judge, always and first; then
//! comes the name. Nothing here switches any of it off.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError};
use rustls::{RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

use super::names::{Identity, NameError};
use super::roots::Roots;
use crate::task::Timestamp;

/// What is asked of a genuine certificate beyond its being genuine.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// Our own trust domain, which peers must share.
    domain: Option<Arc<str>>,
    /// When the last of the roots expires: webpki knows no dates of roots.
    last_end: Timestamp,
}

impl Rule {
    pub(super) fn new(ours: &Identity, roots: &Roots) -> Self {
        Self {
            domain: ours.domain.clone(),
            last_end: roots.last_end,
        }
    }

    /// Tells whom a genuine certificate speaks for, if peers may be that one.
    fn identify(&self, leaf: &CertificateDer<'_>, now: UnixTime) -> Result<Identity, NameError> {
        self.trusts_anybody(now)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(NameError::Unreadable)?;
        let identity = Identity::of(&leaf)?;
        match (&self.domain, &identity.domain) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(NameError::ForeignDomain {
                ours: ours.clone(),
                theirs: theirs.clone(),
            }),
            (Some(ours), None) => Err(NameError::NoDomain(ours.clone())),
            _ => Ok(identity),
        }
    }

    fn trusts_anybody(&self, now: UnixTime) -> Result<(), NameError> {
        if now.as_secs().saturating_mul(1000) > self.last_end.millis() {
            return Err(NameError::NoRoot(self.last_end));
        }
        Ok(())
    }
}

/// A refusal that logs show as a sentence: rustls shows errors of others as they debug.
#[derive(thiserror::Error)]
#[error(transparent)]
struct Refused(NameError);

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

fn refused(why: NameError) -> Error {
    CertificateError::Other(OtherError(Arc::new(Refused(why)))).into()
}

/// Judges those who call us.
#[derive(Debug)]
pub(super) struct Callers {
    genuine: Arc<dyn ClientCertVerifier>,
    rule: Rule,
}

impl Callers {
    /// Callers without a certificate are let in only where they are `optional`.
    pub(super) fn new(
        roots: &Roots,
        rule: Rule,
        optional: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let store = roots.store.clone();
        let builder = WebPkiClientVerifier::builder_with_provider(store, provider.clone());
        let builder = match optional {
            true => builder.allow_unauthenticated(),
            false => builder,
        };
        let genuine = builder.build()?;
        Ok(Self { genuine, rule })
    }
}

impl ClientCertVerifier for Callers {
    fn client_auth_mandatory(&self) -> bool {
        self.genuine.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.genuine.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.genuine.verify_client_cert(leaf, chain, now)?;
        self.rule.identify(leaf, now).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.genuine
            .verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.genuine
            .verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.genuine.supported_verify_schemes()
    }
}

/// Who the one we dialled must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Callee {
    /// The application that the handshake asks for as server name.
    Asked,
    /// This application, whatever the handshake asks for.
    Named(&'static str),
    /// This application, or one whose certificate is for the host that was dialled.
    NamedOrHost(&'static str),
}

/// Judges those whom we call.
#[derive(Debug)]
pub(super) struct Callees {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    rule: Rule,
    callee: Callee,
}

impl Callees {
    pub(super) fn new(
        roots: &Roots,
        rule: Rule,
        callee: Callee,
        provider: &CryptoProvider,
    ) -> Self {
        Self {
            roots: roots.store.clone(),
            algorithms: provider.signature_verification_algorithms,
            rule,
            callee,
        }
    }

    fn check_name(
        &self,
        leaf: &CertificateDer<'_>,
        cert: &ParsedCertificate<'_>,
        asked: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        self.rule.trusts_anybody(now).map_err(refused)?;
        let expected = match (self.callee, asked) {
            (Callee::Asked, ServerName::DnsName(name)) => name.as_ref(),
            // An address names a place, not an application.
            (Callee::Asked, _) => return Err(CertificateError::NotValidForName.into()),
            (Callee::NamedOrHost(_), host) if verify_server_name(cert, host).is_ok() => {
                return Ok(());
            }
            (Callee::Named(name) | Callee::NamedOrHost(name), _) => name,
        };
        let found = self.rule.identify(leaf, now).map_err(refused)?.name;
        match *found == *expected {
            true => Ok(()),
            false => Err(refused(NameError::Unexpected {
                expected: expected.to_owned(),
                found,
            })),
        }
    }
}

impl ServerCertVerifier for Callees {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let cert = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&cert, &self.roots, chain, now, algorithms)?;
        self.check_name(leaf, &cert, asked, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
