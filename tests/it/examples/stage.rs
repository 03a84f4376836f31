//! The processes of one README, on ports of their own.

use super::readme::Readme;
use crate::support::client::{client, succeeds};
use crate::support::consul::Consul;
use crate::support::port::free_port;
use crate::support::process::{Process, STARTS};
use crate::support::program;
use crate::support::wait::wait_for;
use rustix::process::Signal;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(30);
/// A service may have to be built before it starts.
const BUILT_WITHIN: Duration = Duration::from_secs(600);
/// The ports that the READMEs name.
const NAMED: [u16; 13] = [
    3000, 5000, 7401, 7402, 7403, 7410, 7501, 7502, 7503, 8000, 8080, 8081, 8500,
];

/// Where a README is played: its processes, on free ports instead of those it names.
pub struct Stage {
    pub readme: Readme,
    ports: RefCell<BTreeMap<u16, u16>>,
    running: RefCell<Vec<Process>>,
    folder: TempDir,
    client: reqwest::Client,
}

/// A server to start: which of the named ports it listens on, what it is told, how it answers.
struct Server<'a> {
    name: &'a str,
    listens: &'a [u16],
    told: &'a dyn Fn() -> Vec<(&'static str, String)>,
    /// The port and path of a page that it serves once it is ready; no path: any answer will do.
    ready: (u16, Option<&'a str>),
}

impl Stage {
    /// Sets the stage around a real Consul.
    pub fn with(readme: Readme, consul: &Consul) -> Self {
        let stage = Self::empty(readme);
        let address = consul.address();
        let (_, port) = address.rsplit_once(':').unwrap();
        stage.ports.borrow_mut().insert(8500, port.parse().unwrap());
        stage
    }

    /// Sets the stage around the registry that the README shows.
    pub async fn with_dev_registry(readme: Readme) -> Self {
        let stage = Self::empty(readme);
        let at = stage.readme.find("hermes-sidecar dev-registry");
        // Its port is the default, so the command does not name it.
        let shown = stage.readme.blocks[at].text.trim();
        let command = format!("{shown} --listen 127.0.0.1:8500");
        let server = Server {
            name: "registry",
            listens: &[8500],
            told: &Vec::new,
            ready: (8500, Some("/v1/status/leader")),
        };
        stage.start(&command, server).await;
        stage
    }

    /// Sets the stage with nothing on it.
    pub fn empty(readme: Readme) -> Self {
        let folder = TempDir::with_prefix("hermes-example-").unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(program::hermes(), bin.join("hermes-sidecar")).unwrap();
        // One that is only a name is found on PATH anyway.
        if program::consul().is_absolute() {
            std::os::unix::fs::symlink(program::consul(), bin.join("consul")).unwrap();
        }
        Self {
            readme,
            ports: RefCell::new(NAMED.map(|named| (named, free_port())).into()),
            running: RefCell::default(),
            folder,
            client: client(),
        }
    }

    /// Starts service, collector and sidecar, each when the one before is ready.
    pub async fn serve(&self, (service, port): (&str, u16), collector: &str, sidecar: &str) {
        let server = Server {
            name: "service",
            listens: &[port],
            told: &|| vec![("PORT", self.port(port).to_string())],
            // These services have no page at their root.
            ready: (port, None),
        };
        self.start(&self.text(service), server).await;
        self.collect(collector).await;
        let ports = [7401, 7402, 7403];
        self.sidecar("sidecar", sidecar, &ports, Some(port)).await;
    }

    pub async fn start_caller(&self, part: &str) {
        self.sidecar("caller", part, &[7502, 7503], None).await;
    }

    /// Starts the collector.
    pub async fn collect(&self, part: &str) {
        let told = || {
            vec![
                ("HERMES_COLLECTOR__LISTEN", self.listen(7410)),
                ("HERMES_CONSUL__ADDRESS", self.url(8500)),
            ]
        };
        let server = Server {
            name: "collector",
            listens: &[7410],
            told: &told,
            ready: (7410, Some("/ready")),
        };
        self.start(&self.text(part), server).await;
    }

    /// Starts a sidecar on its named ports, which are those of inbound if it serves, outbound and
    /// admin, beside the application at `upstream` if it has one.
    pub async fn sidecar(&self, name: &str, part: &str, ports: &[u16], upstream: Option<u16>) {
        let sections = [
            "HERMES_ADMIN__LISTEN",
            "HERMES_OUTBOUND__LISTEN",
            "HERMES_INBOUND__LISTEN",
        ];
        let told = || {
            let listens = ports.iter().rev().map(|port| self.listen(*port));
            let mut told: Vec<_> = sections.into_iter().zip(listens).collect();
            told.push(("HERMES_SPOOL__COLLECTOR", self.url(7410)));
            told.push(("HERMES_CONSUL__ADDRESS", self.url(8500)));
            told.push(("HERMES_LIMITS__DRAIN_DELAY", "0s".to_owned()));
            told.extend(upstream.map(|port| ("HERMES_APPLICATION__UPSTREAM", self.url(port))));
            told
        };
        let server = Server {
            name,
            listens: ports,
            told: &told,
            ready: (*ports.last().unwrap(), Some("/ready")),
        };
        self.start(&self.text(part), server).await;
    }

    /// Starts an application that serves `path` on the port it is told.
    pub async fn application(&self, part: &str, port: u16, path: &str) {
        let server = Server {
            name: "application",
            listens: &[port],
            told: &|| vec![("PORT", self.port(port).to_string())],
            ready: (port, Some(path)),
        };
        self.start(&self.text(part), server).await;
    }

    /// Asks what runs by this name to stop, and waits for its end.
    pub async fn stop(&self, name: &str) {
        let found = {
            let mut running = self.running.borrow_mut();
            let at = running.iter().position(|process| process.name() == name);
            running.remove(at.unwrap())
        };
        let mut process = found;
        process.signal(Signal::TERM);
        process.ended(WITHIN).await;
    }

    /// Starts a server, on other ports if its own were taken meanwhile, and waits for readiness.
    async fn start(&self, command: &str, server: Server<'_>) {
        for _ in 0..STARTS {
            let mut process = self.spawn(server.name, &self.here(command), &(server.told)());
            let (port, path) = server.ready;
            let url = self.url(port) + path.unwrap_or_default();
            let answers = async || match path {
                Some(_) => succeeds(&self.client, &url).await,
                None => self.client.get(&url).send().await.is_ok(),
            };
            if process.serves(BUILT_WITHIN, answers).await {
                self.running.borrow_mut().push(process);
                return;
            }
            for named in server.listens {
                self.ports.borrow_mut().insert(*named, free_port());
            }
        }
        panic!("{} found its ports taken {STARTS} times", server.name);
    }

    /// Runs a command to its successful end and returns what it printed.
    pub async fn prints(&self, part: &str) -> String {
        let command = self.command(part);
        self.run(&command)
            .await
            .unwrap_or_else(|printed| panic!("{command}\nended badly after printing:\n{printed}"))
    }

    /// Runs a command that writes to the folder `named`, with one of our own in its place.
    pub async fn prints_in(&self, part: &str, named: &str) -> String {
        let ours = self.folder.path().join(named);
        let lines = self.command(part).replace(named, ours.to_str().unwrap());
        // A shell of its own, which ends with the first line that fails.
        let command = format!("sh -ec '{lines}'");
        self.run(&command)
            .await
            .unwrap_or_else(|printed| panic!("{command}\nended badly after printing:\n{printed}"))
    }

    async fn run(&self, command: &str) -> Result<String, String> {
        let told = [
            ("HERMES_SPOOL__COLLECTOR", self.url(7410)),
            ("CONSUL_HTTP_ADDR", self.url(8500)),
        ];
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
    pub async fn replies(&self, part: &str) {
        let (printed, shown) = self.reply_and_shown(part).await;
        assert_eq!(printed, shown);
    }

    /// Makes the call that contains `part`; returns the reply and the one shown below it.
    pub async fn reply_and_shown(&self, part: &str) -> (String, String) {
        let at = self.readme.find(part);
        let shown = &self.readme.blocks[at + 1];
        assert_eq!(shown.language, "json", "no reply is shown below `{part}`");
        let printed = self.run(&self.here(&self.readme.blocks[at].text)).await;
        let printed = printed.unwrap().trim_end().to_owned();
        (printed, shown.text.trim_end().to_owned())
    }

    /// Asks for the task as the README does until it has ended, and then the collector.
    pub async fn completes(&self, task: &str) {
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
    pub async fn task(&self, id: &str, state: &str) -> Value {
        self.task_at(7410, id, state).await
    }

    /// The same at the collector on the named port.
    pub async fn task_at(&self, port: u16, id: &str, state: &str) -> Value {
        let url = format!("{}/tasks/{id}", self.url(port));
        wait_for(WITHIN, &format!("{id} in state {state}"), async || {
            let reply = self.client.get(&url).send().await.unwrap();
            let told: Value = reply.json().await.unwrap();
            (told["state"] == state).then_some(told)
        })
        .await
    }

    /// Puts the port `ours` in the place of each `named` one from now on.
    pub fn place(&self, named: u16, ours: u16) {
        self.ports.borrow_mut().insert(named, ours);
    }

    pub fn command(&self, part: &str) -> String {
        self.here(&self.text(part))
    }

    fn text(&self, part: &str) -> String {
        self.readme.blocks[self.readme.find(part)].text.clone()
    }

    /// Puts our ports in the place of those a command names.
    fn here(&self, command: &str) -> String {
        let mut here = command.trim_end().to_owned();
        for (named, ours) in self.ports.borrow().iter() {
            let [named, ours] = [named, ours].map(|port| format!("127.0.0.1:{port}"));
            here = here.replace(&named, &ours);
        }
        here
    }

    fn port(&self, named: u16) -> u16 {
        self.ports.borrow()[&named]
    }

    fn listen(&self, named: u16) -> String {
        format!("127.0.0.1:{}", self.port(named))
    }

    pub fn url(&self, named: u16) -> String {
        format!("http://{}", self.listen(named))
    }

    pub fn spawn(&self, name: &str, command: &str, told: &[(&str, String)]) -> Process {
        let folder = self.folder.path();
        let state = folder.join(name);
        std::fs::create_dir_all(&state).unwrap();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("PATH=\"$1:$PATH\"; exec {command}"), "sh"])
            .arg(folder.join("bin"))
            .env("STATE_DIRECTORY", state)
            .envs(program::packages())
            .envs(told.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.readme.folder);
        Process::spawn_group(name, shell, &folder.join(format!("{name}.log")))
    }
}
