//! Keys that sign and verify: Ed25519 to sign; Ed25519, RSA and P-256 to verify.
//!
//! - a key is read strictly or not at all, and says what is wrong with it
//! - one key has one name that cannot be chosen: its thumbprint (RFC 7638)
//! - elsewhere: what is signed and how it is written down (`jws`), whose key counts (`contract`)

mod jwk;
mod pair;
mod pem;
mod spki;
#[cfg(test)]
pub(super) mod tests;

pub use pair::{CreateError, KeyPair};

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

/// The largest file that a key is read from.
pub const LONGEST_FILE: u64 = 64 << 10;

/// A public key that verifies signatures of one algorithm.
#[derive(Clone)]
pub struct PublicKey {
    parts: Parts,
    parsed: ParsedPublicKey,
}

/// How a signature is made; each fits one type of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    EdDsa,
    Rs256,
    Es256,
}

/// What a key consists of; numbers are big-endian without leading zeros, coordinates in full.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Parts {
    Ed25519([u8; 32]),
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256 { x: [u8; 32], y: [u8; 32] },
}

/// Why something is no key that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it holds no key; expected is PEM with PUBLIC KEY, or a JWK")]
    NoKey,
    #[error("it holds several keys; keep one per file")]
    Several,
    #[error("it is no sound PEM: {0}")]
    Pem(String),
    #[error("it is {0}; {1}")]
    Other(&'static str, &'static str),
    #[error("the PUBLIC KEY is not the plain DER form of an Ed25519, RSA or P-256 key")]
    Der,
    #[error("the JWK {0}")]
    Jwk(String),
    #[error("the RSA key has {0} bits; 2048 to 8192 are accepted")]
    RsaSize(usize),
    #[error("its numbers make no {0} key")]
    Unusable(&'static str),
}

impl PublicKey {
    /// Reads a file: PEM with `PUBLIC KEY`, or a JWK.
    pub fn from_file(text: &[u8]) -> Result<Self, KeyError> {
        let text = text.trim_ascii();
        match text.first() {
            Some(b'{') => jwk::from_text(text).and_then(Self::new),
            _ => pem::public(text).and_then(|der| Self::new(spki::read(&der)?)),
        }
    }

    /// Reads a JWK (RFC 7517) that was parsed without duplicate names.
    pub fn from_jwk(jwk: &serde_json::Value) -> Result<Self, KeyError> {
        jwk::read(jwk).and_then(Self::new)
    }

    fn new(parts: Parts) -> Result<Self, KeyError> {
        let parsed = match &parts {
            Parts::Ed25519(key) => ParsedPublicKey::new(&ED25519, key),
            Parts::P256 { x, y } => {
                let point = [&[4], x.as_slice(), y].concat();
                ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            }
            Parts::Rsa { modulus, exponent } => {
                check_rsa(modulus, exponent)?;
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                key.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256)
            }
        };
        match parsed {
            Ok(parsed) => Ok(Self { parts, parsed }),
            Err(_rejected) => Err(KeyError::Unusable(parts.name())),
        }
    }

    /// Returns the one algorithm that this key verifies.
    pub fn algorithm(&self) -> Algorithm {
        match self.parts {
            Parts::Ed25519(_) => Algorithm::EdDsa,
            Parts::Rsa { .. } => Algorithm::Rs256,
            Parts::P256 { .. } => Algorithm::Es256,
        }
    }

    /// Says whether the signature of `message` was made by the owner of this key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.parsed.verify_sig(message, signature).is_ok()
    }

    /// Returns the key as a JWK of the required members alone, in the order of their names.
    pub fn to_jwk(&self) -> serde_json::Value {
        jwk::write(&self.parts)
    }

    /// Names the key by its numbers (RFC 7638): base64url of a SHA-256.
    pub fn thumbprint(&self) -> String {
        let canonical = self.to_jwk().to_string();
        BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, canonical.as_bytes()))
    }
}

/// The sizes that the verifier would refuse with every signature, said once and clearly.
fn check_rsa(modulus: &[u8], exponent: &[u8]) -> Result<(), KeyError> {
    let leading = modulus.first().map_or(0, |byte| byte.leading_zeros());
    let bits = (modulus.len() * 8).saturating_sub(leading as usize);
    if !(2048..=8192).contains(&bits) {
        return Err(KeyError::RsaSize(bits));
    }
    let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
    let is_usual = exponent.len() <= 4 && exponent != [1];
    if is_odd(modulus) && is_odd(exponent) && is_usual {
        Ok(())
    } else {
        Err(KeyError::Unusable("RSA"))
    }
}

impl Parts {
    fn name(&self) -> &'static str {
        match self {
            Parts::Ed25519(_) => "Ed25519",
            Parts::Rsa { .. } => "RSA",
            Parts::P256 { .. } => "P-256",
        }
    }
}

impl Algorithm {
    /// Reads the name that a header gives it (RFC 7518, RFC 8037).
    pub fn named(name: &str) -> Option<Self> {
        let all = [Algorithm::EdDsa, Algorithm::Rs256, Algorithm::Es256];
        all.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for PublicKey {}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({} {})", self.parts.name(), self.thumbprint())
    }
}
