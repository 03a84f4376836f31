//! Keys in text files: one section, and nothing that is taken for another.

use base64::{Engine, prelude::BASE64_STANDARD};
use rustls::pki_types::pem::{Error, PemObject, SectionKind};

use super::KeyError;

/// Characters on a line (RFC 7468).
const LINE: usize = 64;

/// Returns the DER of the one `PUBLIC KEY`.
pub fn public(text: &[u8]) -> Result<Vec<u8>, KeyError> {
    match single(text)? {
        (SectionKind::PublicKey, der) => Ok(der),
        (SectionKind::Certificate, _) => Err(KeyError::Other(
            "a certificate",
            "take its key out: openssl x509 -in FILE -noout -pubkey",
        )),
        (kind, _) if is_private(kind) => Err(KeyError::Other(
            "a private key",
            "give the public one, which keygen writes beside it as PATH.pub",
        )),
        _ => Err(KeyError::NoKey),
    }
}

/// Returns the DER (PKCS#8) of the one `PRIVATE KEY`.
pub fn private(text: &[u8]) -> Result<Vec<u8>, KeyError> {
    match single(text)? {
        (SectionKind::PrivateKey, der) => Ok(der),
        (SectionKind::PublicKey, _) => Err(KeyError::Other(
            "a public key",
            "to sign takes the private one, without .pub",
        )),
        (kind, _) if is_private(kind) => Err(KeyError::Other(
            "a private key of an older form",
            "signing takes Ed25519 in PKCS#8, as keygen makes it",
        )),
        _ => Err(KeyError::Other(
            "no private key",
            "keygen makes one; signing takes Ed25519 in PKCS#8",
        )),
    }
}

fn is_private(kind: SectionKind) -> bool {
    matches!(
        kind,
        SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey
    )
}

fn single(text: &[u8]) -> Result<(SectionKind, Vec<u8>), KeyError> {
    let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(text);
    let first = sections.next().ok_or(KeyError::NoKey)?;
    let first = first.map_err(|error| KeyError::Pem(told(&error)))?;
    match sections.next() {
        None => Ok(first),
        Some(_) => Err(KeyError::Several),
    }
}

/// Says what is wrong without showing any of the text, which may be a secret.
fn told(error: &Error) -> String {
    match error {
        Error::MissingSectionEnd { .. } => "a line -----END is missing".to_owned(),
        Error::IllegalSectionStart { .. } => "a line -----BEGIN is broken".to_owned(),
        Error::Base64Decode(_) => "it holds other characters than base64".to_owned(),
        _ => "it cannot be read".to_owned(),
    }
}

/// Writes one section.
pub fn write(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = BASE64_STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text + "-----END " + label + "-----\n"
}
