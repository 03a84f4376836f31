//! The commands that a README shows, and which of them a test has run.

use crate::support::program;
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::PathBuf;

/// A README and the folder its commands are run in.
pub struct Readme {
    pub folder: PathBuf,
    pub blocks: Vec<Block>,
    used: RefCell<HashSet<usize>>,
}

pub struct Block {
    pub language: String,
    pub text: String,
}

impl Readme {
    pub fn read(path: &str) -> Self {
        let path = program::root().join(path);
        Self {
            blocks: blocks(&std::fs::read_to_string(&path).unwrap()),
            folder: path.parent().unwrap().to_owned(),
            used: RefCell::default(),
        }
    }

    /// Finds the one command that contains `part` and was not used yet.
    pub fn find(&self, part: &str) -> usize {
        let mut used = self.used.borrow_mut();
        let fits = |at: &usize| {
            let block = &self.blocks[*at];
            block.language == "sh" && block.text.contains(part) && !used.contains(at)
        };
        let found: Vec<usize> = (0..self.blocks.len()).filter(fits).collect();
        assert!(!found.is_empty(), "no command (left) with `{part}`");
        used.insert(found[0]);
        found[0]
    }

    /// Notes a command that this test does not run.
    pub fn leave(&self, part: &str) {
        self.find(part);
    }

    pub fn is_used_up(&self) {
        let used = self.used.borrow();
        for (at, block) in self.blocks.iter().enumerate() {
            let seen = block.language != "sh" || used.contains(&at);
            assert!(seen, "this command is not run by any test:\n{}", block.text);
        }
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), is_open) {
            (Some(language), false) => {
                let (language, text) = (language.to_owned(), String::new());
                blocks.push(Block { language, text });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                let block = blocks.last_mut().expect("an open block was pushed");
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, false) => {}
        }
    }
    blocks
}
