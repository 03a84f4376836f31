//! `contract list`: every published id with its current version.

use clap::Args;
use semver::Version;
use serde_json::{Value, json};

use crate::admission::publication::{self, Shelf};
use crate::cli::exit::{Exit, Failure};
use crate::cli::{OutputArgs, client, output};

use super::{Place, failed};

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: OutputArgs,
}

pub(in crate::cli) fn list(args: ListArgs) -> Result<Exit, Failure> {
    let (registry, consul) = args.place.registry()?;
    let listed = client::block_on(async { publication::list(&consul).await.map_err(failed) })?;
    if listed.is_empty() {
        let prefix = &registry.consul.prefix;
        output::talk(&format!(
            "nothing is published below {prefix}/, or the token may not read there"
        ));
    }
    if args.output.is_json() {
        output::json(&listed.iter().map(as_json).collect());
    } else {
        output::data(table(&listed).as_bytes());
    }
    Ok(Exit::Fine)
}

fn as_json(shelf: &Shelf) -> Value {
    json!({
        "agent": shelf.id.as_str(),
        "version": shelf.current.as_ref().map(Version::to_string),
        "digest": shelf.digest.map(|digest| digest.to_string()),
        "team": shelf.team,
        "updated_at": shelf.updated_at,
        "versions": shelf.versions.iter().map(Version::to_string).collect::<Vec<_>>(),
    })
}

fn table(listed: &[Shelf]) -> String {
    let head = ["AGENT", "CURRENT", "PUBLISHED", "TEAM", "UPDATED", "DIGEST"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(listed.iter().map(row));
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    if listed.is_empty() {
        return String::new();
    }
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(shelf: &Shelf) -> [String; 6] {
    let or_dash = |text: &str| match text {
        "" => "-".to_owned(),
        text => output::plain(text).into_owned(),
    };
    let current = shelf.current.as_ref().map(Version::to_string);
    let digest = shelf.digest.map(|digest| digest.to_string());
    [
        shelf.id.to_string(),
        current.unwrap_or_else(|| "-".to_owned()),
        shelf.versions.len().to_string(),
        or_dash(&shelf.team),
        or_dash(&shelf.updated_at),
        digest.unwrap_or_else(|| "-".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_cannot_steer_the_terminal() {
        let shelf = |id: &str, current: Option<Version>, team: &str| Shelf {
            id: id.parse().unwrap(),
            current,
            digest: None,
            team: team.to_owned(),
            updated_at: String::new(),
            versions: vec![Version::new(1, 0, 0)],
        };
        let listed = [
            shelf("a-v1.0", Some(Version::new(1, 0, 0)), "finance"),
            shelf("long-name-v1.0", None, "\u{1b}[2J"),
        ];
        let expected = "\
AGENT           CURRENT  PUBLISHED  TEAM     UPDATED  DIGEST
a-v1.0          1.0.0    1          finance  -        -
long-name-v1.0  -        1          \u{fffd}[2J     -        -
";
        assert_eq!(table(&listed), expected);
        assert_eq!(table(&[]), "");
    }
}
