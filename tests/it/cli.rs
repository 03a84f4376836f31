//! The command line keeps its word: data apart from talk, and exit codes one can build on.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

fn hermes(args: &[&str]) -> Command {
    let named = std::env::vars_os().find(|(name, _)| name == "HERMES_TEST_BIN");
    let program = named.map_or_else(
        || env!("CARGO_BIN_EXE_hermes-sidecar").into(),
        |(_, path)| PathBuf::from(path),
    );
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(std::env::temp_dir())
        .env_clear()
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    hermes(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Answers one request, and gives back what it was.
fn answers(status: &str, headers: &str, body: &str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    );
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let request = read_request(&mut stream);
        stream.write_all(reply.as_bytes()).unwrap();
        request
    });
    (url, served)
}

fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = stream.read(&mut chunk).unwrap();
        request.extend_from_slice(&chunk[..length]);
        let told = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = told.split_once("\r\n\r\n") else {
            continue;
        };
        let announced = head
            .lines()
            .filter_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(str::to_owned)
            })
            .find_map(|length| length.parse::<usize>().ok());
        if length == 0 || body.len() >= announced.unwrap_or(0) {
            return told;
        }
    }
}

/// An address where nobody listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn usage_is_two_and_help_is_data() {
    for args in [
        vec![],
        vec!["nonsense"],
        vec!["task"],
        vec!["invoke"],
        vec!["config"],
        vec!["run", "--nonsense"],
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}"
        );
    }
    for args in [["--help"], ["--version"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn nobody_there_is_three() {
    let url = nowhere();
    for args in [
        vec!["healthcheck", "--admin", &url],
        vec!["drain", "--admin", &url],
        vec!["quit", "--admin", &url],
        vec!["reload", "--admin", &url],
        vec!["log-level", "--admin", &url],
        vec!["task", "t1", "--collector", &url],
        vec!["invoke", "fraud-detection-v1.0", "--outbound", &url],
    ] {
        let output = run(&args);
        assert_eq!(
            output.status.code(),
            Some(3),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_proxy_in_the_environment_is_not_asked() {
    let (url, served) = answers("200 OK", "", "[]");
    let mut command = hermes(&["healthcheck", "--admin", &url]);
    let output = command
        .env("HTTP_PROXY", nowhere())
        .env("http_proxy", nowhere())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        served
            .join()
            .unwrap()
            .starts_with("GET /ready HTTP/1.1\r\n")
    );
}

#[test]
fn healthcheck_is_zero_or_one() {
    for (status, expected, code) in [
        ("200 OK", "ready\n", 0),
        ("503 Service Unavailable", "not ready\n", 1),
    ] {
        let (url, served) = answers(status, "", r#"[{"check":"consul","ok":false}]"#);
        let output = run(&["healthcheck", "--admin", &url]);
        assert_eq!(
            (text(&output.stdout), output.status.code()),
            (expected, Some(code))
        );
        served.join().unwrap();
    }
}

#[test]
fn a_stranger_at_the_admin_port_is_no_sidecar_that_is_ill() {
    let (url, served) = answers("404 Not Found", "", "<html>not here</html>");
    let output = run(&["healthcheck", "--admin", &url]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("is not the sidecar"));
    served.join().unwrap();
}

#[test]
fn a_filter_and_an_id_that_are_none_are_usage_faults() {
    let problem = r#"{"detail":"invalid filter directive"}"#;
    let (url, served) = answers("400 Bad Request", "", problem);
    let output = run(&["log-level", "bad[[", "--admin", &url]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("invalid filter directive"));
    served.join().unwrap();
    let output = run(&["invoke", "fraud-v1.0", "--task-id", "a b"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("1 to 128 characters"));
}

#[test]
fn data_that_could_not_be_written_is_a_failure() {
    for args in [&["config", "schema"][..], &["--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let output = hermes(args).stdout(full.unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let told = text(&output.stderr);
        assert!(told.contains("cannot write to standard output"), "{told}");
    }
}

#[test]
fn orders_carry_the_header_that_a_browser_cannot_send() {
    for (args, line) in [
        (vec!["drain"], "POST /drain HTTP/1.1"),
        (vec!["quit"], "POST /quit HTTP/1.1"),
        (vec!["log-level", "debug"], "PUT /log-level HTTP/1.1"),
    ] {
        let (url, served) = answers("200 OK", "", "");
        let output = hermes(&args).args(["--admin", &url]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let request = served.join().unwrap().to_ascii_lowercase();
        assert!(request.starts_with(&line.to_ascii_lowercase()), "{request}");
        assert!(request.contains("\r\nhermes-admin: 1\r\n"), "{request}");
    }
}

#[test]
fn invoke_sends_the_input_as_it_is_and_prints_the_reply_as_it_is() {
    let reply = "{ \"risk\" : 1.0 }";
    let headers = "hermes-state: completed\r\nhermes-task-id: t1\r\n";
    let (url, served) = answers("200 OK", headers, reply);
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(input.path(), "{\"amount\" : 10.00}\n").unwrap();
    let output = hermes(&[
        "invoke",
        "fraud-detection-v1.0",
        "--task-id",
        "t1",
        "--tag",
        "blue",
        "--sla",
        "P0",
    ])
    .arg("--input")
    .arg(input.path())
    .args(["--outbound", &url])
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), reply);
    assert!(
        text(&output.stderr).contains("state completed"),
        "{}",
        text(&output.stderr)
    );
    let request = served.join().unwrap();
    assert!(
        request.starts_with("POST /hermes/invoke HTTP/1.1\r\n"),
        "{request}"
    );
    let expected = concat!(
        r#"{"agent":"fraud-detection-v1.0","input":{"amount" : 10.00},"#,
        r#""context":{"task_id":"t1","required_tags":["blue"],"sla_level":"P0"}}"#
    );
    assert!(request.ends_with(expected), "{request}");
}

#[test]
fn invoke_tells_the_outcome_by_its_exit_code() {
    for (status, code) in [
        ("400 Bad Request", 1),
        ("503 Service Unavailable", 1),
        ("504 Gateway Timeout", 4),
    ] {
        let (url, served) = answers(status, "content-type: application/problem+json\r\n", "{}");
        let output = run(&["invoke", "x-v1.0", "--outbound", &url]);
        assert_eq!(output.status.code(), Some(code), "{status}");
        assert_eq!(text(&output.stdout), "{}");
        assert!(served.join().unwrap().contains(r#""input":{}"#));
    }
    let mut child = hermes(&["invoke", "x-v1.0", "--input", "-", "--outbound", &nowhere()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{no json").unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(2));
}

#[test]
fn invoke_does_not_wait_for_one_who_says_nothing() {
    // Connections are made by the kernel; nobody ever reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let asked = Instant::now();
    let output = run(&[
        "invoke",
        "x-v1.0",
        "--deadline",
        "500ms",
        "--outbound",
        &url,
    ]);
    let took = asked.elapsed();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let told = text(&output.stderr);
    let start = format!("the sidecar at {url} did not answer within 1.5");
    assert!(told.starts_with(&start), "{told}");
    assert!(took < Duration::from_secs(5), "it took {took:?}");

    let (url, served) = answers("200 OK", "", "{}");
    run(&["invoke", "x-v1.0", "--deadline", "1m", "--outbound", &url]);
    let request = served.join().unwrap();
    assert!(
        request.ends_with(r#""context":{"deadline_ms":60000}}"#),
        "{request}"
    );
}

#[test]
fn beside_a_sidecar_its_listeners_are_known() {
    let (url, served) = answers("200 OK", "", "{}");
    let output = hermes(&["invoke", "x-v1.0"])
        .env("HERMES_OUTBOUND", &url)
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    served.join().unwrap();
    let (url, served) = answers("202 Accepted", "", "");
    let output = hermes(&["quit"]).env("HERMES_ADMIN", &url).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert!(served.join().unwrap().starts_with("POST /quit "));
    // What is said outright counts more.
    let output = hermes(&["quit", "--admin", &nowhere()])
        .env("HERMES_ADMIN", &url)
        .output();
    assert_eq!(output.unwrap().status.code(), Some(3));
}

#[test]
fn reload_tells_what_is_in_force_and_what_waits() {
    let told = r#"{"applied":["log.filter"],"restart":["limits.drain_delay"]}"#;
    let (url, served) = answers("200 OK", "", told);
    let output = run(&["reload", "--admin", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let expected = "log.filter  in force now\nlimits.drain_delay  wants a restart\n";
    assert_eq!(text(&output.stdout), expected);
    let request = served.join().unwrap();
    assert!(request.starts_with("POST /reload "), "{request}");

    let refused = r#"{"detail":"hermes.toml:2: log.filtr: no such key"}"#;
    let (url, served) = answers("400 Bad Request", "", refused);
    let output = run(&["reload", "--admin", &url]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("log.filtr: no such key"));
    served.join().unwrap();
}

#[test]
fn every_command_has_help_a_completion_and_a_manual_page() {
    let help = run(&["help"]);
    let help = text(&help.stdout);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 12, "{commands:?}");
    assert!(!help.contains("become"), "{help}");
    let pages = tempfile::tempdir().unwrap();
    let folder = pages.path().join("man1");
    let written = hermes(&["man", "--dir"]).arg(&folder).output().unwrap();
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    let all = run(&["man"]);
    for name in &commands {
        let page = format!("hermes-sidecar-{name}.1");
        let page = std::fs::read_to_string(folder.join(&page)).unwrap();
        assert!(page.contains(".SH NAME"), "{name}: {page}");
        assert!(text(&all.stdout).contains(page.trim()), "{name} in man");
        let told = run(&["help", name]);
        assert!(
            text(&told.stdout).contains("Usage: hermes-sidecar"),
            "{name}"
        );
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        let script = text(&script.stdout);
        for name in &commands {
            assert!(script.contains(name), "{name} in {shell}");
        }
        assert!(!script.contains("become"), "become in {shell}");
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn the_completion_is_a_script_that_its_shell_takes() {
    let script = run(&["completions", "bash"]).stdout;
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin.take().unwrap().write_all(&script).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn task_draws_a_timeline_or_passes_the_collectors_answer_on() {
    let body = r#"{"task_id":"t.1","state":"completed","verdict":"ok","steps":[{"step_id":"s","call_id":"c","agent":"a-v1.0","state":"completed","degraded":false,"attempts":[{"attempt":1,"agent":"a-v1.0","instance":"i","state":"completed","states":[{"state":"pending","at":"1","reporter":"caller"},{"state":"dispatched","at":"2","reporter":"caller"},{"state":"executing","at":"3","reporter":"callee"},{"state":"completed","at":"4","reporter":"callee"}],"duration_ms":5}]}],"chain":"ok"}"#;
    let (url, served) = answers("200 OK", "", body);
    let output = run(&["task", "t.1", "--collector", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let drawn = text(&output.stdout);
    assert!(
        drawn.contains("attempt 1 at i, 5 ms: pending → dispatched → executing → completed\n"),
        "{drawn}"
    );
    assert!(!drawn.contains('\u{1b}'), "colours in a pipe");
    assert!(
        served
            .join()
            .unwrap()
            .starts_with("GET /tasks/t.1 HTTP/1.1\r\n")
    );

    let (url, served) = answers("200 OK", "", body);
    let output = run(&["task", "t.1", "--collector", &url, "-o", "json"]);
    assert_eq!(text(&output.stdout).trim_end(), body);
    served.join().unwrap();

    // Any web server answers 200 or 404; only a collector tells of tasks.
    for (status, told) in [
        ("200 OK", "<h1>It works!</h1>"),
        ("200 OK", r#"{"welcome":"to another service"}"#),
        ("404 Not Found", "nothing here"),
    ] {
        let (url, served) = answers(status, "", told);
        let output = run(&["task", "t.1", "--collector", &url, "-o", "json"]);
        served.join().unwrap();
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(output.stdout.is_empty(), "{told}");
        let expected = format!("what answers at {url} is not the collector: ");
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with(&expected), "{stderr}");
    }

    let (url, served) = answers("404 Not Found", "", r#"{"detail":"kept for 30 days"}"#);
    let output = run(&["task", "t2", "--collector", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("kept for 30 days") && output.stdout.is_empty());
    served.join().unwrap();
}

#[test]
fn a_collectors_refusal_ends_each_command_alike() {
    let body = r#"{"detail":"told so"}"#;
    let commands: [&[&str]; 3] = [&["tasks"], &["task", "t"], &["task", "t", "--compare", "u"]];
    for command in commands {
        for (status, exit) in [
            ("400 Bad Request", 2),
            ("401 Unauthorized", 3),
            ("404 Not Found", 1),
            ("503 Service Unavailable", 3),
        ] {
            for format in ["text", "json"] {
                let (url, served) = answers(status, "", body);
                let place = ["--collector", url.as_str(), "-o", format];
                let output = run(&[command, &place].concat());
                served.join().unwrap();
                let case = format!("{command:?} {status} {format}");
                assert_eq!(output.status.code(), Some(exit), "{case}");
                let (shown, told) = (text(&output.stdout), text(&output.stderr));
                match format {
                    "json" => assert_eq!(shown.trim_end(), body, "{case}"),
                    _ => assert!(
                        shown.is_empty() && told.contains("told so"),
                        "{case}: {told}"
                    ),
                }
            }
        }
    }
}

#[test]
fn the_token_of_the_settings_goes_to_their_collector_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("hermes.toml");
    let config = config.to_str().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let settle = |url: &str| {
        let spool = format!("[spool]\ncollector = \"{url}\"\ntoken_file = \"token\"\n");
        std::fs::write(config, spool).unwrap();
    };
    let body = r#"{"tasks":[],"next":null}"#;
    let refusal = r#"{"detail":"who?"}"#;

    let (url, served) = answers("200 OK", "", body);
    settle(&url);
    assert!(run(&["tasks", "-c", config]).status.success());
    let asked = served.join().unwrap().to_lowercase();
    assert!(
        asked.contains("authorization: bearer s3cret\r\n"),
        "{asked}"
    );

    let (other, served) = answers("401 Unauthorized", "", refusal);
    let output = run(&["tasks", "-c", config, "--collector", &other]);
    let asked = served.join().unwrap().to_lowercase();
    assert!(!asked.contains("authorization"), "{asked}");
    let told = text(&output.stderr);
    assert!(told.contains("give --token-file"), "{told}");

    let (other, served) = answers("200 OK", "", body);
    let shown = ["--token-file", token.to_str().unwrap()];
    let asking = ["tasks", "-c", config, "--collector", &other];
    let output = run(&[&asking[..], &shown].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let asked = served.join().unwrap().to_lowercase();
    assert!(
        asked.contains("authorization: bearer s3cret\r\n"),
        "{asked}"
    );
}

#[test]
fn lint_names_each_fault_and_exits_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.json");
    std::fs::write(
        &file,
        r#"{"id":"fraud-detection-v1.0","version":"2.0.0","input_schema":{"type":"int"},"output_schema":{"risk":{"type":"string"}},"constraints":{}}"#,
    )
    .unwrap();
    let output = hermes(&["contract", "lint"])
        .arg(&file)
        .args(["-o", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["errors"].as_u64().unwrap() >= 3, "{told:#}");
    assert!(told.to_string().contains("integer"), "{told:#}");

    let missing = run(&["contract", "lint", "/nowhere/contract.json"]);
    assert_eq!(missing.status.code(), Some(2));
}
