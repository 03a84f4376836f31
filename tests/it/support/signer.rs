//! Somebody with a key pair, who signs contracts as a user would: by the commands.

use super::program;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A key pair of one's own; its files go with its value.
pub struct Signer {
    directory: TempDir,
    kid: String,
}

impl Signer {
    /// Makes a pair, called by its thumbprint.
    pub fn new() -> Self {
        let directory = TempDir::with_prefix("hermes-signer-").unwrap();
        let made = run(directory.path(), &["keygen", "key"]);
        Self {
            kid: made.trim().to_owned(),
            directory,
        }
    }

    /// Returns the name that its signatures have.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Returns the file of the public key.
    pub fn public_file(&self) -> PathBuf {
        self.directory.path().join("key.pub")
    }

    /// Adds its signature to those that a contract has.
    pub fn sign(&self, contract: Value) -> Value {
        let file = self.directory.path().join("contract.json");
        std::fs::write(&file, contract.to_string()).unwrap();
        let words = ["contract", "sign", "contract.json", "--key", "key"];
        run(self.directory.path(), &words);
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
    }
}

fn run(directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new(program::hermes());
    let output = command.args(words).current_dir(directory).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}
