use std::fs;
use std::os::unix::fs::PermissionsExt;

use aws_lc_rs::signature::{self as lc, KeyPair as _};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// RFC 8037, appendix A.
pub const ED25519_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
/// RFC 7515, appendix A.2.
pub const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
/// RFC 7515, appendix A.3.
pub const P256_X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
pub const P256_Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";

pub fn ed25519() -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "x": ED25519_X})
}

pub fn rsa() -> Value {
    json!({"kty": "RSA", "n": RSA_N, "e": "AQAB"})
}

pub fn p256() -> Value {
    json!({"kty": "EC", "crv": "P-256", "x": P256_X, "y": P256_Y})
}

fn with(mut jwk: Value, name: &str, value: impl Into<Value>) -> Value {
    jwk[name] = value.into();
    jwk
}

#[test]
fn thumbprints_are_those_of_the_standards() {
    // RFC 8037 A.3, and RFC 7638 section 3.1 for its own RSA key.
    let key = PublicKey::from_jwk(&ed25519()).unwrap();
    assert_eq!(
        key.thumbprint(),
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    );
    let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
    let jwk = json!({"kty": "RSA", "n": n, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"});
    let key = PublicKey::from_jwk(&jwk).unwrap();
    assert_eq!(
        key.thumbprint(),
        "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
    );
}

#[test]
fn a_jwk_is_read_strictly() {
    let small = BASE64_URL_SAFE_NO_PAD.encode([0xc1; 128]);
    let even = BASE64_URL_SAFE_NO_PAD.encode([0xc2; 256]);
    for (jwk, part) in [
        (json!("x"), "no JSON object"),
        (json!({}), "no text as \"kty\""),
        (json!({"kty": "oct", "k": "AAAA"}), "none of OKP"),
        (with(ed25519(), "crv", "X25519"), "none of OKP"),
        (with(p256(), "crv", "P-384"), "none of OKP"),
        (with(ed25519(), "d", ED25519_X), "private key"),
        (with(ed25519(), "x", "AAAA"), "3 bytes as \"x\", not 32"),
        (
            with(ed25519(), "x", format!("{ED25519_X}=")),
            "no plain base64url",
        ),
        // The last letter has bits set beyond the 32 bytes.
        (
            with(ed25519(), "x", ED25519_X.replace("URo", "URp")),
            "no plain base64url",
        ),
        (with(ed25519(), "x", 7), "no text as \"x\""),
        (with(ed25519(), "alg", "ES256"), "\"alg\""),
        (with(ed25519(), "use", "enc"), "\"use\""),
        (with(ed25519(), "key_ops", json!(["sign"])), "\"key_ops\""),
        (with(p256(), "y", P256_X), "numbers make no P-256 key"),
        (with(rsa(), "n", format!("AAAA{RSA_N}")), "leading zeros"),
        (with(rsa(), "n", small), "RSA key has 1024 bits"),
        (with(rsa(), "n", even), "numbers make no RSA key"),
        (with(rsa(), "e", "AA"), "leading zeros"),
        (with(rsa(), "e", "AQ"), "numbers make no RSA key"),
        (with(rsa(), "e", "AQAC"), "numbers make no RSA key"),
    ] {
        let error = PublicKey::from_jwk(&jwk).unwrap_err().to_string();
        assert!(error.contains(part), "{jwk}: {error}");
    }
    for jwk in [ed25519(), p256(), rsa()] {
        let decorated = with(with(jwk, "use", "sig"), "key_ops", json!(["verify"]));
        let key = PublicKey::from_jwk(&decorated).unwrap();
        assert_eq!(PublicKey::from_jwk(&key.to_jwk()).unwrap(), key);
    }
}

/// Keys of other programs, written by the provider itself.
fn foreign() -> Vec<(Vec<u8>, Algorithm)> {
    use aws_lc_rs::encoding::AsDer;
    let rsa = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let p256 = lc::EcdsaKeyPair::generate(&lc::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let ed25519 = lc::Ed25519KeyPair::generate().unwrap();
    let der = |der: aws_lc_rs::encoding::PublicKeyX509Der<'_>| der.as_ref().to_vec();
    vec![
        (der(rsa.public_key().as_der().unwrap()), Algorithm::Rs256),
        (der(p256.public_key().as_der().unwrap()), Algorithm::Es256),
        (
            der(ed25519.public_key().as_der().unwrap()),
            Algorithm::EdDsa,
        ),
    ]
}

#[test]
fn public_keys_are_read_from_pem_and_from_nothing_else() {
    for (der, algorithm) in foreign() {
        let text = pem::write("PUBLIC KEY", &der);
        let key = PublicKey::from_file(text.as_bytes()).unwrap();
        assert_eq!(key.algorithm(), algorithm);
        // The same key, said in JSON.
        let jwk = key.to_jwk().to_string();
        assert_eq!(PublicKey::from_file(jwk.as_bytes()).unwrap(), key);
        for cut in 0..der.len() {
            assert!(spki::read(&der[..cut]).is_err(), "cut at {cut}");
        }
        let longer = [&der[..], &[0]].concat();
        assert!(spki::read(&longer).is_err());
        let twice = text.repeat(2);
        let error = PublicKey::from_file(twice.as_bytes()).unwrap_err();
        assert_eq!(error, KeyError::Several);
    }
    for (label, part) in [
        ("CERTIFICATE", "certificate"),
        ("PRIVATE KEY", "private key"),
        ("EC PRIVATE KEY", "private key"),
        ("X509 CRL", "no key"),
        ("PUBLIC KEY", "plain DER"),
    ] {
        let text = pem::write(label, &[0x30, 0x00]);
        let error = PublicKey::from_file(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(part), "{label}: {error}");
    }
    for text in [
        "",
        "hello",
        "{}",
        "{\"kty\":\"OKP\",\"kty\":\"EC\"}",
        "-----BEGIN PUBLIC KEY-----\n",
    ] {
        assert!(PublicKey::from_file(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn a_pair_is_written_once_and_for_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("finance");
    let pair = KeyPair::generate().unwrap();
    let beside = pair.create(&path).unwrap();
    assert_eq!(beside, folder.path().join("finance.pub"));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    let private = fs::read(&path).unwrap();
    let read = KeyPair::from_pem(&private).unwrap();
    assert_eq!(read.public(), pair.public());
    let public = PublicKey::from_file(&fs::read(&beside).unwrap()).unwrap();
    assert_eq!(public, *pair.public());
    assert!(public.verifies(b"words", &read.sign(b"words")));
    assert!(!public.verifies(b"other words", &read.sign(b"words")));

    // Neither file is replaced, and nothing else is left behind.
    let other = KeyPair::generate().unwrap();
    assert!(matches!(other.create(&path), Err(CreateError::Exists(at)) if at == path));
    fs::remove_file(&path).unwrap();
    assert!(matches!(other.create(&path), Err(CreateError::Exists(at)) if at == beside));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = folder.path().join("nowhere/key");
    assert!(matches!(
        other.create(&nowhere),
        Err(CreateError::Write { .. })
    ));
}

#[test]
fn only_what_signs_contracts_is_taken_as_private_key() {
    let p256 = lc::EcdsaKeyPair::generate(&lc::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let foreign = p256.to_pkcs8v1().unwrap();
    for (text, part) in [
        (pem::write("PRIVATE KEY", foreign.as_ref()), "not Ed25519"),
        (pem::write("PUBLIC KEY", &[0]), "without .pub"),
        (pem::write("RSA PRIVATE KEY", &[0]), "older form"),
        (pem::write("CERTIFICATE", &[0]), "no private key"),
        (String::new(), "no key"),
    ] {
        let error = KeyPair::from_pem(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    // Of the other version of PKCS#8, which carries the public key along.
    let pair = lc::Ed25519KeyPair::generate().unwrap();
    let text = pem::write("PRIVATE KEY", pair.to_pkcs8().unwrap().as_ref());
    assert!(KeyPair::from_pem(text.as_bytes()).is_ok());
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(spki::read(&bytes));
        drop(PublicKey::from_file(&bytes));
        drop(KeyPair::from_pem(&bytes));
        for label in ["PUBLIC KEY", "PRIVATE KEY"] {
            let text = pem::write(label, &bytes);
            drop(PublicKey::from_file(text.as_bytes()));
            drop(KeyPair::from_pem(text.as_bytes()));
        }
    }

    #[test]
    fn a_changed_der_is_another_key_or_none(at: prop::sample::Index, bit in 0..8u8) {
        let pair = KeyPair::generate().unwrap();
        let Parts::Ed25519(key) = pair.public().parts.clone() else {
            unreachable!("a pair is Ed25519")
        };
        let der = spki::ed25519(&key);
        let mut changed = der.clone();
        changed[at.index(der.len())] ^= 1 << bit;
        if let Ok(parts) = spki::read(&changed) {
            prop_assert_ne!(parts, spki::read(&der).unwrap());
        }
    }
}
