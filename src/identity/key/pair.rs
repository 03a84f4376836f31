//! Ed25519 key pairs, and the two files they are kept in.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use super::{KeyError, Parts, PublicKey, pem, spki};

/// A key that signs, with its public half.
pub struct KeyPair {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

/// Why a new key pair could not be put into files.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("{} is there already; nothing was written", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("no key could be made")]
    Generate,
}

impl KeyPair {
    /// Makes a new pair.
    pub fn generate() -> Result<Self, CreateError> {
        let pair = Ed25519KeyPair::generate().or(Err(CreateError::Generate))?;
        Self::of(pair).or(Err(CreateError::Generate))
    }

    /// Reads the private key's file.
    pub fn from_pem(text: &[u8]) -> Result<Self, KeyError> {
        let der = pem::private(text)?;
        match Ed25519KeyPair::from_pkcs8(&der) {
            Ok(pair) => Self::of(pair),
            Err(_rejected) => Err(KeyError::Other(
                "a private key, but not Ed25519 in PKCS#8",
                "contracts are signed with Ed25519, which keygen makes",
            )),
        }
    }

    fn of(pair: Ed25519KeyPair) -> Result<Self, KeyError> {
        let key = pair.public_key().as_ref().try_into();
        let key = key.or(Err(KeyError::Unusable("Ed25519")))?;
        let public = PublicKey::new(Parts::Ed25519(key))?;
        Ok(Self { pair, public })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs by EdDSA.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }

    /// Writes the private key to `path`, for its owner alone, and the public one beside it, whose
    /// path is returned. Neither replaces a file, and each is there whole or not at all.
    pub fn create(&self, path: &Path) -> Result<PathBuf, CreateError> {
        let beside = public_path(path);
        for path in [path, &beside] {
            if fs::symlink_metadata(path).is_ok() {
                return Err(CreateError::Exists(path.to_owned()));
            }
        }
        let pkcs8 = self.pair.to_pkcs8v1().or(Err(CreateError::Generate))?;
        let private = pem::write("PRIVATE KEY", pkcs8.as_ref());
        let public = pem::write(
            "PUBLIC KEY",
            &spki::ed25519(self.pair.public_key().as_ref()),
        );
        create(path, private.as_bytes(), 0o600)?;
        if let Err(error) = create(&beside, public.as_bytes(), 0o644) {
            // Nobody has seen the key yet; half a pair would only be in the way.
            fs::remove_file(path).ok();
            return Err(error);
        }
        Ok(beside)
    }
}

fn public_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".pub");
    PathBuf::from(name)
}

/// Writes under another name first: a link, unlike a rename, never replaces what is there.
fn create(path: &Path, content: &[u8], mode: u32) -> Result<(), CreateError> {
    let mut name = OsString::from(path);
    name.push(format!(".{:016x}.tmp", fastrand::u64(..)));
    let temporary = PathBuf::from(name);
    let written = write(&temporary, content, mode).and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary).ok();
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CreateError::Exists(path.to_owned()),
        _ => CreateError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({:?})", self.public)
    }
}
