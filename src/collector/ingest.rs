//! Reading status reports from a request body: one object, an array, or one object per line.
//!
//! - a report that cannot be taken is rejected by its index and bothers no other
//! - unpacking and parsing are bounded before they begin
//! - short reports, as applications write them, become full ones here

use super::attempt::Told;
use crate::identity::Digest;
use crate::task::{MOST_ATTEMPTS, Report, Reporter, Short, Timestamp, Unfit};
use flate2::read::GzDecoder;
use serde_json::value::RawValue;
use std::io::Read;
use std::time::Duration;

/// The longest body, as it comes and unpacked.
pub(super) const PACKED_BYTES: usize = 4 << 20;
const UNPACKED_BYTES: usize = 16 << 20;

/// Reports in one array or body of lines.
const MOST_REPORTS: usize = 1_000;

/// The longest single report, and the longest text in one.
const REPORT_BYTES: usize = 64 << 10;
const MOST_STATES: usize = 16;
const NAME_BYTES: usize = 256;

/// How far a sender's clock may be ahead of this one. What is told of a far future would head all
/// lists, and stay open, for as long.
const AHEAD: Duration = Duration::from_secs(24 * 3600);
/// The longest time that a call may take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

/// Why a body as a whole is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body is no valid gzip stream")]
    Gzip,
    #[error("the body has more than {UNPACKED_BYTES} bytes when unpacked")]
    TooLong,
    #[error("the body has more than {MOST_REPORTS} reports")]
    TooMany,
    #[error("the body is no JSON object, array of objects, or lines of objects: {0}")]
    Json(String),
}

/// One report that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct Rejected {
    pub(super) index: usize,
    pub(super) reason: String,
}

/// What a body held, each with its index.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) taken: Vec<(usize, Told)>,
    pub(super) rejected: Vec<Rejected>,
}

/// Unpacks and reads a body; blocks for its length. A short report that names no application is
/// the `caller`'s own.
pub(super) fn read(
    body: &[u8],
    coding: Coding,
    now: Timestamp,
    caller: Option<&str>,
) -> Result<Parsed, BodyError> {
    match coding {
        Coding::Identity => parse(body, now, caller),
        Coding::Gzip => parse(&unpack(body)?, now, caller),
    }
}

fn unpack(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut unpacked = Vec::with_capacity((body.len() * 4).min(UNPACKED_BYTES));
    let limit = UNPACKED_BYTES as u64 + 1;
    let read = GzDecoder::new(body).take(limit).read_to_end(&mut unpacked);
    read.or(Err(BodyError::Gzip))?;
    if unpacked.len() > UNPACKED_BYTES {
        return Err(BodyError::TooLong);
    }
    Ok(unpacked)
}

fn parse(body: &[u8], now: Timestamp, caller: Option<&str>) -> Result<Parsed, BodyError> {
    let json = |error: serde_json::Error| BodyError::Json(error.to_string());
    let text = body.trim_ascii();
    let items: Vec<&[u8]> = if text.starts_with(b"[") {
        let array: Vec<&RawValue> = serde_json::from_slice(text).map_err(json)?;
        array.iter().map(|raw| raw.get().as_bytes()).collect()
    } else if text.starts_with(b"{") {
        let mut values = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
        let first = values.next();
        match first {
            Some(Ok(_)) if text[values.byte_offset()..].trim_ascii().is_empty() => vec![text],
            Some(Err(error)) if !text.contains(&b'\n') => return Err(json(error)),
            _ => lines(text),
        }
    } else {
        return Err(BodyError::Json("it begins like none of them".to_owned()));
    };
    if items.len() > MOST_REPORTS {
        return Err(BodyError::TooMany);
    }
    let mut parsed = Parsed::default();
    for (index, item) in items.into_iter().enumerate() {
        match report(item, now, caller) {
            Ok(told) => parsed.taken.push((index, told)),
            Err(reason) => parsed.rejected.push(Rejected { index, reason }),
        }
    }
    Ok(parsed)
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.trim_ascii().is_empty()).collect()
}

fn report(item: &[u8], now: Timestamp, caller: Option<&str>) -> Result<Told, String> {
    if item.len() > REPORT_BYTES {
        return Err(format!("a report has at most {REPORT_BYTES} bytes"));
    }
    let mut report = match serde_json::from_slice::<Report>(item) {
        Ok(report) => report,
        Err(error) => match serde_json::from_slice::<Short>(item) {
            Ok(short) => match short
                .of(caller)
                .complete(now, |bytes| Digest::of(bytes).digits())
            {
                // Only a full report has another reporter; then its own error is the one to tell.
                Err(Unfit::Reporter) => return Err(error.to_string()),
                completed => completed.map_err(|unfit| unfit.to_string())?,
            },
            Err(short) => return Err(short.to_string()),
        },
    };
    let told = Told {
        detail: report.detail.take(),
        report,
        conflicts: Vec::new(),
    };
    check(&told.report)?;
    check_times(&told.report, now)?;
    Ok(told)
}

fn check(report: &Report) -> Result<(), String> {
    if !(1..=MOST_ATTEMPTS).contains(&report.attempt) {
        return Err(format!("attempt is a number from 1 to {MOST_ATTEMPTS}"));
    }
    if report.reporter == Reporter::Watchdog {
        return Err("a watchdog's marks are the collector's own".to_owned());
    }
    if report.states.is_empty() || report.states.len() > MOST_STATES {
        return Err(format!("states has 1 to {MOST_STATES} entries"));
    }
    if report.states.last().map(|last| last.state) != Some(report.state) {
        return Err("state is the last of states".to_owned());
    }
    let names = [
        &report.agent,
        &report.agent_version,
        &report.instance,
        &report.application,
        &report.trace_id,
    ];
    if names.into_iter().any(|name| name.len() > NAME_BYTES) {
        return Err(format!("a name has at most {NAME_BYTES} bytes"));
    }
    Ok(())
}

/// Refuses what no clock that is roughly right can have shown.
fn check_times(report: &Report, now: Timestamp) -> Result<(), String> {
    let latest = now.plus(AHEAD);
    let ahead = report.states.iter().find(|state| state.at > latest);
    if let Some(ahead) = ahead {
        return Err(format!(
            "{} at {} is more than a day ahead of the collector's clock, {now}; set the sender's",
            ahead.state, ahead.at
        ));
    }
    let deadline_at = report.deadline_at;
    // A call of the longest time, by a clock that is as far ahead as it may be.
    if deadline_at > latest.plus(LONGEST) {
        return Err(format!(
            "deadline_at {deadline_at} is more than two days ahead of the collector's clock, {now}; \
             set the sender's"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::State;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::io::Write;

    /// A moment after the reports of `full`, whatever the time is.
    fn now() -> Timestamp {
        serde_json::from_value("2026-11-30T12:00:00.000Z".into()).unwrap()
    }

    fn full(call: &str) -> Value {
        json!({
            "call_id": call, "task_id": "t", "step_id": "s", "attempt": 1, "state": "completed",
            "states": [{"state": "completed", "at": "2026-11-30T10:00:00.000Z"}],
            "reporter": "callee", "agent": "fraud-detection-v1.0",
            "deadline_at": "2026-11-30T10:00:00.500Z", "duration_ms": 12, "application": "fraud",
        })
    }

    fn with(change: impl FnOnce(&mut Value)) -> Value {
        let mut report = full("c");
        change(&mut report);
        report
    }

    fn taken(body: &str) -> (Vec<usize>, Vec<Rejected>) {
        let parsed = parse(body.as_bytes(), now(), None).unwrap();
        let taken = parsed.taken.iter().map(|(index, _)| *index).collect();
        (taken, parsed.rejected)
    }

    #[test]
    fn objects_arrays_and_lines_are_read() {
        let one = full("a").to_string();
        let pretty = serde_json::to_string_pretty(&full("a")).unwrap();
        for (body, count) in [
            (one.clone(), 1),
            (pretty, 1),
            (format!("[{one},{one}]"), 2),
            ("[]".to_owned(), 0),
            (format!("{one}\n{one}\n"), 2),
            (format!("{one}\r\n\r\n{one}"), 2),
        ] {
            let (taken, rejected) = taken(&body);
            assert_eq!(taken, (0..count).collect::<Vec<_>>(), "{body}");
            assert_eq!(rejected, []);
        }
    }

    #[test]
    fn a_bad_report_never_blocks_the_others() {
        let one = full("a").to_string();
        for (body, bad) in [
            (format!(r#"[{one},{{"task_id":"t"}},7,{one}]"#), vec![1, 2]),
            (format!("{one}\n{{broken\n{one}"), vec![1]),
            (format!("{{broken\n{one}\n{one}"), vec![0]),
        ] {
            let (taken, rejected) = taken(&body);
            assert_eq!(taken.len(), 2, "{body}");
            let indexes: Vec<usize> = rejected.iter().map(|rejected| rejected.index).collect();
            assert_eq!(indexes, bad, "{body}");
        }
    }

    #[test]
    fn bodies_that_hold_no_reports_are_refused() {
        for body in ["", "7", "null", "{", "[{]", "hello"] {
            let error = parse(body.as_bytes(), now(), None).unwrap_err();
            assert!(matches!(error, BodyError::Json(_)), "{body}");
        }
        let many = format!("[{}0]", "0,".repeat(MOST_REPORTS));
        let error = parse(many.as_bytes(), now(), None).unwrap_err();
        assert_eq!(error, BodyError::TooMany);
    }

    #[test]
    fn reasons_say_what_is_wrong() {
        for (report, reason) in [
            (with(|r| r["state"] = "done".into()), "unknown variant"),
            (with(|r| r["attempt"] = 0.into()), "attempt is a number"),
            (
                with(|r| r["reporter"] = "watchdog".into()),
                "the collector's own",
            ),
            (
                with(|r| r["state"] = "timeout".into()),
                "the last of states",
            ),
            (with(|r| r["states"] = json!([])), "states has 1 to 16"),
            (
                with(|r| r["agent"] = "x".repeat(300).into()),
                "a name has at most",
            ),
            (with(|r| r["task_id"] = "a b".into()), "an id is"),
            (json!({"task_id": "t", "status": "odd"}), "no such state"),
            (json!({"status": "success"}), "missing field `task_id`"),
        ] {
            let (_, rejected) = taken(&report.to_string());
            assert!(
                rejected[0].reason.contains(reason),
                "{rejected:?} for {reason}"
            );
        }
        let (_, rejected) = taken(&with(|r| r["pad"] = "x".repeat(70_000).into()).to_string());
        assert!(rejected[0].reason.contains("at most 65536 bytes"));
    }

    #[test]
    fn times_of_a_far_future_are_refused() {
        for (states, deadline, reason) in [
            ("2026-12-01T12:00:00.000Z", "2026-12-02T12:00:00.000Z", None),
            (
                "2026-12-01T12:00:00.001Z",
                "2026-12-01T12:00:00.500Z",
                Some("completed at 2026-12-01T12:00:00.001Z is more than a day ahead"),
            ),
            (
                "2026-11-30T12:00:00.000Z",
                "9999-12-02T12:00:00.000Z",
                Some("deadline_at 9999-12-02T12:00:00.000Z is more than two days ahead"),
            ),
            ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", None),
        ] {
            let report = with(|r| {
                r["states"][0]["at"] = states.into();
                r["deadline_at"] = deadline.into();
            });
            let (_, rejected) = taken(&report.to_string());
            let got = rejected.first().map(|rejected| rejected.reason.as_str());
            match reason {
                None => assert_eq!(got, None),
                Some(reason) => assert!(got.unwrap().starts_with(reason), "{got:?}"),
            }
        }
    }

    #[test]
    fn short_reports_are_filled_in() {
        let digest = Digest::of(b"x").to_string();
        let long = "l".repeat(100);
        let long_id = Digest::of(format!("{long}:{long}").as_bytes()).to_string();
        let long_id = long_id.trim_start_matches("sha-256:");
        for (short, call, state, digest, detail) in [
            (
                json!({"task_id": "t", "step_id": "step_3", "status": "success", "output_hash": "d41d"}),
                "t:step_3",
                State::Completed,
                None,
                Some("output_hash d41d"),
            ),
            (
                json!({"task_id": "t", "state": "failed", "call_id": "c", "output_digest": digest}),
                "c",
                State::FailedExecution,
                Some(digest.as_str()),
                None,
            ),
            (
                json!({"task_id": long, "step_id": long, "state": "executing", "extra": 1}),
                long_id,
                State::Executing,
                None,
                None,
            ),
        ] {
            let parsed = parse(
                short.to_string().as_bytes(),
                Timestamp::from_millis(7),
                None,
            )
            .unwrap();
            let told = &parsed.taken[0].1;
            assert_eq!(told.report.call_id.as_str(), call);
            assert_eq!(told.report.state, state);
            assert_eq!(told.report.reporter, Reporter::Application);
            assert_eq!(told.report.output_digest.as_deref(), digest);
            assert_eq!(told.detail.as_deref(), detail);
            assert_eq!(told.report.states[0].at, Timestamp::from_millis(7));
        }
    }

    #[test]
    fn gzip_is_unpacked_within_its_limit() {
        let pack = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let packed = pack(full("a").to_string().as_bytes());
        let parsed = read(&packed, Coding::Gzip, now(), None).unwrap();
        assert_eq!(parsed.taken.len(), 1);
        let cut = &packed[..packed.len() / 2];
        for (body, error) in [
            (cut.to_vec(), BodyError::Gzip),
            (b"plain".to_vec(), BodyError::Gzip),
            (pack(&vec![b' '; UNPACKED_BYTES + 1]), BodyError::TooLong),
        ] {
            assert_eq!(read(&body, Coding::Gzip, now(), None).unwrap_err(), error);
        }
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&body, now(), None).ok();
            read(&body, Coding::Gzip, now(), None).ok();
        }

        #[test]
        fn every_index_is_answered_once(kinds in proptest::collection::vec(0..3u8, 0..40)) {
            let item = |kind: &u8| match kind {
                0 => full("a").to_string(),
                1 => r#"{"task_id":"t","status":"success"}"#.to_owned(),
                _ => "false".to_owned(),
            };
            let items: Vec<String> = kinds.iter().map(item).collect();
            let (mut taken, rejected) = taken(&format!("[{}]", items.join(",")));
            taken.extend(rejected.iter().map(|rejected| rejected.index));
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..kinds.len()).collect::<Vec<_>>());
        }
    }
}
