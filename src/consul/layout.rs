//! Where things of ours stand in Consul: service names and keys.
//!
//! Everything hangs below one prefix, so that two prefixes on one Consul do not meet. Services of
//! the usual prefix carry the bare contract id; others are `PREFIX-ID`, which a `service_prefix`
//! rule can tell apart.

/// The prefix whose services carry bare contract ids.
const USUAL: &str = "hermes";

/// Names for one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
}

impl Layout {
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// Names the service under which instances of a contract (or another part of us) register.
    pub fn service(&self, id: &str) -> String {
        match self.prefix.as_str() {
            USUAL => id.to_owned(),
            prefix => format!("{prefix}-{id}"),
        }
    }

    /// Returns what a service's name stands for; nothing for one that is not of this prefix.
    pub fn of_service<'n>(&self, service: &'n str) -> Option<&'n str> {
        match self.prefix.as_str() {
            USUAL => Some(service),
            prefix => service.strip_prefix(prefix)?.strip_prefix('-'),
        }
    }

    /// Names the keys of all contracts.
    pub fn contracts(&self) -> String {
        format!("{}/contracts/", self.prefix)
    }

    /// Names all index entries.
    pub fn indexes(&self) -> String {
        format!("{}/index/", self.prefix)
    }

    /// Names the key of one published body; what stands there never changes.
    pub fn body(&self, id: &str, version: &str) -> String {
        format!("{}/contracts/{id}/{version}", self.prefix)
    }

    /// Names the keys of one contract: its bodies and its version pointer.
    pub fn bodies(&self, id: &str) -> String {
        format!("{}/contracts/{id}/", self.prefix)
    }

    /// Names the bodies and pointers of every minor of one major of a family.
    pub fn majors(&self, family: &str, major: u32) -> String {
        format!("{}/contracts/{family}-v{major}.", self.prefix)
    }

    /// Names the key of the current version, plain text.
    pub fn version(&self, id: &str) -> String {
        format!("{}/contracts/{id}/version", self.prefix)
    }

    /// Names the empty keys that keep a watched prefix from being empty.
    pub fn keep(&self) -> Vec<String> {
        let below = |part| format!("{}/{part}/_keep", self.prefix);
        vec![below("canary"), below("index")]
    }

    /// Names the keys of all canary ratios.
    pub fn canaries(&self) -> String {
        format!("{}/canary/", self.prefix)
    }

    /// Names the key of one contract's canary ratio.
    pub fn canary(&self, id: &str) -> String {
        format!("{}/canary/{id}", self.prefix)
    }

    /// Names the key of the index entry that moves with the version.
    pub fn index(&self, id: &str) -> String {
        format!("{}/index/{id}", self.prefix)
    }

    /// Names the index entries of every minor of one major of a family.
    pub fn minors(&self, family: &str, major: u32) -> String {
        format!("{}/index/{family}-v{major}.", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_prefix_marks_services_too() {
        let usual = Layout::new("hermes");
        assert_eq!(usual.service("fraud-v1.0"), "fraud-v1.0");
        assert_eq!(
            usual.body("fraud-v1.0", "1.0.0"),
            "hermes/contracts/fraud-v1.0/1.0.0"
        );
        let other = Layout::new("blue");
        assert_eq!(other.service("fraud-v1.0"), "blue-fraud-v1.0");
        assert_eq!(
            other.version("fraud-v1.0"),
            "blue/contracts/fraud-v1.0/version"
        );
        assert_eq!(other.index("fraud-v1.0"), "blue/index/fraud-v1.0");
        assert_eq!(other.minors("fraud", 1), "blue/index/fraud-v1.");
        assert_eq!(other.majors("fraud", 1), "blue/contracts/fraud-v1.");
        assert_eq!(other.contracts(), "blue/contracts/");
        assert_eq!(other.canaries(), "blue/canary/");
        assert_eq!(other.canary("fraud-v1.0"), "blue/canary/fraud-v1.0");
        assert_eq!(other.indexes(), "blue/index/");
        assert_eq!(usual.of_service("fraud-v1.0"), Some("fraud-v1.0"));
        assert_eq!(other.of_service("blue-fraud-v1.0"), Some("fraud-v1.0"));
        assert_eq!(other.of_service("fraud-v1.0"), None);
    }
}
