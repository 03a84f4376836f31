//! Whether a reply has the members that a probe expects of it.

use serde_json::{Number, Value};

/// Finds where a reply differs from what is expected, as a JSON pointer.
///
/// Objects may have further members; lists are as long as expected. The pointer is made of the
/// contract's own words, never of the reply's.
pub fn difference(expected: &Value, reply: &Value) -> Option<String> {
    let mut at = String::new();
    differs(expected, reply, &mut at).then_some(at)
}

/// Leaves the place in `at` if there is a difference.
fn differs(expected: &Value, reply: &Value, at: &mut String) -> bool {
    let here = at.len();
    let mut inside = |name: &str, expected: &Value, reply: Option<&Value>| {
        at.truncate(here);
        at.push('/');
        at.push_str(&name.replace('~', "~0").replace('/', "~1"));
        reply.is_none_or(|reply| differs(expected, reply, at))
    };
    match (expected, reply) {
        (Value::Object(expected), Value::Object(reply)) => {
            let mut members = expected.iter();
            if members.any(|(name, value)| inside(name, value, reply.get(name))) {
                return true;
            }
        }
        (Value::Array(expected), Value::Array(reply)) => {
            if expected.len() != reply.len() {
                return true;
            }
            let mut pairs = expected.iter().zip(reply).enumerate();
            if pairs.any(|(index, (value, there))| inside(&index.to_string(), value, Some(there))) {
                return true;
            }
        }
        (Value::Number(expected), Value::Number(reply)) => return !is_same(expected, reply),
        (expected, reply) => return expected != reply,
    }
    at.truncate(here);
    false
}

/// Compares as numbers, not as they were written: 1.0 is 1.
fn is_same(one: &Number, other: &Number) -> bool {
    match (one.as_i64(), other.as_i64(), one.as_u64(), other.as_u64()) {
        (Some(one), Some(other), _, _) => one == other,
        (_, _, Some(one), Some(other)) => one == other,
        _ => one.as_f64() == other.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expected_members_are_looked_for_and_others_left_alone() {
        for (expected, reply, place) in [
            (json!({}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), None),
            (json!({"a": 1}), json!({"a": 1.0}), None),
            (json!({"a": 1}), json!({"a": 2}), Some("/a")),
            (json!({"a": 1}), json!({}), Some("/a")),
            (json!({"a": 1}), json!({"a": "1"}), Some("/a")),
            (json!({"a": null}), json!({}), Some("/a")),
            (json!({"a": null}), json!({"a": null}), None),
            (json!({"a": {"b": 1}}), json!({"a": {"b": 1, "c": 2}}), None),
            (json!({"a": {"b": 1}}), json!({"a": {"c": 1}}), Some("/a/b")),
            (json!({"a": {"b": 1}}), json!({"a": 1}), Some("/a")),
            (json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3}), Some("/b")),
            (
                json!({"a": {"x": 1}, "b": 2}),
                json!({"a": {"x": 1}}),
                Some("/b"),
            ),
            (json!([{"a": 1}]), json!([{"a": 1, "b": 2}]), None),
            (json!([{"a": 1}]), json!([{"a": 2}]), Some("/0/a")),
            (json!([1]), json!([1, 2]), Some("")),
            (
                json!({"a/b~": true}),
                json!({"a/b~": false}),
                Some("/a~1b~0"),
            ),
            (json!(7), json!({"a": 7}), Some("")),
            (
                json!(18446744073709551615_u64),
                json!(18446744073709551615_u64),
                None,
            ),
            (
                json!(9007199254740993_u64),
                json!(9007199254740992_u64),
                Some(""),
            ),
        ] {
            let found = difference(&expected, &reply);
            assert_eq!(found.as_deref(), place, "{expected} in {reply}");
        }
    }
}
