//! What a file must say, and what is found out where it does not.

use super::*;
use crate::collector::Place;

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
            derive_probe: false,
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
        Place::File("/run/state/collector.db".into())
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
