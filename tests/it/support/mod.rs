//! The world of a test: programs of ours and of others as processes, scripted neighbours.
//!
//! Everything listens on loopback, keeps its files in a directory of its own and is ended
//! when its value is dropped; a process that cannot be ended fails the test. Logs are shown
//! when a test fails. Waiting means a condition with a deadline (`wait`), never a sleep.
#![allow(
    dead_code,
    reason = "it is offered whole; not each part has its test yet"
)]

pub mod agent;
pub mod application;
pub mod article;
pub mod authority;
pub mod client;
pub mod collector;
pub mod command;
pub mod consul;
pub mod contract;
pub mod crew;
pub mod digest;
pub mod fleet;
pub mod hops;
pub mod instances;
pub mod link;
pub mod load;
pub mod metric;
pub mod pair;
pub mod peer;
pub mod polyglot;
pub mod port;
pub mod process;
pub mod program;
pub mod prometheus;
pub mod reply;
pub mod road;
pub mod schemas;
pub mod sidecar;
pub mod signer;
pub mod streamer;
pub mod wait;
pub mod witness;
