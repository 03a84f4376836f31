//! Every panel of `grafana/` is well formed, every query of it gets data, every alert is raised.
//!
//! Queries are judged three times: parsed against the list of families, executed by a real
//! Prometheus over a page with all families, and executed over the running demo.

mod families;
mod queries;

use crate::support::application::{Answer, Application};
use crate::support::process::Process;
use crate::support::program;
use crate::support::prometheus::{Prometheus, value};
use crate::support::wait::wait_for;
use queries::{Dashboard, Query, dashboards};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const SCRAPED_WITHIN: Duration = Duration::from_secs(60);
const DEMO_WITHIN: Duration = Duration::from_secs(60);
const DATA_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn dashboards_are_well_formed() {
    let dashboards = dashboards();
    assert!(!dashboards.is_empty());
    let faults: Vec<String> = dashboards.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let uids: BTreeSet<_> = dashboards
        .iter()
        .map(|one| one.body["uid"].as_str())
        .collect();
    assert_eq!(
        uids.len(),
        dashboards.len(),
        "each dashboard has a uid of its own"
    );
}

#[test]
fn links_lead_to_dashboards_that_are_here() {
    let dashboards = dashboards();
    let mut links = 0;
    for dashboard in &dashboards {
        let text = dashboard.body.to_string();
        for (start, _) in text.match_indices("\"/d/") {
            let uid = text[start + 4..].split(['?', '/', '"']).next().unwrap();
            let here = dashboards.iter().any(|other| other.body["uid"] == uid);
            assert!(here, "{}: a link leads to {uid}", dashboard.file);
            links += 1;
        }
    }
    assert!(links > 0, "the overview leads nowhere");
}

#[test]
fn queries_use_metrics_and_labels_that_exist() {
    let mut faults = Vec::new();
    for dashboard in dashboards() {
        let variables = dashboard.variables().into_iter().map(|(query, _)| query);
        for query in dashboard
            .queries()
            .into_iter()
            .chain(dashboard.annotations())
            .chain(variables)
        {
            faults.extend(query.faults());
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn wrong_queries_are_found() {
    for (expression, fault) in [
        (
            "sum(rate(hermes_proxy_requests_total[$__rate_interval]))",
            None,
        ),
        (
            "sum by (code) (hermes_spool_appended_total)",
            Some("no metric here has the label `code`"),
        ),
        (
            "hermes_proxy_request_total",
            Some("`hermes_proxy_request_total` is no metric"),
        ),
        (
            "hermes_spool_bytes{direction=\"inbound\"}",
            Some("no metric here has the label `direction`"),
        ),
        (
            "rate(hermes_spool_bytes[$__rate_interval])",
            Some("rate of `hermes_spool_bytes`, which is Some(Gauge)"),
        ),
        (
            "histogram_quantile(0.9, sum(rate(hermes_spool_batch_reports_bucket[$__rate_interval])))",
            Some("histogram_quantile over a sum without `le`"),
        ),
        (
            "hermes_store_write_duration_seconds",
            Some("`hermes_store_write_duration_seconds` is no metric"),
        ),
        ("sum(hermes_spool_bytes", Some("unclosed left parenthesis")),
    ] {
        let query = Query {
            place: "here".to_owned(),
            expression: expression.to_owned(),
        };
        let faults = query.faults().join("; ");
        match fault {
            None => assert_eq!(faults, "", "{expression}"),
            Some(fault) => assert!(faults.contains(fault), "{expression}: {faults}"),
        }
    }
}

#[test]
fn malformed_panels_are_found() {
    let good = dashboards()
        .into_iter()
        .find(|one| one.file == "overview.json")
        .unwrap();
    assert_eq!(faults(&good), Vec::<String>::new());
    for (pointer, wrong, fault) in [
        ("/uid", json!("x3f9"), "uid"),
        ("/panels/1/id", json!(1), "used twice"),
        ("/panels/1/type", json!("graph"), "type graph"),
        ("/panels/1/description", json!(""), "no description"),
        (
            "/panels/1/fieldConfig/defaults/unit",
            Value::Null,
            "no unit",
        ),
        ("/panels/1/gridPos/w", json!(6), "overlap"),
        ("/panels/1/gridPos/x", json!(22), "beyond the grid"),
        (
            "/panels/1/datasource/uid",
            json!("Prometheus"),
            "data source",
        ),
        (
            "/panels/1/targets/0/expr",
            json!("rate(hermes_spool_appended_total[5m])"),
            "fixed range",
        ),
        ("/templating/list/0/name", json!("ds"), "variables"),
    ] {
        let mut body = good.body.clone();
        *body.pointer_mut(pointer).unwrap() = wrong;
        let found = faults(&Dashboard {
            file: "changed".to_owned(),
            body,
        })
        .join("; ");
        assert!(found.contains(fault), "{pointer}: {found}");
    }
}

fn faults(dashboard: &Dashboard) -> Vec<String> {
    let body = &dashboard.body;
    let mut faults = Vec::new();
    let mut expect = |holds: bool, fault: String| {
        if !holds {
            faults.push(format!("{}: {fault}", dashboard.file));
        }
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    expect(
        text(&body["uid"]).starts_with("hermes-"),
        format!("uid {}", body["uid"]),
    );
    expect(
        body["schemaVersion"] == 39,
        "schemaVersion is not 39".to_owned(),
    );
    expect(
        body["editable"] == false,
        "can be edited in place".to_owned(),
    );
    expect(
        body["tags"] == json!(["hermes"]),
        "tags are not [hermes]".to_owned(),
    );
    let variables: Vec<String> = body["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| text(&one["name"]))
        .collect();
    expect(
        variables == ["datasource", "job", "instance", "application", "contract"],
        format!("variables {variables:?}"),
    );

    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in body["panels"].as_array().unwrap() {
        let title = text(&panel["title"]);
        expect(
            ids.insert(panel["id"].as_u64()),
            format!("{title}: id {} is used twice", panel["id"]),
        );
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        expect(x + w <= 24, format!("{title}: beyond the grid"));
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            if !cells.insert(cell) {
                expect(false, format!("{title}: overlap"));
                break;
            }
        }
        let kind = text(&panel["type"]);
        expect(
            ["timeseries", "stat", "table", "bargauge", "text", "row"].contains(&kind.as_str()),
            format!("{title}: type {kind}"),
        );
    }
    for panel in dashboard.panels() {
        let title = text(&panel["title"]);
        expect(
            !text(&panel["description"]).is_empty(),
            format!("{title}: no description"),
        );
        let defaults = &panel["fieldConfig"]["defaults"];
        expect(
            !text(&defaults["unit"]).is_empty(),
            format!("{title}: no unit"),
        );
        expect(
            defaults["thresholds"]["steps"][0]["value"].is_null(),
            format!("{title}: the first threshold has a value"),
        );
        for target in panel["targets"].as_array().unwrap() {
            let source = [panel, target]
                .iter()
                .all(|one| one["datasource"]["uid"] == "${datasource}");
            expect(source, format!("{title}: data source is not the variable"));
            let expression = text(&target["expr"]);
            // Over the shown range only where a single number is asked for.
            let ranges = expression.replace("[$__rate_interval]", "").replace(
                "[$__range]",
                if target["instant"] == true { "" } else { "[" },
            );
            expect(
                !ranges.contains('['),
                format!("{title}: fixed range in {expression}"),
            );
        }
    }
    faults
}

#[tokio::test]
async fn prometheus_answers_every_query_over_all_families() {
    let (sidecar, collector) = (Application::start().await, Application::start().await);
    let scrapes = AtomicU64::new(0);
    sidecar.script("/metrics", move |_| {
        let times = scrapes.fetch_add(1, Ordering::Relaxed);
        text(families::page(
            families::SIDECAR,
            &[("application", "fraud")],
            times,
        ))
    });
    let scrapes = AtomicU64::new(0);
    collector.script("/metrics", move |_| {
        text(families::page(
            families::COLLECTOR,
            &[],
            scrapes.fetch_add(1, Ordering::Relaxed),
        ))
    });
    let targets = [sidecar.url(), collector.url()].map(|url| url.replace("http://", ""));
    let prometheus = Prometheus::scraping(&targets).await;
    prometheus
        .wait_scraped(targets.len(), 4, SCRAPED_WITHIN)
        .await;
    every_query_has_data(&prometheus).await;
}

fn text(page: String) -> Answer {
    Answer::bytes(200, "text/plain; version=0.0.4", page)
}

#[tokio::test]
async fn the_demo_fills_every_panel() {
    let directory = TempDir::with_prefix("hermes-demo-").unwrap();
    let mut command = Command::new(program::hermes());
    command
        .args(["demo", "-o", "json"])
        .env("TMPDIR", directory.path());
    let mut demo = Process::spawn("demo", command, &directory.path().join("demo.log"));
    let targets = wait_for(DEMO_WITHIN, "scrape targets of the demo", async || {
        scrape_targets(&demo.log())
    })
    .await;
    let prometheus = Prometheus::scraping(&targets).await;
    prometheus
        .wait_scraped(targets.len(), 15, SCRAPED_WITHIN)
        .await;

    every_query_has_data(&prometheus).await;
    let mut missing = Vec::new();
    for family in families::SIDECAR.iter().chain(families::COLLECTOR) {
        let name = family.name;
        let part = if family.kind == families::Kind::Histogram {
            "_count"
        } else {
            ""
        };
        let found = prometheus.query(&format!("{name}{part}")).await;
        if found.is_empty() {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "the demo exposes no {missing:?}");
    demo.signal(Signal::TERM);
    assert!(demo.ended(DEMO_WITHIN).await.success());
}

/// Reads, from the line the demo prints when it is ready, where metrics are: at the admin
/// listener of each sidecar and at the collector.
fn scrape_targets(printed: &str) -> Option<Vec<String>> {
    let mut lines = printed
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let addresses = lines.find(|line: &Value| line["sidecars"].is_array())?;
    let sidecars = addresses["sidecars"].as_array()?.iter();
    let urls = sidecars
        .map(|one| &one["admin"])
        .chain([&addresses["collector"]]);
    urls.map(|url| Some(url.as_str()?.strip_prefix("http://")?.to_owned()))
        .collect()
}

/// Fails unless each panel's query has a finite value and each variable has a choice.
async fn every_query_has_data(prometheus: &Prometheus) {
    for dashboard in dashboards() {
        for query in dashboard.queries() {
            let what = format!("finite value for {}: {}", query.place, query.expression);
            wait_for(DATA_WITHIN, &what, async || {
                let series = prometheus.query(&query.concrete()).await;
                series
                    .iter()
                    .any(|one| value(one).is_finite())
                    .then_some(())
            })
            .await;
        }
        for annotation in dashboard.annotations() {
            prometheus.query(&annotation.concrete()).await; // changes are rare: being answered is enough
        }
        for (query, label) in dashboard.variables() {
            let series = prometheus.query(&query.concrete()).await;
            let has = series.iter().any(|one| one["metric"][&label].is_string());
            assert!(has, "{}: nothing to choose", query.place);
        }
    }
}

#[test]
fn alerts_use_metrics_and_labels_that_exist() {
    let file = program::root().join("grafana/alerts/contracts.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let expressions: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "))
        .collect();
    assert_eq!(expressions.len(), text.matches("- alert: ").count());
    let faults = expressions.into_iter().flat_map(|expression| {
        let query = Query {
            place: "alerts".to_owned(),
            expression: expression.to_owned(),
        };
        query.faults()
    });
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<String>::new());
    let uids = text.lines();
    for uid in uids.filter_map(|line| line.trim().strip_prefix("dashboard: ")) {
        let here = dashboards().iter().any(|one| one.body["uid"] == uid);
        assert!(here, "an alert leads to {uid}");
    }
}

#[test]
fn alerts_are_raised_by_what_they_are_for() {
    let rules = program::root().join("grafana/alerts/contracts.yaml");
    let histories = include_str!("dashboards/alerts.yaml");
    let histories = histories.replace("RULES", rules.to_str().unwrap());
    let directory = TempDir::with_prefix("hermes-alerts-").unwrap();
    let file = directory.path().join("alerts.yaml");
    std::fs::write(&file, histories).unwrap();
    let mut promtool = Command::new(program::promtool());
    let output = promtool.args(["test", "rules"]).arg(file).output();
    let output = output.expect("promtool runs; `tests/run` provides it");
    let told =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", told.concat());
}

#[test]
fn the_scrape_example_is_one_prometheus_accepts() {
    let file = program::root().join("grafana/prometheus.yml");
    let output = Command::new(program::promtool())
        .args(["check", "config"])
        .arg(file)
        .output();
    let output = output.expect("promtool runs; `tests/run` provides it");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
