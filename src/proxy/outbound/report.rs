//! `POST /report-status`: what the application tells of its own work.
//!
//! Its report joins the attempt that is served here for the task it names, so that it stands
//! beside what the sidecars say of it; otherwise task and step name a call of its own. It goes the
//! way of all reports, through the spool, and is answered as the collector would, as far as the
//! spool still holds what was told before; of what has gone, the collector judges.

use super::Outbound;
use crate::context::Fields;
use crate::contract::guard;
use crate::identity::Digest;
use crate::proxy::active::Step;
use crate::proxy::attempt::deadline_at;
use crate::proxy::body::Body;
use crate::proxy::check;
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::spool::Durability;
use crate::task::{MOST_ATTEMPTS, Problem, Report, Short, Timestamp};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response};
use serde::Serialize;

/// The longest report, as at the collector.
const MOST_BYTES: usize = 64 << 10;

/// The collector's answer to one report.
#[derive(Debug, Serialize)]
struct Receipt {
    accepted: u8,
    duplicates: u8,
    conflicts: u8,
    rejected: Vec<Rejected>,
}

#[derive(Debug, Serialize)]
struct Rejected {
    index: u8,
    reason: String,
}

impl Outbound {
    pub(super) async fn report_status(
        &self,
        mut head: Parts,
        body: Received,
        fields: &Fields,
    ) -> Response<Body> {
        // The collector takes a body without a type, and applications tell either of them.
        let json = HeaderValue::from_static("application/json");
        head.headers.entry(CONTENT_TYPE).or_insert(json.clone());
        if let Err(trouble) = self.config.limits.check(&head) {
            return self.refusals.turn_away(&trouble, fields, &head, body).await;
        }
        match self.take(body).await {
            Ok(receipt) => {
                let body = serde_json::to_vec(&receipt).unwrap_or_default();
                let mut response = Response::new(Body::whole(Bytes::from(body)));
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
            Err(trouble) => self.refusals.refuse(&trouble, fields),
        }
    }

    async fn take(&self, body: Received) -> Result<Receipt, Trouble> {
        let body = self.config.limits.read(body).await?;
        let parsed = guard::parse(&body, &self.config.limits.body);
        parsed.map_err(|refusal| check::refused(&refusal))?;
        if !body.trim_ascii_start().starts_with(b"{") {
            let detail = "the body must be one report, a JSON object";
            return Err(Trouble::new(Problem::BadJson, detail));
        }
        match self.understood(&body) {
            Ok(report) => self.spooled(report).await,
            Err(reason) => Ok(Receipt::rejecting(reason)),
        }
    }

    /// Completes a report by what is known of the attempt it tells of.
    fn understood(&self, body: &[u8]) -> Result<Report, String> {
        if body.len() > MOST_BYTES {
            return Err(format!("a report has at most {MOST_BYTES} bytes"));
        }
        let short: Short = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let (task, step, call) = (&short.task_id, &short.step_id, &short.call_id);
        let served = self.active.served(task, step.as_ref(), call.as_ref());
        let attempt = short.attempt;
        let now = Timestamp::now();
        let completed = short.complete(now, |bytes| Digest::of(bytes).digits());
        let mut report = completed.map_err(|unfit| unfit.to_string())?;
        report.application.clone_from(&self.config.application);
        report.agent.clone_from(&self.config.application);
        if let Some(step) = served {
            join(&mut report, &step, now);
            report.attempt = attempt.unwrap_or(step.attempt);
        }
        if !(1..=MOST_ATTEMPTS).contains(&report.attempt) {
            return Err(format!("attempt is a number from 1 to {MOST_ATTEMPTS}"));
        }
        Ok(report)
    }

    async fn spooled(&self, report: Report) -> Result<Receipt, Trouble> {
        let spool = &self.recorder.spool;
        let lost = |_counted| {
            let detail = "the spool takes no more reports; send this one again later";
            Trouble::new(Problem::SpoolUnavailable, detail)
        };
        if !report.state.is_end() {
            spool.offer(report).map_err(lost)?;
            return Ok(Receipt::accepting());
        }
        match spool.append(report).await {
            Durability::Lost(loss) => Err(lost(loss)),
            Durability::Known { repeated: true } => Ok(Receipt::repeated()),
            Durability::Known { repeated: false } => {
                let reason = "another end state of this attempt was told already";
                Ok(Receipt::rejecting(reason.to_owned()))
            }
            Durability::Stored | Durability::Queued | Durability::Degraded => {
                Ok(Receipt::accepting())
            }
        }
    }
}

impl Receipt {
    fn accepting() -> Self {
        Self {
            accepted: 1,
            duplicates: 0,
            conflicts: 0,
            rejected: Vec::new(),
        }
    }

    fn repeated() -> Self {
        Self {
            accepted: 0,
            duplicates: 1,
            ..Self::accepting()
        }
    }

    fn rejecting(reason: String) -> Self {
        Self {
            accepted: 0,
            rejected: vec![Rejected { index: 0, reason }],
            ..Self::accepting()
        }
    }
}

/// Makes a report tell of the attempt that `step` is.
fn join(report: &mut Report, step: &Step, now: Timestamp) {
    report.call_id.clone_from(&step.call_id);
    report.step_id.clone_from(&step.step_id);
    report.agent.clone_from(&step.agent);
    report.deadline_at = deadline_at(step.deadline);
    report.duration_ms = step.began_at.age(now).as_millis() as u64;
    report.sla_level = step.sla_level;
    report.scenario.clone_from(&step.scenario);
    report.requester.clone_from(&step.requester);
    report.trace_id = step.trace.reported_id();
}
