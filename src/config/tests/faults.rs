//! What is said about faults.

use super::*;

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
            "[collector]\nretention = '1s'",
            "2 collector.retention: must be from 1m to 3650days",
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
            "2 trust.mode: \"pinned\" needs keys: add [[trust.key]] with file and ids, or nothing is trusted",
        ),
        ("[[trust.key]]\nfile = 'x'", "2 trust.key[0].file: "),
        (
            "[session]\nfreshness = '2h'",
            "2 session.freshness: sessions are not built into this version; leave it at \"1h\"",
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
            "2 collector.store: needs ?sslmode=verify-full, or ?sslmode=disable to go in clear",
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
fn what_was_meant_for_postgresql_is_no_path_and_is_not_repeated() {
    for store in [
        "host=127.0.0.1 user=hermes password=secret",
        "password = 'secret' host = db",
        "HOST=secret",
        "postgres:/hermes:secret@h/t",
        "postgresql:hermes:secret@h/t",
        " Postgres:/hermes:secret@h/t",
        "jdbc:postgresql://h/t?password=secret",
        "postgres://hermes:secret@h:x/t",
    ] {
        let config = format!("[collector]\nstore = \"{store}\"\n");
        for role in [Role::Collector, Role::Sidecar] {
            let problems = World::with(&config).problems(role);
            let told = problems.join("\n");
            let times = told.matches("collector.store: ").count();
            assert_eq!(times, 1, "{store}: {told}");
            assert!(!told.contains("secret"), "{store}: {told}");
        }
    }
    for path in [
        "/var/lib/user=1/a.db",
        "a=b.db",
        "./host=1.db",
        "postgres.db",
    ] {
        let world = World::with(&format!("[collector]\nstore = \"{path}\"\n"));
        assert!(
            Settings::load(&world.source, Role::Collector).is_ok(),
            "{path}"
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
