//! What the READMEs say works as they say it: their own commands, run in their own order.
//!
//! A README's commands are its `sh` blocks. A test finds each by a part of it, gives it free ports
//! (in the text, and by variables for what the config files say) and runs it with our binary on
//! PATH. What is shown as reply is what must come back. A block that no test runs fails the test.

use crate::support::client::succeeds;
use crate::support::consul::Consul;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::wait::{wait_for, wait_until};
use crate::support::{client, program};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_first_request_of_the_readme_works() {
    let readme = Readme::read("README.md");
    let consul = Consul::start().await;
    // The one is `Consul` here; the others are how the binary came about, and the other tests.
    readme.leave("consul agent -dev");
    readme.leave("cargo build --release");
    readme.leave("cargo run --release -- demo");
    readme.leave("tests/run");

    let stage = Stage::with(readme, consul.address()).await;
    stage.serve("app.py", "collector -c", "run -c").await;
    let listed: Value = serde_json::from_str(&stage.prints("/v1/health/service").await).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let keys: Vec<String> = serde_json::from_str(&stage.prints("/v1/kv/").await).unwrap();
    let key = |name| format!("hermes/contracts/fraud-detection-v1.0/{name}");
    assert_eq!(keys, [key("1.0.0"), key("version")]);
    stage.replies("/hermes/invoke").await;
    stage.completes("first-task").await;
    stage.readme.is_used_up();
}

#[tokio::test]
async fn the_quickstart_works_as_written_on_a_real_consul() {
    let readme = Readme::read("examples/quickstart/README.md");
    readme.leave("hermes-sidecar dev-registry");
    let consul = Consul::start().await;
    let stage = Stage::with(readme, consul.address()).await;
    quickstart(stage).await;
}

#[tokio::test]
async fn the_quickstart_works_as_written_on_the_development_registry() {
    let readme = Readme::read("examples/quickstart/README.md");
    quickstart(Stage::with_dev_registry(readme).await).await;
}

async fn quickstart(stage: Stage) {
    stage.readme.leave("export PATH");
    stage
        .serve("app.py", "collector -c", "hermes-sidecar run\n")
        .await;
    stage.replies("order-1").await;
    stage.completes("order-1").await;
    stage.start_caller("-c caller.toml").await;
    stage.replies("order-2").await;
    stage.task("order-2", "completed").await;
    let problem: Value = serde_json::from_str(&stage.prints("order-3").await).unwrap();
    assert_eq!(problem["status"], 400, "{problem}");
    let places = problem["errors"].as_array().unwrap().iter();
    let places: Vec<&str> = places.filter_map(|e| e["instance"].as_str()).collect();
    assert_eq!(places, ["/ip_address", "/amount_cny"], "{problem}");
    stage.task("order-3", "failed_validation").await;
    stage.readme.is_used_up();
}

#[tokio::test]
async fn the_node_service_works_as_written() {
    if !on_path("node") {
        // Past the capture of a passing test's output: what is left out is always shown.
        writeln!(std::io::stderr(), "LEFT OUT: there is no `node` on PATH").unwrap();
        return;
    }
    let readme = Readme::read("examples/node-service/README.md");
    readme.leave("export PATH");
    let stage = Stage::with_dev_registry(readme).await;
    stage
        .serve("server.js", "collector -c", "hermes-sidecar run\n")
        .await;
    stage.replies("/agents/text-statistics-v1.0").await;
    stage.completes("count-1").await;
    stage.readme.is_used_up();
}

fn on_path(name: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .output();
    found.unwrap().status.success()
}

/// A README and the folder its commands are run in.
struct Readme {
    folder: PathBuf,
    blocks: Vec<Block>,
    used: RefCell<HashSet<usize>>,
}

struct Block {
    language: String,
    text: String,
}

impl Readme {
    fn read(path: &str) -> Self {
        let path = program::root().join(path);
        Self {
            blocks: blocks(&std::fs::read_to_string(&path).unwrap()),
            folder: path.parent().unwrap().to_owned(),
            used: RefCell::default(),
        }
    }

    /// Finds the one command that contains `part` and was not used yet.
    fn find(&self, part: &str) -> usize {
        let mut used = self.used.borrow_mut();
        let fits = |at: &usize| {
            let block = &self.blocks[*at];
            block.language == "sh" && block.text.contains(part) && !used.contains(at)
        };
        let found: Vec<usize> = (0..self.blocks.len()).filter(fits).collect();
        assert!(!found.is_empty(), "no command (left) with `{part}`");
        used.insert(found[0]);
        found[0]
    }

    /// Notes a command that this test does not run.
    fn leave(&self, part: &str) {
        self.find(part);
    }

    fn is_used_up(&self) {
        let used = self.used.borrow();
        for (at, block) in self.blocks.iter().enumerate() {
            let seen = block.language != "sh" || used.contains(&at);
            assert!(seen, "this command is not run by any test:\n{}", block.text);
        }
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), is_open) {
            (Some(language), false) => {
                let (language, text) = (language.to_owned(), String::new());
                blocks.push(Block { language, text });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                let block = blocks.last_mut().expect("an open block was pushed");
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, false) => {}
        }
    }
    blocks
}

/// Where a README is played: its processes, on free ports instead of those it names.
struct Stage {
    readme: Readme,
    consul: String,
    ports: Vec<(u16, u16)>,
    running: RefCell<Vec<Process>>,
    folder: TempDir,
    client: reqwest::Client,
}

impl Stage {
    async fn with(readme: Readme, consul: String) -> Self {
        let folder = TempDir::with_prefix("hermes-example-").unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(program::hermes(), bin.join("hermes-sidecar")).unwrap();
        let (_, registry) = consul.rsplit_once(':').unwrap();
        let registry = registry.parse().unwrap();
        let free = |named| (named, free_port());
        Self {
            readme,
            ports: [3000, 5000, 7401, 7402, 7403, 7410, 7502, 7503]
                .map(free)
                .into_iter()
                .chain([(8500, registry)])
                .collect(),
            consul,
            folder,
            running: RefCell::default(),
            client: client::client(),
        }
    }

    /// Starts the registry that the README shows.
    async fn with_dev_registry(readme: Readme) -> Self {
        let consul = format!("http://127.0.0.1:{}", free_port());
        let stage = Self::with(readme, consul).await;
        let at = stage.readme.find("hermes-sidecar dev-registry");
        let command = &stage.readme.blocks[at].text;
        let listen = stage.listen(8500);
        let command = format!("{} --listen {listen}", command.trim());
        let leader = format!("{}/v1/status/leader", stage.consul);
        stage.start("registry", &command, &[], &leader).await;
        stage
    }

    /// Starts service, collector and sidecar, and waits until Consul lists the service.
    async fn serve(&self, service: &str, collector: &str, sidecar: &str) {
        let service = self.command(service);
        let port = match service.contains("node") {
            true => 3000,
            false => 5000,
        };
        let own = [("PORT", self.port(port).to_string())];
        // Any answer will do: these services have no page at their root.
        self.start("service", &service, &own, "").await;
        wait_until(WITHIN, "service", async || {
            let asked = self.client.get(self.url(port)).send().await;
            asked.is_ok()
        })
        .await;

        let told = [
            ("HERMES_COLLECTOR__LISTEN", self.listen(7410)),
            ("HERMES_CONSUL__ADDRESS", self.consul.clone()),
        ];
        let ready = self.url(7410) + "/ready";
        self.start("collector", &self.command(collector), &told, &ready)
            .await;

        let told = [
            ("HERMES_APPLICATION__UPSTREAM", self.url(port)),
            ("HERMES_INBOUND__LISTEN", self.listen(7401)),
            ("HERMES_OUTBOUND__LISTEN", self.listen(7402)),
            ("HERMES_ADMIN__LISTEN", self.listen(7403)),
            ("HERMES_SPOOL__COLLECTOR", self.url(7410)),
            ("HERMES_CONSUL__ADDRESS", self.consul.clone()),
        ];
        let ready = self.url(7403) + "/ready";
        self.start("sidecar", &self.command(sidecar), &told, &ready)
            .await;
    }

    async fn start_caller(&self, part: &str) {
        let told = [
            ("HERMES_OUTBOUND__LISTEN", self.listen(7502)),
            ("HERMES_ADMIN__LISTEN", self.listen(7503)),
            ("HERMES_SPOOL__COLLECTOR", self.url(7410)),
            ("HERMES_CONSUL__ADDRESS", self.consul.clone()),
        ];
        let ready = self.url(7503) + "/ready";
        self.start("caller", &self.command(part), &told, &ready)
            .await;
    }

    /// Starts a server; an empty `ready` asks nothing of it.
    async fn start(&self, name: &str, command: &str, told: &[(&str, String)], ready: &str) {
        let mut process = self.spawn(name, command, told);
        let served = ready.is_empty()
            || process
                .serves(WITHIN, async || succeeds(&self.client, ready).await)
                .await;
        assert!(served, "another process took the port of {name}");
        self.running.borrow_mut().push(process);
    }

    /// Runs a command to its successful end and returns what it printed.
    async fn prints(&self, part: &str) -> String {
        let command = self.command(part);
        self.run(&command)
            .await
            .unwrap_or_else(|printed| panic!("{command}\nended badly after printing:\n{printed}"))
    }

    async fn run(&self, command: &str) -> Result<String, String> {
        let told = [("HERMES_SPOOL__COLLECTOR", self.url(7410))];
        let mut process = self.spawn("command", command, &told);
        let ended = process.ended(WITHIN).await;
        let printed = process.log();
        std::fs::remove_file(self.folder.path().join("command.log")).unwrap();
        match ended.success() {
            true => Ok(printed),
            false => Err(printed),
        }
    }

    /// Makes the call that contains `part` and compares the reply with the one shown below it.
    async fn replies(&self, part: &str) {
        let at = self.readme.find(part);
        let shown = &self.readme.blocks[at + 1];
        assert_eq!(shown.language, "json", "no reply is shown below `{part}`");
        let printed = self.run(&self.here(&self.readme.blocks[at].text)).await;
        assert_eq!(printed.as_deref(), Ok(shown.text.trim_end()));
    }

    /// Asks for the task as the README does until it has ended, and then the collector.
    async fn completes(&self, task: &str) {
        let command = self.command(&format!("hermes-sidecar task {task}"));
        let shown = wait_for(WITHIN, "end of the task", async || {
            let printed = self.run(&command).await.ok()?;
            printed.contains("executing → completed").then_some(printed)
        })
        .await;
        assert!(
            shown.starts_with(&format!("task {task}  completed")),
            "{shown}"
        );
        let told = self.task(task, "completed").await;
        let states = told["steps"][0]["attempts"][0]["states"]
            .as_array()
            .unwrap();
        let states: Vec<&str> = states.iter().filter_map(|s| s["state"].as_str()).collect();
        assert_eq!(states, ["pending", "dispatched", "executing", "completed"]);
    }

    /// Waits until the collector shows a task in `state`.
    async fn task(&self, id: &str, state: &str) -> Value {
        let url = format!("{}/tasks/{id}", self.url(7410));
        wait_for(WITHIN, &format!("{id} in state {state}"), async || {
            let reply = self.client.get(&url).send().await.unwrap();
            let told: Value = reply.json().await.unwrap();
            (told["state"] == state).then_some(told)
        })
        .await
    }

    fn command(&self, part: &str) -> String {
        self.here(&self.readme.blocks[self.readme.find(part)].text)
    }

    /// Puts our ports in the place of those a command names.
    fn here(&self, command: &str) -> String {
        let mut here = command.trim_end().to_owned();
        for (named, ours) in &self.ports {
            here = here.replace(&format!("127.0.0.1:{named}"), &format!("127.0.0.1:{ours}"));
        }
        here
    }

    fn port(&self, named: u16) -> u16 {
        let found = self.ports.iter().find(|(name, _)| *name == named);
        found.unwrap().1
    }

    fn listen(&self, named: u16) -> String {
        format!("127.0.0.1:{}", self.port(named))
    }

    fn url(&self, named: u16) -> String {
        format!("http://{}", self.listen(named))
    }

    fn spawn(&self, name: &str, command: &str, told: &[(&str, String)]) -> Process {
        let folder = self.folder.path();
        let state = folder.join(name);
        std::fs::create_dir_all(&state).unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("PATH=\"$1:$PATH\"; exec {command}"), "sh"])
            .arg(folder.join("bin"))
            .env("STATE_DIRECTORY", state)
            .envs(told.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.readme.folder);
        Process::spawn(name, shell, &folder.join(format!("{name}.log")))
    }
}

#[test]
fn the_sample_config_shows_every_key_with_its_default() {
    let path = program::root().join("examples/hermes.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let shown: toml::Table = toml::from_str(&text).unwrap();
    let mut known = Vec::new();
    keys(&hermes_sidecar::config::schema(), "", &mut known);
    assert!(known.len() > 80, "the schema lists only {known:?}");
    // These have no default that works, so the sample gives a value.
    let given = ["upstream", "file", "path"];
    for (key, default, help) in &known {
        let (section, name) = key.rsplit_once('.').unwrap();
        let line = text.lines().find(|line| {
            let line = line.trim_start_matches("# ");
            line.contains(help.as_str()) && line.starts_with(name_in_file(key))
        });
        assert!(
            line.is_some(),
            "`{key}` is not shown with its help, `{help}`"
        );
        // A list of tables that must stay empty is shown as a comment.
        if section == "trust.key[]" {
            continue;
        }
        let value = value(&shown, key).unwrap_or_else(|| panic!("`{key}` is not set"));
        let is_given = section.starts_with("application") && given.contains(&name);
        assert!(
            is_given || value == *default,
            "{key}: {value} is not {default}"
        );
    }
}

/// `validate.input` of `application.contract[].validate.input`: how a line of the file begins.
fn name_in_file(key: &str) -> &str {
    match key.split_once("[].") {
        Some((_, inner)) => inner,
        None => key.split_once('.').unwrap().1,
    }
}

/// Collects path, default and help of each key below a section of the schema.
fn keys(section: &Value, above: &str, found: &mut Vec<(String, Value, String)>) {
    for (name, schema) in section["properties"].as_object().unwrap() {
        let path = match above {
            "" => name.clone(),
            above => format!("{above}.{name}"),
        };
        if schema["properties"].is_object() {
            keys(schema, &path, found);
        } else if schema["items"]["properties"].is_object() {
            keys(&schema["items"], &format!("{path}[]"), found);
        } else {
            let help = schema["description"].as_str().unwrap().to_owned();
            found.push((path, schema["default"].clone(), help));
        }
    }
}

/// Reads a key from the file; of a list of tables the first.
fn value(file: &toml::Table, key: &str) -> Option<Value> {
    let mut place = toml::Value::Table(file.clone());
    for part in key.split('.') {
        let name = part.trim_end_matches("[]");
        place = place.get(name)?.clone();
        if part.ends_with("[]") {
            place = place.get(0)?.clone();
        }
    }
    serde_json::to_value(place).ok()
}

#[test]
fn every_example_is_run_by_a_test() {
    let source = std::fs::read_to_string(program::root().join(file!())).unwrap();
    let folder = program::root().join("examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let is_run = source.contains(&format!("examples/{name}/README.md"));
        assert!(
            !has_readme(&path) || is_run,
            "examples/{name} is run by no test"
        );
    }
}

fn has_readme(folder: &Path) -> bool {
    folder.join("README.md").is_file()
}
