//! The commands that publish and read what is published.

use super::*;
use crate::support::port::free_port;
use crate::support::process::Process;

#[tokio::test]
async fn a_published_body_stays_and_only_gathers_signatures() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let done = desk.publish(&signed(fraud("1.0.0"), &[1]), &["-o", "json"]);
    let done = done.json(0);
    assert_eq!(
        (&done[0]["body"], &done[0]["current"]),
        (&json!("published"), &json!("1.0.0"))
    );
    let first = body(&consul, "1.0.0").await;
    assert_eq!(first["contract"], signed(fraud("1.0.0"), &[1]));
    let by = first["published_by"].as_str().unwrap();
    assert!(
        by.starts_with("cli/ada@") && by.len() > "cli/ada@".len(),
        "{by}"
    );
    assert_eq!(index(&consul).await["digest"], first["digest"]);

    // Once more, with other signatures, and with none: nothing else ever changes.
    let before = value(&consul, &body_key("1.0.0")).await.unwrap();
    let same = desk.publish(&signed(fraud("1.0.0"), &[1]), &["-o", "json"]);
    assert_eq!(same.json(0)[0]["body"], "unchanged");
    assert_eq!(value(&consul, &body_key("1.0.0")).await.unwrap(), before);
    let out = desk.publish(&signed(fraud("1.0.0"), &[2, 3]), &[]).with(0);
    assert!(out.contains("2 signatures added"), "{out}");
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    let after = value(&consul, &body_key("1.0.0")).await.unwrap();
    let added: String = signatures(&[2, 3])
        .iter()
        .map(|signature| format!(",{signature}"))
        .collect();
    assert!(after.contains(&added), "{after}");
    assert_eq!(
        after.replace(&added, ""),
        without_blanks(&before, &after, &added)
    );

    // What is there comes back byte for byte, and can be published again as it is.
    let text = desk.run(&["get", FRAUD]).with(0);
    assert!(after.contains(&text), "{text}");
    desk.write("again.json", &text);
    let again = desk.run(&["publish", "again.json", "-o", "json"]).json(0);
    assert_eq!(again[0]["body"], "unchanged");

    let mut other = fraud("1.0.0");
    other["description"] = "another one".into();
    let taken = desk.publish(&other, &[]);
    assert!(taken.err.contains("raise the version"), "{taken:?}");
    assert!(
        taken.err.contains(first["digest"].as_str().unwrap()),
        "{taken:?}"
    );
    taken.with(1);
    let forced = desk.publish(&other, &["--allow-breaking"]);
    forced.with(1);
    assert_eq!(value(&consul, &body_key("1.0.0")).await.unwrap(), after);
}

/// The blanks before the bracket that closes the list give way to what is added there.
fn without_blanks(before: &str, after: &str, added: &str) -> String {
    let place = after.find(added).unwrap();
    let kept = after.len() - place - added.len();
    format!("{}{}", &before[..place], &before[before.len() - kept..])
}

#[tokio::test]
async fn room_for_signatures_is_bounded_and_said() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let many: Vec<usize> = (0..16).collect();
    desk.publish(&signed(fraud("1.0.0"), &many), &[]).with(0);
    let crowded = desk.publish(&signed(fraud("1.0.0"), &[20]), &[]);
    assert!(
        crowded.err.contains("signatures left out: 1"),
        "{crowded:?}"
    );
    crowded.with(1);
    let there = body(&consul, "1.0.0").await;
    assert_eq!(there["contract"], signed(fraud("1.0.0"), &many));
}

#[tokio::test]
async fn what_cannot_be_published_says_why() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    assert_eq!(desk.run(&["publish", "none.json"]).code, Some(2));
    let mut faulty = fraud("1.0.0");
    faulty["input_schema"]["properties"]["amount_cny"]["type"] = "int".into();
    let refused = desk.publish(&faulty, &[]);
    assert!(refused.err.contains("integer"), "{refused:?}");
    assert_eq!(refused.with(2), "");
    let strange = desk.publish(&fraud("1.0.0"), &["--current", "1.1.0"]);
    assert!(strange.err.contains("1.0.x"), "{strange:?}");
    strange.with(2);
    assert_eq!(consul.get("/v1/kv/hermes?recurse").await, None);

    let nowhere = Desk::at("http://127.0.0.1:1");
    nowhere.publish(&fraud("1.0.0"), &[]).with(3);
    nowhere.run(&["list"]).with(3);
    nowhere.run(&["get", FRAUD]).with(3);
    // A flag beats what the variables say; a file that starts no sidecar is good enough.
    let at = ["--consul", &consul.address()];
    nowhere.write("hermes.toml", "[consul]\nprefix = \"blue\"\n");
    nowhere.publish(&fraud("1.0.0"), &at).with(0);
    assert!(
        value(&consul, &format!("blue/contracts/{FRAUD}/1.0.0"))
            .await
            .is_some()
    );
    desk.run(&["get", FRAUD]).with(1);
}

#[tokio::test]
async fn list_and_get_show_what_stands_there() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let empty = desk.run(&["list", "-o", "json"]);
    assert!(empty.err.contains("nothing is published"), "{empty:?}");
    assert_eq!(empty.json(0), json!([]));
    let mut tagged = fraud("1.0.0");
    tagged["tags"] = json!(["team-finance"]);
    desk.publish(&tagged, &[]).with(0);
    tagged["version"] = "1.0.1".into();
    desk.publish(&tagged, &[]).with(0);
    consul.put("/v1/kv/hermes/index/_keep", "").await;
    consul.put("/v1/kv/hermes/index/odd-v1.0", "odd").await;
    consul
        .put("/v1/kv/hermes/contracts/odd-v1.0/1.0.0", "odd")
        .await;
    consul
        .put("/v1/kv/hermes/contracts/odd-v1.0/notes", "odd")
        .await;

    let listed = desk.run(&["list", "-o", "json"]).json(0);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let fraud = &listed[0];
    assert_eq!(
        (
            &fraud["agent"],
            &fraud["version"],
            &fraud["team"],
            &fraud["versions"]
        ),
        (
            &json!(FRAUD),
            &json!("1.0.1"),
            &json!("finance"),
            &json!(["1.0.0", "1.0.1"])
        )
    );
    assert_eq!(fraud["digest"], body(&consul, "1.0.1").await["digest"]);
    assert!(
        fraud["updated_at"].as_str().unwrap().ends_with('Z'),
        "{fraud}"
    );
    assert_eq!(listed[1]["version"], Value::Null);
    let table = desk.run(&["list"]).with(0);
    assert!(table.lines().nth(1).unwrap().starts_with(FRAUD), "{table}");

    let current = desk.run(&["get", FRAUD, "-o", "json"]).json(0);
    let there = body(&consul, "1.0.1").await;
    for member in ["digest", "published_at", "published_by", "contract"] {
        assert_eq!(current[member], there[member], "{member}");
    }
    let old = desk
        .run(&["get", &format!("{FRAUD}@1.0.0"), "-o", "json"])
        .json(0);
    assert_eq!(old["version"], "1.0.0");
    let unknown = desk.run(&["get", &format!("{FRAUD}@1.0.9")]);
    assert!(
        unknown.err.contains("there are 1.0.0, 1.0.1"),
        "{unknown:?}"
    );
    unknown.with(1);
    let nobody = desk.run(&["get", "nobody-here-v1.0"]);
    assert!(nobody.err.contains("no version of it is"), "{nobody:?}");
    nobody.with(1);
    assert_eq!(desk.run(&["get", "odd-v1.0@1.0.0"]).with(1), "");
    desk.run(&["get", "no-id"]).with(2);

    // Shown as it stands although nobody would use it.
    let text = value(&consul, &body_key("1.0.1")).await.unwrap();
    let altered = text.replace("\"high\"", "\"dangerous\"");
    consul
        .put(&format!("/v1/kv/{}", body_key("1.0.1")), altered)
        .await;
    let shown = desk.run(&["get", FRAUD]);
    assert!(shown.err.contains("but it was published with"), "{shown:?}");
    assert!(shown.with(1).contains("dangerous"));
    let altered = desk.publish(&tagged, &[]);
    assert!(altered.err.contains("delete the key"), "{altered:?}");
    altered.with(1);
}

#[tokio::test]
async fn the_stand_in_registry_takes_contracts_too() {
    let folder = TempDir::with_prefix("hermes-registry-").unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(program::hermes());
    command.args(["dev-registry", "--listen", &address]);
    let mut registry = Process::spawn("registry", command, &folder.path().join("log"));
    let url = format!("http://{address}");
    let up = async || {
        reqwest::get(format!("{url}/v1/status/leader"))
            .await
            .is_ok()
    };
    assert!(registry.serves(WITHIN, up).await);
    let desk = Desk::at(&url);
    desk.publish(&signed(fraud("1.0.0"), &[1]), &[]).with(0);
    desk.publish(&signed(fraud("1.0.0"), &[2]), &[]).with(0);
    desk.publish(&stricter("1.0.1"), &[]).with(1);
    desk.publish(&stricter("1.0.1"), &["--allow-breaking"])
        .with(0);
    desk.publish(&stricter("1.0.1"), &["--current", "1.0.0"])
        .with(0);
    let listed = desk.run(&["list", "-o", "json"]).json(0);
    assert_eq!(listed[0]["version"], "1.0.0");
    assert_eq!(listed[0]["versions"], json!(["1.0.0", "1.0.1"]));
    let there: Value = serde_json::from_str(&desk.run(&["get", FRAUD]).with(0)).unwrap();
    assert_eq!(there, signed(fraud("1.0.0"), &[1, 2]));
}
