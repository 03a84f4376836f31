//! What time alone changes: TTLs that run out, probes, services critical for too long.

use std::time::Duration;

use tokio::time::Instant;

use super::{Catalog, Check};
use crate::devregistry::decode::{Kind, Status};

/// Consul's: anything lower is raised to this, and looked at every `REAP_EVERY`.
const MIN_DEREGISTER_AFTER: Duration = Duration::from_secs(60);
const REAP_EVERY: Duration = Duration::from_secs(30);
/// Consul's: HTTP checks run no more often.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// An HTTP check to run now.
pub(in crate::devregistry) struct Probe {
    pub(in crate::devregistry) check_id: String,
    pub(in crate::devregistry) url: String,
    pub(in crate::devregistry) method: String,
    pub(in crate::devregistry) timeout: Duration,
}

impl Catalog {
    /// Does what is due: TTLs that ran out, services critical for too long.
    pub(in crate::devregistry) fn expire(&mut self, index: &mut u64) {
        let now = Instant::now();
        let is_over = |check: &&mut Check| {
            matches!(check.definition.kind, Kind::Ttl(_)) && check.due.is_some_and(|due| due <= now)
        };
        let mut over = Vec::new();
        for check in self.checks.values_mut().filter(is_over) {
            check.due = None;
            let output = match check.output.as_str() {
                "" => "TTL expired".to_owned(),
                last => format!("TTL expired (last output before timeout follows): {last}"),
            };
            over.push((check.definition.id.clone(), output));
        }
        for (check_id, output) in over {
            self.set(index, &check_id, Status::Critical, &output);
        }
        let doomed = self
            .checks
            .values()
            .filter(|check| self.reap_at(check).is_some_and(|at| at <= now));
        let doomed: Vec<String> = doomed.map(|check| check.service_id.clone()).collect();
        for id in doomed {
            self.deregister(index, &id);
        }
    }

    /// Takes up to `most` probes that are due, and sets when each is due again.
    pub(in crate::devregistry) fn due_probes(&mut self, most: usize) -> Vec<Probe> {
        let now = Instant::now();
        let mut probes = Vec::new();
        for check in self.checks.values_mut() {
            if probes.len() == most {
                break;
            }
            let Kind::Http {
                url,
                method,
                interval,
                timeout,
            } = &check.definition.kind
            else {
                continue;
            };
            if check.due.is_some_and(|due| due <= now) {
                check.due = Some(now + (*interval).max(MIN_INTERVAL));
                let check_id = check.definition.id.clone();
                probes.push(Probe {
                    check_id,
                    url: url.clone(),
                    method: method.clone(),
                    timeout: *timeout,
                });
            }
        }
        probes
    }

    /// The next moment at which time alone changes something.
    pub(in crate::devregistry) fn next_due(&self) -> Option<Instant> {
        self.checks
            .values()
            .flat_map(|check| [check.due, self.reap_at(check)])
            .flatten()
            .min()
    }

    fn reap_at(&self, check: &Check) -> Option<Instant> {
        let after = check.definition.deregister_after?.max(MIN_DEREGISTER_AFTER);
        let wanted = check.critical_since? + after - self.started;
        let rounds = wanted.as_millis().div_ceil(REAP_EVERY.as_millis());
        Some(self.started + REAP_EVERY * u32::try_from(rounds).unwrap_or(u32::MAX))
    }
}

/// Returns when a check that was just registered is first due.
pub(super) fn first_due(kind: &Kind) -> Option<Instant> {
    match kind {
        Kind::Ttl(ttl) => Some(Instant::now() + *ttl),
        // Spread, as Consul does, so that checks registered together do not run together.
        Kind::Http { interval, .. } => {
            Some(Instant::now() + (*interval).max(MIN_INTERVAL).mul_f64(fastrand::f64()))
        }
        Kind::Maintenance => None,
    }
}
