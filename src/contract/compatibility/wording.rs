//! How differences are told: always from the old contract to the new one.

use serde_json::Value;

use super::report::Side;
use crate::contract::violation;

/// Says that a limit moved; `sub` is that of the side whose values are judged.
pub fn changed(side: Side, sub: Option<&str>, sup: &str) -> String {
    let sub = sub.unwrap_or("not set");
    match side {
        Side::Output => format!("was {sup}, is now {sub}"),
        Side::Input | Side::Constraints => format!("was {sub}, is now {sup}"),
    }
}

/// Says that a kind of value was lost to one side.
pub fn lost(side: Side, what: &str) -> String {
    match side {
        Side::Output => format!("{what} may now come"),
        Side::Input | Side::Constraints => format!("{what} is no longer accepted"),
    }
}

pub fn nothing(side: Side) -> String {
    match side {
        Side::Output => "a value may now come where there was none".to_owned(),
        Side::Input | Side::Constraints => "no value is accepted any more".to_owned(),
    }
}

pub fn required(side: Side, name: &str) -> String {
    let name = quote(&Value::from(name));
    match side {
        Side::Output => format!("the member {name} is no longer guaranteed"),
        Side::Input | Side::Constraints => format!("the member {name} is now required"),
    }
}

/// Quotes a value of a schema, cut to what may be shown.
pub fn quote(value: &Value) -> String {
    violation::quote(value)
}
