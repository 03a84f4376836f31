//! What is said: every request that a sidecar makes, and some that a registry must refuse.

use reqwest::Method;
use serde_json::{Value, json};

use Step::{Pick, Say, Sleeps, Until, Wakes};

/// Returns the whole conversation.
pub(super) fn script() -> impl Iterator<Item = Step> {
    [registering(), checking(), leaving(), keeping()]
        .into_iter()
        .flatten()
}

/// One thing to say. In paths, `{index}` is the index last seen at the same path, `{modify}` the
/// last `ModifyIndex` and `{hash}` the last content hash seen anywhere.
pub(super) enum Step {
    Say(Method, &'static str, Value),
    /// Asks until the body satisfies it, then goes on with that answer.
    Until(&'static str, fn(&Value) -> bool),
    /// Polls, and makes the poll's reason to return.
    Wakes(&'static str, Method, &'static str, Value),
    /// Polls, makes a change that is none of its business, and sees the wait out.
    Sleeps(&'static str, Method, &'static str, Value),
    /// Asks, and compares these places of the answer alone.
    Pick(&'static str, &'static [&'static str]),
}

fn get(path: &'static str) -> Step {
    Say(Method::GET, path, Value::Null)
}

fn put(path: &'static str, body: Value) -> Step {
    Say(Method::PUT, path, body)
}

fn delete(path: &'static str) -> Step {
    Say(Method::DELETE, path, Value::Null)
}

const REGISTER: &str = "/v1/agent/service/register?replace-existing-checks=true";
const HEALTH: &str = "/v1/health/service/orders";
const HEALTH_POLL: &str = "/v1/health/service/orders?index={index}&wait=20s";

fn orders() -> Value {
    json!({
        "ID": "orders-1", "Name": "orders", "Address": "127.0.0.1", "Port": 8080, "Tags": ["hermes", "x"],
        "Weights": {"Passing": 7, "Warning": 1}, "Meta": {"hermes_version": "1.0.0"}, "EnableTagOverride": false,
        "Checks": [{"CheckID": "orders-1:ttl", "Name": "ttl", "TTL": "15000ms", "Status": "critical",
                    "DeregisterCriticalServiceAfter": "600000ms"}]
    })
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn count(body: &Value, expected: usize) -> bool {
    body.as_array()
        .is_some_and(|entries| entries.len() == expected)
}

fn registering() -> Vec<Step> {
    let check = |check: Value| json!({"Name": "c", "Checks": [check]});
    vec![
        get("/v1/agent/services"),
        get(HEALTH),
        get("/v1/health/service/orders?passing"),
        get("/v1/health/service/orders?passing=x"),
        get("/v1/health/service/orders?index=x"),
        get("/v1/health/service/orders?index=1&wait=5"),
        put(REGISTER, json!({"Port": 1})),
        put(REGISTER, json!({"Name": "a", "Foo": 1})),
        put(REGISTER, with(orders(), "Locality", json!({}))),
        put(REGISTER, json!({"Name": "a", "Weights": {}})),
        put(
            REGISTER,
            json!({"Name": "a", "Weights": {"Passing": 70000}}),
        ),
        put(REGISTER, json!({"Name": "a", "Address": "0.0.0.0"})),
        put(REGISTER, json!({"Name": "a", "Port": "x"})),
        put(REGISTER, json!({"Name": "a", "Meta": {"a.b": "c"}})),
        put(REGISTER, json!({"Name": "a", "Meta": {"consul-b": "c"}})),
        put(
            REGISTER,
            json!({"Name": "a", "Meta": {"b": "x".repeat(513)}}),
        ),
        put(REGISTER, check(json!({"TTL": "1s", "Interval": "10s"}))),
        put(REGISTER, check(json!({"Interval": "10s"}))),
        put(REGISTER, check(json!({"HTTP": "http://127.0.0.1:1/"}))),
        put(REGISTER, check(json!({"TTL": "10"}))),
        put(REGISTER, check(json!({"TTL": "10s", "Status": "odd"}))),
        put(REGISTER, Value::Null),
        Say(Method::POST, REGISTER, orders()),
        get("/v1/agent/services"),
        Wakes(HEALTH_POLL, Method::PUT, REGISTER, orders()),
        Until(HEALTH, |body| count(body, 1)),
        get("/v1/health/service/orders?passing"),
        get("/v1/health/service/ORDERS?stale"),
        get("/v1/agent/services"),
        get("/v1/agent/checks"),
        get("/v1/agent/service/orders-1"),
        get("/v1/agent/service/orders-1?hash=other&wait=10s"),
        get("/v1/agent/service/none"),
        get("/v1/catalog/services"),
        Wakes(
            "/v1/catalog/services?stale&index={index}&wait=20s",
            Method::PUT,
            REGISTER,
            with(orders(), "Tags", json!(["hermes", "y"])),
        ),
        Wakes(
            "/v1/catalog/services?stale&index={index}&wait=20s",
            Method::PUT,
            REGISTER,
            orders(),
        ),
        Sleeps(
            "/v1/catalog/services?index={index}&wait=300ms",
            Method::PUT,
            REGISTER,
            orders(),
        ),
        Sleeps(
            "/v1/catalog/services?index={index}&wait=300ms",
            Method::PUT,
            "/v1/agent/check/update/orders-1:ttl",
            json!({"Status": "warning", "Output": "for nobody who looks at names"}),
        ),
        put(
            "/v1/agent/check/update/orders-1:ttl",
            json!({"Status": "critical", "Output": ""}),
        ),
        Until(HEALTH, |body| body[0]["Checks"][1]["Status"] == "critical"),
        Sleeps(
            "/v1/health/service/orders?index={index}&wait=300ms",
            Method::PUT,
            REGISTER,
            orders(),
        ),
    ]
}

fn checking() -> Vec<Step> {
    let pass = || json!({"Status": "passing", "Output": "ok"});
    vec![
        put("/v1/agent/check/update/none", pass()),
        put("/v1/agent/check/pass/none", Value::Null),
        put(
            "/v1/agent/check/update/orders-1:ttl",
            json!({"Status": "odd"}),
        ),
        put("/v1/agent/check/update/orders-1:ttl", Value::Null),
        Wakes(
            HEALTH_POLL,
            Method::PUT,
            "/v1/agent/check/update/orders-1:ttl",
            pass(),
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        Sleeps(
            "/v1/health/service/orders?index={index}&wait=300ms",
            Method::PUT,
            "/v1/agent/check/pass/orders-1:ttl",
            Value::Null,
        ),
        // A living check keeps its state, whatever the registration says.
        put(REGISTER, with(orders(), "Tags", json!(["y"]))),
        Until(HEALTH, |body| body[0]["Service"]["Tags"] == json!(["y"])),
        Until("/v1/catalog/services", |body| {
            body["orders"] == json!(["y"])
        }),
        put("/v1/agent/check/warn/orders-1:ttl?note=slow", Value::Null),
        Until(HEALTH, |body| body[0]["Checks"][1]["Status"] == "warning"),
        put("/v1/agent/check/pass/orders-1:ttl?note=well", Value::Null),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        // Maintenance outlives a registration.
        put("/v1/agent/service/maintenance/orders-1", Value::Null),
        put(
            "/v1/agent/service/maintenance/none?enable=true",
            Value::Null,
        ),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=true&reason=why",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 0)),
        put("/v1/agent/service/register", orders()),
        Until(HEALTH, |body| {
            body[0]["Service"]["Tags"] == json!(["hermes", "x"])
        }),
        get("/v1/health/service/orders?passing"),
        // But not one that replaces all checks.
        put(REGISTER, orders()),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=true",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 0)),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=false",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        // Time alone: a TTL runs out; an HTTP check runs.
        put(
            REGISTER,
            json!({"Name": "short", "Checks": [{"TTL": "200ms", "Status": "passing"}]}),
        ),
        Until("/v1/health/service/short", |body| {
            body[0]["Checks"][1]["Status"] == "critical"
        }),
        put(
            REGISTER,
            json!({"Name": "probed", "Checks": [
                {"HTTP": "{base}/v1/status/leader", "Interval": "100ms", "Timeout": "5s"},
                {"HTTP": "{base}/v1/nothing", "Interval": "100ms", "Status": "passing"}
            ]}),
        ),
        Until("/v1/health/service/probed", |body| {
            body[0]["Checks"][1]["Status"] == "passing"
                && body[0]["Checks"][2]["Status"] == "critical"
        }),
        // A check that is left out goes, and its service passes without it.
        put(REGISTER, json!({"Name": "short"})),
        Until("/v1/health/service/short", |body| {
            body[0]["Checks"]
                .as_array()
                .is_some_and(|checks| checks.len() == 1)
        }),
        get("/v1/agent/checks"),
    ]
}

fn leaving() -> Vec<Step> {
    let another = || json!({"Name": "another"});
    vec![
        get("/v1/health/service/another"),
        Wakes(
            "/v1/health/service/another?index={index}&wait=20s",
            Method::PUT,
            REGISTER,
            another(),
        ),
        Until("/v1/catalog/services", |body| !body["another"].is_null()),
        get(HEALTH),
        get("/v1/agent/service/orders-1"),
        Wakes(
            "/v1/agent/service/orders-1?hash={hash}&wait=20s",
            Method::PUT,
            REGISTER,
            with(orders(), "Port", json!(8081)),
        ),
        Until(HEALTH, |body| body[0]["Service"]["Port"] == 8081),
        get("/v1/agent/service/orders-1"),
        Wakes(
            "/v1/agent/service/orders-1?hash={hash}&wait=20s",
            Method::PUT,
            "/v1/agent/service/deregister/orders-1",
            Value::Null,
        ),
        Until(HEALTH, |body| count(body, 0)),
        get("/v1/agent/service/orders-1?hash={hash}&wait=20s"),
        put("/v1/agent/service/deregister/orders-1", Value::Null),
        put("/v1/agent/service/deregister/another", Value::Null),
        Until("/v1/catalog/services", |body| body["another"].is_null()),
        get("/v1/status/leader"),
        get("/v1/status/peers"),
        Say(Method::PUT, "/v1/status/leader", Value::Null),
        get("/v1/nothing"),
        Pick(
            "/v1/agent/self",
            &[
                "/Config/Version",
                "/Config/Datacenter",
                "/Config/Server",
                "/Member/Addr",
                "/Member/Status",
            ],
        ),
        Pick(
            "/v1/health/service/consul",
            &[
                "/0/Service/Meta/version",
                "/0/Service/ID",
                "/0/Checks/0/Status",
            ],
        ),
    ]
}

fn keeping() -> Vec<Step> {
    vec![
        get("/v1/kv/a/b"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?keys"),
        get("/v1/kv/"),
        put("/v1/kv/", json!("x")),
        put("/v1/kv/a/b", json!(1)),
        get("/v1/kv/a/b"),
        get("/v1/kv/a/b?raw"),
        get("/v1/kv/A/b"),
        put("/v1/kv/a/b?cas=0", json!(2)),
        put("/v1/kv/a/b?cas={modify}", json!(3)),
        put("/v1/kv/a/b?cas={modify}", json!(4)),
        put("/v1/kv/a/b?cas=x", json!(4)),
        put("/v1/kv/a/b?flags=7", json!(5)),
        put("/v1/kv/a/new?cas=9", json!(1)),
        put("/v1/kv/a/new?cas=0", json!(1)),
        put("/v1/kv/a/x/1", json!(1)),
        put("/v1/kv/a/x/2", json!(1)),
        put("/v1/kv/empty", Value::Null),
        get("/v1/kv/empty"),
        get("/v1/kv/empty?raw"),
        get("/v1/kv/a/b"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?keys"),
        get("/v1/kv/a/?keys&separator=/"),
        get("/v1/kv/?keys&separator=/"),
        get("/v1/kv/a/b?index=x"),
        // An equal value wakes nobody, nor does a sibling or another prefix.
        Sleeps(
            "/v1/kv/a/b?index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/b?flags=7",
            json!(5),
        ),
        Sleeps(
            "/v1/kv/a/b?index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(2),
        ),
        get("/v1/kv/a/x/?recurse"),
        Sleeps(
            "/v1/kv/a/x/?recurse&index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/b",
            json!(6),
        ),
        // From an index before the last change, the poll would answer at once, with either value.
        get("/v1/kv/a/b"),
        Wakes(
            "/v1/kv/a/b?index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/b",
            json!(7),
        ),
        Wakes(
            "/v1/kv/a/x/?recurse&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(9),
        ),
        get("/v1/kv/a/x/?keys"),
        // One of a kind with the keys: what is there changes, and which there are does not.
        Wakes(
            "/v1/kv/a/x/?keys&stale&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(11),
        ),
        get("/v1/kv/a/x/?keys"),
        Wakes(
            "/v1/kv/a/x/?keys&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(10),
        ),
        get("/v1/kv/missing"),
        Wakes(
            "/v1/kv/missing?index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/missing",
            json!(1),
        ),
        delete("/v1/kv/missing?cas=1"),
        Wakes(
            "/v1/kv/missing?index={index}&wait=20s",
            Method::DELETE,
            "/v1/kv/missing?cas={modify}",
            Value::Null,
        ),
        delete("/v1/kv/missing"),
        delete("/v1/kv/missing?cas=0"),
        get("/v1/kv/a/x/?recurse"),
        Wakes(
            "/v1/kv/a/x/?recurse&index={index}&wait=20s",
            Method::DELETE,
            "/v1/kv/a/x/2",
            Value::Null,
        ),
        // The ratios of canaries: a prefix that is empty, then kept from it.
        get("/v1/kv/ratios/?recurse&stale"),
        Wakes(
            "/v1/kv/ratios/?recurse&stale&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/ratios/_keep?cas=0",
            Value::Null,
        ),
        get("/v1/kv/ratios/?recurse&stale"),
        Sleeps(
            "/v1/kv/ratios/?recurse&stale&index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/b",
            json!(8),
        ),
        Wakes(
            "/v1/kv/ratios/?recurse&stale&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/ratios/orders-v1.0",
            json!(1000),
        ),
        Wakes(
            "/v1/kv/ratios/?recurse&stale&index={index}&wait=20s",
            Method::DELETE,
            "/v1/kv/ratios/orders-v1.0",
            Value::Null,
        ),
        delete("/v1/kv/ratios/?recurse"),
        delete("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/b"),
        put("/v1/kv/big", Value::String("x".repeat(512 * 1024))),
        put("/v1/kv/big", Value::String("x".repeat(512 * 1024 + 1))),
        Say(Method::POST, "/v1/kv/a", Value::Null),
    ]
}
