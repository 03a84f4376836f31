//! From when to when a certificate holds, and whether it may issue others.

use std::time::Duration;

use rustls::pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage};

use crate::task::Timestamp;

/// The two dates of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dates {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Dates {
    /// Reads them: webpki names a date only when it refuses a certificate for it, so it is asked
    /// about the two ends of time.
    pub(super) fn of(cert: &EndEntityCert<'_>) -> Result<Self, webpki::Error> {
        let from = match refusal(cert, Duration::ZERO) {
            webpki::Error::CertNotValidYet { not_before, .. } => not_before.as_secs(),
            // Good since the epoch itself; what else is wrong shows at the other end.
            _ => 0,
        };
        match refusal(cert, Duration::from_secs(u64::MAX)) {
            webpki::Error::CertExpired { not_after, .. } => Ok(Self {
                from: at(from),
                until: at(not_after.as_secs()),
            }),
            other => Err(other),
        }
    }

    /// Says whether `now` lies between them.
    pub(super) fn hold(self, now: Timestamp) -> bool {
        self.from <= now && now <= self.until
    }
}

/// Says whether a certificate may issue others.
pub(super) fn is_authority(cert: &EndEntityCert<'_>, dates: Dates) -> bool {
    let within = Duration::from_millis(dates.from.millis());
    matches!(refusal(cert, within), webpki::Error::CaUsedAsEndEntity)
}

/// Why a certificate is refused at `time` by one who trusts nobody; webpki looks at the dates
/// first, at the right to issue next, and only then for an issuer.
fn refusal(cert: &EndEntityCert<'_>, time: Duration) -> webpki::Error {
    let time = UnixTime::since_unix_epoch(time);
    let verified = cert.verify_for_usage(&[], &[], &[], time, KeyUsage::client_auth(), None, None);
    verified.err().unwrap_or(webpki::Error::UnknownIssuer)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds.saturating_mul(1000))
}
