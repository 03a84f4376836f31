//! Whose contracts are believed.
//!
//! A signature covers the canonical form, so it proves who promised what, and that nothing was
//! changed since. What is believed is for the mode to say; a body that is not believed is not used.
//!
//! - one good signature suffices: renewed ones stand beside those they follow
//! - keys come from the settings or from the signature itself, never from an address in it
//! - a first key counts for its whole family, and is on disk before it counts; a family beyond the
//!   bound of first keys is refused, and none is forgotten for it
//! - elsewhere: keys and single signatures (`identity`), fetching bodies (`watch`)

mod listed;
mod pins;
mod renewal;
#[cfg(test)]
mod tests;
mod text;
mod untrusted;

pub use listed::{BadIds, Ids, Listed};
pub use pins::MIGRATION;
pub use renewal::{Renewed, SignError, sign};
pub use untrusted::{Fault, Reason, Untrusted, Why};

use super::Contract;
use crate::identity::jws::{Payload, Signature, SignatureError};
use crate::identity::key::PublicKey;
use crate::store::{Store, StoreError};
use arc_swap::ArcSwap;
use pins::{Pin, Pins};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// How many signatures of a contract are looked at.
pub const MOST_SIGNATURES: usize = 16;

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

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Pinned => "pinned",
            Mode::Tofu => "tofu",
            Mode::Off => "off",
        })
    }
}

/// What the settings say of trust.
#[derive(Debug, Clone, Default)]
pub struct Config {
    pub mode: Mode,
    pub keys: Vec<Listed>,
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
    config: ArcSwap<Config>,
    pins: Pins,
    /// Counts how often the settings have changed.
    changes: watch::Sender<u64>,
}

impl Trust {
    /// Accepts everything.
    pub fn off() -> Arc<Self> {
        let off = Config {
            mode: Mode::Off,
            keys: Vec::new(),
        };
        Arc::new(Self::new(off, Pins::default()))
    }

    /// Begins with the keys that an earlier process saw first; without a store none are kept.
    pub async fn open(config: Config, state: Option<Store>) -> Result<Arc<Self>, StoreError> {
        // In whatever mode: another may come to be in force.
        let pins = match state {
            Some(state) => Pins::load(state).await?,
            None => Pins::default(),
        };
        Ok(Arc::new(Self::new(config, pins)))
    }

    fn new(config: Config, pins: Pins) -> Self {
        Self {
            config: ArcSwap::from_pointee(config),
            pins,
            changes: watch::Sender::new(0),
        }
    }

    /// Judges by other settings from now on; those who hear of it judge anew what they hold.
    pub fn follow(&self, config: Config) {
        self.config.store(Arc::new(config));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Tells when the settings have changed.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Says whether a judgement may remember a key.
    pub fn is_learning(&self) -> bool {
        self.config.load().mode == Mode::Tofu
    }

    /// Judges who signed a contract; in mode tofu a first key is remembered by this.
    pub async fn judge(&self, contract: &Contract) -> Result<Trusted, Untrusted> {
        let config = self.config.load_full();
        if config.mode == Mode::Off {
            return Ok(Trusted::Unjudged);
        }
        let signed = Signed::read(contract);
        let id = contract.id.as_str();
        let listed: Vec<&Listed> = config.keys.iter().filter(|key| key.is_for(id)).collect();
        let judged = match (config.mode, listed.as_slice()) {
            (Mode::Tofu, []) => self.first_seen(contract, &signed).await,
            (_, listed) => {
                let judged = by_list(&signed, listed);
                if let Ok((_, key)) = &judged {
                    self.notice(contract, key).await;
                }
                judged.map(|(kid, _)| Trusted::Signed { kid })
            }
        };
        judged.map_err(|reason| Untrusted::new(contract, signed.kids(), reason))
    }

    /// Judges by the first key of the family, which may be the one that comes now.
    async fn first_seen(&self, contract: &Contract, signed: &Signed) -> Result<Trusted, Reason> {
        let family = contract.id.family();
        let pin = match (self.pins.of(family), signed.0.is_empty()) {
            (Some(pin), true) => {
                let kid = pin.kid.clone();
                return Err(Reason::UnsignedNow { kid });
            }
            (None, true) => {
                if self.pins.is_first_unsigned(family) {
                    tracing::warn!(
                        contract = contract.id.as_str(),
                        digest = %contract.digest(),
                        "a contract bears no signature and is used all the same, until a signed \
                         one of its family is seen; sign it, or list keys and set trust.mode"
                    );
                }
                return Ok(Trusted::Unsigned);
            }
            (Some(pin), false) => pin,
            (None, false) => {
                let (kid, key) = signed.by_own_keys().map_err(Reason::NoneGood)?;
                let pin = self.pins.reserve(family, Pin::new(kid, key));
                pin.ok_or(Reason::NoRoom)?
            }
        };
        let kid = signed.by_pin(&pin)?;
        self.pins.keep(family, &pin).await;
        Ok(Trusted::Signed { kid })
    }

    /// Remembers that the family is signed, also where a listed key proved it.
    async fn notice(&self, contract: &Contract, key: &PublicKey) {
        if !self.is_learning() {
            return;
        }
        let family = contract.id.family();
        let pin = self.pins.of(family).or_else(|| {
            let pin = Pin::new(key.thumbprint(), key.clone());
            self.pins.reserve(family, pin)
        });
        if let Some(pin) = pin {
            self.pins.keep(family, &pin).await;
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
pub fn integrity(contract: &Contract) -> Result<Vec<String>, Untrusted> {
    let signed = Signed::read(contract);
    let count = contract.signatures.len();
    if count > MOST_SIGNATURES {
        return Err(Untrusted::new(
            contract,
            signed.kids(),
            Reason::TooMany(count),
        ));
    }
    let payload = Payload::new(contract.canonical());
    let (mut kids, mut faults) = (Vec::new(), Vec::new());
    for one in &signed.0 {
        match one.by_own_key(&payload) {
            Ok((kid, _)) => kids.push(kid),
            // Made by another program, for those who know the key.
            Err(SignatureError::NoKey) => {}
            Err(error) => faults.push(one.fault(Why::Signature(error))),
        }
    }
    match faults.is_empty() {
        true => Ok(kids),
        false => Err(Untrusted::new(
            contract,
            signed.kids(),
            Reason::SomeBad(faults),
        )),
    }
}

/// Verifies by this key alone: what whoever holds the key's file can say of a contract.
pub fn verify(contract: &Contract, key: &PublicKey) -> Result<String, Untrusted> {
    let signed = Signed::read(contract);
    let pin = Pin::new(key.thumbprint(), key.clone());
    let judged = match signed.0.is_empty() {
        true => Err(Reason::Unsigned),
        false => signed.by_pin(&pin),
    };
    judged.map_err(|reason| Untrusted::new(contract, signed.kids(), reason))
}

/// Names the key of the first signature, believed or not.
pub fn first_kid(contract: &Contract) -> Option<String> {
    Signed::read(contract).kids().into_iter().next()
}

/// The signatures of a contract that are looked at, with what they cover.
struct Signed(Vec<One>, Payload);

/// One signature, or why it cannot be read.
struct One {
    /// As it calls itself.
    kid: Option<String>,
    read: Result<Signature, SignatureError>,
}

impl Signed {
    fn read(contract: &Contract) -> Self {
        let signatures = contract.signatures.iter().take(MOST_SIGNATURES);
        let read = signatures.map(Signature::read).map(One::new);
        Self(read.collect(), Payload::new(contract.canonical()))
    }

    fn kids(&self) -> Vec<String> {
        self.0.iter().filter_map(|one| one.kid.clone()).collect()
    }

    /// Looks for a signature by this very key.
    fn by_pin(&self, pin: &Pin) -> Result<String, Reason> {
        let mut faults = Vec::new();
        for one in &self.0 {
            match one.by_pin(pin, &self.1) {
                Ok(kid) => return Ok(kid),
                Err(why) => faults.push(one.fault(why)),
            }
        }
        Err(Reason::NoneGood(faults))
    }

    /// Looks for a signature by the key that it brings.
    fn by_own_keys(&self) -> Result<(String, PublicKey), Vec<Fault>> {
        let mut faults = Vec::new();
        for one in &self.0 {
            match one.by_own_key(&self.1) {
                Ok(good) => return Ok(good),
                Err(error) => faults.push(one.fault(Why::Signature(error))),
            }
        }
        Err(faults)
    }
}

/// Looks for a signature by one of the listed keys.
fn by_list(signed: &Signed, listed: &[&Listed]) -> Result<(String, PublicKey), Reason> {
    if listed.is_empty() {
        return Err(Reason::NoKeyListed);
    }
    if signed.0.is_empty() {
        return Err(Reason::Unsigned);
    }
    let mut faults = Vec::new();
    for one in &signed.0 {
        match one.by_list(listed, &signed.1) {
            Ok(good) => return Ok(good),
            Err(why) => faults.push(one.fault(why)),
        }
    }
    Err(Reason::NoneGood(faults))
}

impl One {
    fn new(read: Result<Signature, SignatureError>) -> Self {
        let kid = read.as_ref().ok().and_then(|signature| {
            let brought = || signature.key().ok().map(|key| key.thumbprint());
            signature.kid().map(str::to_owned).or_else(brought)
        });
        Self { kid, read }
    }

    fn fault(&self, why: Why) -> Fault {
        let kid = self.kid.clone();
        Fault { kid, why }
    }

    fn signature(&self) -> Result<&Signature, SignatureError> {
        self.read.as_ref().map_err(Clone::clone)
    }

    fn by_own_key(&self, payload: &Payload) -> Result<(String, PublicKey), SignatureError> {
        let signature = self.signature()?;
        let key = signature.key()?;
        signature.verify(&key, payload)?;
        let kid = self.kid.clone().unwrap_or_else(|| key.thumbprint());
        Ok((kid, key))
    }

    fn by_pin(&self, pin: &Pin, payload: &Payload) -> Result<String, Why> {
        let signature = self.signature()?;
        match signature.key() {
            Ok(key) if key == pin.key => {}
            // It says nothing of its key, so the one that counts is tried.
            Err(SignatureError::NoKey) => {}
            Ok(_) => return Err(Why::OtherKey(pin.kid.clone())),
            Err(error) => return Err(error.into()),
        }
        signature.verify(&pin.key, payload)?;
        Ok(self.kid.clone().unwrap_or_else(|| pin.kid.clone()))
    }

    fn by_list(&self, listed: &[&Listed], payload: &Payload) -> Result<(String, PublicKey), Why> {
        let signature = self.signature()?;
        let kid = self.kid.as_deref().ok_or(Why::Nameless)?;
        let mut outcome = Err(Why::Unlisted);
        for key in listed.iter().filter(|key| key.is_named(kid)) {
            match signature.verify(&key.key, payload) {
                Ok(()) => return Ok((kid.to_owned(), key.key.clone())),
                Err(error) => outcome = Err(error.into()),
            }
        }
        outcome
    }
}
