//! Public keys as JSON (RFC 7517, RFC 7518, RFC 8037).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use super::{KeyError, Parts};
use crate::identity::unique;

/// Members that only a private key has.
const PRIVATE: [&str; 6] = ["d", "p", "q", "dp", "dq", "qi"];

/// Reads a JWK that stands alone in a file.
pub fn from_text(text: &[u8]) -> Result<Parts, KeyError> {
    let jwk =
        unique::object(text).map_err(|why| KeyError::Jwk(format!("cannot be read: {why}")))?;
    read(&Value::Object(jwk))
}

pub fn read(jwk: &Value) -> Result<Parts, KeyError> {
    let members = Members(jwk.as_object().ok_or_else(|| wrong("is no JSON object"))?);
    if PRIVATE.iter().any(|name| members.0.contains_key(*name)) {
        return Err(wrong(
            "holds a private key; make another one, and keep it private",
        ));
    }
    let (parts, algorithm) = match (members.text("kty")?, members.0.contains_key("crv")) {
        ("OKP", true) if members.text("crv")? == "Ed25519" => {
            (Parts::Ed25519(members.bytes32("x")?), "EdDSA")
        }
        ("EC", true) if members.text("crv")? == "P-256" => {
            let (x, y) = (members.bytes32("x")?, members.bytes32("y")?);
            (Parts::P256 { x, y }, "ES256")
        }
        ("RSA", _) => {
            let (modulus, exponent) = (members.number("n")?, members.number("e")?);
            (Parts::Rsa { modulus, exponent }, "RS256")
        }
        _ => {
            let message = "is none of OKP with Ed25519, EC with P-256, RSA (kty, crv)";
            return Err(wrong(message));
        }
    };
    members.permit_verifying(algorithm)?;
    Ok(parts)
}

pub fn write(parts: &Parts) -> Value {
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    match parts {
        Parts::Ed25519(key) => json!({"crv": "Ed25519", "kty": "OKP", "x": encode(key)}),
        Parts::P256 { x, y } => {
            json!({"crv": "P-256", "kty": "EC", "x": encode(x), "y": encode(y)})
        }
        Parts::Rsa { modulus, exponent } => {
            json!({"e": encode(exponent), "kty": "RSA", "n": encode(modulus)})
        }
    }
}

struct Members<'a>(&'a Map<String, Value>);

impl<'a> Members<'a> {
    fn text(&self, name: &str) -> Result<&'a str, KeyError> {
        let text = self.0.get(name).and_then(Value::as_str);
        text.ok_or_else(|| wrong(&format!("has no text as {name:?}")))
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, KeyError> {
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(self.text(name)?);
        decoded.map_err(|_other| wrong(&format!("has no plain base64url as {name:?}")))
    }

    fn bytes32(&self, name: &str) -> Result<[u8; 32], KeyError> {
        let bytes = self.bytes(name)?;
        <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_length| wrong(&format!("has {} bytes as {name:?}, not 32", bytes.len())))
    }

    /// Reads a number in as few bytes as it takes (RFC 7518 section 2).
    fn number(&self, name: &str) -> Result<Vec<u8>, KeyError> {
        let bytes = self.bytes(name)?;
        match bytes.first() {
            Some(0) | None => Err(wrong(&format!("has leading zeros or nothing as {name:?}"))),
            Some(_) => Ok(bytes),
        }
    }

    /// Refuses a key that says of itself that it is for something else.
    fn permit_verifying(&self, algorithm: &str) -> Result<(), KeyError> {
        let is = |name: &str, fits: &dyn Fn(&Value) -> bool| self.0.get(name).is_none_or(fits);
        let verifies = |operations: &Value| {
            let operations = operations.as_array();
            operations.is_some_and(|all| all.iter().any(|operation| operation == "verify"))
        };
        for (name, is_fit) in [
            ("alg", is("alg", &|alg| alg == algorithm)),
            ("use", is("use", &|for_what| for_what == "sig")),
            ("key_ops", is("key_ops", &verifies)),
        ] {
            if !is_fit {
                let message = format!("says in {name:?} that it does not verify {algorithm}");
                return Err(wrong(&message));
            }
        }
        Ok(())
    }
}

fn wrong(what: &str) -> KeyError {
    KeyError::Jwk(what.to_owned())
}
