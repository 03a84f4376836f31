//! The table of keys against loader, schema and itself.

use super::*;

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
    for key in KEYS {
        let config = match key.path.split_once("[].") {
            Some((list, name)) => format!("[[{list}]]\n{name} = 1979-05-27\n"),
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
    for sound in [
        json!({"inbound": {"trust_context": "any"}}),
        json!({"inbound": {"trust_context": "mtls"}}),
        json!({"inbound": {"trust_context": ["10.0.0.0/8"]}}),
    ] {
        assert!(validator.is_valid(&sound), "{sound}");
    }
    for faulty in [
        json!({"application": {"nam": "x"}}),
        json!({"application": {"weight": 0}}),
        json!({"trust": {"mode": "first"}}),
        json!({"trust": {"key": [{"ids": "fraud-*"}]}}),
        json!({"session": {"freshness": "2h"}}),
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

/// A value for a key that is built, as TOML.
fn value_for(path: &'static str) -> BoxedStrategy<String> {
    use super::kind::Kind;
    let key = keys::find(path).unwrap();
    match (path, key.kind) {
        (_, Kind::Count(min, max)) => (min..=max).prop_map(|number| number.to_string()).boxed(),
        (_, Kind::Length(min, max)) => (min..=max).prop_map(|ms| format!("\"{ms}ms\"")).boxed(),
        // `pinned` wants keys, which a value alone does not give.
        ("trust.mode", _) => Just("\"off\"".to_owned()).boxed(),
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
