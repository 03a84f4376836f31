//! A command beside its sidecar: started when it can call, told what the sidecar is told, allowed
//! to finish, and its end is the end of both.

use crate::restart::admitted;
use crate::support::application::Answer;
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::metric::Metrics;
use crate::support::program;
use crate::support::road::{AGENT, ROUTE, application, callee};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::{wait_for, wait_until};
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(20);
/// For what must not wait for anything.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Returns a function `invoke TASK` for the shell: one call through the sidecar.
fn invoke() -> String {
    let (program, input) = (program::hermes(), fraud_input());
    format!(
        "invoke() {{ printf '%s' '{input}' | '{}' invoke {AGENT} --outbound \"$HERMES_OUTBOUND\" \
         --input - --task-id \"$1\" >/dev/null 2>>calls.log; }}\n",
        program.display()
    )
}

/// Returns a folder from which `run` finds its settings, on ports that are free.
fn configured(consul: &Consul, log_filter: &str) -> TempDir {
    let folder = TempDir::with_prefix("hermes-job-").unwrap();
    let config = format!(
        "[application]\nname = \"job\"\n[outbound]\nlisten = \"127.0.0.1:0\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[consul]\naddress = \"{}\"\n\
         [log]\nfilter = \"{log_filter}\"\n",
        consul.address()
    );
    std::fs::write(folder.path().join("hermes.toml"), config).unwrap();
    folder
}

fn job(script: &str) -> Setup {
    Sidecar::named("job").command(&["sh", "-c", script])
}

fn file(sidecar: &Sidecar, name: &str) -> PathBuf {
    sidecar.config_file().with_file_name(name)
}

/// Waits until the command has written `text` to `name`, and returns all it has written there.
async fn written(sidecar: &Sidecar, name: &str, text: &str) -> String {
    let file = file(sidecar, name);
    wait_for(WITHIN, &format!("{text:?} in {name}"), async || {
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        found.contains(text).then_some(found)
    })
    .await
}

/// Waits for the command's own process id, which its script writes to `pid`.
async fn pid(sidecar: &Sidecar) -> Pid {
    let text = written(sidecar, "pid", "\n").await;
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

async fn wait_gone(pid: Pid) {
    let gone = async || test_kill_process(pid).is_err();
    wait_until(AT_ONCE, "end of the command", gone).await;
}

#[tokio::test]
async fn a_job_ends_its_sidecar_and_what_was_not_sent_goes_with_the_next_run() {
    let (application, collector, consul) =
        tokio::join!(application(), Collector::start(), Consul::start());
    let _callee = callee(&application).consul(&consul.address()).start().await;
    let script = format!(
        "{}if [ -e once ]; then invoke last; exit 3; fi\n: >once\n\
         for n in 0 1 2 3 4 5 6 7 8 9; do invoke job-$n || exit 9; done; exit 0",
        invoke()
    );
    let started = Instant::now();
    let mut job = job(&script)
        .consul(&consul.address())
        .collector("http://127.0.0.1:1")
        .launch();
    assert_eq!(job.ended().await.code(), Some(0), "{}", job.log());
    assert!(
        started.elapsed() < WITHIN,
        "it took {:?}",
        started.elapsed()
    );
    assert_eq!(application.calls(ROUTE), 10);

    job.reconfigure("spool.collector", collector.url());
    job.start_again();
    assert_eq!(job.ended().await.code(), Some(3), "{}", job.log());
    for number in 0..10 {
        let task = format!("job-{number}");
        collector.wait_task(&task, "completed", AT_ONCE).await;
    }
    collector.wait_task("last", "completed", AT_ONCE).await;
}

#[tokio::test]
async fn a_command_that_was_told_to_stop_can_still_call() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let _callee = callee(&application).consul(&consul.address()).start().await;
    // Two seconds of work, most of it pauses, and a call at the very end.
    let script = format!(
        "{}finish() {{ for n in 1 2 3 4 5; do invoke end-$n || exit 9; sleep 0.3; done; exit 7; }}\n\
         trap finish TERM; echo up >up; while :; do sleep 0.05; done",
        invoke()
    );
    let mut job = job(&script).consul(&consul.address()).start_unready().await;
    written(&job, "up", "up").await;
    assert_eq!(job.terminate().await.code(), Some(7), "{}", job.log());
    assert_eq!(application.calls(ROUTE), 5);
}

#[tokio::test]
async fn signals_are_passed_on_as_they_come() {
    let script = "for s in HUP QUIT USR1 USR2 INT; do trap \"echo $s >>told\" $s; done\n\
                  trap 'echo TERM >>told; exit 0' TERM\n\
                  echo up >>told; while :; do sleep 0.05; done";
    let consul = Consul::start().await;
    let mut job = job(script).consul(&consul.address()).start_unready().await;
    written(&job, "told", "up").await;
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::HUP, "HUP"),
        (Signal::TERM, "TERM"),
    ] {
        let before = std::fs::read_to_string(file(&job, "told")).unwrap();
        job.process().signal(signal);
        wait_until(AT_ONCE, name, async || {
            let now = std::fs::read_to_string(file(&job, "told")).unwrap();
            now == format!("{before}{name}\n")
        })
        .await;
    }
    assert_eq!(job.ended().await.code(), Some(0), "{}", job.log());
}

/// Runs the words given to it on a terminal, presses Ctrl-C once they have written `up`, and once
/// more when that was heard.
const AT_A_TERMINAL: &str = r#"
import os, pty, sys, time
child, keys = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
for file in ["up", "told"]:
    deadline = time.time() + 20
    while not os.path.exists(file) and time.time() < deadline:
        time.sleep(0.02)
    os.write(keys, b"\x03")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

#[tokio::test]
async fn a_key_pressed_at_the_terminal_is_heard_once() {
    let consul = Consul::start().await;
    let folder = configured(&consul, "info");
    // A signal passed on as well would come within this second.
    let script = "trap 'echo INT >>heard' INT; : >up; while [ ! -s heard ]; do sleep 0.05; done\n\
                  sleep 1; cp heard told; while :; do sleep 0.05; done";
    let output = tokio::process::Command::new("python3")
        .args(["-c", AT_A_TERMINAL])
        .arg(program::hermes())
        .args(["run", "--", "sh", "-c", script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("STATE_DIRECTORY", folder.path().join("state"))
        .current_dir(folder.path())
        .output()
        .await
        .unwrap();
    assert_eq!(output.stdout, b"130\n", "{output:?}");
    let heard = std::fs::read_to_string(folder.path().join("told")).unwrap();
    assert_eq!(heard, "INT\n");
}

#[tokio::test]
async fn a_command_without_a_handler_ends_by_the_signal() {
    let consul = Consul::start().await;
    for (signal, code) in [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::USR1, 138),
        (Signal::HUP, 129),
    ] {
        let script = "echo $$ >pid; exec sleep 600";
        let mut job = job(script).consul(&consul.address()).start_unready().await;
        let pid = pid(&job).await;
        job.process().signal(signal);
        let ended = job.process().ended(WITHIN).await;
        assert_eq!(ended.code(), Some(code), "{}", job.log());
        wait_gone(pid).await;
    }
}

#[tokio::test]
async fn a_command_that_does_not_end_in_time_is_killed() {
    let script = "trap 'echo told >told' TERM; echo $$ >pid; while :; do sleep 0.05; done";
    let consul = Consul::start().await;
    let mut job = job(script)
        .consul(&consul.address())
        .set("limits.drain_timeout", "1s")
        .start_unready()
        .await;
    let pid = pid(&job).await;
    let asked = Instant::now();
    assert_eq!(job.terminate().await.code(), Some(137), "{}", job.log());
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1), "killed after {took:?}");
    assert!(took < Duration::from_secs(5), "killed after {took:?}");
    assert_eq!(written(&job, "told", "told").await, "told\n");
    wait_gone(pid).await;
}

#[tokio::test]
async fn a_second_signal_ends_both_at_once() {
    let script = "trap 'echo told >told' TERM; echo $$ >pid; while :; do sleep 0.05; done";
    let consul = Consul::start().await;
    let mut job = job(script).consul(&consul.address()).start_unready().await;
    let pid = pid(&job).await;
    job.process().signal(Signal::TERM);
    written(&job, "told", "told").await;
    job.process().signal(Signal::TERM);
    let ended = job.process().ended(AT_ONCE).await;
    assert_eq!(ended.code(), Some(143), "{}", job.log());
    wait_gone(pid).await;
}

#[tokio::test]
async fn a_sidecar_that_crashes_takes_its_command_along() {
    let script = "echo $$ >pid; exec sleep 600";
    let consul = Consul::start().await;
    let mut job = job(script).consul(&consul.address()).start_unready().await;
    let pid = pid(&job).await;
    job.kill9();
    wait_gone(pid).await;
}

#[tokio::test]
async fn without_consul_the_command_starts_late_but_starts() {
    let script = "date >started; exit 0";
    let started = Instant::now();
    let mut job = job(script).start_unready().await;
    wait_until(WITHIN, "start", async || file(&job, "started").exists()).await;
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(9), "started after {waited:?}");
    assert_eq!(job.ended().await.code(), Some(0));
    let log = job.log();
    assert!(log.contains("calls cannot be made yet"), "{log}");
}

#[tokio::test]
async fn a_signal_before_the_start_keeps_the_command_from_starting() {
    let mut job = job("echo up >up").start_unready().await;
    job.process().signal(Signal::TERM);
    let ended = job.process().ended(AT_ONCE).await;
    assert_eq!(ended.code(), Some(143), "{}", job.log());
    assert!(!file(&job, "up").exists());
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_named() {
    let consul = Consul::start().await;
    for (command, code) in [("/nowhere/at-all", 127), ("/", 126)] {
        let mut job = Sidecar::named("job")
            .command(&[command, "argument"])
            .consul(&consul.address())
            .launch();
        assert_eq!(job.ended().await.code(), Some(code), "{}", job.log());
        let told = format!("the command {command} cannot be started: ");
        assert!(job.log().contains(&told), "{}", job.log());
    }
}

#[tokio::test]
async fn the_commands_streams_are_the_callers() {
    let consul = Consul::start().await;
    let folder = configured(&consul, "off");
    // `-o json` after the two dashes is the command's own.
    let mut running = Command::new(program::hermes())
        .args(["run", "--", "sh", "-c", "cat; echo \"$1 $2\" >&2; exit 5"])
        .args(["sh", "-o", "json"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("STATE_DIRECTORY", folder.path().join("state"))
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = b"bytes \0 \xff as they are, without a line end";
    running.stdin.take().unwrap().write_all(sent).unwrap();
    let output = tokio::task::spawn_blocking(|| running.wait_with_output());
    let output = output.await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(output.stdout, sent);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "-o json\n");
}

#[tokio::test]
async fn a_command_finds_listeners_on_unix_sockets() {
    let consul = Consul::start().await;
    let folder = TempDir::with_prefix("hermes-job-").unwrap();
    let config = format!(
        "[application]\nname = \"job\"\n[outbound]\nlisten = \"unix:{0}/out.sock\"\n\
         [admin]\nlisten = \"unix:{0}/admin.sock\"\n[consul]\naddress = \"{1}\"\n",
        folder.path().display(),
        consul.address()
    );
    std::fs::write(folder.path().join("hermes.toml"), config).unwrap();
    let hermes = program::hermes();
    let script = format!(
        "'{0}' log-level && exec '{0}' invoke nobody-v1.0",
        hermes.display()
    );
    let output = tokio::process::Command::new(&hermes)
        .args(["run", "--", "sh", "-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("STATE_DIRECTORY", folder.path().join("state"))
        .current_dir(folder.path())
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    // The sidecar knows no such contract, so it was asked.
    assert!(told.starts_with("info\n{"), "{output:?}");
    assert!(told.contains("nobody-v1.0"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test]
async fn a_command_that_serves_is_told_once_callers_have_heard() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let script = "trap 'echo told >told; exit 0' TERM; echo up >up; while :; do sleep 0.05; done";
    let mut served = callee(&application)
        .consul(&consul.address())
        .set("limits.drain_delay", "2s")
        .command(&["sh", "-c", script])
        .start()
        .await;
    wait_until(WITHIN, "start", async || file(&served, "up").exists()).await;
    let asked = Instant::now();
    served.process().signal(Signal::TERM);
    consul.wait_passing(AGENT, 0, AT_ONCE).await;
    let request = client()
        .post(served.inbound_url() + ROUTE)
        .json(&fraud_input());
    assert_eq!(request.send().await.unwrap().status(), 200);
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert!(!file(&served, "told").exists(), "told before drain_delay");
    assert_eq!(served.ended().await.code(), Some(0), "{}", served.log());
    assert!(file(&served, "told").exists());
}

#[tokio::test]
async fn quit_tells_the_command_first() {
    let script = "trap 'echo told >told; exit 4' TERM; echo up >up; while :; do sleep 0.05; done";
    let consul = Consul::start().await;
    let mut job = job(script).consul(&consul.address()).start_unready().await;
    written(&job, "up", "up").await;
    quit(&job);
    assert_eq!(job.ended().await.code(), Some(4), "{}", job.log());
    assert_eq!(written(&job, "told", "told").await, "told\n");
}

#[tokio::test]
async fn quit_ends_an_idle_sidecar_at_once_and_a_busy_one_when_its_calls_have_ended() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let callee = callee(&application).consul(&consul.address()).start().await;
    let mut idle = Sidecar::named("payment")
        .consul(&consul.address())
        .start()
        .await;
    quit(&idle);
    let ended = idle.process().ended(AT_ONCE).await;
    assert_eq!(ended.code(), Some(0), "{}", idle.log());

    let reply = Answer::json(&fraud_output()).delayed(Duration::from_secs(3));
    application.answer(ROUTE, reply);
    let mut busy = Sidecar::named("payment")
        .consul(&consul.address())
        .start()
        .await;
    let body = json!({"agent": AGENT, "input": fraud_input()});
    let url = format!("{}/hermes/invoke", busy.outbound_url());
    let mut running = JoinSet::new();
    running.spawn(client().post(url).json(&body).send());
    wait_until(WITHIN, "running call", async || {
        application.calls(ROUTE) == 1
    })
    .await;
    quit(&busy);
    let replies = running.join_all().await;
    assert_eq!(replies[0].as_ref().unwrap().status(), 200);
    assert_eq!(busy.ended().await.code(), Some(0), "{}", busy.log());
    drop(callee);
}

#[tokio::test]
async fn a_drained_sidecar_stays_and_serves_until_it_quits() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let mut served = callee(&application)
        .consul(&consul.address())
        .set("limits.drain_delay", "1s")
        .start_unready()
        .await;
    admitted(&served).await;
    consul.wait_passing(AGENT, 1, WITHIN).await;
    order(&served, "drain");
    consul.wait_passing(AGENT, 0, WITHIN).await;
    let request = client()
        .post(served.inbound_url() + ROUTE)
        .json(&fraud_input());
    assert_eq!(request.send().await.unwrap().status(), 200);
    let page = Metrics::of(&served.admin_url()).await;
    let labels = [("check", "admission")];
    assert_eq!(page.sum("hermes_ready", &labels), 0.0);
    quit(&served);
    assert_eq!(served.ended().await.code(), Some(0), "{}", served.log());
}

#[tokio::test]
async fn settings_are_read_again_on_request_and_on_sighup() {
    let mut sidecar = Sidecar::named("payment").start_unready().await;
    sidecar.reconfigure("log.filter", "debug");
    sidecar.reconfigure("limits.drain_delay", "1s");
    sidecar.reconfigure("consul.watches", 3);
    let told = order(&sidecar, "reload");
    let expected = "limits.drain_delay  in force now\nlog.filter  in force now\n\
                    consul.watches  wants a restart\n";
    assert_eq!(told, expected);
    assert_eq!(order(&sidecar, "log-level"), "debug\n");
    let shown = client().get(sidecar.admin_url() + "/config").send().await;
    let shown: Value = shown.unwrap().json().await.unwrap();
    assert_eq!(shown["config"]["log"]["filter"], "debug");
    assert_eq!(shown["config"]["limits"]["drain_delay"], "1s");
    assert_eq!(shown["config"]["consul"]["watches"], 32);
    assert_eq!(shown["restart"], serde_json::json!({"consul.watches": 3}));

    // A fault changes nothing, and is told.
    sidecar.reconfigure("log.filtr", "trace");
    sidecar.reconfigure("log.filter", "warn");
    let refused = ask(&sidecar, "reload");
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("log.filtr: no such key"), "{stderr}");
    assert_eq!(order(&sidecar, "log-level"), "debug\n");

    sidecar.forget("log.filtr");
    sidecar.process().signal(Signal::HUP);
    wait_until(AT_ONCE, "new filter", async || {
        order(&sidecar, "log-level") == "warn\n"
    })
    .await;
}

#[tokio::test]
async fn check_knows_the_ports_of_its_own_running_sidecar() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let running = callee(&application).consul(&consul.address()).start().await;
    let check = async |more: &[&str]| {
        let mut command = tokio::process::Command::new(program::hermes());
        command
            .args(["check", "-c"])
            .arg(running.config_file())
            .args(more);
        command.env("STATE_DIRECTORY", running.state_directory());
        let output = command.output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), told)
    };
    let (code, told) = check(&[]).await;
    let own = told.matches("is in use, by the sidecar that runs with these settings");
    assert_eq!((code, own.count()), (Some(0), 3), "{told}");
    let (code, told) = check(&["--set", "application.name=other"]).await;
    assert_eq!(code, Some(1), "{told}");
    assert_eq!(told.matches("Address already in use").count(), 3, "{told}");
}

fn quit(sidecar: &Sidecar) {
    order(sidecar, "quit");
}

/// Gives a command that must be obeyed, and returns what it prints.
fn order(sidecar: &Sidecar, command: &str) -> String {
    let output = ask(sidecar, command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn ask(sidecar: &Sidecar, command: &str) -> Output {
    Command::new(program::hermes())
        .args([command, "--admin", &sidecar.admin_url()])
        .output()
        .unwrap()
}
