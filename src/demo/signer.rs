//! The key that signs the demo's contracts, which all its sidecars pin.

use super::Error;
use super::folder::Folder;
use super::stand::quoted;
use crate::contract::trust;
use crate::identity::key::KeyPair;
use std::path::PathBuf;

/// What the demo calls its key.
const KID: &str = "demo";

/// A key pair whose files are in the demo's folder.
pub struct Signer {
    pair: KeyPair,
    public: PathBuf,
}

impl Signer {
    /// Makes a new pair.
    pub fn make(folder: &Folder) -> Result<Self, Error> {
        let pair = KeyPair::generate()?;
        let public = pair.create(&folder.path().join("contracts.key"))?;
        Ok(Self { pair, public })
    }

    /// Returns a contract's text with its signature.
    pub fn sign(&self, contract: &str) -> Result<String, Error> {
        let signed = trust::sign(contract, &self.pair, Some(KID))?;
        Ok(signed.text.unwrap_or_else(|| contract.to_owned()))
    }

    /// Writes the settings by which a sidecar trusts this key and no other.
    pub fn settings(&self) -> String {
        let file = quoted(&self.public.to_string_lossy());
        format!(
            "
[trust]
mode = \"pinned\"

[[trust.key]]
file = {file}
kid = \"{KID}\"
ids = [\"*\"]
"
        )
    }
}
