//! The second step of admission: the application is well and runs what the contract describes.

use super::health::Health;
use crate::contract::Contract;
use semver::Version;

/// One start of the application, as far as its health tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub number: u32,
    /// The version it says it runs.
    pub version: Option<String>,
}

/// Why the second step does not hold.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Not asked yet.
    Unasked,
    Ill(String),
    /// The contract is not what runs.
    Drift(String),
}

/// Judges a contract by what is known of the application.
///
/// `all` are the versions that this sidecar serves: a bare version must be one of them.
pub fn fit(
    contract: &Contract,
    health: &Health,
    all: &[Version],
    require_version: bool,
) -> Result<Start, Unfit> {
    let (versions, number) = match health {
        Health::Unknown => return Err(Unfit::Unasked),
        Health::Ill { reason } => return Err(Unfit::Ill(reason.clone())),
        Health::Well { versions, start } => (versions, *start),
    };
    let id = contract.id.as_str();
    let said = versions.said_of(id);
    if require_version && said.is_none() {
        let reason = "the health reply names no version, which require_version asks for";
        return Err(Unfit::Drift(reason.to_owned()));
    }
    let version = &contract.version;
    if let Some(said) = versions.conflict(id, version, all) {
        return Err(Unfit::Drift(format!(
            "the application says it runs {said}, the contract is {version}"
        )));
    }
    Ok(Start {
        number,
        version: said.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::health::Versions;

    fn contract() -> Contract {
        let body = serde_json::json!({
            "id": "a-b-v1.0",
            "version": "1.0.1",
            "input_schema": {"type": "object"},
            "output_schema": {"type": "object"},
            "constraints": {"timeout_ms": 500},
        });
        Contract::from_slice(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_health_says_fits_or_tells_why_not() {
        let contract = contract();
        let all = [contract.version.clone()];
        let well = |said: Option<&str>, start| Health::Well {
            versions: Versions::bare(said),
            start,
        };
        let judged = |health: &Health, require| fit(&contract, health, &all, require);
        let start = |number, version: Option<&str>| Start {
            number,
            version: version.map(str::to_owned),
        };
        assert_eq!(judged(&Health::Unknown, false), Err(Unfit::Unasked));
        assert_eq!(judged(&well(None, 1), false), Ok(start(1, None)));
        let right = judged(&well(Some("1.0.1"), 2), true);
        assert_eq!(right, Ok(start(2, Some("1.0.1"))));
        for (health, require, part) in [
            (well(None, 1), true, "require_version"),
            (
                well(Some("1.0.0"), 1),
                false,
                "says it runs 1.0.0, the contract is 1.0.1",
            ),
        ] {
            match judged(&health, require) {
                Err(Unfit::Drift(reason)) => assert!(reason.contains(part), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
        let reason = "gone".to_owned();
        let ill = Health::Ill {
            reason: reason.clone(),
        };
        assert_eq!(judged(&ill, false), Err(Unfit::Ill(reason)));
    }
}
