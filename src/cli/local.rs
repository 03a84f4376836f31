//! Commands that talk to the admin listener of the local sidecar.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{self, Answer};
use super::exit::{Exit, Failure};
use super::{OutputArgs, output};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    #[command(flatten)]
    place: AdminPlace,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct AdminPlace {
    /// Base URL of the admin listener; default: HERMES_ADMIN, else as the settings say.
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Config file that names the listener.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct LogLevelArgs {
    /// The filter to set, e.g. `debug` or `info,hermes_sidecar::consul=debug`.
    filter: Option<String>,
    #[command(flatten)]
    place: AdminPlace,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn drain(args: AdminArgs) -> Result<Exit, Failure> {
    order(args, "/drain", "draining")
}

pub(super) fn quit(args: AdminArgs) -> Result<Exit, Failure> {
    order(args, "/quit", "stopping")
}

pub(super) fn reload(args: AdminArgs) -> Result<Exit, Failure> {
    #[derive(Deserialize)]
    struct Reloaded {
        applied: Vec<String>,
        restart: Vec<String>,
    }
    let answer = ask(args.place, Method::POST, "/reload", None)?;
    let exit = match answer.status {
        StatusCode::BAD_REQUEST => Some(Exit::Usage),
        StatusCode::CONFLICT => Some(Exit::Negative),
        _ => None,
    };
    if let Some(exit) = exit {
        match args.output.is_json() {
            true => output::json(&unchanged(&answer.body)),
            false => {
                let (told, between) = (output::detail(&answer.body), separator(exit));
                output::talk(&format!("nothing was changed:{between}{told}"));
            }
        }
        return Ok(exit);
    }
    refuse(&answer)?;
    let reloaded: Reloaded = serde_json::from_slice(&answer.body)
        .map_err(|error| Failure::Answer(format!("the answer makes no sense: {error}")))?;
    if args.output.is_json() {
        output::json(&json!({"applied": reloaded.applied, "restart": reloaded.restart}));
        return Ok(Exit::Fine);
    }
    for (what, keys) in [
        ("in force now", &reloaded.applied),
        ("wants a restart", &reloaded.restart),
    ] {
        for key in keys {
            output::line(&format!("{}  {what}", output::plain(key)));
        }
    }
    if reloaded.applied.is_empty() && reloaded.restart.is_empty() {
        output::talk("nothing has changed");
    }
    Ok(Exit::Fine)
}

/// Faults have lines of their own.
fn separator(exit: Exit) -> char {
    match exit {
        Exit::Usage => '\n',
        _ => ' ',
    }
}

/// Tells in the shape of a reload that nothing took effect, and why.
fn unchanged(body: &[u8]) -> Value {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let problems = match &told["problems"] {
        Value::Array(problems) => problems.clone(),
        _ => vec![output::detail(body).into()],
    };
    json!({"applied": [], "restart": [], "problems": problems})
}

fn order(args: AdminArgs, path: &str, done: &str) -> Result<Exit, Failure> {
    let answer = ask(args.place, Method::POST, path, None)?;
    refuse(&answer)?;
    if args.output.is_json() {
        output::json(&json!({"state": done}));
    } else {
        output::talk(done);
    }
    Ok(Exit::Fine)
}

pub(super) fn log_level(args: LogLevelArgs) -> Result<Exit, Failure> {
    let method = if args.filter.is_some() {
        Method::PUT
    } else {
        Method::GET
    };
    let answer = ask(args.place, method, "/log-level", args.filter.clone())?;
    if answer.status == StatusCode::BAD_REQUEST {
        let told = output::detail(&answer.body);
        return Err(Failure::Usage(format!("no such filter: {told}")));
    }
    refuse(&answer)?;
    let told = String::from_utf8_lossy(&answer.body);
    let filter = args.filter.unwrap_or_else(|| told.trim().to_owned());
    if args.output.is_json() {
        output::json(&json!({"filter": filter}));
    } else {
        output::line(&output::plain(&filter));
    }
    Ok(Exit::Fine)
}

pub(super) fn healthcheck(args: AdminArgs) -> Result<Exit, Failure> {
    let base = base(args.place)?;
    let answer = ask_at(&base, Method::GET, "/ready", None)?;
    let fine = answer.status.is_success();
    let Ok(Value::Array(checks)) = serde_json::from_slice(&answer.body) else {
        return Err(Failure::Stranger {
            what: "the sidecar",
            url: base,
            told: format!("/ready gives {} and no list of checks", answer.status),
        });
    };
    let checks = Value::Array(checks);
    if args.output.is_json() {
        output::json(&json!({"ready": fine, "checks": checks}));
    } else {
        output::line(if fine { "ready" } else { "not ready" });
        if !fine {
            output::talk(&output::plain(&checks.to_string()));
        }
    }
    Ok(output::verdict(fine))
}

fn ask(
    place: AdminPlace,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Answer, Failure> {
    ask_at(&base(place)?, method, path, body)
}

pub(super) fn base(place: AdminPlace) -> Result<String, Failure> {
    client::base(place.admin, "admin", place.config, |addresses| {
        addresses.admin.clone()
    })
}

pub(super) fn ask_at(
    base: &str,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Answer, Failure> {
    let mut request = client::http(base, TIMEOUT)?.request(method, client::url(base, path));
    // A page in a browser cannot send this header to us, so it cannot command us either.
    request = request.header("hermes-admin", "1");
    if let Some(body) = body {
        request = request.header("content-type", "text/plain").body(body);
    }
    client::block_on(client::send("the sidecar", base, request))
}

fn refuse(answer: &Answer) -> Result<(), Failure> {
    if answer.status.is_success() {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&answer.body);
    let body = output::plain(body.trim()).into_owned();
    Err(Failure::Answer(format!(
        "the sidecar refused: {} {body}",
        answer.status
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_that_changed_nothing_says_why_in_json() {
        for (body, problems) in [
            (
                r#"{"detail": "a\nb", "problems": ["a", "b"]}"#,
                json!(["a", "b"]),
            ),
            (r#"{"detail": "not now"}"#, json!(["not now"])),
            ("<h1>", json!(["<h1>"])),
        ] {
            let expected = json!({"applied": [], "restart": [], "problems": problems});
            assert_eq!(unchanged(body.as_bytes()), expected);
        }
    }
}
