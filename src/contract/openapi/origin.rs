//! Where in the OpenAPI document each part of a contract comes from.

use crate::contract::{Problem, Problems};

/// Pairs of places: in the contract, and in the document it was read from.
#[derive(Debug, Clone, Default)]
pub struct Origins(Vec<(String, String)>);

impl Origins {
    pub fn add(&mut self, here: impl Into<String>, there: impl Into<String>) {
        self.0.push((here.into(), there.into()));
    }

    /// Turns a place in the contract into one in the document.
    pub fn place(&self, pointer: &str) -> String {
        let below = |here: &str| {
            let rest = pointer.strip_prefix(here)?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)
        };
        let fitting = self.0.iter().filter(|(here, _)| below(here).is_some());
        match fitting.max_by_key(|(here, _)| here.len()) {
            Some((here, there)) => format!("{there}{}", below(here).unwrap_or_default()),
            None => pointer.to_owned(),
        }
    }

    /// Moves a problem of the contract to its place in the document.
    pub fn placed(&self, mut problem: Problem) -> Problem {
        problem.pointer = self.place(&problem.pointer);
        problem
    }

    pub fn all_placed(&self, problems: Problems) -> Problems {
        let mut placed = Problems::default();
        let problems = problems.into_iter();
        placed.extend(problems.map(|problem| self.placed(problem)));
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_known_way_wins_and_names_are_whole() {
        let mut origins = Origins::default();
        origins.add("", "/op/x-hermes");
        origins.add("/input_schema", "/op/schema");
        origins.add("/input_schema/$defs/A", "/components/schemas/A");
        for (here, there) in [
            ("", "/op/x-hermes"),
            ("/id", "/op/x-hermes/id"),
            ("/input_schema", "/op/schema"),
            ("/input_schema_2", "/op/x-hermes/input_schema_2"),
            ("/input_schema/$defs/A/type", "/components/schemas/A/type"),
            ("/input_schema/$defs/AB", "/op/schema/$defs/AB"),
        ] {
            assert_eq!(origins.place(here), there, "{here}");
        }
    }
}
