//! Handshakes in memory between peers whose certificates are good, bad, renewed or gone.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::ExtendedKeyUsagePurpose;
use rustls::ServerConnection;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::Acceptor;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS12;
use rustls::{ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, SignatureScheme};
use tempfile::TempDir;

use super::files::Files;
use super::*;
use authority::{Authority, Leaf, Order, TlsFiles, replace};

// The outside tests issue their certificates in the same way.
#[path = "../../../../tests/it/support/authority.rs"]
#[expect(dead_code, reason = "it is offered whole, for both kinds of test")]
mod authority;
mod peers;
mod renewal;

const HOUR: Duration = Duration::from_secs(3600);

/// A process with its files in a directory of its own.
struct Peer {
    tls: Arc<Tls>,
    files: TlsFiles,
    directory: TempDir,
}

impl Peer {
    fn new(leaf: &Leaf, ca: &str) -> Self {
        Self::open(leaf, ca).unwrap()
    }

    fn open(leaf: &Leaf, ca: &str) -> Result<Self, Error> {
        let directory = TempDir::new().unwrap();
        let files = TlsFiles::write(directory.path(), leaf, ca);
        Ok(Self {
            tls: Tls::open(config(&files))?,
            files,
            directory,
        })
    }

    /// Looks at the files as `watch` does.
    fn look(&self) {
        self.tls
            .renew(&Files::read(&self.tls.config), Timestamp::now());
    }
}

fn config(files: &TlsFiles) -> Config {
    Config {
        cert: files.cert.clone(),
        key: files.key.clone(),
        ca: files.ca.clone(),
    }
}

/// A finished handshake.
struct Shaken {
    client: ClientConnection,
    server: ServerConnection,
}

impl Shaken {
    fn caller(&self) -> Result<Arc<str>, NameError> {
        peer_name(self.server.peer_certificates().unwrap_or_default())
    }

    fn callee(&self) -> Result<Arc<str>, NameError> {
        peer_name(self.client.peer_certificates().unwrap_or_default())
    }
}

/// Carries a handshake to its end; the error is that of the side that refused.
fn shake(
    client: Arc<ClientConfig>,
    asked: &str,
    server: Arc<ServerConfig>,
) -> Result<Shaken, rustls::Error> {
    let asked = ServerName::try_from(asked.to_owned()).unwrap();
    let mut client = ClientConnection::new(client, asked)?;
    let mut server = ServerConnection::new(server)?;
    // What follows the handshake, tickets above all, is carried too.
    for _ in 0..10 {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        server.read_tls(&mut sent.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut sent = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut sent).unwrap();
        }
        client.read_tls(&mut sent.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(Shaken { client, server })
}

/// Calls `callee` as `name` the way sidecars do.
fn call(caller: &Peer, name: &str, callee: &Peer) -> Result<Shaken, rustls::Error> {
    let server = callee.tls.server(Clients::Required);
    shake(caller.tls.client(Alpn::Any), name, server)
}

/// What a refusal says, with its causes.
fn why(refused: Result<Shaken, rustls::Error>) -> String {
    match refused {
        Ok(_) => "accepted".to_owned(),
        Err(error) => format!("{error} {error:?}"),
    }
}

/// A chain and key that no process of ours would start with.
fn certified(leaf: &Leaf) -> CertifiedKey {
    let chain = CertificateDer::pem_slice_iter(leaf.chain.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
    CertifiedKey::new(chain.collect::<Result<_, _>>().unwrap(), key)
}

/// A client that shows such a certificate.
fn stranger(leaf: &Leaf, roots: &Authority) -> Arc<ClientConfig> {
    let trusting = Peer::new(&roots.spiffe("stranger"), &roots.pem());
    let mut config = (*trusting.tls.client(Alpn::Any)).clone();
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified(leaf)));
    Arc::new(config)
}

/// A server that shows such a certificate.
fn impostor(leaf: &Leaf, roots: &Authority) -> Arc<ServerConfig> {
    let trusting = Peer::new(&roots.spiffe("impostor"), &roots.pem());
    let mut config = (*trusting.tls.server(Clients::Required)).clone();
    config.cert_resolver = Arc::new(SingleCertAndKey::from(certified(leaf)));
    Arc::new(config)
}
