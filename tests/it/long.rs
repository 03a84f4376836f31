//! The shows in full length: `tests/run --long`.

mod hung_step;

use crate::field_cases::{leaving, waiting};
use crate::of_three::{self, FAULTS, Share};
use crate::support::postgres::Postgres;
use crate::support::program::is_long;
use crate::{
    all_failing, canary, compatibility, consul_outage, delivery, restart, rolling, rollout,
    streaming, surge, tls,
};
use std::time::Duration;

#[tokio::test]
async fn no_call_fails_while_consul_is_killed_ten_times_under_load() {
    if is_long() {
        consul_outage::consul_killed_under_load(200, 1_000, 10).await;
    }
}

#[tokio::test]
async fn a_collector_away_for_a_minute_under_load_costs_no_call_and_no_report() {
    if is_long() {
        let floor = Some(Duration::from_millis(10));
        delivery::collector_away_under_load(200, Duration::from_secs(60), floor).await;
    }
}

#[tokio::test]
async fn ninety_events_at_one_a_second_pass_at_once() {
    if is_long() {
        streaming::events_pass_at_once(90, Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn certificates_are_renewed_under_load_for_a_minute() {
    if is_long() {
        tls::renewed_under_load(100, Duration::from_secs(60)).await;
    }
}

#[tokio::test]
async fn fifty_kills_of_the_callee_lose_no_answered_call() {
    if is_long() {
        restart::killed_under_load(100, 50).await;
    }
}

#[tokio::test]
async fn a_thousand_slow_clients_hold_up_nobody() {
    if is_long() {
        waiting::slow_clients(500, Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_thousand_clients_that_leave_leave_nothing_behind() {
    if is_long() {
        leaving::clients_that_leave(170).await;
    }
}

#[tokio::test]
async fn three_instances_take_two_new_versions_under_load() {
    if is_long() {
        rollout::replaced_under_load(100, 3).await;
    }
}

#[test]
fn ten_thousand_pairs_of_schemas_are_judged_right() {
    if is_long() {
        compatibility::judge(10_000);
    }
}

#[tokio::test]
async fn a_tenth_of_a_hundred_thousand_tasks_are_tried_on_the_canary() {
    if is_long() {
        canary::a_tenth_is_picked(100_000, 0.005, 20_000).await;
    }
}

#[tokio::test]
async fn of_three_instances_one_at_fault_is_hardly_noticed() {
    if is_long() {
        let promised = Share {
            all: 0.999,
            later: 0.9999,
        };
        for fault in FAULTS {
            of_three::idempotent(fault, 200, Duration::from_secs(60), promised).await;
        }
    }
}

#[tokio::test]
async fn of_three_instances_one_at_fault_makes_nothing_happen_twice() {
    if is_long() {
        for fault in FAULTS {
            of_three::once(fault, 200, Duration::from_secs(60)).await;
        }
    }
}

#[tokio::test]
async fn everything_is_restarted_under_load_unnoticed() {
    if is_long() {
        let postgres = Postgres::start().await;
        rolling::restarted_under_load(50, Some(&postgres.url())).await;
    }
}

#[tokio::test]
async fn thirty_seconds_of_delay_are_not_judged_as_failures() {
    if is_long() {
        surge::surge(50, Duration::from_secs(30), 0.008).await;
    }
}

#[tokio::test]
async fn a_minute_of_failing_instances_gets_little_more_than_what_is_offered() {
    if is_long() {
        all_failing::offered_to_failing(200, Duration::from_secs(60)).await;
    }
}
