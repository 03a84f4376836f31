//! A sidecar process of one's own.

use super::authority::TlsFiles;
use super::client::{client, get_text, succeeds};
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use super::wait::wait_until;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;
use toml::{Table, Value as Setting};

/// How long a sidecar may take from its start to readiness with everything at hand.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Longer than `drain_delay` and `drain_timeout` together.
const END_WITHIN: Duration = Duration::from_secs(40);

/// What a sidecar is to be; `start` makes it one.
pub struct Setup {
    config: Table,
    /// Without a body the application hands the contract out.
    contracts: Vec<(Option<Value>, Table)>,
    command: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A running sidecar with its files in a directory of its own.
pub struct Sidecar {
    process: Process,
    config: Table,
    command: Vec<String>,
    environment: Vec<(String, String)>,
    directory: TempDir,
}

impl Sidecar {
    /// Begins a sidecar for the application `name`, with no registry, collector or contract.
    pub fn named(name: &str) -> Setup {
        Setup {
            config: Table::new(),
            contracts: Vec::new(),
            command: Vec::new(),
            environment: Vec::new(),
        }
        .set("application.name", name)
        // Port 1 refuses: without `.consul` a test never meets the machine's own agent.
        .set("consul.address", "http://127.0.0.1:1")
        .set("log.format", "json")
    }

    /// Returns the address that peers call.
    pub fn inbound_url(&self) -> String {
        format!("http://{}", self.listen("inbound"))
    }

    /// Returns the address that peers with a certificate call.
    pub fn secure_inbound_url(&self) -> String {
        format!("https://{}", self.listen("inbound"))
    }

    /// Returns the address that its application calls.
    pub fn outbound_url(&self) -> String {
        format!("http://{}", self.listen("outbound"))
    }

    /// Returns the address of its admin listener.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.listen("admin"))
    }

    /// Reads one series of its metrics, for example `proxy_rejections_total` with
    /// `direction="inbound"` and `reason="bad_json"`; an unknown one fails the test.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = get_text(&format!("{}/metrics", self.admin_url())).await;
        let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let wanted = |line: &&str| {
            line.strip_prefix(&format!("hermes_{name}"))
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label.as_str()))
        };
        let mut found = text.lines().filter(wanted).peekable();
        assert!(found.peek().is_some(), "no series {name} {labels:?}");
        found
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    /// Returns its config file.
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("hermes.toml")
    }

    /// Returns the directory that holds `spool.db` and `state.db`.
    pub fn state_directory(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Returns the process, for its id, log, signals and end.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns everything it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits for readiness.
    pub async fn ready(&mut self, within: Duration) {
        let (client, url) = (client(), format!("{}/ready", self.admin_url()));
        wait_until(within, "ready sidecar", async || {
            let exit = self.process.exit();
            assert!(
                exit.is_none(),
                "sidecar ended ({exit:?}):\n{}",
                self.process.log()
            );
            succeeds(&client, &url).await
        })
        .await;
    }

    /// Ends it as a crash would.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.ended(END_WITHIN).await
    }

    /// Starts it again on the same files and ports; the caller waits for readiness if it wants to.
    pub fn start_again(&mut self) {
        self.process.kill9();
        self.process = self.spawn_again();
    }

    fn spawn_again(&self) -> Process {
        spawn(self.directory.path(), &self.command, &self.environment)
    }

    /// Changes a key of its config file; a process that runs goes on as it is.
    pub fn reconfigure(&mut self, key: &str, value: impl Into<Setting>) {
        put(&mut self.config, key, value.into());
        std::fs::write(self.config_file(), self.config.to_string()).unwrap();
    }

    /// Takes a key out of its config file again.
    pub fn forget(&mut self, key: &str) {
        let (section, key) = key.split_once('.').expect("a key has a section");
        self.config[section].as_table_mut().unwrap().remove(key);
        std::fs::write(self.config_file(), self.config.to_string()).unwrap();
    }

    /// Waits for its end, which it comes to by itself or was asked for.
    pub async fn ended(&mut self) -> ExitStatus {
        self.process.ended(END_WITHIN).await
    }

    fn listen(&self, section: &str) -> &str {
        self.config[section]["listen"].as_str().unwrap()
    }
}

impl Setup {
    /// Sets a key of the config file, for example `set("limits.drain_delay", "0s")`.
    pub fn set(mut self, key: &str, value: impl Into<Setting>) -> Self {
        put(&mut self.config, key, value.into());
        self
    }

    /// Leaves a key of a section out, so that what is weaker than the file counts.
    pub fn unset(mut self, key: &str) -> Self {
        let (section, name) = key.split_once('.').unwrap();
        let section = self.config[section].as_table_mut().unwrap();
        section.remove(name).expect("the key was set");
        self
    }

    /// Speaks mutual TLS with these certificates.
    pub fn tls(self, files: &TlsFiles) -> Self {
        let settings = files.settings().into_iter();
        settings.fold(self, |setup, (key, value)| setup.set(key, value))
    }

    /// Sets a variable of the process's environment.
    pub fn variable(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Serves the application at `url`.
    pub fn application(self, url: &str) -> Self {
        self.set("application.upstream", url)
    }

    /// Offers a contract of the application on its `method` and `path`, both sides strict.
    pub fn contract(mut self, body: Value, method: &str, path: &str) -> Self {
        let mut entry = Table::new();
        entry.insert("method".into(), method.into());
        entry.insert("path".into(), path.into());
        self.contracts.push((Some(body), entry));
        self
    }

    /// Offers the contract that the application hands out; `route` says how it is called.
    pub fn handshake(mut self) -> Self {
        let mut entry = Table::new();
        entry.insert("handshake".into(), true.into());
        self.contracts.push((None, entry));
        self
    }

    /// Changes a key of the contract given last, for example `route("validate.output", "warn")`.
    pub fn route(mut self, key: &str, value: impl Into<Setting>) -> Self {
        let (_, entry) = self
            .contracts
            .last_mut()
            .expect("`route` follows `contract` or `handshake`");
        put(entry, key, value.into());
        self
    }

    /// Changes the body of the contract given last.
    pub fn revise(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let last = self.contracts.last_mut();
        let (body, _) = last.expect("`revise` follows `contract`");
        change(body.as_mut().expect("the application hands it out"));
        self
    }

    /// Registers with the Consul (or link to one) at `address`.
    pub fn consul(self, address: &str) -> Self {
        self.set("consul.address", address)
    }

    /// Reports to the collector (or link to one) at `url`.
    pub fn collector(self, url: &str) -> Self {
        self.set("spool.collector", url)
    }

    /// Runs this command beside the sidecar, in the directory of its config file.
    pub fn command(mut self, command: &[&str]) -> Self {
        self.command = command.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Starts the process and waits for readiness.
    pub async fn start(self) -> Sidecar {
        let mut sidecar = self.start_unready().await;
        sidecar.ready(READY_WITHIN).await;
        sidecar
    }

    /// Starts the process and waits only until it answers on its admin listener.
    pub async fn start_unready(self) -> Sidecar {
        for _ in 0..STARTS {
            let mut sidecar = self.spawn();
            let (client, url) = (client(), format!("{}/live", sidecar.admin_url()));
            if sidecar
                .process
                .serves(READY_WITHIN, async || succeeds(&client, &url).await)
                .await
            {
                return sidecar;
            }
        }
        panic!("the sidecar found its ports taken {STARTS} times");
    }

    /// Starts the process and waits for nothing: a quick command's sidecar may be gone already.
    pub fn launch(self) -> Sidecar {
        self.spawn()
    }

    fn spawn(&self) -> Sidecar {
        let directory = TempDir::with_prefix("hermes-sidecar-").unwrap();
        let mut config = self.config.clone();
        for section in ["inbound", "outbound", "admin"] {
            // Where a test wants a unix socket it says so.
            if config
                .get(section)
                .is_some_and(|s| s.get("listen").is_some())
            {
                continue;
            }
            let listen = format!("127.0.0.1:{}", free_port());
            put(&mut config, &format!("{section}.listen"), listen.into());
        }
        let mut entries = Vec::new();
        for (body, entry) in &self.contracts {
            let mut entry = entry.clone();
            if let Some(body) = body {
                let name = format!("{}.json", body["id"].as_str().unwrap());
                let file = directory.path().join(name);
                std::fs::write(&file, serde_json::to_vec_pretty(body).unwrap()).unwrap();
                entry.insert("file".into(), file.to_str().unwrap().into());
            }
            entries.push(Setting::Table(entry));
        }
        if !entries.is_empty() {
            put(&mut config, "application.contract", Setting::Array(entries));
        }
        std::fs::write(directory.path().join("hermes.toml"), config.to_string()).unwrap();
        std::fs::create_dir(directory.path().join("state")).unwrap();
        Sidecar {
            process: spawn(directory.path(), &self.command, &self.environment),
            config,
            command: self.command.clone(),
            environment: self.environment.clone(),
            directory,
        }
    }
}

fn spawn(directory: &Path, beside: &[String], environment: &[(String, String)]) -> Process {
    let mut command = Command::new(program::hermes());
    command
        .args(["run", "-c", "hermes.toml"])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("STATE_DIRECTORY", directory.join("state"))
        .current_dir(directory);
    if !beside.is_empty() {
        command.arg("--").args(beside);
    }
    Process::spawn("sidecar", command, &directory.join("sidecar.log"))
}

/// Puts `value` at a dotted key, making the tables on the way.
pub fn put(table: &mut Table, key: &str, value: Setting) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table
                .entry(section)
                .or_insert_with(|| Setting::Table(Table::new()));
            put(
                inner.as_table_mut().expect("a section is a table"),
                rest,
                value,
            );
        }
    }
}
