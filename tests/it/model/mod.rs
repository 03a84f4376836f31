//! Every way that a call can go, with losses, repeats, disorder and deaths, keeps its promises.
//!
//! Each promise is also tried with a rule that is wrong on purpose: a model that finds nothing
//! there would prove nothing here.

mod call;
mod explore;
mod reports;
mod world;

use call::{Call, Rules};
use explore::{Counterexample, Explored, Model, explore};
use hermes_sidecar::task::{Course, Ended, Execution, Next, Reporter, State};
use reports::Delivery;
use world::Faults;

/// The rules of the product.
const RULES: Rules = Rules {
    after: Course::after,
    counts_retries: true,
    doubts_repeats: true,
    is_record_first: true,
    keeps_doubts: true,
    minds_deadline: true,
    settles_once: true,
    lets_go: true,
    doubts_unread: true,
};

/// A loss, a repeated request, a death, a record that fails.
const MISFORTUNES: [Faults; 4] = [
    faults(1, 0, 0),
    faults(0, 1, 0),
    faults(0, 0, 1),
    UNRECORDED,
];

const UNRECORDED: Faults = Faults {
    unrecorded: 1,
    ..faults(0, 0, 0)
};

const fn faults(losses: u8, repeats: u8, crashes: u8) -> Faults {
    Faults {
        losses,
        repeats,
        crashes,
        unrecorded: 0,
    }
}

fn call(is_idempotent: bool, max_retries: u32, faults: Faults) -> Call {
    Call {
        is_idempotent,
        max_retries,
        has_standby: true,
        faults,
        rules: RULES,
    }
}

/// Explores a model that must hold, and says aloud how much there was to see.
fn holds(what: &str, model: &impl Model) {
    match explore(model) {
        Ok(Explored {
            states,
            ends,
            longest,
        }) => eprintln!("{what}: {states} states, {ends} ends, at most {longest} steps"),
        Err(Counterexample { fault, steps }) => panic!("{what}: {fault}:\n{steps:#?}"),
    }
}

/// Explores a model that must not hold.
fn breaks(promise: &str, model: &impl Model) {
    breaks_one_of(&[promise], model);
}

/// Explores a model that must not hold; which of these is seen first does not matter.
fn breaks_one_of(promises: &[&str], model: &impl Model) {
    let found = explore(model).expect_err(promises[0]);
    assert!(promises.contains(&found.fault), "{found:#?}");
}

#[test]
fn a_call_that_must_not_be_done_twice_keeps_its_promises() {
    // With two retries and a standby, too, this would be hundreds of thousands of states each.
    for (max_retries, has_standby) in [(2, false), (1, true)] {
        for misfortune in MISFORTUNES {
            let mut call = call(false, max_retries, misfortune);
            call.has_standby = has_standby;
            let what = format!("not idempotent, retries: {max_retries}, {misfortune:?}");
            holds(&what, &call);
        }
    }
}

#[test]
fn a_call_that_may_be_repeated_keeps_its_promises() {
    for misfortune in MISFORTUNES {
        let what = format!("idempotent, one retry, {misfortune:?}");
        holds(&what, &call(true, 1, misfortune));
    }
    holds("idempotent, two retries", &call(true, 2, faults(0, 0, 0)));
}

#[test]
fn misfortunes_that_come_together_break_no_promise() {
    let mut all = call(false, 1, faults(1, 1, 1));
    all.has_standby = false;
    holds("not idempotent, one retry, all misfortunes", &all);
}

const TWICE: &str = "work that must not be done twice was done twice";

#[test]
fn work_that_may_have_been_done_must_not_go_elsewhere() {
    fn elsewhere(course: &mut Course, ended: Ended) -> Next {
        course.after(Ended {
            execution: Execution::Not,
            ..ended
        })
    }
    let mut wrong = call(false, 2, faults(0, 0, 0));
    wrong.rules.after = elsewhere;
    breaks(TWICE, &wrong);
}

#[test]
fn a_refusal_must_not_settle_what_an_earlier_attempt_left_open() {
    fn forgetful(course: &mut Course, ended: Ended) -> Next {
        match course.after(ended) {
            Next::SameInstance => ended.next(false),
            next => next,
        }
    }
    let mut wrong = call(false, 2, faults(0, 0, 0));
    wrong.rules.after = forgetful;
    breaks(TWICE, &wrong);
}

#[test]
fn a_question_that_finds_nobody_must_not_settle_it_either() {
    let mut wrong = call(false, 1, faults(0, 1, 1));
    wrong.rules.doubts_repeats = false;
    breaks(TWICE, &wrong);
}

#[test]
fn retries_must_be_counted() {
    let mut wrong = call(true, 1, faults(0, 0, 0));
    wrong.rules.counts_retries = false;
    breaks("there are more attempts than allowed", &wrong);
}

#[test]
fn a_request_must_not_be_refused_while_it_is_carried_out() {
    let mut wrong = call(false, 1, faults(0, 1, 0));
    wrong.rules.is_record_first = false;
    breaks_one_of(&[TWICE, "a refused attempt is executed"], &wrong);
}

#[test]
fn a_repeat_that_cannot_be_looked_up_must_not_be_carried_out() {
    let mut wrong = call(false, 1, UNRECORDED);
    wrong.rules.doubts_unread = false;
    breaks(TWICE, &wrong);
}

#[test]
fn an_end_that_is_not_kept_must_leave_a_doubt() {
    let mut wrong = call(false, 1, UNRECORDED);
    wrong.rules.keeps_doubts = false;
    breaks(TWICE, &wrong);
}

#[test]
fn a_doubt_must_survive_the_process() {
    let mut wrong = call(false, 1, faults(0, 0, 1));
    wrong.rules.keeps_doubts = false;
    breaks(TWICE, &wrong);
}

#[test]
fn what_was_refused_must_be_let_go_of() {
    let mut wrong = call(true, 1, faults(0, 0, 0));
    wrong.rules.lets_go = false;
    breaks_one_of(
        &[
            "a refused attempt is executed",
            "a callee reports the end of an attempt twice",
        ],
        &wrong,
    );
}

#[test]
fn the_deadline_must_be_minded() {
    let mut wrong = call(true, 1, faults(0, 0, 0));
    wrong.rules.minds_deadline = false;
    breaks("an attempt is sent after the deadline of the call", &wrong);
}

#[test]
fn a_second_end_must_not_be_taken() {
    let mut wrong = call(true, 1, faults(0, 0, 0));
    wrong.rules.settles_once = false;
    breaks_one_of(
        &[
            "an attempt leaves the table of states",
            "a caller reports the end of an attempt twice",
        ],
        &wrong,
    );
}

/// What both sides tell of one attempt; the callee contradicts itself.
fn told() -> Vec<(Reporter, State)> {
    vec![
        (Reporter::Caller, State::Dispatched),
        (Reporter::Caller, State::Timeout),
        (Reporter::Callee, State::Completed),
        (Reporter::Callee, State::FailedExecution),
    ]
}

fn delivery() -> Delivery {
    Delivery {
        reports: told(),
        faults: 2,
        waits_for_answer: true,
        first_wins: true,
    }
}

#[test]
fn each_report_arrives_and_counts_once() {
    holds("reports", &delivery());
}

#[test]
fn a_report_must_stay_owed_until_it_is_acknowledged() {
    let hasty = Delivery {
        waits_for_answer: false,
        ..delivery()
    };
    breaks("nothing more can happen before the end", &hasty);
}

#[test]
fn an_end_must_not_be_replaced() {
    let fickle = Delivery {
        first_wins: false,
        ..delivery()
    };
    breaks("an end that was shown is another one later", &fickle);
}

/// Counts up to three and, if it may, begins anew.
struct Circle(bool);

impl Model for Circle {
    type State = u8;
    type Step = u8;

    fn start(&self) -> u8 {
        0
    }

    fn steps(&self, state: &u8) -> Vec<u8> {
        match state {
            0..3 => vec![state + 1],
            _ => self.0.then_some(1).into_iter().collect(),
        }
    }

    fn take(&self, _state: &u8, step: u8) -> u8 {
        step
    }

    fn fault(&self, _state: &u8) -> Option<&'static str> {
        None
    }

    fn is_end(&self, state: &u8) -> bool {
        *state == 3
    }
}

#[test]
fn a_path_that_never_ends_is_found() {
    assert_eq!(explore(&Circle(false)).unwrap().longest, 3);
    breaks("a path never ends", &Circle(true));
}
