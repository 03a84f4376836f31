//! Public keys as DER (`SubjectPublicKeyInfo`): RFC 8410, RFC 5480 and RFC 3279.
//!
//! Only what DER permits is read: definite lengths in their shortest form, nothing left over.

use super::{KeyError, Parts};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;

/// 1.3.101.112, without parameters.
const ED25519: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];
/// 1.2.840.113549.1.1.1 with NULL.
const RSA: &[u8] = &[
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
/// 1.2.840.10045.2.1 with the named curve 1.2.840.10045.3.1.7.
const P256: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
    0x03, 0x01, 0x07,
];
/// What stands before the 32 bytes of an Ed25519 key.
const ED25519_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

pub fn read(der: &[u8]) -> Result<Parts, KeyError> {
    parse(der).ok_or(KeyError::Der)
}

/// Writes an Ed25519 key.
pub fn ed25519(key: &[u8]) -> Vec<u8> {
    [&ED25519_HEAD, key].concat()
}

fn parse(der: &[u8]) -> Option<Parts> {
    let whole = only(SEQUENCE, der)?;
    let (algorithm, rest) = element(SEQUENCE, whole)?;
    // The first byte of a bit string counts the bits that its last byte leaves unused.
    let key = only(BIT_STRING, rest)?.strip_prefix(&[0])?;
    match algorithm {
        ED25519 => Some(Parts::Ed25519(key.try_into().ok()?)),
        P256 => {
            let (x, y) = key.strip_prefix(&[4])?.split_at_checked(32)?;
            Some(Parts::P256 {
                x: x.try_into().ok()?,
                y: y.try_into().ok()?,
            })
        }
        RSA => {
            let numbers = only(SEQUENCE, key)?;
            let (modulus, rest) = element(INTEGER, numbers)?;
            Some(Parts::Rsa {
                modulus: positive(modulus)?,
                exponent: positive(only(INTEGER, rest)?)?,
            })
        }
        _ => None,
    }
}

/// Reads the one element that the input consists of.
fn only(tag: u8, input: &[u8]) -> Option<&[u8]> {
    let (content, rest) = element(tag, input)?;
    rest.is_empty().then_some(content)
}

/// Splits the first element's content from what follows.
fn element(tag: u8, input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = input.strip_prefix(&[tag])?.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let shortest = match length {
        0..=0x7f => *first < 0x80,
        0x80..=0xff => *first == 0x81,
        _ => *first == 0x82,
    };
    shortest.then(|| rest.split_at_checked(length))?
}

/// Takes the sign byte off a number above zero.
fn positive(number: &[u8]) -> Option<Vec<u8>> {
    match number {
        [0, rest @ ..] if rest.first()? & 0x80 != 0 => Some(rest.to_vec()),
        [1..=0x7f, ..] => Some(number.to_vec()),
        _ => None,
    }
}
