//! Flags, variables, file and defaults: what beats what, and how that is shown.

use super::*;

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
fn a_command_finds_consul_in_a_file_that_starts_nothing() {
    let config = "[application]\nteam = \"finance\"\nweight = 0\n[consul]\nprefix = \"blue\"\n";
    let world = World::with(config)
        .variable("CONSUL_HTTP_ADDR", "agent:8500")
        .variable("CONSUL_HTTP_TOKEN", "secret")
        .variable("USER", "ada");
    let found = Registry::load(&world.source).unwrap();
    assert_eq!(found.consul.address, "http://agent:8500");
    assert_eq!(found.consul.prefix, "blue");
    assert!(found.consul.token.is_some());
    assert_eq!(
        (found.team.as_str(), found.person.as_str()),
        ("finance", "ada@web-1")
    );
    for (key, value) in [
        ("consul.prefix", "Blue"),
        ("consul.address", "ftp://agent"),
        ("application.team", "team-x y"),
    ] {
        let world = World::with(config).flag(key, value);
        let error = Registry::load(&world.source).unwrap_err();
        assert_eq!(error.problems()[0].key, key);
    }
    let odd = World::with(config).variable("CONSUL_HTTP_SSL", "perhaps");
    assert!(Registry::load(&odd.source).is_err());
}
