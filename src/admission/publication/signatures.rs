//! Adding signatures to a contract that is published already.
//!
//! Only the member `signatures` grows: every other byte of the entry stays, and no signature that
//! is there is dropped or rewritten. No more are added than those who judge the contract look at.

use crate::consul::MAX_VALUE_BYTES;
use crate::contract::Contract;
use crate::contract::trust::MOST_SIGNATURES;
use crate::contract::watch::Published;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::ops::Range;

/// What adding came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The entry with more signatures; nothing if there are none to add.
    pub entry: Option<Vec<u8>>,
    pub added: usize,
    /// For want of room.
    pub left_out: usize,
}

/// The one member that may change.
#[derive(Deserialize)]
struct Signed<'a> {
    #[serde(borrow, default)]
    signatures: Option<&'a RawValue>,
}

/// Adds to `entry`, which holds `published`, the signatures of `ours` that it lacks.
///
/// Both are of one digest. Signatures are told apart by protected header and value.
pub fn merge(entry: &[u8], published: &Published<'_>, ours: &[Value]) -> Merged {
    let contract = published.contract.get();
    let Ok(Signed { signatures }) = serde_json::from_str(contract) else {
        return Merged::default();
    };
    let there: Vec<Value> = signatures
        .and_then(|list| serde_json::from_str(list.get()).ok())
        .unwrap_or_default();
    let wanted = lacking(&there, ours);
    let room = MOST_SIGNATURES
        .saturating_sub(there.len())
        .min(wanted.len());
    let merged = (room > 0)
        .then(|| with(entry, contract, signatures, &wanted[..room]))
        .flatten();
    let added = merged.as_ref().map_or(0, |_| room);
    Merged {
        entry: merged,
        added,
        left_out: wanted.len() - added,
    }
}

/// Lists the signatures of `ours` that are not there, each once.
fn lacking<'o>(there: &[Value], ours: &'o [Value]) -> Vec<&'o Value> {
    let mut known: Vec<_> = there.iter().filter_map(key).collect();
    let mut wanted = Vec::new();
    for signature in ours {
        // What is no signature helps nobody.
        if let Some(key) = key(signature).filter(|key| !known.contains(key)) {
            known.push(key);
            wanted.push(signature);
        }
    }
    wanted
}

fn key(signature: &Value) -> Option<(&str, &str)> {
    let text = |name: &str| signature.get(name).and_then(Value::as_str);
    Some((text("protected")?, text("signature")?))
}

/// Writes the entry with more signatures; nothing if it would be too large to be read again.
fn with(
    entry: &[u8],
    contract: &str,
    signatures: Option<&RawValue>,
    more: &[&Value],
) -> Option<Vec<u8>> {
    let more: Vec<_> = more.iter().map(|signature| signature.to_string()).collect();
    let more = more.join(",");
    let signed = match signatures {
        Some(list) => {
            let inner = list.get().strip_prefix('[')?.strip_suffix(']')?.trim_end();
            let comma = if inner.trim().is_empty() { "" } else { "," };
            let place = place(contract.as_bytes(), list.get().as_bytes())?;
            let list = format!("[{inner}{comma}{more}]");
            replaced(contract.as_bytes(), place, list.as_bytes())
        }
        None => {
            // A contract has members, so the new one follows another.
            let end = contract.rfind('}')?;
            let member = format!(",\"signatures\":[{more}]");
            replaced(contract.as_bytes(), end..end, member.as_bytes())
        }
    };
    let before = Contract::from_slice(contract.as_bytes()).ok()?;
    let after = Contract::from_slice(&signed).ok()?;
    let place = place(entry, contract.as_bytes())?;
    let whole = replaced(entry, place, &signed);
    let fits = after.digest() == before.digest() && whole.len() <= MAX_VALUE_BYTES;
    fits.then_some(whole)
}

/// Finds a part in the whole that it was borrowed from.
fn place(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start + part.len();
    (whole.get(start..end)? == part).then_some(start..end)
}

fn replaced(whole: &[u8], place: Range<usize>, by: &[u8]) -> Vec<u8> {
    [&whole[..place.start], by, &whole[place.end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const BODY: &str = r#"{ "id": "a-v1.0", "version" : "1.0.0", "x-note": "{\"signatures\": [}",
  "input_schema": {"properties": {"signatures": {"type": "array"}}},
  "output_schema": true, "constraints": {"timeout_ms": 500}SIGNATURES }"#;

    fn body(signatures: &str) -> String {
        BODY.replace("SIGNATURES", signatures)
    }

    fn entry(signatures: &str) -> String {
        let digest = Contract::from_slice(body(signatures).as_bytes())
            .unwrap()
            .digest();
        format!(
            "{{\"x\" : 1, \"contract\":  {} ,\n \"digest\":\"{digest}\", \"published_at\":\"t\", \
             \"published_by\": \"a/b\" }}",
            body(signatures)
        )
    }

    fn signature(number: usize) -> Value {
        json!({"protected": format!("p{number}"), "signature": format!("s{number}")})
    }

    fn add(entry: &str, ours: &[Value]) -> Merged {
        merge(
            entry.as_bytes(),
            &serde_json::from_str(entry).unwrap(),
            ours,
        )
    }

    #[test]
    fn only_the_list_of_signatures_grows() {
        let (one, two) = (signature(1), signature(2));
        for (before, ours, after) in [
            ("", vec![one.clone()], format!(",\"signatures\":[{one}]}}")),
            (
                ", \"signatures\": [ ] ",
                vec![one.clone(), one.clone()],
                format!(", \"signatures\": [{one}]  }}"),
            ),
            (
                r#", "\u0073ignatures": [ { "signature":"s1", "protected":"p1" } , {"odd":1}
 ]"#,
                vec![one.clone(), two.clone(), json!({"signature": "s"})],
                format!(
                    r#", "\u0073ignatures": [ {{ "signature":"s1", "protected":"p1" }} , {{"odd":1}},{two}] }}"#
                ),
            ),
        ] {
            let before = entry(before);
            let merged = add(&before, &ours);
            assert_eq!((merged.added, merged.left_out), (1, 0), "{before}");
            let text = String::from_utf8(merged.entry.unwrap()).unwrap();
            let published: Published<'_> = serde_json::from_str(&text).unwrap();
            assert!(published.contract.get().ends_with(&after), "{text}");
            let cut = |text: &str| {
                let (head, rest) = text.split_once("500}").unwrap();
                (
                    head.to_owned(),
                    rest.split_once("\"digest\"").unwrap().1.to_owned(),
                )
            };
            assert_eq!(cut(&text), cut(&before));
            assert_eq!(add(&text, &ours), Merged::default(), "once is enough");
        }
    }

    #[test]
    fn room_is_bounded_and_what_does_not_fit_is_told() {
        let full: Vec<_> = (0..MOST_SIGNATURES - 1).map(signature).collect();
        let before = entry(&format!(",\"signatures\":{}", json!(full)));
        let merged = add(&before, &[signature(3), signature(90), signature(91)]);
        assert_eq!((merged.added, merged.left_out), (1, 1));
        let text = String::from_utf8(merged.entry.unwrap()).unwrap();
        assert!(text.contains("p90") && !text.contains("p91"));
        let large = json!({"protected": "x".repeat(MAX_VALUE_BYTES), "signature": "s"});
        let merged = add(&entry(""), &[large]);
        assert_eq!((merged.entry, merged.added, merged.left_out), (None, 0, 1));
    }

    proptest! {
        /// Whoever comes first, in the end every signature is there once.
        #[test]
        fn the_order_of_replicas_does_not_matter(owners in proptest::collection::vec(
            proptest::collection::vec(0..12_usize, 0..4), 1..5))
        {
            let mut text = entry("");
            for owner in &owners {
                let ours: Vec<_> = owner.iter().copied().map(signature).collect();
                if let Some(merged) = add(&text, &ours).entry {
                    text = String::from_utf8(merged).unwrap();
                }
            }
            let published: Published<'_> = serde_json::from_str(&text).unwrap();
            let contract = Contract::from_slice(published.contract.get().as_bytes()).unwrap();
            prop_assert_eq!(contract.digest(), published.digest);
            let mut expected: Vec<_> = owners.concat();
            expected.sort_unstable();
            expected.dedup();
            let mut found: Vec<_> = contract.signatures.iter().map(Value::to_string).collect();
            found.sort();
            let mut expected: Vec<_> =
                expected.into_iter().map(|n| signature(n).to_string()).collect();
            expected.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
