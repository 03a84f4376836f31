//! What a stranger finds in a fresh clone: commands that work, files that belong there.

use crate::support::program;
use std::path::PathBuf;
use std::process::Command;

/// What may stand at the top; a new entry is a decision.
const TOP: [&str; 18] = [
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "clippy.toml",
    "consul",
    "deny.toml",
    "docs",
    "examples",
    "fuzz",
    "grafana",
    "src",
    "tests",
];

/// Paths of one machine, and hosts that packages come from: each machine has its own.
///
/// Each in two pieces, so that this list does not find itself.
const LOCAL: [&str; 9] = [
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("../sh", "ared"),
    concat!("deb.", "debian.org"),
    concat!("snapshot.", "debian.org"),
    concat!("registry.", "npmjs.org"),
    concat!("py", "pi.org"),
    concat!("python", "hosted.org"),
    concat!("static.", "crates.io"),
];

#[test]
fn every_entry_at_the_top_is_expected() {
    for file in tracked() {
        let top = file.split('/').next().unwrap();
        assert!(
            TOP.contains(&top),
            "`{top}` at the top is not expected (tests/it/repository.rs)"
        );
    }
}

#[test]
fn no_file_names_one_machine() {
    let mut found = Vec::new();
    for file in tracked() {
        let Ok(bytes) = std::fs::read(program::root().join(&file)) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        found.extend(local_names(&text).map(|(line, name)| format!("{file}:{line}: {name}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn names_of_one_machine_are_found() {
    let cases = [
        (concat!("cd /wo", "rk/checkout"), Some((1, LOCAL[1]))),
        (
            concat!("ok\npath = \"/ro", "ot/.cargo\""),
            Some((2, LOCAL[0])),
        ),
        (concat!("see docs/wo", "rk/plan"), None),
        (
            concat!("URIs: http://", "deb.", "debian.org/debian"),
            Some((1, LOCAL[3])),
        ),
        (
            "registry+https://github.com/rust-lang/crates.io-index",
            None,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(local_names(text).next(), expected, "{text}");
    }
}

/// Returns line and name of each mention; a path counts only where it begins at the root.
fn local_names(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        LOCAL.into_iter().filter_map(move |name| {
            let mut places = line.match_indices(name);
            let begins = |(at, _): (usize, _)| {
                let before = line[..at].chars().next_back();
                !name.starts_with('/')
                    || !before.is_some_and(|c| c.is_alphanumeric() || "._-~}".contains(c))
            };
            places.any(begins).then_some((index + 1, name))
        })
    })
}

#[test]
fn the_readme_shows_the_two_commands() {
    let readme = std::fs::read_to_string(program::root().join("README.md")).unwrap();
    for command in ["cargo run --release -- demo", "tests/run"] {
        assert!(
            readme.contains(command),
            "README.md does not show `{command}`"
        );
    }
}

#[test]
fn the_readme_lists_every_command() {
    let output = Command::new(program::hermes()).arg("--help").output();
    let help = String::from_utf8(output.unwrap().stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let readme = std::fs::read_to_string(program::root().join("README.md")).unwrap();
    for line in commands.lines() {
        let command = line.split_whitespace().next().unwrap();
        let is_listed = readme
            .lines()
            .any(|line| line.starts_with('|') && line.contains(&format!("`{command}")));
        assert!(
            command == "help" || is_listed,
            "README.md does not list `{command}`"
        );
    }
}

#[test]
fn every_config_file_shown_is_accepted() {
    let files: Vec<PathBuf> = tracked()
        .into_iter()
        .filter(|file| {
            ["hermes.toml", "collector.toml"]
                .iter()
                .any(|name| file.ends_with(name))
        })
        .map(|file| program::root().join(file))
        .collect();
    assert!(!files.is_empty(), "there is no example config");
    for file in files {
        let output = Command::new(program::hermes())
            .args(["config", "show", "-c"])
            .arg(&file)
            .current_dir(file.parent().unwrap())
            .output()
            .unwrap();
        let problems = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{problems}", file.display());
    }
}

#[test]
fn the_architecture_names_what_is_there() {
    let text = std::fs::read_to_string(program::root().join("ARCHITECTURE.md")).unwrap();
    let source: String = tracked()
        .iter()
        .filter(|file| file.starts_with("src/") && file.ends_with(".rs"))
        .map(|file| std::fs::read_to_string(program::root().join(file)).unwrap())
        .collect();
    let mut missing = Vec::new();
    for name in text.split('`').skip(1).step_by(2) {
        let is_there = match name.split_once("::") {
            Some((_, function)) => source.contains(&format!("fn {function}")),
            None if name.ends_with(".rs") || name.ends_with('/') => {
                let root = program::root();
                root.join("src").join(name).exists() || root.join(name).exists()
            }
            None => true,
        };
        if !is_there {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}

#[test]
fn the_architecture_draws_the_floors_of_the_library() {
    let text = std::fs::read_to_string(program::root().join("ARCHITECTURE.md")).unwrap();
    let library = std::fs::read_to_string(program::root().join("src/lib.rs")).unwrap();
    let mut drawn = "";
    for line in library.lines() {
        if let Some(number) = line.strip_prefix("// ").and_then(|floor| floor.get(..1)) {
            let floor = |line: &&str| line.starts_with(&format!(" {number} "));
            drawn = text.lines().find(floor).unwrap_or(drawn);
        } else if let Some(room) = line.strip_prefix("pub mod ") {
            let room = room.trim_end_matches(';');
            let is_drawn = drawn.split(' ').any(|word| word == room);
            assert!(is_drawn, "`{room}` is not on its floor in ARCHITECTURE.md");
        }
    }
}

/// Returns the files git tracks here.
fn tracked() -> Vec<String> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(program::root())
        .output()
        .unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let files: Vec<String> = list.split_terminator('\0').map(str::to_owned).collect();
    assert!(files.len() > 10, "git lists only {files:?}");
    files
}
