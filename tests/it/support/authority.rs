//! A certificate authority of one's own, which issues good certificates and bad ones.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A root with its key.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What a certificate is to say; begun by `Order::spiffe`, `dns` or `nameless`.
pub struct Order {
    names: Vec<SanType>,
    from: SystemTime,
    until: SystemTime,
    is_authority: bool,
    uses: Vec<ExtendedKeyUsagePurpose>,
}

/// A certificate chain with its key, both as PEM.
#[derive(Clone)]
pub struct Leaf {
    pub chain: String,
    pub key: String,
}

/// The three files that `[tls]` names, in a directory of a test's own.
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

impl Authority {
    /// Makes a root that is valid for a year.
    pub fn new(name: &str) -> Self {
        let now = SystemTime::now();
        Self::valid(name, now - HOUR, now + YEAR)
    }

    /// Makes a root with these dates.
    pub fn valid(name: &str, from: SystemTime, until: SystemTime) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(root(name, from, until), key).unwrap())
    }

    /// Makes an authority that this one vouches for; its chains name it.
    pub fn intermediate(&self, name: &str, from: SystemTime, until: SystemTime) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::signed_by(root(name, from, until), key, &self.0).unwrap())
    }

    /// Returns the certificate that those who trust it hold.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate with the SPIFFE id of an application in the trust domain `hermes.test`.
    pub fn spiffe(&self, name: &str) -> Leaf {
        self.issue(Order::spiffe(name))
    }

    /// Issues a certificate with these DNS names.
    pub fn dns(&self, names: &[&str]) -> Leaf {
        self.issue(Order::dns(names))
    }

    /// Issues what was ordered.
    pub fn issue(&self, order: Order) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "leaf");
        params.subject_alt_names = order.names;
        date(&mut params, order.from, order.until);
        params.extended_key_usages = order.uses;
        params.is_ca = match order.is_authority {
            true => IsCa::Ca(BasicConstraints::Unconstrained),
            false => IsCa::ExplicitNoCa,
        };
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf {
            chain: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Order {
    /// Orders the SPIFFE id of an application in the trust domain `hermes.test`.
    pub fn spiffe(name: &str) -> Self {
        Self::nameless().uri(&format!("spiffe://hermes.test/ns/default/svc/{name}"))
    }

    /// Orders these DNS names.
    pub fn dns(names: &[&str]) -> Self {
        names.iter().fold(Self::nameless(), |order, name| {
            let name = SanType::DnsName((*name).try_into().unwrap());
            order.named(name)
        })
    }

    /// Orders a certificate without a name, valid for a year, for both ends of a connection.
    pub fn nameless() -> Self {
        let now = SystemTime::now();
        Self {
            names: Vec::new(),
            from: now - HOUR,
            until: now + YEAR,
            is_authority: false,
            uses: vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        }
    }

    /// Adds a URI name.
    pub fn uri(self, uri: &str) -> Self {
        self.named(SanType::URI(uri.try_into().unwrap()))
    }

    /// Adds an address.
    pub fn address(self, address: IpAddr) -> Self {
        self.named(SanType::IpAddress(address))
    }

    /// Sets the dates.
    pub fn valid(mut self, from: SystemTime, until: SystemTime) -> Self {
        (self.from, self.until) = (from, until);
        self
    }

    /// Makes the leaf one that may issue others.
    pub fn authority(mut self) -> Self {
        self.is_authority = true;
        self
    }

    /// Restricts the leaf to one end of a connection.
    pub fn only(mut self, purpose: ExtendedKeyUsagePurpose) -> Self {
        self.uses = vec![purpose];
        self
    }

    fn named(mut self, name: SanType) -> Self {
        self.names.push(name);
        self
    }
}

impl Leaf {
    /// Appends the certificate of an intermediate authority to the chain.
    pub fn through(mut self, intermediate: &Authority) -> Self {
        self.chain.push_str(&intermediate.pem());
        self
    }
}

impl TlsFiles {
    /// Writes a pair and a bundle of roots below `directory`.
    pub fn write(directory: &Path, leaf: &Leaf, ca: &str) -> Self {
        let files = Self {
            cert: directory.join("cert.pem"),
            key: directory.join("key.pem"),
            ca: directory.join("ca.pem"),
        };
        files.renew(leaf);
        replace(&files.ca, ca);
        files
    }

    /// Returns the settings that name the files.
    pub fn settings(&self) -> [(&'static str, toml::Value); 4] {
        let path = |path: &Path| path.to_str().unwrap().into();
        [
            ("tls.mode", "files".into()),
            ("tls.cert", path(&self.cert)),
            ("tls.key", path(&self.key)),
            ("tls.ca", path(&self.ca)),
        ]
    }

    /// Replaces certificate and key, each by a rename.
    pub fn renew(&self, leaf: &Leaf) {
        replace(&self.key, &leaf.key);
        replace(&self.cert, &leaf.chain);
    }
}

/// Writes a file that only its owner may read, and puts it in place at once.
pub fn replace(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let fresh = path.with_extension("fresh");
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&fresh).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

fn root(name: &str, from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    date(&mut params, from, until);
    params
}

fn date(params: &mut CertificateParams, from: SystemTime, until: SystemTime) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + from.duration_since(UNIX_EPOCH).unwrap();
    params.not_after = epoch + until.duration_since(UNIX_EPOCH).unwrap();
}
