//! A module imports only from floors below its own; neighbours do not know each other.
//!
//! Floors are read from the comments of `src/lib.rs`. On the ground floor a word may use the words
//! listed before it: ids and times belong to several. The entrance, the top floor, is one
//! room in several files: it alone may import from its own floor, and only it is above
//! `config`, so nothing else can import that.

use crate::support::program::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A room's name, its floor and its place in the list.
type Floors = BTreeMap<String, (u32, usize)>;

/// A source file: its path below `src/` and its text.
type Source = (String, String);

#[test]
fn modules_import_only_from_floors_below() {
    let sources = sources(&root().join("src"));
    let (_, library) = sources.iter().find(|(path, _)| path == "lib.rs").unwrap();
    let floors = floors(library);
    assert!(floors.len() > 10, "src/lib.rs lists only {floors:?}");
    let faults = faults(&floors, &sources);
    assert!(
        faults.is_empty(),
        "imports that climb:\n{}",
        faults.join("\n")
    );
}

#[test]
fn every_room_stands_on_a_floor() {
    let sources = sources(&root().join("src"));
    let (_, library) = sources.iter().find(|(path, _)| path == "lib.rs").unwrap();
    let floors = floors(library);
    for (path, _) in &sources {
        if path != "lib.rs" && path != "main.rs" {
            assert!(
                floors.contains_key(room_of(path)),
                "src/{path} is on no floor of src/lib.rs"
            );
        }
    }
}

/// Reads `// 3 rooms` and `pub mod contract;` lines into floors.
fn floors(library: &str) -> Floors {
    let mut floor = None;
    let mut floors = Floors::new();
    for line in library.lines() {
        if let Some(comment) = line.strip_prefix("// ") {
            let number = comment.split([' ', ':']).next().unwrap_or_default();
            floor = number.parse().ok().or(floor);
        } else if let Some(name) = line.strip_prefix("pub mod ") {
            let room = name.trim_end_matches(';').to_owned();
            let floor = floor.expect("a floor's comment precedes its modules");
            floors.insert(room, (floor, floors.len()));
        }
    }
    floors
}

fn faults(floors: &Floors, sources: &[Source]) -> Vec<String> {
    let top = floors.values().map(|(floor, _)| *floor).max();
    let mut faults = Vec::new();
    for (path, text) in sources {
        let room = room_of(path);
        // `lib.rs` and `main.rs` name no room: the one lists all, the other opens the door.
        let Some(&(own, place)) = floors.get(room) else {
            continue;
        };
        for (line, imported) in imports(path, text, floors, sources) {
            let Some(&(floor, listed)) = floors.get(&imported) else {
                faults.push(format!(
                    "src/{path}:{line}: `{imported}` is no room of src/lib.rs"
                ));
                continue;
            };
            let earlier_word = own == 0 && floor == 0 && listed < place;
            if imported != room && floor >= own && Some(own) != top && !earlier_word {
                faults.push(format!(
                    "src/{path}:{line}: `{room}` (floor {own}) imports `{imported}` (floor {floor})"
                ));
            }
        }
    }
    faults
}

fn room_of(path: &str) -> &str {
    path.split('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".rs")
}

/// Returns line and room of every path that starts at the crate's root.
fn imports(
    path: &str,
    text: &str,
    floors: &Floors,
    sources: &[Source],
) -> BTreeSet<(usize, String)> {
    let code: String = text
        .lines()
        .map(|line| without_comment(line) + "\n")
        .collect();
    let mut found = BTreeSet::new();
    for (start, _) in code.match_indices("crate::") {
        let line = line_of(&code, start);
        // `hermes_crate::` is another path; `$crate::` of a macro is ours.
        let before = code[..start].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            let names = first_names(&code[start + "crate::".len()..]);
            found.extend(names.into_iter().map(|name| (line, name)));
        }
    }
    // `super::` may climb to the root as well, as often as the file lies deep.
    for (start, _) in code.match_indices("super::") {
        let (mut before, mut steps) = (&code[..start], 1);
        while let Some(rest) = before.strip_suffix("super::") {
            (before, steps) = (rest, steps + 1);
        }
        for name in first_names(&code[start + "super::".len()..]) {
            // In an inline module one step less leads out: a file beside the own one is no room.
            let beside = format!("{}/{name}", directory_of(path));
            let is_beside = sources.iter().any(|(file, _)| {
                file.strip_prefix(&beside)
                    .is_some_and(|rest| rest.starts_with(['.', '/']))
            });
            if steps >= depth(path) && floors.contains_key(&name) && !is_beside {
                found.insert((line_of(&code, start), name));
            }
        }
    }
    found
}

fn line_of(code: &str, place: usize) -> usize {
    code[..place].matches('\n').count() + 1
}

/// Returns the directory that holds a module's own files: `store` for `store/mod.rs`,
/// `store/writer` for `store/writer.rs`.
fn directory_of(path: &str) -> &str {
    path.trim_end_matches("/mod.rs").trim_end_matches(".rs")
}

/// Counts the steps from a file's module up to the crate's root.
fn depth(path: &str) -> usize {
    directory_of(path).split('/').count()
}

/// Returns `a` of `a::b`, and `a`, `c` of `{a::{b}, c}`.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        let name = path
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        return vec![name];
    };
    let (mut names, mut depth, mut at_start) = (Vec::new(), 0, true);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            c if at_start && (c.is_alphanumeric() || c == '_') => {
                at_start = false;
                names.extend(first_names(&group[index..]));
            }
            _ => {}
        }
    }
    names
}

/// Cuts a line comment off; a `//` inside a string loses the rest of its line, which may
/// hide an import only from code that nobody writes.
fn without_comment(line: &str) -> String {
    line.split("//").next().unwrap_or_default().to_owned()
}

fn sources(directory: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(inner) = open.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(directory)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

const HOUSE: &str = "\
// 0 words: pure values
pub mod task;

// 2 outside
pub mod consul;
pub mod store;

// 6 settings
pub mod config;

// 7 entrance
pub mod app;
pub mod cli;
";

#[test]
fn climbing_imports_are_found() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("store/mod.rs", "use crate::task::State;", &[]),
        (
            "store/mod.rs",
            "use crate::store::writer;\nuse super::writer;",
            &[],
        ),
        (
            "store/mod.rs",
            "use crate::consul::Client;",
            &["store/mod.rs:1: `store` (floor 2) imports `consul` (floor 2)"],
        ),
        (
            "store/mod.rs",
            "\nuse crate::{task, config::{self, Config}};",
            &["store/mod.rs:2: `store` (floor 2) imports `config` (floor 6)"],
        ),
        (
            "store/writer.rs",
            "use super::super::app::App;",
            &["store/writer.rs:1: `store` (floor 2) imports `app` (floor 7)"],
        ),
        (
            "store/mod.rs",
            "use super::consul;",
            &["store/mod.rs:1: `store` (floor 2) imports `consul` (floor 2)"],
        ),
        (
            "store/mod.rs",
            "fn f() { crate::app::run() }",
            &["store/mod.rs:1: `store` (floor 2) imports `app` (floor 7)"],
        ),
        (
            "store/mod.rs",
            "//! See [`crate::app`].\n// crate::cli",
            &[],
        ),
        ("store/mod.rs", "use other_crate::app;", &[]),
        (
            "store/mod.rs",
            "use crate::cellar::Wine;",
            &["store/mod.rs:1: `cellar` is no room of src/lib.rs"],
        ),
        (
            "task.rs",
            "use crate::store;",
            &["task.rs:1: `task` (floor 0) imports `store` (floor 2)"],
        ),
        ("app/mod.rs", "use crate::{cli, config, store};", &[]),
    ];
    for (path, text, expected) in cases {
        let sources = [
            ((*path).to_owned(), (*text).to_owned()),
            ("store/writer.rs".to_owned(), String::new()),
        ];
        let expected: Vec<String> = expected
            .iter()
            .map(|fault| format!("src/{fault}"))
            .collect();
        assert_eq!(faults(&floors(HOUSE), &sources), expected, "{path}: {text}");
    }
}

#[test]
fn a_file_of_the_own_room_may_bear_another_rooms_name() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = [
        file("app/mod.rs", "mod store;"),
        file("consul/client.rs", "use super::store::Row;"),
        file("consul/watch/mod.rs", "mod tests { use super::app; }"),
        file("consul/watch/app.rs", "use super::super::store::Row;"),
        file("consul/store.rs", ""),
    ];
    assert_eq!(faults(&floors(HOUSE), &sources), Vec::<String>::new());
}
