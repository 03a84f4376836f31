//! When the caller of a hung step is told.

use crate::hops::{came_at, hung_step};
use crate::support::hops::Hops;
use crate::support::program::is_long;
use std::io::Write;
use std::time::Duration;

#[tokio::test]
async fn its_caller_is_told_at_the_timeout_or_the_grace_behind_it() {
    if !is_long() {
        return;
    }
    let patience = Duration::from_millis(700);
    let mut hops = Hops::start(patience).await;
    let [mut hung, mut stopped] = hung_step(&mut hops, 20).await;
    let hung = came_at(&mut hung, patience, 0..101);
    let silent = patience + Duration::from_millis(200);
    let stopped = came_at(&mut stopped, silent, 0..151);
    let told = "medians of 20 over the timeout, and over timeout and grace:";
    writeln!(std::io::stderr(), "{told} {hung} ms, {stopped} ms").unwrap();
}
