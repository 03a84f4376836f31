//! Keys and signatures as their owner meets them, on the command line.

use crate::support::contract::fraud_detection;
use crate::support::program;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(TempDir::with_prefix("hermes-desk-").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn hermes(&self, words: &[&str]) -> Output {
        let mut command = Command::new(program::hermes());
        command.args(words).current_dir(&self.0).output().unwrap()
    }

    /// Runs a command that must end with this code; returns its data and its talk.
    #[track_caller]
    fn ends(&self, code: i32, words: &[&str]) -> (String, String) {
        let output = self.hermes(words);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (data, talk) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{words:?}: {data}{talk}");
        (data, talk)
    }

    #[track_caller]
    fn json(&self, code: i32, words: &[&str]) -> Value {
        let words = [words, &["-o", "json"]].concat();
        serde_json::from_str(&self.ends(code, &words).0).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o777
    }
}

#[test]
fn keys_are_made_once() {
    let desk = Desk::new();
    let (kid, talk) = desk.ends(0, &["keygen", "finance"]);
    assert_eq!(kid.trim().len(), 43, "{kid}");
    assert!(
        talk.contains("finance.pub") && talk.contains("contract sign"),
        "{talk}"
    );
    assert_eq!(
        (desk.mode("finance"), desk.mode("finance.pub") & 0o600),
        (0o600, 0o600)
    );
    let before = fs::read(desk.path("finance")).unwrap();
    let (_, talk) = desk.ends(2, &["keygen", "finance"]);
    assert!(talk.contains("finance is there already"), "{talk}");
    assert_eq!(fs::read(desk.path("finance")).unwrap(), before);
    let made = desk.json(0, &["keygen", "other"]);
    assert_eq!(
        (&made["private"], &made["public"]),
        (&json!("other"), &json!("other.pub"))
    );
    desk.ends(2, &["keygen", "nowhere/key"]);
    // Four files, and nothing half done.
    assert_eq!(fs::read_dir(&desk.0).unwrap().count(), 4);
    if program::has(&["openssl"]) {
        for words in [
            vec!["pkey", "-in", "finance", "-noout"],
            vec!["pkey", "-pubin", "-in", "finance.pub", "-noout"],
        ] {
            let read = Command::new("openssl")
                .args(&words)
                .current_dir(&desk.0)
                .status();
            assert!(read.unwrap().success(), "{words:?}");
        }
    }
}

#[test]
fn a_contract_is_signed_renewed_and_verified() {
    let desk = Desk::new();
    let kid = desk.ends(0, &["keygen", "finance"]).0.trim().to_owned();
    desk.ends(0, &["keygen", "risk"]);
    let laid_out = format!("{:#}\n", fraud_detection())
        .replace("\"timeout_ms\": 500", "\"timeout_ms\":   500");
    let file = desk.path("fraud.json");
    fs::write(&file, &laid_out).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("fraud.json", desk.path("link.json")).unwrap();

    let (told, _) = desk.ends(1, &["contract", "verify", "fraud.json"]);
    assert!(told.contains("no signature"), "{told}");
    let sign = ["contract", "sign", "link.json", "--key", "finance"];
    let (told, _) = desk.ends(0, &sign);
    assert!(
        told.contains(&kid) && told.contains("fraud-detection-v1.0"),
        "{told}"
    );
    // The author's layout, the mode and the link are as they were.
    let signed = fs::read_to_string(&file).unwrap();
    let (before, _) = laid_out.rsplit_once("\n}").unwrap();
    assert!(signed.starts_with(before), "{signed}");
    assert_eq!(desk.mode("fraud.json"), 0o640);
    assert!(
        fs::symlink_metadata(desk.path("link.json"))
            .unwrap()
            .is_symlink()
    );

    let (told, _) = desk.ends(0, &["contract", "verify", "fraud.json"]);
    assert!(told.contains("not pinned") && told.contains(&kid), "{told}");
    let (told, _) = desk.ends(
        0,
        &["contract", "verify", "fraud.json", "--key", "finance.pub"],
    );
    assert!(told.contains("by the given key"), "{told}");
    let (told, _) = desk.ends(
        1,
        &["contract", "verify", "fraud.json", "--key", "risk.pub"],
    );
    assert!(told.contains("another key"), "{told}");

    // Once more by the same key is no second signature; another key's stands beside it.
    let again = desk.json(0, &sign);
    assert_eq!(
        (&again["signed"], &again["kid"]),
        (&json!(false), &json!(kid))
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), signed);
    let other = [
        "contract",
        "sign",
        "fraud.json",
        "--key",
        "risk",
        "--kid",
        "risk-1",
    ];
    assert_eq!(desk.json(0, &other)["signed"], true);
    let verified = desk.json(0, &["contract", "verify", "fraud.json"]);
    assert_eq!(verified["kids"], json!([kid, "risk-1"]));
    assert_eq!(
        (&verified["ok"], &verified["pinned"]),
        (&json!(true), &json!(false))
    );
    let pinned = desk.json(
        0,
        &["contract", "verify", "fraud.json", "--key", "risk.pub"],
    );
    assert_eq!(
        (&pinned["pinned"], &pinned["kids"]),
        (&json!(true), &json!(["risk-1"]))
    );

    // The incident, in a file: nothing fits any more, until it is signed again.
    let changed = fs::read_to_string(&file)
        .unwrap()
        .replace("\"low\"", "\"safe\"");
    fs::write(&file, changed).unwrap();
    let refused = desk.json(1, &["contract", "verify", "fraud.json"]);
    assert_eq!(refused["ok"], false);
    let reason = refused["reason"].as_str().unwrap();
    assert!(
        reason.contains("does not fit") && reason.contains(&kid),
        "{reason}"
    );
    desk.ends(
        1,
        &["contract", "verify", "fraud.json", "--key", "finance.pub"],
    );
    let renewed = desk.json(0, &sign);
    assert_eq!(renewed["dropped"], json!([kid, "risk-1"]));
    let verified = desk.json(
        0,
        &["contract", "verify", "fraud.json", "--key", "finance.pub"],
    );
    assert_eq!(verified["kids"], json!([kid]));
}

#[test]
fn what_cannot_be_signed_is_told_and_left_alone() {
    let desk = Desk::new();
    desk.ends(0, &["keygen", "finance"]);
    fs::write(desk.path("good.json"), fraud_detection().to_string()).unwrap();
    let mut faulty = fraud_detection();
    faulty["input_schema"]["properties"]["user_id"]["type"] = "int".into();
    let document = json!({"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {}});
    for (name, content) in [
        ("faulty.json", faulty.to_string()),
        (
            "twice.json",
            fraud_detection()
                .to_string()
                .replacen('{', "{\"id\":\"a-v1.0\",", 1),
        ),
        ("openapi.json", document.to_string()),
        ("broken.json", "{".to_owned()),
    ] {
        fs::write(desk.path(name), content).unwrap();
    }
    for (code, words, part) in [
        (1, ["faulty.json", "finance"], "int"),
        (1, ["twice.json", "finance"], "id"),
        (1, ["broken.json", "finance"], "json"),
        (
            2,
            ["openapi.json", "finance"],
            "contract openapi openapi.json",
        ),
        (2, ["missing.json", "finance"], "missing.json"),
        (2, ["good.json", "missing"], "missing"),
        (2, ["good.json", "finance.pub"], "without .pub"),
        (2, ["good.json", "good.json"], "no key"),
    ] {
        let before = fs::read(desk.path(words[0])).ok();
        let [file, key] = words;
        let (data, talk) = desk.ends(code, &["contract", "sign", file, "--key", key]);
        assert!(talk.contains(part), "{words:?}: {talk}");
        assert!(data.is_empty(), "{words:?}: {data}");
        assert_eq!(fs::read(desk.path(file)).ok(), before);
    }
    let long = "k".repeat(129);
    desk.ends(
        2,
        &[
            "contract",
            "sign",
            "good.json",
            "--key",
            "finance",
            "--kid",
            &long,
        ],
    );
    desk.ends(2, &["contract", "verify", "good.json", "--key", "finance"]);
    desk.ends(2, &["contract", "verify", "openapi.json"]);
    desk.ends(1, &["contract", "verify", "broken.json"]);
    // A key that others can read is worth a word.
    fs::set_permissions(desk.path("finance"), Permissions::from_mode(0o644)).unwrap();
    let (_, talk) = desk.ends(0, &["contract", "sign", "good.json", "--key", "finance"]);
    assert!(talk.contains("chmod 600"), "{talk}");
}

#[test]
fn check_judges_what_would_be_served() {
    let desk = Desk::new();
    desk.ends(0, &["keygen", "finance"]);
    fs::write(desk.path("fraud.json"), fraud_detection().to_string()).unwrap();
    let config = "[application]\nname = 'fraud'\nupstream = 'http://127.0.0.1:1'\n\
                  [[application.contract]]\nfile = 'fraud.json'\npath = '/risk'\n\
                  [inbound]\nlisten = '127.0.0.1:0'\n[outbound]\nlisten = '127.0.0.1:0'\n\
                  [admin]\nlisten = '127.0.0.1:0'\n[consul]\naddress = 'http://127.0.0.1:1'\n\
                  [trust]\nmode = 'pinned'\n[[trust.key]]\nfile = 'finance.pub'\nids = ['fraud-*']\n";
    fs::write(desk.path("hermes.toml"), config).unwrap();
    // Nobody is there, so something is wrong either way.
    let told = || {
        let found = desk.json(1, &["check"])["findings"].clone();
        let found = found.as_array().unwrap().clone();
        let of_trust = found
            .into_iter()
            .filter(|finding| finding["check"] == "trust");
        let told: Vec<String> = of_trust.map(|finding| finding.to_string()).collect();
        told.join("\n")
    };
    let unsigned = told();
    assert!(
        unsigned.contains("1 keys listed") && unsigned.contains("no signature"),
        "{unsigned}"
    );
    desk.ends(0, &["contract", "sign", "fraud.json", "--key", "finance"]);
    let signed = told();
    assert!(!signed.contains("not trusted"), "{signed}");
    fs::write(
        desk.path("hermes.toml"),
        config.replace("finance.pub", "finance"),
    )
    .unwrap();
    let (data, _) = desk.ends(2, &["check"]);
    assert!(
        data.contains("hermes.toml:18: trust.key[0].file: ") && data.contains("private key"),
        "{data}"
    );
    let (_, talk) = desk.ends(2, &["run"]);
    assert!(talk.contains("trust.key[0].file"), "{talk}");
}
