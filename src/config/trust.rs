//! Whose signatures of contracts are believed: the keys of `[trust]`, read from their files.

use std::io::{self, Read};
use std::path::Path;

use super::contracts::missing;
use super::reader::Reader;
use crate::contract::trust::{Config, Ids, Listed, Mode};
use crate::identity::key::{self, PublicKey};

/// Takes the mode and every `[[trust.key]]`; problems stay with the reader.
pub(super) fn trust(reader: &mut Reader) -> Config {
    let modes = [
        ("pinned", Mode::Pinned),
        ("tofu", Mode::Tofu),
        ("off", Mode::Off),
    ];
    let mode = reader.word("trust.mode", &modes, Mode::Tofu);
    let declared = reader.effective.list_length("trust.key");
    if mode == Mode::Pinned && declared == 0 {
        let message = "\"pinned\" needs keys: add [[trust.key]] with file and ids, or nothing is \
                       trusted";
        reader.problem("trust.mode", message);
    }
    let keys = (0..declared).filter_map(|index| listed(reader, &format!("trust.key[{index}]")));
    Config {
        keys: keys.collect(),
        mode,
    }
}

fn listed(reader: &mut Reader, at: &str) -> Option<Listed> {
    let key = public_key(reader, at);
    let kid = reader.optional(&format!("{at}.kid"));
    let ids = ids(reader, at);
    Some(Listed::new(key?, kid, ids))
}

fn public_key(reader: &mut Reader, at: &str) -> Option<PublicKey> {
    let name = format!("{at}.file");
    let Some(path) = reader.file(&name) else {
        let message = "is required: a public key, PEM as keygen writes it to PATH.pub, or a JWK";
        missing(reader, at, "file", message);
        return None;
    };
    let read = match read(&path) {
        Ok(text) => PublicKey::from_file(&text).map_err(|error| error.to_string()),
        Err(error) => Err(format!("cannot be read: {error}")),
    };
    read.map_err(|why| reader.problem(&name, format!("{}: {why}", path.display())))
        .ok()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(key::LONGEST_FILE).read_to_end(&mut text)?;
    Ok(text)
}

fn ids(reader: &mut Reader, at: &str) -> Vec<Ids> {
    let name = format!("{at}.ids");
    let texts = reader.texts(&name);
    if texts.is_empty() {
        let message = "is required: ids of contracts that the key may sign, such as \"fraud-*\"";
        missing(reader, at, "ids", message);
    }
    let mut ids = Vec::with_capacity(texts.len());
    for text in texts {
        match Ids::parse(&text) {
            Ok(pattern) => ids.push(pattern),
            Err(error) => reader.problem(&name, error.to_string()),
        }
    }
    ids
}
