//! Settings as a whole: layers, rules and what is said about faults.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::keys::{KEYS, Rule};
use super::*;
use crate::identity::Allow;

const CONTRACT: &str = r#"{"id": "fraud-detection-v1.0", "version": "1.0.0"}"#;

/// A folder with a contract and a config file.
struct World {
    folder: tempfile::TempDir,
    source: Source,
}

impl World {
    fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fraud.json"), CONTRACT).unwrap();
        let file = folder.path().join("hermes.toml");
        std::fs::write(&file, config).unwrap();
        let source = Source {
            file: Some(file),
            host_name: "web-1".to_owned(),
            ..Source::default()
        };
        Self { folder, source }.variable("STATE_DIRECTORY", "/run/state:/run/other")
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.source.variables.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.source.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn load(&self) -> Settings {
        Settings::load(&self.source, Role::Sidecar)
            .unwrap_or_else(|error| panic!("refused:\n{error}"))
    }

    /// `line key: message` of each problem.
    fn problems(&self, role: Role) -> Vec<String> {
        let error = Settings::load(&self.source, role).expect_err("was accepted");
        let describe = |problem: &Problem| {
            let place = match &problem.origin {
                Some(Origin::File { line, .. }) => line.to_string(),
                Some(other) => other.to_string(),
                None => "-".to_owned(),
            };
            format!("{place} {}: {}", problem.key, problem.message)
        };
        error.problems().iter().map(describe).collect()
    }

    fn origin(&self, key: &str) -> String {
        let origin = self.load().effective.get(key).unwrap().origin.to_string();
        origin.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

const SERVICE: &str = r#"
[application]
upstream = "http://127.0.0.1:5000"
[[application.contract]]
file = "fraud.json"
path = "/api/v1/risk"
"#;

const CALLER: &str = "[application]\nname = \"shop\"\n";

#[test]
fn a_service_needs_four_lines() {
    let world = World::with(SERVICE);
    let settings = world.load();
    let application = &settings.application;
    assert_eq!(application.name, "fraud-detection");
    assert_eq!(application.instance(Some(7401)), "web-1-7401");
    assert_eq!(
        application.upstream,
        Some(Upstream::Http {
            host: "127.0.0.1".to_owned(),
            port: 5000
        })
    );
    assert_eq!(
        application.contracts,
        [ContractSource {
            origin: ContractOrigin::File(world.path("fraud.json")),
            style: Style::Native,
            method: Method::Post,
            path: "/api/v1/risk".to_owned(),
            input: Validate::Strict,
            output: Validate::Strict,
            allow: Allow::All,
        }]
    );
    assert_eq!(settings.spool.path, Path::new("/run/state/spool.db"));
    assert_eq!(settings.spool.state_path, Path::new("/run/state/state.db"));
    assert_eq!(settings.spool.collector, None);
    assert_eq!(settings.inbound.listen.to_string(), "0.0.0.0:7401");
    assert_eq!(settings.limits.max_body_bytes, 4 << 20);
    assert_eq!(settings.limits.drain_delay.as_secs(), 3);
    assert_eq!(settings.consul.address, "http://127.0.0.1:8500");
    assert!(!settings.consul.http_check);
}

#[test]
fn a_caller_needs_a_name_alone_and_a_collector_nothing() {
    let settings = World::with(CALLER).load();
    assert_eq!(settings.application.upstream, None);
    assert!(settings.application.contracts.is_empty());

    let world = World::with("");
    let settings = Settings::load(&world.source, Role::Collector).unwrap();
    assert_eq!(
        settings.collector.store,
        Path::new("/run/state/collector.db")
    );
    assert_eq!(settings.application.name, "collector");
    assert_eq!(
        world.problems(Role::Sidecar),
        ["- application.name: is required unless a contract gives it"]
    );
}

#[test]
fn without_a_state_directory_databases_live_at_home() {
    let mut world = World::with(CALLER);
    world.source.variables = vec![("HOME".into(), "/home/ada".into())];
    let folder = world.source.state_folder("hermes-test/deeper").unwrap();
    let places = [
        "/var/lib/hermes/hermes-test/deeper",
        "/home/ada/.local/state/hermes/hermes-test/deeper",
    ];
    assert!(
        places.iter().any(|place| folder == Path::new(place)),
        "{folder:?}"
    );
    assert!(!folder.exists(), "looking must not make it");
}

#[test]
fn five_faults_are_reported_with_their_lines() {
    let world = World::with(
        r#"[application]
name = "Fraud"
upsteam = "http://127.0.0.1:5000"
health_interval = "5 parsecs"
[outbound]
listen = "0.0.0.0:7402"
[limits]
max_body_bytes = "big"
[spool]
on_failure = "refuse"
"#,
    );
    assert_eq!(
        world.problems(Role::Sidecar),
        [
            "2 application.name: must be 1 to 63 of a-z, 0-9 and -, not `Fraud`",
            "3 application.upsteam: no such key; did you mean `upstream`?",
            "4 application.health_interval: is no length of time such as \"5s\" or \"250ms\": unknown time unit \"parsecs\", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)",
            "6 outbound.listen: must be a loopback address such as 127.0.0.1:7402, or unix:/PATH",
            "8 limits.max_body_bytes: must be a whole number from 1 to 1073741824, not a text",
            "10 spool.on_failure: \"refuse\": refusing calls that cannot be recorded is not built into this version",
        ]
    );
}

#[test]
fn every_fault_names_place_and_remedy() {
    for (config, expected) in [
        (
            "aplication.name = 'x'",
            "1 aplication: no such section; did you mean `application`?",
        ),
        (
            "[limits]\nprefix = 'x'",
            "2 limits.prefix: no such key here; it belongs to [consul]",
        ),
        (
            "application = 5",
            "1 application: is a section, not a value",
        ),
        (
            "[application.contract]\nfile = 'x'",
            "1 application.contract: is a list of tables: write [[application.contract]]",
        ),
        (
            "application.contract = [1]",
            "1 application.contract[0]: must be a table",
        ),
        (
            "[[application.contract]]\nfil = 'x'",
            "2 application.contract[0].fil: no such key; did you mean `file`?",
        ),
        (
            "[[application.contract]]",
            "1 application.contract[0].file: is required: the contract this entry is about",
        ),
        (
            "'application.name' = 'x'",
            "1 application.name: no such key",
        ),
        (
            "[admin]\nlisten = 'unix:a.sock'",
            "2 admin.listen: must name an absolute path after unix:",
        ),
        (
            "[outbound]\nlisten = 'unix:/run/a'\n[admin]\nlisten = 'unix:/run/a'",
            "4 admin.listen: takes the address of outbound.listen",
        ),
        (
            "[application]\nupstream = 'http://h:1'\n[inbound]\nlisten = 'unix:/run/a'",
            "- inbound.advertise: is required as HOST:PORT where inbound.listen is a unix socket",
        ),
        (
            "[inbound]\nlisten = '7401'",
            "2 inbound.listen: must be IP:PORT or unix:/PATH, for example 127.0.0.1:7402, not `7401`",
        ),
        (
            "[inbound]\ntrust_context = 'mtls'",
            "2 inbound.trust_context: needs tls.mode = \"files\"",
        ),
        (
            "[[application.contract]]\nfile = 'fraud.json'\npath = '/x'\nallow = ['shop']",
            "4 application.contract[0].allow: needs tls.mode = \"files\"",
        ),
        (
            "[[application.contract]]\nfile = 'fraud.json'\npath = '/x'\nallow = ['Shop']",
            "4 application.contract[0].allow: names no application with \"Shop\": must be",
        ),
        (
            "[[application.contract]]\nfile = 'fraud.json'\npath = '/x'\nallow = []",
            "4 application.contract[0].allow: lets nobody call",
        ),
        (
            "consul.checks = ['ttl', 'http']\n[tls]\nmode = 'files'\ncert = 'a'\nkey = 'b'\nca = 'c'",
            "1 consul.checks: cannot hold \"http\" with tls.mode",
        ),
        (
            "[tls]\nmode = 'files'\ncert = 'a'\nkey = 'b'",
            "2 tls.ca: is required with tls.mode = \"files\"",
        ),
        (
            "[tls]\ncert = 'a.pem'",
            "2 tls.cert: needs tls.mode = \"files\" to be used",
        ),
        (
            "[tls]\nmode = 'consul-connect'",
            "2 tls.mode: \"consul-connect\": certificates from Consul Connect are not built into this version",
        ),
        (
            "[inbound]\ntrust_context = ['10.0.0.0/33']",
            "2 inbound.trust_context: knows no network `10.0.0.0/33`: a network is written 10.0.0.0/8 or 192.0.2.7",
        ),
        (
            "[inbound]\nadvertise = '0.0.0.0'",
            "2 inbound.advertise: must be an address that others can reach",
        ),
        (
            "[inbound]\npassthrough = ['/hermes/x']",
            "2 inbound.passthrough: must leave out /hermes/, which the sidecar answers itself",
        ),
        (
            "[inbound]\npassthrough = ['/']",
            "2 inbound.passthrough: needs application.upstream to pass anything to",
        ),
        (
            "[application]\nupstream = 'http://u:secret@h:1'",
            "2 application.upstream: must not hold a user or password; use a token file",
        ),
        (
            "[application]\nupstream = 'localhost:5000'",
            "2 application.upstream: must begin with http://, https:// or unix:, for example http://127.0.0.1:5000",
        ),
        (
            "[application]\nteam = 'team-blue'",
            "2 application.team: is written without `team-`: \"blue\"",
        ),
        (
            "[application]\nweight = 0",
            "2 application.weight: must be a whole number from 1 to 1000, not 0",
        ),
        (
            "[application]\ntags = ['a', 'a']",
            "2 application.tags: names `a` twice",
        ),
        (
            "[limits]\nidle_timeout = '0s'",
            "2 limits.idle_timeout: must be from 1ms to 1day",
        ),
        (
            "[consul]\nchecks = ['http']",
            "2 consul.checks: must hold \"ttl\"",
        ),
        (
            "[consul]\nprefix = 'Hermes!'",
            "2 consul.prefix: must be 1 to 32 of a-z, 0-9 and -, not `Hermes!`",
        ),
        (
            "[trust]\nmode = 'pinned'",
            "2 trust.mode: \"pinned\": signatures are not built into this version",
        ),
        (
            "[[trust.key]]\nfile = 'x'",
            "1 trust.key: signatures are not built into this version",
        ),
        (
            "[retry]\nbackoff = '1s'",
            "2 retry.backoff: retries are not built into this version; leave it at \"25ms\"",
        ),
        (
            "[ledger]\nchannels = {a = {url = 'https://x'}}",
            "2 ledger.channels: the delivery ledger is not built into this version; leave it at {}",
        ),
        (
            "[spool]\ndurability = 'disc'",
            "2 spool.durability: knows no `disc`; did you mean `disk`?",
        ),
        (
            "[spool]\npath = 'a.db'\nstate_path = 'a.db'",
            "3 spool.state_path: must not be the file of spool.path",
        ),
        (
            "[log]\nfilter = 'info,a=b=c'",
            "2 log.filter: is no log filter",
        ),
        (
            "[collector]\nstore = 'postgres://u:p@h/d'",
            "2 collector.store: PostgreSQL is not built into this version; give a path for SQLite",
        ),
        (
            "[outbound]\nlisten = '127.0.0.1:7401'",
            "2 outbound.listen: takes the address of inbound.listen",
        ),
        (
            "[application]\nweight = 99999999999999999999",
            "2 application.weight: is a number beyond 64 bits",
        ),
        ("[application]\nweight = ", "2 : TOML: "),
    ] {
        let problems = World::with(config).problems(Role::Sidecar);
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{config}\n{problems:#?}"
        );
        assert!(
            !problems.iter().any(|problem| problem.contains("secret")),
            "{problems:?}"
        );
    }
}

#[test]
fn a_broken_line_is_not_judged_twice() {
    let world = World::with("[application]\nname = shop\nweight = 5000\n");
    let problems = world.problems(Role::Sidecar);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("2 : TOML: "), "{problems:?}");
    assert!(
        problems[1].starts_with("3 application.weight: "),
        "{problems:?}"
    );
}

#[test]
fn a_service_lacking_a_half_is_told_so() {
    let upstream_only = World::with("[application]\nname = 'a'\nupstream = 'http://127.0.0.1:1'\n");
    assert_eq!(
        upstream_only.problems(Role::Sidecar),
        [
            "- application.contract: is required with an upstream: add [[application.contract]] with file and path"
        ]
    );
    let contract_only =
        World::with("[[application.contract]]\nfile = 'gone.json'\npath = '/hermes/x'\n");
    let problems = contract_only.problems(Role::Sidecar);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(
        problems[0].contains("gone.json: No such file"),
        "{problems:?}"
    );
    assert!(
        problems[1].starts_with("3 application.contract[0].path: must not lie under /hermes/"),
        "{problems:?}"
    );
    assert!(
        problems[2].starts_with("- application.upstream: is required with contracts"),
        "{problems:?}"
    );
}

#[test]
fn a_contract_by_handshake_and_an_envelope_need_no_file_and_no_path() {
    let service = "name = 'fraud'\nupstream = 'http://127.0.0.1:5000'\n";
    let entry = "[[application.contract]]\nhandshake = true\nstyle = 'envelope'\n";
    let world = World::with(&format!("[application]\n{service}{entry}"));
    let settings = world.load();
    let [contract] = settings.application.contracts.as_slice() else {
        panic!("{:?}", settings.application.contracts);
    };
    assert_eq!(contract.origin, ContractOrigin::Handshake);
    assert_eq!(contract.style, Style::Envelope);
    assert_eq!(contract.path, "/hermes/invoke");
    let path = "application.contract[0].path";
    assert_eq!(world.origin(path), "envelope style");

    for (config, problem) in [
        (
            format!("[application]\nupstream = 'http://127.0.0.1:1'\n{entry}"),
            "application.name: is required with handshake = true",
        ),
        (
            format!("[application]\n{service}{entry}file = 'fraud.json'\n"),
            "application.contract[0].handshake: cannot stand beside file",
        ),
        (
            format!("[application]\n{service}{entry}method = 'PUT'\n"),
            "application.contract[0].method: must be POST",
        ),
        (
            format!("[application]\n{service}{entry}{entry}"),
            "application.contract[1].handshake: is set twice",
        ),
        (
            format!("[application]\n{service}[[application.contract]]\nhandshake = true\n"),
            "application.contract[0].path: is required",
        ),
        (
            format!("[application]\n{service}[[application.contract]]\npath = '/a'\n"),
            "application.contract[0].file: is required",
        ),
    ] {
        let problems = World::with(&config).problems(Role::Sidecar);
        assert_eq!(problems.len(), 1, "{config}: {problems:?}");
        assert!(problems[0].contains(problem), "{config}: {problems:?}");
    }
}

#[test]
fn flag_beats_variable_beats_file_beats_consul_beats_default() {
    let config = format!("{CALLER}[consul]\naddress = \"http://file:1\"\n");
    let address = |world: &World| (world.load().consul.address, world.origin("consul.address"));
    let world = World::with(CALLER);
    assert_eq!(
        address(&world),
        ("http://127.0.0.1:8500".to_owned(), "default".to_owned())
    );
    let world = world.variable("CONSUL_HTTP_ADDR", "agent:8500");
    assert_eq!(
        address(&world),
        (
            "http://agent:8500".to_owned(),
            "CONSUL_HTTP_ADDR".to_owned()
        )
    );
    let world = World::with(&config).variable("CONSUL_HTTP_ADDR", "agent:8500");
    assert_eq!(
        address(&world),
        ("http://file:1".to_owned(), "hermes.toml:4".to_owned())
    );
    let world = world.variable("HERMES_CONSUL__ADDRESS", "http://variable:2");
    assert_eq!(
        address(&world),
        (
            "http://variable:2".to_owned(),
            "HERMES_CONSUL__ADDRESS".to_owned()
        )
    );
    let world = world.flag("consul.address", "http://flag:3");
    assert_eq!(
        address(&world),
        ("http://flag:3".to_owned(), "flag".to_owned())
    );
}

#[test]
fn variables_hold_toml_where_a_text_would_not_do() {
    let world = World::with(SERVICE)
        .variable("HERMES_APPLICATION__TAGS", r#"["a", "b"]"#)
        .variable("HERMES_APPLICATION__WEIGHT", "7")
        .variable("HERMES_INBOUND__TRUST_CONTEXT", r#"["10.0.0.0/8"]"#)
        .variable("HERMES_COLLECTOR__CONSUL", "false")
        .variable("HERMES_APPLICATION__REGION", "5");
    let settings = world.load();
    assert_eq!(settings.application.tags, ["a", "b"]);
    assert_eq!(settings.application.weight, 7);
    assert_eq!(settings.application.region, "5");
    assert!(!settings.collector.consul);
    assert!(
        settings
            .inbound
            .trust_context
            .believes("10.1.2.3".parse().unwrap(), false)
    );
    assert!(
        !settings
            .inbound
            .trust_context
            .believes("11.1.2.3".parse().unwrap(), false)
    );
}

#[test]
fn a_list_of_tables_in_a_variable_replaces_the_files() {
    let world = World::with(SERVICE);
    let file = world.path("fraud.json");
    let list = format!(
        "[{{file = '{0}', path = '/a', validate = {{output = 'warn'}}}}, {{file = '{0}', path = '/b', method = 'PUT'}}]",
        file.display()
    );
    let contracts = world
        .variable("HERMES_APPLICATION__CONTRACT", &list)
        .load()
        .application
        .contracts;
    let told: Vec<_> = contracts
        .iter()
        .map(|contract| {
            (
                contract.path.as_str(),
                contract.method.as_str(),
                contract.output,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("/a", "POST", Validate::Warn),
            ("/b", "PUT", Validate::Strict)
        ]
    );
}

#[test]
fn slips_in_variables_are_refused_and_strangers_left_alone() {
    for (name, expected) in [
        (
            "HERMES_APPLICATION__NAM",
            Some("did you mean HERMES_APPLICATION__NAME?"),
        ),
        (
            "HERMES_APLICATION__NAME",
            Some("did you mean HERMES_APPLICATION__…?"),
        ),
        (
            "HERMES_INBOUND_LISTEN",
            Some("has one underscore too few; did you mean HERMES_INBOUND__LISTEN?"),
        ),
        (
            "HERMES_SPOOL__COLOUR_OF_INK",
            Some("names no key of [spool]"),
        ),
        (
            "HERMES_ELSEWHERE__NAME",
            Some("names no section; there are admin, application, "),
        ),
        ("HERMES_COLLECTOR_PORT", None),
        ("HERMES_COLLECTOR_SERVICE_HOST", None),
        ("HERMES_OUTBOUND", None),
        ("HERMES_ADMIN", None),
        ("HERMES_TEST_BIN", None),
        ("HERMES_TEST_APPLICATION__NAM", None),
        ("HERMES", None),
    ] {
        let world = World::with(CALLER).variable(name, "x");
        match expected {
            Some(expected) => {
                let problems = world.problems(Role::Sidecar);
                assert!(
                    problems.len() == 1 && problems[0].contains(expected),
                    "{name}: {problems:?}"
                );
            }
            None => assert_eq!(world.load().application.name, "shop", "{name}"),
        }
    }
}

#[test]
fn consuls_own_variables_are_understood() {
    let world = World::with(CALLER)
        .variable("CONSUL_HTTP_ADDR", "consul.local:8501")
        .variable("CONSUL_HTTP_SSL", "true")
        .variable("CONSUL_HTTP_SSL_VERIFY", "0")
        .variable("CONSUL_HTTP_TOKEN", "s3cr3t")
        .variable("CONSUL_CACERT", "/etc/ca.pem")
        .variable("CONSUL_CLIENT_CERT", "/etc/cert.pem")
        .variable("CONSUL_CLIENT_KEY", "/etc/key.pem")
        .variable("CONSUL_TLS_SERVER_NAME", "server.dc1.consul");
    let settings = world.load();
    let consul = &settings.consul;
    assert_eq!(consul.address, "https://consul.local:8501");
    assert_eq!(
        consul.token.as_ref().map(|token| token.reveal()),
        Some("s3cr3t")
    );
    assert!(!consul.tls.verify);
    assert_eq!(
        consul.tls.key_file.as_deref(),
        Some(Path::new("/etc/key.pem"))
    );
    assert_eq!(consul.tls.server_name.as_deref(), Some("server.dc1.consul"));
    for shown in [
        settings.to_text(),
        settings.to_json().to_string(),
        format!("{settings:?}"),
    ] {
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
    assert_eq!(
        settings.to_json()["environment"]["CONSUL_HTTP_TOKEN"],
        "***"
    );

    let from_file = world
        .variable("CONSUL_HTTP_TOKEN_FILE", "/run/token")
        .load()
        .consul;
    assert_eq!(
        from_file.token_file.as_deref(),
        Some(Path::new("/run/token"))
    );
    assert_eq!(from_file.token, None, "the file counts");

    let faulty = World::with(CALLER)
        .variable("CONSUL_HTTP_SSL", "maybe")
        .variable("CONSUL_CLIENT_KEY", "/etc/key.pem");
    assert_eq!(faulty.problems(Role::Sidecar).len(), 2);
}

#[test]
fn described_roles_follow_the_sections() {
    for (config, expected) in [
        ("", (true, false)),
        (CALLER, (true, false)),
        ("[collector]\nretention = '1d'", (false, true)),
        (
            "[collector]\nretention = '1d'\n[application]\nname = 'shop'",
            (true, true),
        ),
    ] {
        let world = World::with(config);
        let role = if expected.0 {
            Role::Sidecar
        } else {
            Role::Collector
        };
        let world = if config.is_empty() {
            world.flag("application.name", "shop")
        } else {
            world
        };
        let settings = Settings::load(&world.source, role).unwrap();
        assert_eq!(settings.roles(), expected, "{config}");
    }
}

#[test]
fn a_missing_file_is_a_problem_not_a_panic() {
    let mut world = World::with("");
    world.source.file = Some(world.path("gone.toml"));
    let problems = world.problems(Role::Sidecar);
    assert!(
        problems.len() == 1 && problems[0].contains("cannot read the config file"),
        "{problems:?}"
    );
    std::fs::write(world.path("gone.toml"), [0xff, 0xfe]).unwrap();
    assert_eq!(world.problems(Role::Sidecar).len(), 1);
}

#[test]
fn every_default_is_accepted_by_its_key() {
    for key in KEYS {
        assert!(
            file::literal(key.default).is_some(),
            "{}: {}",
            key.path,
            key.default
        );
        key.kind
            .parse(&key.default_value())
            .unwrap_or_else(|message| panic!("{}: {message}", key.path));
        assert!(!key.help.is_empty(), "{}", key.path);
    }
    let mut paths: Vec<_> = KEYS.iter().map(|key| key.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), KEYS.len());
}

#[test]
fn every_key_is_checked() {
    for key in KEYS.iter().filter(|key| !key.path.starts_with("trust.key")) {
        let config = match key.path.strip_prefix("application.contract[].") {
            Some(name) => format!("[[application.contract]]\n{name} = 1979-05-27\n"),
            None => format!("{} = 1979-05-27\n", key.path),
        };
        let problems = World::with(&config).problems(Role::Sidecar);
        let path = key.path.replace("[]", "[0]");
        assert!(
            problems
                .iter()
                .any(|problem| problem.contains(&format!(" {path}: must be"))),
            "{path}: {problems:?}"
        );
    }
}

#[test]
fn the_schema_agrees_with_the_loader() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let shown = World::with(SERVICE).load().to_json();
    let errors: Vec<_> = validator
        .iter_errors(&shown["config"])
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    for faulty in [
        json!({"application": {"nam": "x"}}),
        json!({"application": {"weight": 0}}),
        json!({"trust": {"mode": "pinned"}}),
        json!({"trust": {"key": [{}]}}),
        json!({"retry": {"backoff": "1s"}}),
        json!({"limits": {"idle_timeout": "soon"}}),
        json!({"consul": {"checks": ["http"]}}),
        json!({"elsewhere": {}}),
    ] {
        assert!(!validator.is_valid(&faulty), "{faulty}");
    }
    for key in KEYS {
        let pointer = format!(
            "/properties/{}",
            key.path
                .replace("[]", "/items")
                .replace('.', "/properties/")
        );
        assert_eq!(
            schema.pointer(&pointer).map(|key| &key["description"]),
            Some(&json!(key.help)),
            "{pointer}"
        );
    }
}

#[test]
fn show_gives_origins() {
    let world = World::with(SERVICE).variable("HERMES_LOG__FILTER", "debug");
    let settings = world.load();
    let shown = settings.to_json();
    assert_eq!(
        shown["config"]["application"]["contract"][0]["validate"]["input"],
        "strict"
    );
    assert_eq!(shown["origins"]["log.filter"], "HERMES_LOG__FILTER");
    assert_eq!(shown["origins"]["application.name"], "first contract");
    assert_eq!(shown["origins"]["limits.max_headers"], "default");
    let text = settings.to_text();
    for line in [
        r#"upstream = "http://127.0.0.1:5000""#,
        "[[application.contract]]",
        r#"validate.input = "strict""#,
        "hermes.toml:3",
        "# HERMES_LOG__FILTER",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn an_openapi_document_names_the_application_as_a_contract_does() {
    let world = World::with(SERVICE);
    let schema = r#"{"content": {"application/json": {"schema": {"type": "object"}}}}"#;
    let document = format!(
        r#"{{"openapi": "3.1.0", "info": {{"title": "t", "version": "1.0.0"}}, "paths": {{
            "/api/v1/risk": {{"post": {{
                "x-hermes": {{"id": "credit-score-v1.0", "constraints": {{"timeout_ms": 500}}}},
                "requestBody": {schema},
                "responses": {{"200": {{"description": "d", "content": {{"application/json": {{"schema": {{"type": "object"}}}}}}}}}}
            }}}}}}}}"#
    );
    std::fs::write(world.path("fraud.json"), document).unwrap();
    assert_eq!(world.load().application.name, "credit-score");
    std::fs::write(world.path("fraud.json"), r#"{"openapi": "3.1.0"}"#).unwrap();
    let problems = world.problems(Role::Sidecar);
    assert!(problems[0].contains("contract lint"), "{problems:?}");
}

/// A value for a key that is built, as TOML.
fn value_for(path: &'static str) -> BoxedStrategy<String> {
    use super::kind::Kind;
    let key = keys::find(path).unwrap();
    match (path, key.kind) {
        (_, Kind::Count(min, max)) => (min..=max).prop_map(|number| number.to_string()).boxed(),
        (_, Kind::Length(min, max)) => (min..=max).prop_map(|ms| format!("\"{ms}ms\"")).boxed(),
        ("tls.mode", _) => Just("\"files\"".to_owned()).boxed(),
        ("tls.cert" | "tls.key" | "tls.ca", _) => "/[a-z]{1,9}[.]pem"
            .prop_map(|path| format!("\"{path}\""))
            .boxed(),
        (_, Kind::Choice(words)) => {
            let refused: &[&str] = match key.rule {
                Rule::Except(refused, _) => refused,
                _ => &[],
            };
            let words: Vec<_> = words
                .iter()
                .filter(|word| !refused.contains(word))
                .collect();
            proptest::sample::select(words)
                .prop_map(|word| format!("\"{word}\""))
                .boxed()
        }
        (_, Kind::Flag) => any::<bool>().prop_map(|flag| flag.to_string()).boxed(),
        (_, Kind::Name | Kind::Team) => "[a-z0-9-]{1,40}"
            .prop_filter("a team has no team-", |name| !name.starts_with("team-"))
            .prop_map(|name| format!("\"{name}\""))
            .boxed(),
        (_, Kind::Id) => "[A-Za-z0-9._:~-]{1,128}"
            .prop_map(|id| format!("\"{id}\""))
            .boxed(),
        (_, Kind::Text(_)) => "\\PC{0,30}"
            .prop_map(|text| toml::Value::String(text).to_string())
            .boxed(),
        (_, Kind::Texts) => proptest::collection::btree_set("\\PC{1,9}", 0..4)
            .prop_map(|texts| toml::Value::from(texts.into_iter().collect::<Vec<_>>()).to_string())
            .boxed(),
        (_, Kind::Advertise) => "(|[a-z]{1,9}|10\\.0\\.0\\.[1-9]|[a-z]{2}:8[0-9]|:9[0-9])"
            .prop_map(|text| format!("\"{text}\""))
            .boxed(),
        (_, Kind::CollectorTarget) => "(|consul:[a-z]{1,9}|https?://[a-z]{1,9}(:8[0-9])?/?)"
            .prop_map(|text| format!("\"{text}\""))
            .boxed(),
        (_, Kind::TrustContext) => "(\"any\"|\\[\\]|\\[\"10\\.0\\.0\\.0/[1-9]\"\\])".boxed(),
        _ => Just(key.default.to_owned()).boxed(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_shown_loads_again(values in KEYS.iter()
        .filter(|key| matches!(key.rule, Rule::Built | Rule::Except(..)) && !key.path.contains("[]") && key.path != "application.upstream")
        .map(|key| (Just(key.path), value_for(key.path)))
        .collect::<Vec<_>>())
    {
        let config: String = values.iter().map(|(path, value)| format!("{path} = {value}\n")).collect();
        let contract = "application.contract = [{file = 'fraud.json', path = '/x', validate.input = 'warn'}]\n";
        let first = World::with(&format!("{config}{contract}application.upstream = 'http://h:1'\n"));
        let first = (first.load(), first);
        let shown = first.0.to_json();
        for again in [first.0.to_text(), toml::to_string(&shown["config"]).unwrap()] {
            let second = World::with(&again).load();
            prop_assert_eq!(&second.to_json()["config"], &shown["config"]);
        }
    }

    #[test]
    fn no_file_makes_the_loader_panic(text in "(\\[{0,2}(application|limits|trust|x)?(\\.(contract|key))?\\]{0,2}\n|[a-z_.]{0,12} ?= ?(\"[a-z:/]{0,9}\"|[0-9-]{1,20}|\\[.{0,5}\\]|\\{.{0,5}\\})?\n|.{0,9}\n){0,8}") {
        let world = World::with(&text);
        for role in [Role::Sidecar, Role::Collector, Role::Described] {
            if let Err(error) = Settings::load(&world.source, role) {
                prop_assert!(!error.problems().is_empty());
            }
        }
    }
}
