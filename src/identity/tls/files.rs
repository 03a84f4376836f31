//! The three files, read whole and compared by content.
//!
//! Content and nothing else tells a change: times and inodes say little about files that are
//! switched by a symbolic link or written in place.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::Digest;

/// Far beyond any chain, key or bundle.
const LONGEST: u64 = 4 << 20;

/// Where the certificate chain, its private key and the trusted roots are; all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// What the files hold at one moment.
pub(super) struct Files {
    pub(super) cert: io::Result<Vec<u8>>,
    pub(super) key: io::Result<Vec<u8>>,
    pub(super) ca: io::Result<Vec<u8>>,
}

/// What was found, short enough to keep and compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content(Vec<Result<Digest, io::ErrorKind>>);

impl Files {
    pub(super) fn read(config: &Config) -> Self {
        Self {
            cert: read(&config.cert),
            key: read(&config.key),
            ca: read(&config.ca),
        }
    }

    /// Returns what tells one pair of certificate and key from another.
    pub(super) fn pair(&self) -> Content {
        Content(vec![digest(&self.cert), digest(&self.key)])
    }

    /// Returns what tells one bundle of roots from another.
    pub(super) fn bundle(&self) -> Content {
        Content(vec![digest(&self.ca)])
    }
}

fn digest(read: &io::Result<Vec<u8>>) -> Result<Digest, io::ErrorKind> {
    match read {
        Ok(bytes) => Ok(Digest::of(bytes)),
        Err(error) => Err(error.kind()),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LONGEST + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!(
            "it is longer than {LONGEST} bytes"
        )));
    }
    Ok(bytes)
}

/// Says whether any user of the machine may read a file.
pub(super) fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0)
}
