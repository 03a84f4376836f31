//! Hermes sidecar: contracts, routing, traceable tasks and durable status beside an unchanged service.
//!
//! Modules are listed in floor order: each imports only from floors below its own, and
//! neighbours on one floor do not know each other. `tests/it/floors.rs` holds this.

// 0 words: pure values and rules; no I/O, time is an argument; a word may use those above it
pub mod backoff;
pub mod lifecycle;
pub mod task;
// (after `task`, whose ids it carries)
pub mod context;

// 1 instruments: threads for long work; keys and digests; metrics and log setup
pub mod apart;
pub mod identity;
pub mod telemetry;

// 2 outside: one Consul client; sockets with HTTP on them; one SQLite file with one writer thread
pub mod consul;
pub mod socket;
pub mod store;

// 3 rooms
pub mod contract;
pub mod deferred;
pub mod reply;
pub mod route;
pub mod spool;

// 4 duties: get our contract admitted; deliver what is spooled
pub mod admission;
pub mod reporter;

// 5 doors: the only places that meet HTTP from outside
pub mod admin;
pub mod collector;
pub mod devregistry;
pub mod proxy;

// 6 settings: file and environment to one typed config per room
pub mod config;

// 7 entrance: builds the house bottom-up, owns every worker, stops it top-down
pub mod app;
pub mod cli;
pub mod demo;
