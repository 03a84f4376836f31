//! The loop against scripted answers, in paused time.

use std::collections::VecDeque;
use std::sync::Mutex;

use reqwest::StatusCode;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;

type Reply = Result<Answer<u32>, Error>;

/// Answers as scripted and notes what was asked; after the last answer it blocks for ever.
#[derive(Clone, Default)]
struct Script {
    replies: Arc<Mutex<VecDeque<(Duration, Reply)>>>,
    asked: Arc<Mutex<Vec<(Duration, Poll)>>>,
}

struct World {
    script: Script,
    receiver: watch::Receiver<Seen<u32>>,
    workers: JoinSet<()>,
}

impl World {
    fn start(replies: impl IntoIterator<Item = (u64, Reply)>) -> World {
        World::with(Budget::new(1), Options::URGENT, replies)
    }

    fn with(
        budget: Budget,
        options: Options,
        replies: impl IntoIterator<Item = (u64, Reply)>,
    ) -> World {
        let script = Script::default();
        let replies = replies
            .into_iter()
            .map(|(ms, reply)| (Duration::from_millis(ms), reply));
        script.replies.lock().unwrap().extend(replies);
        let began = Instant::now();
        let fetching = script.clone();
        let (receiver, future) = watch(budget, options, move |poll| {
            fetching.asked.lock().unwrap().push((began.elapsed(), poll));
            let reply = fetching.replies.lock().unwrap().pop_front();
            async move {
                let Some((after, reply)) = reply else {
                    return std::future::pending().await;
                };
                sleep(after).await;
                reply
            }
        });
        let mut workers = JoinSet::new();
        workers.spawn(future);
        World {
            script,
            receiver,
            workers,
        }
    }

    /// Lets time pass until the script is used up and the last poll stands.
    async fn settle(&self) -> Seen<u32> {
        sleep(Duration::from_secs(3600)).await;
        assert!(
            self.script.replies.lock().unwrap().is_empty(),
            "replies are left over"
        );
        self.receiver.borrow().clone()
    }

    fn indexes(&self) -> Vec<Option<u64>> {
        self.script
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|(_, poll)| poll.index)
            .collect()
    }

    fn times(&self) -> Vec<Duration> {
        self.script
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|(at, _)| *at)
            .collect()
    }
}

fn good(index: u64, value: u32) -> Reply {
    Ok(Answer {
        value,
        index,
        last_contact: Some(Duration::ZERO),
        known_leader: true,
        filtered_by_acls: false,
    })
}

fn filtered(index: u64, value: u32) -> Reply {
    good(index, value).map(|answer| Answer {
        filtered_by_acls: true,
        ..answer
    })
}

fn bad() -> Reply {
    Err(Error::status(
        "test",
        StatusCode::INTERNAL_SERVER_ERROR,
        b"rpc error making call: EOF",
    ))
}

#[tokio::test(start_paused = true)]
async fn a_lower_missing_or_zero_index_starts_over() {
    // A missing or unreadable header is 0 by the time it gets here.
    let world = World::start([
        (0, good(100, 1)),
        (0, good(101, 2)),
        (0, good(3, 99)),
        (0, good(0, 3)),
        (0, good(0, 3)),
        (0, good(7, 4)),
    ]);
    let seen = world.settle().await;
    let asked = [None, Some(100), Some(101), None, Some(1), Some(1), Some(7)];
    assert_eq!(world.indexes(), asked);
    assert_eq!(
        (seen.value, seen.generation),
        (Some(Arc::new(4)), 4),
        "99 came with the lower index"
    );
}

#[tokio::test(start_paused = true)]
async fn errors_keep_the_value_and_never_end_the_watch() {
    let errors = (0..500).map(|_| (0, bad()));
    let mut world = World::start(std::iter::once((0, good(10, 1))).chain(errors));
    sleep(Duration::from_secs(60)).await;
    let seen = world.receiver.borrow_and_update().clone();
    assert_eq!(seen.value, Some(Arc::new(1)));
    assert!(seen.error.is_some() && !seen.unbroken);
    assert!(
        seen.at.unwrap().elapsed() > Duration::from_secs(59),
        "the age is that of the good answer"
    );
    let times = world.times();
    assert!(
        times.len() > 12 && times.len() < 60,
        "{} questions in a minute",
        times.len()
    );
    assert!(
        times
            .windows(2)
            .all(|pair| pair[1] - pair[0] <= Duration::from_secs(6))
    );
    assert!(
        world.indexes().iter().skip(2).all(Option::is_none),
        "no index outlives an error"
    );

    world.script.replies.lock().unwrap().clear();
    let replies = [(0, good(4, 1)), (0, good(5, 1))];
    world
        .script
        .replies
        .lock()
        .unwrap()
        .extend(replies.map(|(ms, r)| (Duration::from_millis(ms), r)));
    let seen = world.settle().await;
    assert!(seen.error.is_none() && seen.unbroken);
    assert_eq!(seen.generation, 1, "the value is what it was");
}

#[tokio::test(start_paused = true)]
async fn an_equal_value_is_no_event() {
    let mut world = World::start([
        (0, good(1, 7)),
        (0, good(2, 7)),
        (20_000, good(3, 7)),
        (0, good(4, 8)),
    ]);
    world.receiver.changed().await.unwrap();
    let first = world.receiver.borrow_and_update().clone();
    sleep(Duration::from_secs(15)).await;
    assert!(!world.receiver.has_changed().unwrap());
    assert!(
        world.receiver.borrow().at > first.at,
        "but the value is known to be younger"
    );
    world.receiver.changed().await.unwrap();
    assert_eq!(world.receiver.borrow().value, Some(Arc::new(8)));
    assert_eq!(world.receiver.borrow().generation, 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_blocks_is_asked_twice_a_second() {
    let world = World::start((0..1000).map(|n| (0, good(n, 1))));
    sleep(Duration::from_secs(60)).await;
    let asked = world.times().len();
    assert!(
        (115..=123).contains(&asked),
        "{asked} questions in a minute"
    );
}

#[tokio::test(start_paused = true)]
async fn unbroken_is_false_from_a_break_through_the_next_good_answer() {
    let cases = [
        ("quiet", vec![good(1, 1), good(2, 2)], true),
        ("error first", vec![bad(), good(2, 2)], false),
        ("error between", vec![good(1, 1), bad(), good(2, 2)], false),
        (
            "one good answer after the error",
            vec![good(1, 1), bad(), good(2, 2), good(3, 3)],
            true,
        ),
        (
            "lower index",
            vec![good(9, 1), good(2, 2), good(2, 2)],
            false,
        ),
        (
            "good answer after the lower index",
            vec![good(9, 1), good(2, 2), good(2, 2), good(3, 2)],
            true,
        ),
        ("ACL mark", vec![good(1, 1), filtered(2, 0)], false),
        ("after the ACL mark", vec![filtered(1, 0), good(2, 2)], true),
        ("error stands", vec![good(1, 1), bad()], false),
    ];
    for (name, replies, unbroken) in cases {
        let world = World::start(replies.into_iter().map(|reply| (0, reply)));
        let seen = world.settle().await;
        assert_eq!(seen.unbroken, unbroken, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_out_of_touch_is_asked_for_at_the_leader() {
    let old = |known_leader| {
        good(5, 1).map(|answer| Answer {
            last_contact: Some(Duration::from_secs(11)),
            known_leader,
            ..answer
        })
    };
    let world = World::start([(0, old(true)), (0, good(6, 2)), (0, old(false))]);
    world.settle().await;
    let stale: Vec<bool> = world
        .script
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|(_, poll)| poll.stale)
        .collect();
    assert_eq!(
        stale,
        [true, false, true, true],
        "without a leader there is nobody better to ask"
    );
}

#[tokio::test(start_paused = true)]
async fn without_budget_it_reads_every_ten_seconds_until_a_slot_is_free() {
    let budget = Budget::new(1);
    let first = budget.take();
    let replies = (1..=5).map(|n| (0, good(n, 1)));
    let world = World::with(budget, Options::URGENT, replies);
    sleep(Duration::from_secs(25)).await;
    drop(first);
    world.settle().await;
    let seconds: Vec<u64> = world.times().iter().map(Duration::as_secs).collect();
    assert_eq!(seconds[..4], [0, 10, 20, 30]);
    assert_eq!(world.indexes()[..4], [None, None, None, Some(3)]);
}

#[tokio::test(start_paused = true)]
async fn the_first_question_is_spread() {
    let spread = Options {
        spread: Duration::from_secs(5),
        ..Options::URGENT
    };
    let mut starts = Vec::new();
    for _ in 0..50 {
        let world = World::with(Budget::new(1), spread, [(0, good(1, 1))]);
        world.settle().await;
        starts.push(world.times()[0]);
    }
    assert!(
        starts
            .iter()
            .all(|start| *start <= Duration::from_millis(5001))
    );
    assert!(starts.iter().max() > Some(&Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_receivers_once_the_poll_has_run_out() {
    let World {
        script,
        receiver,
        mut workers,
    } = World::start([(0, good(1, 1)), (55_000, good(1, 1))]);
    sleep(Duration::from_secs(5)).await;
    let dropped = Instant::now();
    drop(receiver);
    workers.join_next().await.unwrap().unwrap();
    let lasted = dropped.elapsed();
    assert!(
        lasted > Duration::from_secs(49) && lasted < Duration::from_secs(51),
        "{lasted:?}"
    );
    assert_eq!(script.asked.lock().unwrap().len(), 2, "it asks no more");
}

/// A value that lives in a server: a poll is held until the index is past the one it names.
#[tokio::test(start_paused = true)]
async fn a_change_between_two_polls_is_seen() {
    let (server, state) = watch::channel((1_u64, 0_u32));
    let (asked, mut asks) = mpsc::unbounded_channel();
    let (mut receiver, future) = watch(Budget::new(1), Options::URGENT, move |poll: Poll| {
        let mut state = state.clone();
        asked.send(poll).unwrap();
        async move {
            let past = |(index, _): &(u64, u32)| poll.index.is_none_or(|before| *index > before);
            let (index, value) = *state.wait_for(past).await.unwrap();
            good(index, value)
        }
    });
    let mut workers = JoinSet::new();
    workers.spawn(future);
    asks.recv().await.unwrap();
    receiver.changed().await.unwrap();
    receiver.mark_unchanged();
    // The first answer is in and the next question has not been asked yet.
    assert!(asks.try_recv().is_err());
    server.send((2, 42)).unwrap();
    timeout(Duration::from_secs(1), receiver.changed())
        .await
        .expect("the change in the gap")
        .unwrap();
    assert_eq!(receiver.borrow().value, Some(Arc::new(42)));
}

#[tokio::test(start_paused = true)]
async fn an_index_from_before_the_agent_was_lost_is_not_asked_for() {
    let budget = Budget::new(1);
    let replies = [(0, good(26, 1)), (0, good(13, 2)), (0, good(14, 3))];
    let world = World::with(budget.clone(), Options::URGENT, replies);
    // Between two polls of this watch, somebody else's request does not get through.
    sleep(COALESCE / 2).await;
    budget.note_loss();
    let seen = world.settle().await;
    assert_eq!(world.indexes(), [None, None, Some(13), Some(14)]);
    assert_eq!(seen.value, Some(Arc::new(3)));
    assert!(seen.broken_at.is_some(), "the store may be another one");
}
