//! Every rule by its name, told in one sentence.

/// What each rule asks for; a new rule is a new line.
const RULES: [(&str, &str); 50] = [
    (
        "bare-properties",
        "A schema is a JSON Schema and not a bare map of properties.",
    ),
    (
        "binary",
        "Content that is not JSON cannot be held against a contract.",
    ),
    (
        "branches",
        "References multiply the work of a check only so far.",
    ),
    (
        "closed-combination",
        "additionalProperties: false does not see the members that combined schemas declare.",
    ),
    ("cost", "A schema asks for a bounded amount of work."),
    ("dialect", "Schemas are written for draft 2020-12."),
    ("fallback-circle", "Fallbacks come to an end."),
    (
        "fallback-schema",
        "A fallback takes the inputs of the first contract and gives outputs that it may give.",
    ),
    (
        "field-range",
        "Numbers of the contract lie in their ranges.",
    ),
    ("field-type", "Fields of the contract have their types."),
    (
        "id-form",
        "An id is NAME-vMAJOR.MINOR, as the profile asks.",
    ),
    ("id-twice", "An id names one contract."),
    ("id-version", "Id and version agree on MAJOR.MINOR."),
    ("inexact-number", "Numbers can be held exactly."),
    ("json", "A contract is one JSON object."),
    ("large-integer", "Integers lie within 2^53."),
    ("method", "A contract is called by POST, PUT or PATCH."),
    ("missing-field", "Required fields are there."),
    ("misspelt-keyword", "Keywords of schemas are spelt right."),
    (
        "no-contract",
        "A document holds the contract that is wanted.",
    ),
    ("no-input", "An operation says what it takes."),
    (
        "no-max-concurrent",
        "A contract says how many calls may run at once.",
    ),
    ("no-output", "An operation says what it answers."),
    ("no-probe", "A contract can be tried."),
    ("no-required", "A schema asks for some members."),
    ("nullable", "What may be null says so in its type."),
    ("old-keyword", "Keywords are those of draft 2020-12."),
    ("openapi", "An OpenAPI document is one."),
    (
        "openapi-version",
        "OpenAPI documents are of version 3.0 or 3.1.",
    ),
    ("oversize", "A contract has at most 256 KiB."),
    ("parameter", "What a call needs is in its body."),
    ("path", "A contract is called at a plain path."),
    ("pattern", "Patterns can be matched in linear time."),
    (
        "probe-expect",
        "What the probe expects conforms to output_schema.",
    ),
    ("probe-input", "The probe's input conforms to input_schema."),
    ("ref-circle", "References do not run in a circle."),
    ("remote-ref", "References stay within the contract."),
    ("route", "A document says where a contract is called."),
    ("schema", "Schemas are valid in draft 2020-12."),
    ("shared-route", "A route leads to one contract."),
    ("signature", "Signatures verify by the key they carry."),
    (
        "signature-hash",
        "A signature is a signature and not a hash.",
    ),
    (
        "timeout",
        "timeout_ms is a positive integer of at most a day.",
    ),
    ("unchecked-format", "Formats are those that are checked."),
    (
        "unjudged-signature",
        "Signatures carry the key they verify by.",
    ),
    ("unknown-field", "Fields of the contract are known."),
    ("unknown-format", "Formats are those that are checked."),
    ("unknown-keyword", "Keywords are known, or begin with x-."),
    ("unresolved-ref", "References lead to a schema."),
    ("version-form", "A version is MAJOR.MINOR.PATCH."),
];

/// Tells what a rule asks for.
pub fn meaning(rule: &str) -> Option<&'static str> {
    let mut rules = RULES.iter();
    Some(rules.find(|(name, _)| *name == rule)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stand_in_the_order_of_the_alphabet() {
        let mut pairs = RULES.windows(2);
        let fault = pairs.find(|pair| pair[0].0 >= pair[1].0);
        assert_eq!(fault, None);
    }
}
