//! Putting signatures into a contract's text, which otherwise stays as its author laid it out.

use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::value::RawValue;
use std::collections::HashMap;

const NAME: &str = "signatures";

/// Returns the text with `signatures` in place of those it has; nothing for what is no object.
pub fn with_signatures(text: &str, signatures: &[Value]) -> Option<String> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let indent = indent(text);
    let array = array(signatures, indent)?;
    match members.get(NAME) {
        Some(there) => {
            // Both are slices of one text.
            let from = there.get().as_ptr() as usize - text.as_ptr() as usize;
            let (before, rest) = text.split_at_checked(from)?;
            Some([before, &array, &rest[there.get().len()..]].concat())
        }
        None => {
            let (inside, end) = text.split_at_checked(text.rfind('}')?)?;
            let last = inside.trim_end();
            let gap = &inside[last.len()..];
            let comma = if members.is_empty() { "" } else { "," };
            let member = match indent {
                Some(indent) => format!("{comma}\n{indent}\"{NAME}\": {array}"),
                None => format!("{comma}\"{NAME}\":{array}"),
            };
            Some([last, &member, gap, end].concat())
        }
    }
}

/// Returns what stands before a member on a line of its own.
fn indent(text: &str) -> Option<&str> {
    let (_, after) = text.split_once('{')?;
    let (gap, _) = after.split_once('"')?;
    let (_, indent) = gap.rsplit_once('\n')?;
    Some(indent)
}

fn array(signatures: &[Value], indent: Option<&str>) -> Option<String> {
    let Some(indent) = indent else {
        return serde_json::to_string(signatures).ok();
    };
    let mut bytes = Vec::new();
    let formatter = PrettyFormatter::with_indent(indent.as_bytes());
    let mut writer = Serializer::with_formatter(&mut bytes, formatter);
    serde::Serialize::serialize(signatures, &mut writer).ok()?;
    let lines = String::from_utf8(bytes).ok()?;
    Some(lines.replace('\n', &format!("\n{indent}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_rest_of_the_text_stays_as_it_is() {
        let one = [json!({"protected": "p", "signature": "s"})];
        let block = "[\n    {\n      \"protected\": \"p\",\n      \"signature\": \"s\"\n    }\n  ]";
        for (before, after) in [
            ("{\"a\":1.50}\n", "{\"a\":1.50,\"signatures\":[{\"protected\":\"p\",\"signature\":\"s\"}]}\n".to_owned()),
            ("{\n  \"a\": 1.50\n}\n", format!("{{\n  \"a\": 1.50,\n  \"signatures\": {block}\n}}\n")),
            ("{\n  \"signatures\": [ ],\n  \"a\": {}}", format!("{{\n  \"signatures\": {block},\n  \"a\": {{}}}}")),
            ("{\r\n  \"a\": \"}\"\r\n}", format!("{{\r\n  \"a\": \"}}\",\n  \"signatures\": {block}\r\n}}")),
            // The name in other letters, and the same name further in.
            (
                "{\"b\":{\"signatures\":[]},\"signatur\\u0065s\":null}",
                "{\"b\":{\"signatures\":[]},\"signatur\\u0065s\":[{\"protected\":\"p\",\"signature\":\"s\"}]}".to_owned(),
            ),
        ] {
            assert_eq!(with_signatures(before, &one), Some(after), "{before}");
        }
        for text in ["", "[]", "{", "\"}\""] {
            assert_eq!(with_signatures(text, &one), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_layout_only_signatures_change(
            gap in "[ \n\t\r]{0,5}",
            names in prop::collection::btree_set("[a-c\"\\\\}{é]{1,4}|signatures", 0..4),
            count in 0..3usize,
        ) {
            let members: Vec<String> = names
                .iter()
                .map(|name| format!("{gap}{}{gap}:{gap}[1.0, {{\"signatures\": \"}}\"}}]{gap}", json!(name)))
                .collect();
            let text = format!("{gap}{{{}{gap}}}{gap}", members.join(","));
            let signatures: Vec<Value> = (0..count).map(|at| json!({"protected": at})).collect();
            let signed = with_signatures(&text, &signatures).unwrap();
            let mut before: Value = serde_json::from_str(&text).unwrap();
            before["signatures"] = signatures.clone().into();
            let after: Value = serde_json::from_str(&signed).unwrap();
            prop_assert_eq!(after, before);
            // Once more changes nothing.
            prop_assert_eq!(with_signatures(&signed, &signatures).unwrap(), signed);
        }
    }
}
