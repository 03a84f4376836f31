use super::*;
use proptest::prelude::*;

fn config() -> Config {
    Config {
        consecutive: 5,
        success_rate: 0.5,
        base: Duration::from_secs(5),
        max: Duration::from_secs(60),
        max_percent: 50,
    }
}

fn after(began: Instant, seconds: u64) -> Instant {
    began + Duration::from_secs(seconds)
}

fn plain(began: Instant) -> Call {
    let is_trial = false;
    Call { began, is_trial }
}

fn trial(began: Instant) -> Call {
    let is_trial = true;
    Call { began, is_trial }
}

fn fail(ejector: &mut Ejector, id: &str, times: usize, now: Instant) -> Option<Reason> {
    let id = Arc::from(id);
    let told: Vec<_> = (0..times)
        .map(|_| ejector.failed(&id, plain(now), now))
        .collect();
    let (last, before) = told.split_last().unwrap();
    assert!(before.iter().all(Option::is_none), "{told:?}");
    last.map(|ejection| ejection.reason)
}

fn fail_trial(ejector: &mut Ejector, id: &str, now: Instant) -> Option<Reason> {
    let told = ejector.failed(&Arc::from(id), trial(now), now);
    told.map(|ejection| ejection.reason)
}

#[test]
fn failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let (mut ejector, now) = (Ejector::new(config()), Instant::now());
    assert_eq!(fail(&mut ejector, "a", 4, now), None);
    ejector.succeeded("a", plain(now), now);
    assert_eq!(fail(&mut ejector, "a", 4, now), None);
    assert_eq!(ejector.standing("a", now), Standing::In);
    assert!(ejector.is_idle());
    assert_eq!(fail(&mut ejector, "a", 1, now), Some(Reason::Consecutive));
    assert_eq!(ejector.standing("a", now), Standing::Out);
    assert_eq!(ejector.standing("b", now), Standing::In);
    assert!(!ejector.is_idle());
    let ejection = ejector.ejection("a", now).unwrap();
    assert_eq!(
        (ejection.since, ejection.until, ejection.reason),
        (now, after(now, 5), Reason::Consecutive)
    );
}

#[test]
fn a_low_success_rate_ejects_once_there_are_enough_calls() {
    let (mut ejector, now) = (Ejector::new(config()), Instant::now());
    let id = Arc::from("a");
    let mut told = Vec::new();
    for call in 1..=FEWEST + 1 {
        match call % 5 {
            0 => drop(ejector.succeeded("a", plain(now), now)),
            _ => told.extend(ejector.failed(&id, plain(now), now)),
        }
    }
    let told: Vec<_> = told.iter().map(|ejection| ejection.reason).collect();
    assert_eq!(told, [Reason::SuccessRate]);
}

#[test]
fn a_trial_is_one_call_and_decides() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, began);
    assert_eq!(ejector.standing("a", after(began, 4)), Standing::Out);
    assert!(!ejector.take_trial("a", after(began, 4)));
    let due = after(began, 5);
    assert_eq!(ejector.standing("a", due), Standing::Trial);
    assert!(ejector.take_trial("a", due));
    assert!(!ejector.take_trial("a", due), "one at a time");
    assert!(
        !ejector.take_trial("a", after(began, 3600)),
        "until it ends"
    );
    assert_eq!(fail_trial(&mut ejector, "a", due), Some(Reason::Trial));
    // Twice as long now.
    assert_eq!(ejector.standing("a", after(began, 14)), Standing::Out);
    let due = after(began, 15);
    assert!(ejector.take_trial("a", due));
    assert!(ejector.succeeded("a", trial(due), due));
    assert_eq!(ejector.standing("a", due), Standing::In);
    // It has not rested yet: the next ejection is the third.
    fail(&mut ejector, "a", 5, after(began, 16));
    assert_eq!(ejector.standing("a", after(began, 35)), Standing::Out);
    assert_eq!(ejector.standing("a", after(began, 36)), Standing::Trial);
}

#[test]
fn a_trial_that_said_nothing_keeps_no_other_back() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, began);
    let due = after(began, 5);
    assert!(ejector.take_trial("a", due));
    ejector.untried("a");
    assert!(ejector.take_trial("a", due));
}

#[test]
fn calls_that_end_after_the_ejection_change_nothing() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, after(began, 1));
    for _ in 0..20 {
        let told = ejector.failed(&Arc::from("a"), plain(began), after(began, 2));
        assert_eq!(told, None);
    }
    assert!(!ejector.succeeded("a", plain(began), after(began, 2)));
    assert_eq!(ejector.standing("a", after(began, 5)), Standing::Out);
    let due = after(began, 6);
    assert!(ejector.take_trial("a", due));
    // Nor do they end the trial of another call.
    assert!(!ejector.succeeded("a", plain(began), due));
    assert_eq!(ejector.failed(&Arc::from("a"), plain(began), due), None);
    assert_eq!(ejector.standing("a", due), Standing::Out);
    assert!(ejector.succeeded("a", trial(due), due));
}

#[test]
fn a_late_success_does_not_shorten_the_next_time_out() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, after(began, 1));
    assert!(!ejector.succeeded("a", plain(began), after(began, 2)));
    let due = after(began, 6);
    assert!(ejector.take_trial("a", due));
    assert_eq!(fail_trial(&mut ejector, "a", due), Some(Reason::Trial));
    assert_eq!(ejector.ejection("a", due).unwrap().until, after(due, 10));
}

#[test]
fn more_than_the_allowed_share_counts_for_nothing() {
    let now = Instant::now();
    for (all, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (10, 5)] {
        let mut ejector = Ejector::new(config());
        for out in 1..=all {
            fail(&mut ejector, &format!("i{out}"), 5, now);
            assert_eq!(ejector.out(now), out);
            assert_eq!(ejector.is_overruled(all, now), out > most, "{out} of {all}");
        }
    }
}

#[test]
fn who_serves_while_nobody_is_left_out_is_in_again() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, began);
    fail(&mut ejector, "b", 5, began);
    assert!(ejector.is_overruled(2, began));
    let later = after(began, 1);
    assert!(ejector.succeeded("a", plain(later), later));
    assert_eq!(ejector.standing("a", later), Standing::In);
    assert_eq!(ejector.standing("b", later), Standing::Out);
    assert!(!ejector.is_overruled(2, later));
}

#[test]
fn who_is_missed_by_no_call_is_in_again_after_a_while() {
    let (mut ejector, began) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, began);
    assert_eq!(ejector.standing("a", after(began, 64)), Standing::Trial);
    assert_eq!(ejector.out(after(began, 64)), 1);
    let lapsed = after(began, 65);
    assert_eq!(ejector.standing("a", lapsed), Standing::In);
    assert_eq!(
        (ejector.out(lapsed), ejector.ejection("a", lapsed)),
        (0, None)
    );
    // It is judged anew, and has not rested.
    assert_eq!(
        fail(&mut ejector, "a", 5, lapsed),
        Some(Reason::Consecutive)
    );
    assert_eq!(ejector.standing("a", after(lapsed, 9)), Standing::Out);
    assert_eq!(ejector.standing("a", after(lapsed, 10)), Standing::Trial);
}

#[test]
fn times_out_grow_to_the_cap_and_are_forgotten_after_a_rest() {
    let (mut ejector, mut now) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, now);
    let mut lengths = Vec::new();
    for _ in 0..6 {
        let until = ejector.ejection("a", now).unwrap().until;
        lengths.push((until - now).as_secs());
        now = until;
        assert!(ejector.take_trial("a", now));
        fail_trial(&mut ejector, "a", now);
    }
    assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
    now = after(now, 60);
    assert!(ejector.take_trial("a", now));
    ejector.succeeded("a", trial(now), now);
    ejector.succeeded("a", plain(now), after(now, 61));
    assert!(ejector.records.is_empty(), "{:?}", ejector.records);
}

#[test]
fn who_has_gone_is_forgotten() {
    let (mut ejector, now) = (Ejector::new(config()), Instant::now());
    fail(&mut ejector, "a", 5, now);
    fail(&mut ejector, "b", 5, now);
    ejector.retain(|id| id == "b");
    assert_eq!(ejector.standing("a", now), Standing::In);
    assert_eq!(ejector.standing("b", now), Standing::Out);
}

proptest! {
    /// Drives six instances by random calls, some of which end long after they began.
    #[test]
    fn whatever_happens_trials_are_single_and_everybody_comes_back(
        events in proptest::collection::vec((0usize..6, 0u8..5, 0u64..4_000), 0..400),
    ) {
        let (mut ejector, mut now) = (Ejector::new(config()), Instant::now());
        let ids: Vec<Arc<str>> = (0..6).map(|n| Arc::from(format!("i{n}"))).collect();
        let mut open: Vec<(usize, Call)> = Vec::new();
        for (which, event, pause) in events {
            now += Duration::from_millis(pause);
            let id = &ids[which];
            let standing = ejector.standing(id, now);
            let is_trial = standing == Standing::Trial && ejector.take_trial(id, now);
            if standing == Standing::In || is_trial || ejector.is_overruled(6, now) {
                open.push((which, Call { began: now, is_trial }));
            }
            for (number, id) in ids.iter().enumerate() {
                let running = open.iter().filter(|(at, call)| *at == number && call.is_trial).count();
                prop_assert!(running <= 1, "{id}: {running} trials");
                prop_assert!(running == 0 || ejector.standing(id, now) != Standing::Trial);
            }
            if event == 4 || open.is_empty() {
                continue;
            }
            let (at, call) = open.remove(which % open.len());
            let id = &ids[at];
            match event {
                0 | 1 => drop(ejector.succeeded(id, call, now)),
                2 => drop(ejector.failed(id, call, now)),
                _ if call.is_trial => ejector.untried(id),
                _ => {}
            }
            prop_assert_eq!(ejector.out(now) == 0, ids.iter().all(|id| ejector.ejection(id, now).is_none()));
        }
        for (at, call) in open.into_iter().filter(|(_, call)| call.is_trial) {
            ejector.failed(&ids[at], call, now);
        }
        now += Duration::from_secs(60);
        for id in &ids {
            prop_assert!(ejector.standing(id, now) != Standing::Out);
        }
        now += Duration::from_secs(60);
        prop_assert_eq!(ejector.out(now), 0);
    }
}
