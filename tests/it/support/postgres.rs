//! A real PostgreSQL server of one's own.

use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use rustix::process::{Signal, geteuid};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config, NoTls, Row};

const READY_WITHIN: Duration = Duration::from_secs(30);
const END_WITHIN: Duration = Duration::from_secs(30);
/// PostgreSQL refuses to run as root; there, it runs as nobody.
const NOBODY: u32 = 65_534;

/// The role that collectors sign in as, with a password, and the database it owns.
const PASSWORD: &str = "s3cret:of/tests";

/// A running server with an empty database `hermes`; ends with its value.
pub struct Postgres {
    process: Process,
    port: u16,
    durable: bool,
    directory: TempDir,
    /// Carries the connections of `client` on.
    connections: JoinSet<()>,
}

impl Postgres {
    /// Starts a server that forgets what a power cut would catch, as tests may.
    pub async fn start() -> Self {
        Self::start_as(false, &[]).await
    }

    /// Starts one that syncs its commits.
    pub async fn start_durable() -> Self {
        Self::start_as(true, &[]).await
    }

    /// Starts one with these lines in its configuration.
    pub async fn start_with(settings: &[&str]) -> Self {
        Self::start_as(false, settings).await
    }

    async fn start_as(durable: bool, settings: &[&str]) -> Self {
        for _ in 0..STARTS {
            let directory = folder();
            let data = directory.path().join("data");
            let password = directory.path().join("password");
            std::fs::write(&password, "superuser").unwrap();
            own(&password);
            let mut initdb = unprivileged("initdb");
            initdb
                .args([
                    "--username=postgres",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ])
                .args(["--auth-host=scram-sha-256", "--auth-local=trust"])
                .arg("--pwfile")
                .arg(&password)
                .arg("-D")
                .arg(&data)
                .current_dir(directory.path());
            let made = initdb.output().unwrap_or_else(|error| {
                panic!("cannot start initdb: {error}; `tests/run` provides PostgreSQL")
            });
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            assert!(made.status.success(), "initdb failed: {said}");
            let config = data.join("postgresql.conf");
            let lines = std::fs::read_to_string(&config).unwrap() + "\n" + &settings.join("\n");
            std::fs::write(&config, lines).unwrap();
            let port = free_port();
            let process = spawn(port, durable, directory.path());
            let mut server = Self {
                process,
                port,
                durable,
                directory,
                connections: JoinSet::new(),
            };
            if server.serves().await {
                server.create().await;
                return server;
            }
        }
        panic!("PostgreSQL found its port taken {STARTS} times");
    }

    /// Returns the address that a collector is given.
    pub fn url(&self) -> String {
        self.url_to("hermes")
    }

    /// Returns the address of another database.
    pub fn url_to(&self, database: &str) -> String {
        let password = PASSWORD.replace(':', "%3A").replace('/', "%2F");
        format!(
            "postgres://hermes:{password}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Returns the address by the unix socket, where no password is asked for.
    pub fn socket_url(&self) -> String {
        let folder = self.directory.path().to_str().unwrap();
        format!(
            "postgres://hermes@{}:{}/hermes",
            folder.replace('/', "%2F"),
            self.port
        )
    }

    /// What must never be seen in any log.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Runs statements as the superuser in the collectors' database.
    pub async fn run(&mut self, sql: &str) {
        let client = self.client("hermes").await;
        client.batch_execute(sql).await.unwrap();
    }

    /// Returns the rows of a query, asked as the superuser.
    pub async fn rows(&mut self, sql: &str) -> Vec<Row> {
        let client = self.client("hermes").await;
        client.query(sql, &[]).await.unwrap()
    }

    /// Returns the one number that a query gives.
    pub async fn number(&mut self, sql: &str) -> i64 {
        self.rows(sql).await[0].get(0)
    }

    /// Connects as the superuser.
    pub async fn client(&mut self, database: &str) -> Client {
        let mut config = Config::new();
        config
            .host_path(self.directory.path())
            .port(self.port)
            .user("postgres")
            .dbname(database);
        let (client, connection) = config.connect(NoTls).await.unwrap();
        self.connections.spawn(async move {
            connection.await.ok();
        });
        client
    }

    /// Ends it as `pg_ctl stop -m immediate` does: connections break, nothing is written down.
    pub async fn stop(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.ended(END_WITHIN).await;
    }

    /// Starts it again on the same data and port.
    pub async fn start_again(&mut self) {
        self.process = spawn(self.port, self.durable, self.directory.path());
        assert!(self.serves().await, "another process took the port");
    }

    async fn create(&mut self) {
        let client = self.client("postgres").await;
        for sql in [
            &format!("CREATE ROLE hermes LOGIN PASSWORD '{PASSWORD}'"),
            "CREATE DATABASE hermes OWNER hermes",
        ] {
            client.batch_execute(sql).await.unwrap();
        }
    }

    /// Waits until it lets people in; says no when the port was taken.
    async fn serves(&mut self) -> bool {
        let mut config = Config::new();
        config
            .host_path(self.directory.path())
            .port(self.port)
            .user("postgres");
        self.process
            .serves(READY_WITHIN, async || config.connect(NoTls).await.is_ok())
            .await
    }
}

impl Drop for Postgres {
    /// Only an orderly end takes its shared memory along.
    fn drop(&mut self) {
        if std::thread::panicking() || self.process.exit().is_some() {
            return;
        }
        self.process.signal(Signal::QUIT);
        for _ in 0..500 {
            if self.process.exit().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Makes a folder that the server can reach and owns.
fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("hermes-postgres-");
    let folder = match geteuid().is_root() {
        // A checkout below /root is closed to nobody.
        true => builder.tempdir_in("/tmp"),
        false => builder.tempdir(),
    };
    let folder = folder.unwrap();
    own(folder.path());
    folder
}

fn own(path: &Path) {
    if geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Prepares one of the server's programs to run as who may run it.
fn unprivileged(name: &str) -> Command {
    let program: PathBuf = program::postgres(name);
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={NOBODY}"))
        .arg(format!("--regid={NOBODY}"))
        .arg("--clear-groups")
        .arg(program);
    command
}

fn spawn(port: u16, durable: bool, directory: &Path) -> Process {
    let mut command = unprivileged("postgres");
    let fsync = if durable { "on" } else { "off" };
    command
        .arg("-D")
        .arg(directory.join("data"))
        .arg("-p")
        .arg(port.to_string())
        .arg("-k")
        .arg(directory)
        .args([
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=60",
        ])
        .args(["-c", "shared_buffers=32MB", "-c", "jit=off"])
        .arg("-c")
        .arg(format!("fsync={fsync}"))
        // What the server does by default must not matter.
        .args(["-c", "synchronous_commit=off"])
        .args(["-c", "deadlock_timeout=200ms"])
        .current_dir(directory);
    Process::spawn("postgres", command, &directory.join("postgres.log"))
}
