//! Modes, keys and signatures, good and bad, against each other.

use super::*;
use crate::identity::jws::{Payload, Signature};
use crate::identity::key::KeyPair;
use crate::store::{Options, Schema};
use proptest::prelude::*;
use serde_json::{Value, json};

static STATE: Schema = Schema {
    name: "state",
    application_id: 7,
    migrations: &[MIGRATION],
};

fn pair() -> KeyPair {
    KeyPair::generate().unwrap()
}

fn document(id: &str, levels: &[&str]) -> Value {
    json!({
        "id": id,
        "version": format!("{}.0", id.rsplit_once("-v").unwrap().1),
        "input_schema": {"type": "object"},
        "output_schema": {"type": "object", "properties": {"risk_level": {"enum": levels}}},
        "constraints": {"timeout_ms": 500},
    })
}

fn contract(document: &Value) -> Contract {
    Contract::from_slice(document.to_string().as_bytes()).unwrap()
}

/// Adds a signature by each key, under the name beside it.
fn signed(mut document: Value, keys: &[(&KeyPair, &str)]) -> Value {
    let payload = Payload::new(contract(&document).canonical());
    let sign = |(pair, kid): &(&KeyPair, &str)| Signature::sign(pair, kid, &payload).to_json();
    let mut all = document["signatures"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    all.extend(keys.iter().map(sign));
    document["signatures"] = all.into();
    document
}

fn fraud() -> Value {
    document("fraud-detection-v1.0", &["low", "medium", "high"])
}

/// The incident: the same contract and signatures, with other words in its output.
fn altered(mut document: Value) -> Value {
    document["output_schema"]["properties"]["risk_level"]["enum"] =
        json!(["safe", "risky", "dangerous"]);
    document
}

fn listed(pair: &KeyPair, kid: Option<&str>, ids: &[&str]) -> Listed {
    let ids = ids.iter().map(|text| Ids::parse(text).unwrap());
    Listed::new(pair.public().clone(), kid.map(str::to_owned), ids.collect())
}

async fn trust(mode: Mode, keys: Vec<Listed>) -> Arc<Trust> {
    Trust::open(Config { mode, keys }, None).await.unwrap()
}

async fn judged(trust: &Trust, document: &Value) -> Result<Option<String>, String> {
    let judged = trust.judge(&contract(document)).await;
    judged
        .map(|trusted| trusted.kid().map(str::to_owned))
        .map_err(|untrusted| untrusted.to_string())
}

#[track_caller]
fn refused(judged: Result<Option<String>, String>, parts: &[&str]) {
    let told = judged.unwrap_err();
    for part in parts {
        assert!(told.contains(part), "{told} does not say {part}");
    }
}

#[tokio::test]
async fn pinned_takes_listed_keys_for_their_ids_alone() {
    let (finance, other) = (pair(), pair());
    let trust = trust(
        Mode::Pinned,
        vec![
            listed(&finance, Some("finance-1"), &["fraud-*"]),
            listed(&other, Some("other-1"), &["risk-*"]),
        ],
    )
    .await;
    let digest = contract(&fraud()).digest().to_string();
    let by = |pair, kid| signed(fraud(), &[(pair, kid)]);

    let good = by(&finance, "finance-1");
    assert_eq!(judged(&trust, &good).await, Ok(Some("finance-1".into())));
    // Without a name given, signing calls the key by its thumbprint.
    let thumbprint = finance.public().thumbprint();
    let by_thumbprint = judged(&trust, &by(&finance, &thumbprint)).await;
    assert_eq!(by_thumbprint, Ok(Some(thumbprint.clone())));

    let id_and_digest = ["fraud-detection-v1.0", digest.as_str()];
    let unsigned = judged(&trust, &fraud()).await;
    refused(
        unsigned,
        &[
            id_and_digest[0],
            id_and_digest[1],
            "no signature",
            "contract sign",
        ],
    );
    let misnamed = judged(&trust, &by(&finance, "finance-2")).await;
    refused(
        misnamed,
        &[
            "kid finance-2",
            &digest,
            "no [[trust.key]] for this contract",
        ],
    );
    // Another key under the listed name; the key that it brings is not looked at.
    let forged = judged(&trust, &by(&other, "finance-1")).await;
    refused(forged, &["by finance-1", "does not fit"]);
    // A key that is listed, but for other contracts.
    let foreign = judged(&trust, &by(&other, "other-1")).await;
    refused(
        foreign,
        &["by other-1", "no [[trust.key]] for this contract"],
    );
    let unlisted = document("loans-v1.0", &[]);
    let unlisted = judged(&trust, &signed(unlisted, &[(&finance, "finance-1")])).await;
    refused(unlisted, &["loans-v1.0", "ids that match"]);
    refused(
        judged(&trust, &altered(good)).await,
        &["kid finance-1", "does not fit"],
    );
}

#[tokio::test]
async fn pinned_ignores_the_key_that_a_signature_brings() {
    let finance = pair();
    let trust = trust(Mode::Pinned, vec![listed(&finance, Some("f"), &["*"])]).await;
    let payload = Payload::new(contract(&fraud()).canonical());
    let good = Signature::sign(&finance, "f", &payload).to_json();
    let foreign = Signature::sign(&pair(), "f", &payload).to_json();
    // The header of one with the signature of the other.
    let mixed = json!({"protected": foreign["protected"], "signature": good["signature"]});
    let mut document = fraud();
    document["signatures"] = json!([mixed, foreign]);
    refused(
        judged(&trust, &document).await,
        &["by f: it does not fit", "; by f"],
    );
    document["signatures"] = json!([mixed, foreign, good]);
    assert_eq!(judged(&trust, &document).await, Ok(Some("f".into())));
}

#[tokio::test]
async fn tofu_keeps_the_first_key_of_a_family() {
    let trust = trust(Mode::Tofu, Vec::new()).await;
    let (first, second) = (pair(), pair());
    let minor = || document("fraud-detection-v1.1", &[]);

    // Unsigned, until a signed one of the family is seen.
    assert_eq!(judged(&trust, &fraud()).await, Ok(None));
    // A bad signature is no missing one, and pins nothing.
    let broken = altered(signed(fraud(), &[(&second, "second")]));
    refused(
        judged(&trust, &broken).await,
        &["kid second", "does not fit"],
    );
    let good = signed(fraud(), &[(&first, "first")]);
    assert_eq!(judged(&trust, &good).await, Ok(Some("first".into())));
    let unsigned = judged(&trust, &minor()).await;
    refused(unsigned, &["its family was signed before", "kid first"]);
    let stranger = signed(minor(), &[(&second, "first")]);
    let stranger = judged(&trust, &stranger).await;
    refused(stranger, &["another key than first", "[[trust.key]]"]);
    // One good signature suffices, and the key may go by another name.
    let both = signed(minor(), &[(&second, "second"), (&first, "renamed")]);
    assert_eq!(judged(&trust, &both).await, Ok(Some("renamed".into())));
    refused(
        judged(&trust, &altered(good)).await,
        &["kid first", "does not fit"],
    );
    // Another family has another first key, and may still be unsigned.
    let loans = signed(document("loans-v1.0", &[]), &[(&second, "second")]);
    assert_eq!(judged(&trust, &loans).await, Ok(Some("second".into())));
    assert_eq!(judged(&trust, &document("risk-v1.0", &[])).await, Ok(None));
}

#[tokio::test]
async fn tofu_lets_a_listed_key_decide() {
    let (finance, other) = (pair(), pair());
    let keys = vec![listed(
        &finance,
        Some("finance-1"),
        &["fraud-detection-v1.*"],
    )];
    let trust = trust(Mode::Tofu, keys).await;
    let by_other = signed(fraud(), &[(&other, "other")]);
    refused(
        judged(&trust, &by_other).await,
        &["no [[trust.key]] for this contract"],
    );
    refused(judged(&trust, &fraud()).await, &["no signature"]);
    // Outside the list the family has not been signed yet, until the listed key was seen.
    let major = document("fraud-detection-v2.0", &[]);
    assert_eq!(judged(&trust, &major).await, Ok(None));
    let good = signed(fraud(), &[(&finance, "finance-1")]);
    assert_eq!(judged(&trust, &good).await, Ok(Some("finance-1".into())));
    refused(judged(&trust, &major).await, &["was signed before"]);
    let by_other = signed(major, &[(&other, "other")]);
    refused(judged(&trust, &by_other).await, &["another key"]);
}

#[tokio::test]
async fn off_takes_everything() {
    let trust = trust(Mode::Off, Vec::new()).await;
    for document in [fraud(), altered(signed(fraud(), &[(&pair(), "k")]))] {
        let judged = trust.judge(&contract(&document)).await;
        assert_eq!(judged, Ok(Trusted::Unjudged));
        assert_eq!(
            Trust::off().judge(&contract(&document)).await,
            Ok(Trusted::Unjudged)
        );
    }
}

#[tokio::test]
async fn first_keys_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let (first, second) = (pair(), pair());
    let open = async || {
        let (store, _) = crate::store::Store::open(&path, &STATE, Options::default()).unwrap();
        let config = Config::default();
        (
            Trust::open(config, Some(store.clone())).await.unwrap(),
            store,
        )
    };
    let (trust, store) = open().await;
    let good = signed(fraud(), &[(&first, "first")]);
    assert_eq!(judged(&trust, &good).await, Ok(Some("first".into())));
    // Dropped and not closed, as by a kill: what was not committed is lost.
    drop((trust, store));
    let (trust, store) = open().await;
    refused(
        judged(&trust, &fraud()).await,
        &["was signed before (kid first)"],
    );
    let other = signed(fraud(), &[(&second, "second")]);
    refused(judged(&trust, &other).await, &["another key than first"]);
    assert_eq!(judged(&trust, &good).await, Ok(Some("first".into())));
    drop(trust);
    store.close().await.unwrap();
}

#[tokio::test]
async fn of_two_first_keys_at_once_one_counts() {
    let trust = trust(Mode::Tofu, Vec::new()).await;
    let pairs: Vec<KeyPair> = (0..8).map(|_| pair()).collect();
    let documents: Vec<Value> = pairs
        .iter()
        .map(|pair| signed(fraud(), &[(pair, "k")]))
        .collect();
    let mut workers = tokio::task::JoinSet::new();
    for document in documents {
        let trust = trust.clone();
        workers.spawn(async move { judged(&trust, &document).await.is_ok() });
    }
    let good = workers.join_all().await;
    assert_eq!(good.into_iter().filter(|good| *good).count(), 1);
}

#[tokio::test]
async fn only_so_many_signatures_are_looked_at() {
    let (first, other) = (pair(), pair());
    let trust = trust(Mode::Tofu, Vec::new()).await;
    let good = signed(fraud(), &[(&first, "first")]);
    assert_eq!(judged(&trust, &good).await, Ok(Some("first".into())));
    let strangers = vec![(&other, "other"); MOST_SIGNATURES];
    let hidden = signed(signed(fraud(), &strangers), &[(&first, "first")]);
    refused(judged(&trust, &hidden).await, &["and 13 more"]);
    let told = integrity(&contract(&hidden)).unwrap_err().to_string();
    assert!(told.contains("17 signatures"), "{told}");
}

#[test]
fn integrity_checks_what_can_be_checked() {
    let (one, two) = (pair(), pair());
    assert_eq!(integrity(&contract(&fraud())), Ok(vec![]));
    let good = signed(fraud(), &[(&one, "one"), (&two, "two")]);
    assert_eq!(
        integrity(&contract(&good)),
        Ok(vec!["one".into(), "two".into()])
    );
    let told = integrity(&contract(&altered(good.clone()))).unwrap_err();
    assert_eq!(*told.kids, ["one", "two"]);
    // One bad signature among good ones is told, too.
    let mut mixed = good.clone();
    mixed["signatures"][1]["signature"] = good["signatures"][0]["signature"].clone();
    let told = integrity(&contract(&mixed)).unwrap_err().to_string();
    assert!(
        told.contains("not every signature is good: by two"),
        "{told}"
    );
    assert_eq!(first_kid(&contract(&mixed)), Some("one".to_owned()));

    let verified = verify(&contract(&mixed), one.public());
    assert_eq!(verified, Ok("one".to_owned()));
    assert!(verify(&contract(&mixed), two.public()).is_err());
    assert!(verify(&contract(&fraud()), two.public()).is_err());
}

#[test]
fn signing_adds_renews_and_repeats_nothing() {
    let (one, two) = (pair(), pair());
    let text = |document: &Value| format!("{document:#}");
    let first = sign(&text(&fraud()), &one, None).unwrap();
    let thumbprint = one.public().thumbprint();
    assert_eq!((&first.kid, first.dropped.len()), (&thumbprint, 0));
    assert_eq!(first.contract.digest(), contract(&fraud()).digest());
    let text_one = first.text.unwrap();
    // The same key again, also under another name.
    let again = sign(&text_one, &one, Some("other")).unwrap();
    assert_eq!((again.text, again.kid), (None, thumbprint.clone()));
    let second = sign(&text_one, &two, Some("two")).unwrap();
    let kids = integrity(&second.contract).unwrap();
    assert_eq!(kids, [thumbprint.clone(), "two".to_owned()]);

    // An edited contract loses the signatures that do not fit it any more.
    let edited = second.text.unwrap().replace("500", "600");
    let renewed = sign(&edited, &one, None).unwrap();
    assert_eq!(renewed.dropped, [thumbprint.as_str(), "two"]);
    assert_eq!(integrity(&renewed.contract), Ok(vec![thumbprint]));

    for kid in ["", "a\nb", &"k".repeat(129)] {
        assert!(matches!(
            sign(&text_one, &two, Some(kid)),
            Err(SignError::Kid)
        ));
    }
    assert!(matches!(sign("{}", &two, None), Err(SignError::Faulty(_))));
    let mut full = text_one;
    for _ in 1..MOST_SIGNATURES {
        full = sign(&full, &pair(), None).unwrap().text.unwrap();
    }
    assert!(matches!(sign(&full, &two, None), Err(SignError::Full)));
}

proptest! {
    #[test]
    fn random_signatures_never_panic_and_are_never_believed(
        texts in prop::collection::vec(("[A-Za-z0-9_=.-]{0,60}", "[A-Za-z0-9_-]{0,90}"), 1..5),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
        let mut document = fraud();
        let mut signatures: Vec<Value> = texts
            .into_iter()
            .map(|(protected, signature)| json!({"protected": protected, "signature": signature}))
            .collect();
        let jwk = pair().public().to_jwk();
        let header = json!({"alg": "EdDSA", "jwk": jwk}).to_string();
        signatures.push(json!({
            "protected": BASE64_URL_SAFE_NO_PAD.encode(header),
            "signature": BASE64_URL_SAFE_NO_PAD.encode(bytes),
        }));
        document["signatures"] = signatures.into();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for mode in [Mode::Pinned, Mode::Tofu] {
                let trust = trust(mode, vec![]).await;
                assert!(judged(&trust, &document).await.is_err());
            }
        });
        prop_assert!(integrity(&contract(&document)).is_err());
    }
}
