//! A line of versions: what may follow what, and which one is current.

use super::*;
use crate::support::application::Application;
use crate::support::client::client;
use crate::support::reply::Reply;
use crate::support::wait::wait_until;

#[tokio::test]
async fn a_breaking_change_waits_until_an_operator_publishes_it() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    let application = Application::start().await;
    let sidecar = serving(&consul, &application.url(), stricter("1.0.1"));
    let sidecar = sidecar.start_unready().await;
    let ready = async || {
        let reply = Reply::to(client().get(format!("{}/ready", sidecar.admin_url()))).await;
        (
            reply.status,
            String::from_utf8(reply.body.to_vec()).unwrap(),
        )
    };
    wait_until(WITHIN, "the refusal in /ready", async || {
        let (status, told) = ready().await;
        status == 503 && told.contains("--allow-breaking")
    })
    .await;
    let (_, told) = ready().await;
    for part in [
        "raise the major",
        "fraud-detection-v1.0 1.0.0",
        "/input_schema",
    ] {
        assert!(
            told.contains(part) && sidecar.log().contains(part),
            "{part}: {told}"
        );
    }
    assert_eq!(value(&consul, &body_key("1.0.1")).await, None);
    let services = consul.get("/v1/agent/services").await.unwrap();
    assert_eq!(services, json!({}), "nothing is registered");

    let refused = desk.publish(&stricter("1.0.1"), &[]);
    assert!(refused.err.contains("--allow-breaking"), "{refused:?}");
    assert!(refused.with(1).contains("/input_schema"));
    let refused = desk.publish(&stricter("1.0.1"), &["-o", "json"]).json(1);
    assert_eq!(refused["refused"][0]["older"], "fraud-detection-v1.0 1.0.0");
    assert!(
        !refused["refused"][0]["findings"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.0");

    let forced = desk.publish(&stricter("1.0.1"), &["--allow-breaking", "-o", "json"]);
    let forced = forced.json(0);
    assert_eq!(forced[0]["allowed"], refused["refused"]);
    consul.wait_passing(FRAUD, 1, SLOWLY).await;
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.1");
}

#[tokio::test]
async fn neighbours_on_both_sides_are_minded_across_minors() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    desk.publish(&fraud("1.2.0"), &[]).with(0);
    // Between the two: it breaks the older one.
    let refused = desk.publish(&stricter("1.1.0"), &["-o", "json"]).json(1);
    let pairs = refused["refused"].as_array().unwrap();
    assert_eq!(pairs[0]["older"], "fraud-detection-v1.0 1.0.0", "{refused}");
    assert_eq!(pairs[0]["verdict"], "breaking", "{refused}");
    // Below one that is stricter: it is the newer one that would break it.
    desk.publish(&stricter("2.1.0"), &[]).with(0);
    let refused = desk.publish(&fraud("2.0.0"), &["-o", "json"]).json(1);
    let pairs = refused["refused"].as_array().unwrap();
    assert_eq!(
        (&pairs[0]["older"], &pairs[0]["newer"]),
        (
            &json!("fraud-detection-v2.0 2.0.0"),
            &json!("fraud-detection-v2.1 2.1.0")
        )
    );
    // What takes nothing from anybody fits in between.
    let mut wider = fraud("1.1.0");
    wider["input_schema"]["properties"]["note"] = json!({"type": "string"});
    let mut highest = wider.clone();
    highest["id"] = "fraud-detection-v1.3".into();
    highest["version"] = "1.3.0".into();
    desk.publish(&highest, &[]).with(0);
    wider["input_schema"]["properties"]["note"] = json!(true);
    wider["id"] = "fraud-detection-v1.4".into();
    wider["version"] = "1.4.0".into();
    desk.publish(&wider, &[]).with(0);
    // Other majors and other families are nobody's neighbours.
    desk.publish(&stricter("10.0.0"), &[]).with(0);
    let mut other = stricter("1.0.0");
    other["id"] = "fraud-detection2-v1.0".into();
    desk.publish(&other, &[]).with(0);
}

#[tokio::test]
async fn garbage_next_door_is_named_and_passed_over() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    let text = value(&consul, &body_key("1.0.0")).await.unwrap();
    let put = async |version: &str, text: String| {
        consul
            .put(&format!("/v1/kv/{}", body_key(version)), text)
            .await;
    };
    put("1.0.1", "no contract".to_owned()).await;
    put("1.0.2", text.clone()).await;
    put("1.0.3", text.replace("\"high\"", "\"dangerous\"")).await;
    let done = desk.publish(&fraud("1.0.4"), &["-o", "json"]).json(0);
    let passed_over = done[0]["passed_over"].as_array().unwrap();
    let named: Vec<_> = passed_over
        .iter()
        .map(|told| told.as_str().unwrap())
        .collect();
    assert_eq!(named.len(), 3, "{named:?}");
    for (told, version) in named.iter().zip(["1.0.3", "1.0.2", "1.0.1"]) {
        assert!(told.starts_with(&body_key(version)), "{told}");
    }
    // The sound one behind the garbage still counts.
    desk.publish(&stricter("1.0.4"), &[]).with(1);
    let strict = desk.run(&["get", &format!("{FRAUD}@1.0.1")]);
    strict.with(1);
}

#[tokio::test]
async fn versions_published_at_once_leave_the_highest_current() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let publishing: Vec<_> = (0..6)
        .map(|patch| {
            let file = desk.file(&fraud(&format!("1.0.{patch}")));
            let mut command = desk.command(&["publish", &file, "--allow-breaking"]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    for mut child in publishing {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.5");
    let now = index(&consul).await;
    assert_eq!(now["version"], "1.0.5");
    assert_eq!(now["digest"], body(&consul, "1.0.5").await["digest"]);
}

#[tokio::test]
async fn the_current_version_is_lowered_by_hand_alone() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let application = Application::start().await;
    let old = serving(&consul, &application.url(), fraud("1.0.0"))
        .set("application.instance", "old")
        .set("application.team", "finance");
    let _old = old.start().await;
    desk.publish(&fraud("1.0.1"), &[]).with(0);
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.1");
    let raised = index(&consul).await;
    assert_eq!(
        (&raised["version"], &raised["team"]),
        (&json!("1.0.1"), &json!("finance"))
    );
    // Neither an older sidecar nor an older file lowers it.
    let again = serving(&consul, &application.url(), fraud("1.0.0"));
    let _again = again.set("application.instance", "new").start().await;
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.1");

    let missing = desk.publish(&fraud("1.0.1"), &["--current", "1.0.7"]);
    assert!(
        missing.err.contains("there are 1.0.0, 1.0.1"),
        "{missing:?}"
    );
    missing.with(1);
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.1");
    desk.publish(&fraud("1.0.1"), &["--current", "1.0.0"])
        .with(0);
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.0");
    let lowered = index(&consul).await;
    assert_eq!(
        (&lowered["version"], &lowered["team"]),
        (&json!("1.0.0"), &json!("finance"))
    );
    assert_eq!(lowered["digest"], body(&consul, "1.0.0").await["digest"]);
    assert_ne!(lowered["digest"], raised["digest"]);
}
