//! The promises of Hermes sidecar, kept from outside: real processes, a real Consul.
//!
//! One file per promise, listed here; `support` builds the world they run in. `tests/run`
//! provides the programs they need; plain `cargo test` works too where those are on PATH.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop right there"
)]

mod addressing;
mod admission;
mod all_failing;
mod application_reports;
mod bad_input;
mod board;
mod calls;
mod canary;
mod cli;
mod compatibility;
mod config;
mod consul_files;
mod consul_outage;
mod context;
mod dashboards;
mod delivery;
mod demo;
mod discovery;
mod doctor;
mod ejection;
mod envelope;
mod examples;
mod fallback;
mod field_cases;
mod floors;
mod grpc;
mod handshake;
mod hops;
mod job;
mod json_schema;
mod late;
mod lint;
mod load;
mod long;
mod model;
mod of_three;
mod openapi;
mod passthrough;
mod protocols;
mod publication;
mod registry_conversation;
mod reload;
mod repeats;
mod repository;
mod restart;
mod retries;
mod rolling;
mod rollout;
mod routing;
mod shards;
mod shutdown;
mod start;
mod streaming;
mod support;
mod surge;
mod tasks;
mod tenants;
mod tls;
mod trust;
mod vendor;
mod verify;
mod websocket;
mod world;
