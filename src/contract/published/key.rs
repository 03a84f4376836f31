//! Keys: which contract and version they name, and what the version pointer says.

use crate::consul::Layout;
use crate::contract::ContractId;
use semver::Version;

/// What a key of a contract holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// The pointer to the current version.
    Pointer,
    Body(Version),
}

impl Key {
    /// Takes a key apart; nothing for one that is not of a contract.
    pub fn read(layout: &Layout, key: &str) -> Option<(ContractId, Self)> {
        let (id, rest) = key.strip_prefix(&layout.contracts())?.split_once('/')?;
        let id: ContractId = id.parse().ok()?;
        if rest == "version" {
            return Some((id, Self::Pointer));
        }
        let version = version(&id, rest)?;
        Some((id, Self::Body(version)))
    }
}

/// Reads which contract a key of the index is of; nothing for one of nobody, as that which keeps
/// the prefix from being empty.
pub fn indexed(layout: &Layout, key: &str) -> Option<ContractId> {
    key.strip_prefix(&layout.indexes())?.parse().ok()
}

/// Reads a version of this id, in its one spelling.
pub fn version(id: &ContractId, text: &str) -> Option<Version> {
    let version = Version::parse(text).ok()?;
    id.has(&version).then_some(version)
}

/// Reads the pointer to the current version; nothing where it names none of this id.
pub fn pointed(id: &ContractId, value: &[u8]) -> Option<Version> {
    version(id, std::str::from_utf8(value).ok()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_one_contract_or_of_nobody() {
        let layout = Layout::new("hermes");
        let read = |key: &str| Key::read(&layout, &format!("hermes/contracts/{key}"));
        let id: ContractId = "a-v1.0".parse().unwrap();
        let body = Key::Body(Version::new(1, 0, 2));
        assert_eq!(read("a-v1.0/1.0.2"), Some((id.clone(), body)));
        assert_eq!(read("a-v1.0/version"), Some((id.clone(), Key::Pointer)));
        for key in [
            "a-v1.0",
            "a-v1.0/",
            "a-v1.0/2.0.0",
            "a-v1.0/1.1.0",
            "a-v1.0/1.0",
            "A/1.0.0",
            "a-v1.0/1.0.0-rc1",
            "a-v1.0/1.0.0+b",
            "a-v1.0/01.0.0",
            "a-v1.0/1.0.0/x",
            "x/a-v1.0/1.0.0",
            "a-v1.0/notes/version",
        ] {
            assert_eq!(read(key), None, "{key}");
        }
        assert_eq!(Key::read(&layout, "blue/contracts/a-v1.0/1.0.0"), None);
        assert_eq!(indexed(&layout, "hermes/index/a-v1.0"), Some(id));
        for key in ["_keep", "x/a-v1.0", "a-v1.0/x"] {
            assert_eq!(indexed(&layout, &format!("hermes/index/{key}")), None);
        }
    }

    #[test]
    fn a_pointer_names_a_version_of_its_contract() {
        let id: ContractId = "a-v1.0".parse().unwrap();
        assert_eq!(pointed(&id, b" 1.0.7\n"), Some(Version::new(1, 0, 7)));
        for value in [&b"9.9.9"[..], b"1.0.0-rc1", b"1.0", b"", b"\xff"] {
            assert_eq!(pointed(&id, value), None, "{value:?}");
        }
    }
}
