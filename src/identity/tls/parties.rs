//! The configurations of both ends of a handshake, built from one pair and one set of roots.
//!
//! A resumed session is not verified again. So every set of configurations has a store of
//! sessions and keys for tickets of its own, and none outlives the roots it was verified with.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ServerSessionMemoryCache, VerifierBuilderError};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ServerConfig};

use super::pair::Pair;
use super::roots::Roots;
use super::verify::{Callee, Callees, Callers, Rule};

/// The name of a collector's certificate.
pub const COLLECTOR: &str = "hermes-collector";
/// Sessions kept for resumption; about as many as there are peers of one sidecar.
const SESSIONS: usize = 1024;
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Whether callers must show a certificate; one that is shown must be good either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    Required,
    Optional,
}

/// The protocols that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2 before HTTP/1.1.
    Any,
    Http1,
    /// HTTP/2 and nothing else, for those whose meaning depends on it.
    Http2,
}

/// How a collector was found, which decides whom its certificate may be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// By a URL that a person wrote: `hermes-collector` or the URL's host.
    ByUrl,
    /// In the registry, which knows addresses: `hermes-collector` alone.
    ByLookup,
}

/// Why no configuration could be built of sound parts.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    #[error("set up the verification of callers")]
    Callers(#[from] VerifierBuilderError),
}

/// One configuration for every way of meeting a peer.
#[derive(Debug)]
pub(super) struct Parties {
    required: Arc<ServerConfig>,
    optional: Arc<ServerConfig>,
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    by_url: Arc<ClientConfig>,
    by_lookup: Arc<ClientConfig>,
}

impl Parties {
    pub(super) fn build(
        pair: &Pair,
        roots: &Roots,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, SetUpError> {
        let rule = Rule::new(&pair.identity, roots);
        let server = |optional| server(pair, roots, rule.clone(), optional, provider);
        let client = |callee, protocols: &[&[u8]]| {
            let callees = Callees::new(roots, rule.clone(), callee, provider);
            client(pair, Arc::new(callees), protocols, provider)
        };
        Ok(Self {
            required: server(false)?,
            optional: server(true)?,
            any: client(Callee::Asked, &[H2, HTTP1])?,
            http1: client(Callee::Asked, &[HTTP1])?,
            http2: client(Callee::Asked, &[H2])?,
            by_url: client(Callee::NamedOrHost(COLLECTOR), &[HTTP1])?,
            by_lookup: client(Callee::Named(COLLECTOR), &[HTTP1])?,
        })
    }

    pub(super) fn server(&self, clients: Clients) -> &Arc<ServerConfig> {
        match clients {
            Clients::Required => &self.required,
            Clients::Optional => &self.optional,
        }
    }

    pub(super) fn client(&self, alpn: Alpn) -> &Arc<ClientConfig> {
        match alpn {
            Alpn::Any => &self.any,
            Alpn::Http1 => &self.http1,
            Alpn::Http2 => &self.http2,
        }
    }

    pub(super) fn reporter(&self, found: Found) -> &Arc<ClientConfig> {
        match found {
            Found::ByUrl => &self.by_url,
            Found::ByLookup => &self.by_lookup,
        }
    }
}

fn server(
    pair: &Pair,
    roots: &Roots,
    rule: Rule,
    optional: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<ServerConfig>, SetUpError> {
    let callers = Callers::new(roots, rule, optional, provider)?;
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(callers))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified.clone())));
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(Arc::new(config))
}

fn client(
    pair: &Pair,
    callees: Arc<dyn ServerCertVerifier>,
    protocols: &[&[u8]],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<ClientConfig>, SetUpError> {
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(callees)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified.clone())));
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(Arc::new(config))
}
