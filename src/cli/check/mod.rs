//! `check`: everything that would keep a process from doing its work, found before it is started.
//!
//! Nothing is changed: no folder is made, nothing is registered. Each check is a function that
//! adds its findings; all of them run, whatever the others found.

mod around;
mod findings;
mod here;

use std::time::SystemTime;

use serde_json::json;

use crate::config::{Examined, Role, Settings};

use super::exit::{Exit, Failure};
use super::output::{self, Palette, Tone};
use super::running::Running;
use super::{ConfigArgs, OutputArgs, client};
use findings::{Findings, Level};

pub(super) fn check(config: ConfigArgs, output: OutputArgs) -> Result<Exit, Failure> {
    let mut found = Findings::default();
    let examined = Settings::examine(&config.source(), Role::Described);
    for problem in &examined.problems {
        found.add("config", Level::Problem, Exit::Usage, problem.to_string());
    }
    if examined.problems.is_empty() {
        found.ok("config", "is sound");
    }
    if examined.is_whole {
        surroundings(&mut found, &examined)?;
    }
    here::clock(&mut found, SystemTime::now());
    show(&found, output);
    Ok(found.worst())
}

/// Checks what the settings speak of; what has a problem in the settings is left out.
fn surroundings(found: &mut Findings, examined: &Examined) -> Result<(), Failure> {
    let settings = &examined.settings;
    let (is_sidecar, is_collector) = settings.roles();
    here::files(found, examined);
    if let Some(config) = &settings.tls {
        here::certificates(found, settings, config, is_sidecar);
    }
    here::folders(found, examined, is_sidecar, is_collector);
    here::contracts(found, &settings.application);
    here::trials(found, &settings.application);
    client::block_on(async {
        let running = Running::ask(settings).await;
        around::ports(found, examined, &running, is_sidecar, is_collector).await;
        if !examined.is_faulty("trust") {
            here::trust(found, settings).await;
        }
        if !examined.is_faulty("consul") {
            around::consul(found, settings).await;
        }
        if is_sidecar && !examined.is_faulty("application.health") {
            around::application(found, &settings.application).await;
        }
        Ok(())
    })
}

fn show(found: &Findings, output: OutputArgs) {
    if output.is_json() {
        output::json(&json!({"ok": found.worst() == Exit::Fine, "findings": found.0}));
        return;
    }
    let palette = Palette::of_stdout();
    for finding in &found.0 {
        let (tone, word) = match finding.level {
            Level::Ok => (Tone::Good, "ok     "),
            Level::Warning => (Tone::Doubtful, "warning"),
            Level::Problem => (Tone::Bad, "problem"),
        };
        let (word, check) = (palette.paint(tone, word), finding.check);
        output::line(&format!(
            "{word}  {check:<11}  {}",
            output::plain(&finding.message)
        ));
    }
}
