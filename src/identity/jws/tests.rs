use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature as lc;
use proptest::prelude::*;

use super::*;
use crate::identity::key::tests::{ed25519, p256, rsa};

fn encode(text: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(text)
}

fn parse(header: &str) -> Result<Signature, SignatureError> {
    Signature::parse(&encode(header), "AAAA")
}

#[test]
fn signatures_of_the_standards_verify() {
    let ladder = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let ladder = BASE64_URL_SAFE_NO_PAD.decode(ladder).unwrap();
    for (name, jwk, protected, payload, signature) in [
        (
            "RFC 8037 A.4",
            ed25519(),
            "eyJhbGciOiJFZERTQSJ9",
            b"Example of Ed25519 signing".as_slice(),
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
        (
            "RFC 7515 A.2",
            rsa(),
            "eyJhbGciOiJSUzI1NiJ9",
            &ladder,
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            "RFC 7515 A.3",
            p256(),
            "eyJhbGciOiJFUzI1NiJ9",
            &ladder,
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ] {
        let key = PublicKey::from_jwk(&jwk).unwrap();
        let payload = Payload::new(payload);
        let read = Signature::parse(protected, signature).unwrap();
        assert_eq!(read.verify(&key, &payload), Ok(()), "{name}");
        let other = Payload::new(b"something else");
        assert_eq!(
            read.verify(&key, &other),
            Err(SignatureError::Mismatch),
            "{name}"
        );
        // One bit of the signature.
        let mut broken = read.clone();
        broken.bytes[40] ^= 1;
        assert_eq!(
            broken.verify(&key, &payload),
            Err(SignatureError::Mismatch),
            "{name}"
        );
        // A header that says the same in other words was not signed.
        let header = BASE64_URL_SAFE_NO_PAD.decode(protected).unwrap();
        let spaced = String::from_utf8(header).unwrap().replace(':', ": ");
        let respelt = Signature::parse(&encode(&spaced), signature).unwrap();
        assert_eq!(
            respelt.verify(&key, &payload),
            Err(SignatureError::Mismatch),
            "{name}"
        );
    }
}

#[test]
fn hostile_headers_are_refused_with_their_reason() {
    for (header, part) in [
        (r#"{"alg":"none"}"#, "\"none\" is not accepted"),
        (r#"{"alg":"None"}"#, "\"None\" is not accepted"),
        (r#"{"alg":"HS256"}"#, "\"HS256\" is not accepted"),
        (r#"{"alg":"PS256"}"#, "not accepted"),
        (r#"{"alg":"eddsa"}"#, "not accepted"),
        (r#"{"alg":7}"#, "not accepted"),
        (r#"{"alg":null}"#, "not accepted"),
        (r#"{"alg":["EdDSA"]}"#, "not accepted"),
        (r#"{}"#, "no alg"),
        (r#"{"kid":"a"}"#, "no alg"),
        (
            r#"{"alg":"EdDSA","alg":"none"}"#,
            "\"alg\" stands there twice",
        ),
        (r#"{"alg":"EdDSA","\u0061lg":"EdDSA"}"#, "twice"),
        (
            r#"{"alg":"EdDSA","jwk":{"kty":"OKP","kty":"EC"}}"#,
            "\"kty\" stands there twice",
        ),
        (r#"{"alg":"EdDSA","x":1,"x":1}"#, "twice"),
        (r#"{"alg":"EdDSA","crit":["exp"],"exp":1}"#, "\"crit\""),
        (r#"{"alg":"EdDSA","crit":[]}"#, "\"crit\""),
        (r#"{"alg":"EdDSA","b64":false}"#, "\"b64\""),
        (r#"{"alg":"EdDSA","kid":""}"#, "kid"),
        (r#"{"alg":"EdDSA","kid":7}"#, "kid"),
        (r#"{"alg":"EdDSA","kid":"a\nb"}"#, "kid"),
        (r#"["EdDSA"]"#, "no object"),
        (r#""EdDSA""#, "no object"),
        (r#"{"alg":"EdDSA"} x"#, "not sound JSON"),
        (r#"{"alg":"EdDSA""#, "not sound JSON"),
        ("", "not sound JSON"),
    ] {
        let error = parse(header).unwrap_err().to_string();
        assert!(error.contains(part), "{header}: {error}");
    }
    let deep = format!(
        r#"{{"alg":"EdDSA","x":{}1{}}}"#,
        "[".repeat(500),
        "]".repeat(500)
    );
    assert!(matches!(parse(&deep), Err(SignatureError::Header(_))));
    let long = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, "a".repeat(129));
    assert_eq!(parse(&long).unwrap_err(), SignatureError::Kid);
}

#[test]
fn only_one_spelling_is_read() {
    let good = encode(r#"{"alg":"EdDSA"}"#);
    for (protected, signature, part) in [
        (
            format!("{good}=="),
            "AAAA".to_owned(),
            "protected header is not base64url",
        ),
        (
            good.replace('e', "+"),
            "AAAA".to_owned(),
            "protected header is not base64url",
        ),
        (
            good.clone(),
            "AAAA\n".to_owned(),
            "signature is not base64url",
        ),
        (good.clone(), "AAB".to_owned(), "signature is not base64url"),
        (good.clone(), "A".repeat(2_000), "signature is longer"),
        (
            "A".repeat(LONGEST_HEADER + 1),
            "AAAA".to_owned(),
            "protected header is longer",
        ),
        (
            BASE64_URL_SAFE_NO_PAD.encode(b"\xff{}"),
            "AAAA".to_owned(),
            "not UTF-8",
        ),
    ] {
        let error = Signature::parse(&protected, &signature).unwrap_err();
        assert!(
            error.to_string().contains(part),
            "{protected} {signature}: {error}"
        );
    }
    for value in [
        json!(null),
        json!("e30.AA"),
        json!({"protected": good}),
        json!({"protected": good, "signature": 7}),
        json!({"protected": good, "signature": "AAAA", "header": {"kid": "other"}}),
    ] {
        assert_eq!(
            Signature::read(&value).unwrap_err(),
            SignatureError::Shape,
            "{value}"
        );
    }
}

#[test]
fn the_algorithm_must_be_the_keys_own() {
    let payload = Payload::new(b"words");
    for (name, jwk) in [("EdDSA", p256()), ("ES256", rsa()), ("RS256", ed25519())] {
        let signature = Signature::parse(&encode(&format!(r#"{{"alg":"{name}"}}"#)), "AAAA");
        let error = signature
            .unwrap()
            .verify(&PublicKey::from_jwk(&jwk).unwrap(), &payload);
        assert!(
            matches!(error, Err(SignatureError::OtherAlgorithm { .. })),
            "{name}"
        );
    }
    let short = Signature::parse(&encode(r#"{"alg":"EdDSA"}"#), "AAAA").unwrap();
    let key = PublicKey::from_jwk(&ed25519()).unwrap();
    let error = short.verify(&key, &payload).unwrap_err();
    assert!(
        error.to_string().contains("3 bytes where EdDSA has 64"),
        "{error}"
    );
}

#[test]
fn places_to_fetch_a_key_from_are_passed_over() {
    let pair = KeyPair::generate().unwrap();
    let payload = Payload::new(b"words");
    let header = json!({
        "alg": "EdDSA",
        "jku": "http://169.254.169.254/keys",
        "x5u": "file:///etc/passwd",
        "x5c": ["AA=="],
        "typ": "JOSE",
    });
    let protected = encode(&header.to_string());
    let bytes = pair.sign(&payload.signed_with(&protected));
    let read = Signature::parse(&protected, &BASE64_URL_SAFE_NO_PAD.encode(bytes)).unwrap();
    assert_eq!(read.key().unwrap_err(), SignatureError::NoKey);
    assert_eq!(read.verify(pair.public(), &payload), Ok(()));
}

#[test]
fn what_is_signed_here_is_read_back() {
    let pair = KeyPair::generate().unwrap();
    let payload = Payload::new(b"words");
    let signature = Signature::sign(&pair, "finance-1", &payload);
    let read = Signature::read(&signature.to_json()).unwrap();
    assert_eq!(read.kid(), Some("finance-1"));
    assert_eq!(read.key().unwrap(), *pair.public());
    assert_eq!(read.verify(pair.public(), &payload), Ok(()));
    let other = KeyPair::generate().unwrap();
    assert_eq!(
        read.verify(other.public(), &payload),
        Err(SignatureError::Mismatch)
    );
}

#[test]
fn es256_and_rs256_of_other_programs_verify() {
    use aws_lc_rs::signature::KeyPair as _;
    let (random, payload) = (SystemRandom::new(), Payload::new(b"words"));
    let p256 = lc::EcdsaKeyPair::generate(&lc::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = p256.public_key().as_ref();
    let jwk = json!({
        "kty": "EC", "crv": "P-256",
        "x": BASE64_URL_SAFE_NO_PAD.encode(&point[1..33]),
        "y": BASE64_URL_SAFE_NO_PAD.encode(&point[33..]),
    });
    let protected = encode(&json!({"alg": "ES256", "jwk": jwk}).to_string());
    let signed = payload.signed_with(&protected);
    let signature = p256.sign(&random, &signed).unwrap();
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref());
    let read = Signature::parse(&protected, &encoded).unwrap();
    assert_eq!(read.verify(&read.key().unwrap(), &payload), Ok(()));
    // The DER form of ECDSA is not the form of JWS.
    let der = lc::EcdsaKeyPair::generate(&lc::ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let signature = der.sign(&random, &signed).unwrap();
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref());
    let read = Signature::parse(&protected, &encoded).unwrap();
    let outcome = read.verify(&read.key().unwrap(), &payload);
    assert!(matches!(outcome, Err(SignatureError::Length { .. })));
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_never_verify(
        protected in prop::collection::vec(any::<u8>(), 0..200),
        signature in prop::collection::vec(any::<u8>(), 0..300),
        name in prop::sample::select(vec!["EdDSA", "RS256", "ES256"]),
    ) {
        let payload = Payload::new(b"words");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(&signature);
        let header = encode(&format!(r#"{{"alg":"{name}"}}"#));
        let raw = BASE64_URL_SAFE_NO_PAD.encode(&protected);
        for jwk in [ed25519(), rsa(), p256()] {
            let key = PublicKey::from_jwk(&jwk).unwrap();
            for protected in [&header, &raw] {
                let read = Signature::parse(protected, &signature);
                let verified = read.and_then(|read| read.verify(&key, &payload));
                prop_assert!(verified.is_err());
            }
        }
        let text = String::from_utf8_lossy(&protected).into_owned();
        drop(Signature::parse(&text, &text));
    }

    #[test]
    fn no_text_makes_the_header_reader_panic(text in "[\\{\\}\\[\\]\",:a-z0-9\\\\u ]{0,60}") {
        drop(unique::object(text.as_bytes()));
        drop(parse(&text));
    }

    #[test]
    fn what_has_no_names_twice_reads_like_anywhere_else(text in "\\{(\"[a-c]\":[1-9][0-9]{0,2},){0,2}\"[a-c]\":(\\[1\\.5,null,true\\]|-7|\"x\")\\}") {
        let plain: serde_json::Value = serde_json::from_str(&text).unwrap();
        match unique::object(text.as_bytes()) {
            Ok(members) => prop_assert_eq!(Value::Object(members), plain),
            Err(error) => prop_assert!(error.contains("twice"), "{}", error),
        }
    }
}
