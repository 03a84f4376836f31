//! Certificates of servers that are none of ours: a vendor's API behind https.

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why the system's roots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("read the roots in {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no certificate in PEM form", path.display())]
    NoRoots { path: PathBuf },
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Makes a client's configuration that trusts the system's roots and those in `extra`.
pub fn client(extra: Option<&Path>) -> Result<ClientConfig, WebError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let roots = extra.map(read).transpose()?.unwrap_or_default();
    let verifier = Verifier::new_with_extra_roots(roots, provider.clone())?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// Makes a client's configuration that trusts the roots in `only`, and no others.
pub fn client_of(only: &Path) -> Result<ClientConfig, WebError> {
    let mut roots = RootCertStore::empty();
    for root in read(only)? {
        roots.add(root)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, WebError> {
    let bytes = std::fs::read(path).map_err(|source| WebError::Read {
        path: path.to_owned(),
        source,
    })?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err(WebError::NoRoots {
            path: path.to_owned(),
        }),
    }
}
