//! Where a body broke its contract, told without the body.
//!
//! Texts hold what the schema says and, cut short, names of members; never a value.

use std::fmt;

use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    keyword,
    pointer::{Pointer, shorten},
};

/// The most violations told.
pub const MOST: usize = 20;
/// The most text told, in bytes.
const MOST_TEXT: usize = 4_096;
/// The most text one message takes from the schema, in characters.
const MOST_QUOTED: usize = 200;

/// One broken rule; serialises as an entry of a problem body's `errors`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// JSON Pointer into the body.
    pub instance: String,
    /// JSON Pointer into the schema.
    pub schema: String,
    pub message: String,
    /// From a closed list, fit for a metric label.
    #[serde(skip)]
    pub keyword: &'static str,
}

impl Violation {
    pub(super) fn of(error: &ValidationError<'_>) -> Self {
        Self {
            instance: shown(error.instance_path().as_str()),
            schema: shown(error.schema_path().as_str()),
            message: message(error.kind()),
            keyword: keyword::counted(error.kind().keyword()),
        }
    }

    /// A violation of the whole body, under a keyword that no schema names.
    pub(super) fn of_body(keyword: &'static str, message: String) -> Self {
        Self {
            instance: String::new(),
            schema: String::new(),
            message,
            keyword,
        }
    }
}

/// Why a body does not keep its contract; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Keeps as many as may be told, at least one.
    pub(super) fn gather(found: impl Iterator<Item = Violation>) -> Option<Self> {
        let mut text = 0;
        let mut kept: Vec<Violation> = Vec::new();
        for violation in found.take(MOST) {
            text += violation.instance.len() + violation.schema.len() + violation.message.len();
            if text > MOST_TEXT && !kept.is_empty() {
                break;
            }
            kept.push(violation);
        }
        (!kept.is_empty()).then_some(Self(kept))
    }

    pub fn as_slice(&self) -> &[Violation] {
        &self.0
    }
}

impl From<Violation> for Violations {
    fn from(violation: Violation) -> Self {
        Self(vec![violation])
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            match violation.instance.as_str() {
                "" => f.write_str(&violation.message)?,
                instance => write!(f, "{instance} {}", violation.message)?,
            }
        }
        Ok(())
    }
}

/// Cuts the names in a pointer the library made, and the pointer itself.
fn shown(pointer: &str) -> String {
    if pointer.len() <= MOST_QUOTED {
        let is_short = |name: &str| name.len() <= super::pointer::SHOWN_NAME;
        if pointer.split('/').all(is_short) {
            return pointer.to_owned();
        }
    }
    let mut shown = Pointer::default();
    for name in pointer.split('/').skip(1) {
        shown.push(&name.replace("~1", "/").replace("~0", "~"));
    }
    quoted(shown.as_str())
}

/// Cuts text to what one message may hold.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(MOST_QUOTED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn message(kind: &Kind) -> String {
    match kind {
        Kind::AdditionalItems { limit } => format!("has more than {limit} elements"),
        Kind::AdditionalProperties { unexpected } => names("has undeclared members", unexpected),
        Kind::UnevaluatedProperties { unexpected } => names("has undeclared members", unexpected),
        Kind::UnevaluatedItems { .. } => "has undeclared elements".to_owned(),
        Kind::AnyOf { .. } => "fits none of the alternatives".to_owned(),
        Kind::OneOfNotValid { .. } => "fits none of the alternatives".to_owned(),
        Kind::OneOfMultipleValid { .. } => "fits more than one alternative".to_owned(),
        Kind::Constant { expected_value } => format!("must be {}", quote(expected_value)),
        Kind::Enum { options } => format!("must be one of {}", quote(options)),
        Kind::Contains => "has no element that fits".to_owned(),
        Kind::ContentEncoding { content_encoding } => {
            format!("must be encoded as {}", quoted(content_encoding))
        }
        Kind::ContentMediaType { content_media_type } => {
            format!("must hold {}", quoted(content_media_type))
        }
        Kind::ExclusiveMaximum { limit } => format!("must be less than {}", quote(limit)),
        Kind::ExclusiveMinimum { limit } => format!("must be more than {}", quote(limit)),
        Kind::Maximum { limit } => format!("must be at most {}", quote(limit)),
        Kind::Minimum { limit } => format!("must be at least {}", quote(limit)),
        Kind::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
        Kind::FalseSchema => "is not allowed".to_owned(),
        Kind::Format { format } => format!("must have the format {}", quoted(format)),
        Kind::MaxItems { limit } => format!("must have at most {limit} elements"),
        Kind::MinItems { limit } => format!("must have at least {limit} elements"),
        Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
        Kind::MinLength { limit } => format!("must have at least {limit} characters"),
        Kind::MaxProperties { limit } => format!("must have at most {limit} members"),
        Kind::MinProperties { limit } => format!("must have at least {limit} members"),
        Kind::Not { .. } => "fits what is excluded".to_owned(),
        Kind::Pattern { pattern } => format!("must match the pattern {}", quoted(pattern)),
        Kind::PropertyNames { error } => {
            format!("has a member whose name {}", message(error.kind()))
        }
        Kind::Required { property } => format!("must have the member {}", quote(property)),
        Kind::Type { kind } => match kind {
            TypeKind::Single(name) => format!("must be of type {name}"),
            TypeKind::Multiple(names) => {
                let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
                format!("must be of type {}", names.join(" or "))
            }
        },
        Kind::UniqueItems => "must have no two equal elements".to_owned(),
        Kind::BacktrackLimitExceeded { .. }
        | Kind::RegexEngineFailure { .. }
        | Kind::FromUtf8 { .. }
        | Kind::Custom { .. }
        | Kind::Referencing(_) => "could not be checked".to_owned(),
    }
}

/// Quotes a value of the schema.
pub(super) fn quote(value: &Value) -> String {
    quoted(&value.to_string())
}

fn names(what: &str, names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<_> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("\"{}\"", shorten(name)))
        .collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{what}: {}{more}", shown.join(", "))
}
