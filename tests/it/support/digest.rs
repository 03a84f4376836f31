//! SHA-256 of a body in the two spellings that go over the wire, computed apart from the product.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// As reports spell it: `sha-256:<hex>`.
pub fn hex_digest(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let hex: Vec<String> = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    format!("sha-256:{}", hex.concat())
}

/// As `Content-Digest` spells it: `sha-256=:<base64>:`.
pub fn content_digest(bytes: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(digest(&SHA256, bytes)))
}
