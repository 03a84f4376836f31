use super::*;
use crate::store::{Options, Schema};
use tempfile::TempDir;

static SCHEMA: Schema = Schema {
    name: "test",
    application_id: 1,
    migrations: &[MIGRATION],
};

/// Longer than any disk takes.
const WITHIN: Duration = Duration::from_secs(30);

fn open(directory: &TempDir) -> Store {
    let path = directory.path().join("state.db");
    Store::open(&path, &SCHEMA, Options::default()).unwrap().0
}

fn name(key: &str) -> Name {
    Name {
        scope: "payment".into(),
        agent: "refund-v1.0".into(),
        key: key.into(),
    }
}

fn answer(body: &'static str) -> Answer {
    Answer {
        status: 201,
        headers: vec![("content-type".into(), "application/json".into())],
        body: Bytes::from_static(body.as_bytes()),
        state: State::Completed,
        failure: None,
    }
}

fn payload() -> Digest {
    Digest::of(b"{}")
}

async fn ticket(replies: &Replies, key: &str) -> Ticket {
    match replies.begin(name(key), payload(), WITHIN).await {
        Found::New(ticket) => ticket,
        known => panic!("{key} is known: {known:?}"),
    }
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer() {
    let directory = TempDir::new().unwrap();
    let replies = Replies::new(open(&directory), "boot-1", Bounds::default());
    let first = ticket(&replies, "k").await;
    let begin = || replies.begin(name("k"), payload(), WITHIN);
    assert!(matches!(begin().await, Found::InFlight));
    let other = replies.begin(name("k"), Digest::of(b"[]"), WITHIN).await;
    assert!(matches!(other, Found::OtherPayload(State::Executing)));
    first.answered(answer("{\"done\":1}"));
    for _ in 0..2 {
        match begin().await {
            Found::Answered(again) => assert_eq!(again, answer("{\"done\":1}")),
            other => panic!("{other:?}"),
        }
    }
    // Another caller, agent or key has nothing to do with it.
    let mut foreign = name("k");
    foreign.scope = "billing".into();
    let foreign = replies.begin(foreign, payload(), WITHIN).await;
    assert!(matches!(foreign, Found::New(_)));
}

#[tokio::test]
async fn what_was_not_carried_out_can_be_begun_again() {
    let directory = TempDir::new().unwrap();
    let replies = Replies::new(open(&directory), "boot-1", Bounds::default());
    ticket(&replies, "k").await.undone();
    ticket(&replies, "k").await.answered(answer("{}"));
}

#[tokio::test]
async fn a_ticket_that_is_let_go_of_leaves_a_doubt() {
    let directory = TempDir::new().unwrap();
    let replies = Replies::new(open(&directory), "boot-1", Bounds::default());
    drop(ticket(&replies, "k").await);
    let found = replies.begin(name("k"), payload(), WITHIN).await;
    assert!(
        matches!(found, Found::InDoubt(State::Executing)),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_doubt_names_the_state_it_was_left_in() {
    let directory = TempDir::new().unwrap();
    let replies = Replies::new(open(&directory), "boot-1", Bounds::default());
    ticket(&replies, "k").await.doubted(State::Timeout);
    let found = replies.begin(name("k"), payload(), WITHIN).await;
    assert!(matches!(found, Found::InDoubt(State::Timeout)), "{found:?}");
}

#[tokio::test]
async fn a_dead_process_leaves_doubts_and_its_answers() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", Bounds::default());
    let open_one = ticket(&replies, "open").await;
    ticket(&replies, "done").await.answered(answer("{}"));
    // Committed before the file is closed, as a kill would leave it.
    drop(replies.begin(name("done"), payload(), WITHIN).await);
    store.close().await.unwrap();
    drop(open_one);

    let replies = Replies::new(open(&directory), "boot-2", Bounds::default());
    let found = replies.begin(name("open"), payload(), WITHIN).await;
    assert!(
        matches!(found, Found::InDoubt(State::Executing)),
        "{found:?}"
    );
    let found = replies.begin(name("done"), payload(), WITHIN).await;
    assert!(matches!(found, Found::Answered(_)), "{found:?}");
}

#[tokio::test]
async fn an_asker_that_goes_away_takes_its_beginning_back_and_no_other() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", Bounds::default());
    // Polled once, so that the row is queued, and let go of before the answer.
    let free = hold_up(&store);
    let mut gone = Box::pin(replies.begin(name("gone"), payload(), WITHIN));
    assert!(poll_once(&mut gone).is_none());
    drop((gone, free));
    ticket(&replies, "gone").await.answered(answer("{}"));

    let held = ticket(&replies, "held").await;
    let free = hold_up(&store);
    let mut second = Box::pin(replies.begin(name("held"), payload(), WITHIN));
    assert!(poll_once(&mut second).is_none());
    drop((second, free));
    let found = replies.begin(name("held"), payload(), WITHIN).await;
    assert!(matches!(found, Found::InFlight), "{found:?}");
    held.answered(answer("{}"));
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn the_record_is_bounded_and_what_is_in_flight_stays() {
    let directory = TempDir::new().unwrap();
    let config = Bounds {
        max_rows: 300,
        max_bytes: 1 << 30,
    };
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", config);
    let held = ticket(&replies, "held").await;
    for number in 0..1_000 {
        let ticket = ticket(&replies, &format!("k{number}")).await;
        ticket.answered(answer("{}"));
    }
    let count = "SELECT count(*) FROM replies";
    let rows: i64 = store
        .append(move |connection| connection.query_row(count, [], |row| row.get(0)))
        .await
        .unwrap();
    assert!(rows <= 300 + i64::from(table::PRUNE_EVERY), "{rows}");
    let found = replies.begin(name("held"), payload(), WITHIN).await;
    assert!(matches!(found, Found::InFlight), "{found:?}");
    drop(held);
}

#[tokio::test]
async fn bytes_are_bounded_by_the_oldest_answers() {
    let directory = TempDir::new().unwrap();
    let config = Bounds {
        max_rows: 1_000,
        max_bytes: 400_000,
    };
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", config);
    for number in 0..100 {
        let mut kept = answer("");
        kept.body = Bytes::from(vec![b' '; 20_000]);
        ticket(&replies, &format!("k{number}")).await.answered(kept);
    }
    let sum = "SELECT sum(size) FROM replies";
    let bytes: i64 = store
        .append(move |connection| connection.query_row(sum, [], |row| row.get(0)))
        .await
        .unwrap();
    // One more may have been answered before anybody looked.
    assert!((200_000..=430_000).contains(&bytes), "{bytes}");
    let newest = replies.begin(name("k99"), payload(), WITHIN).await;
    assert!(matches!(newest, Found::Answered(_)), "{newest:?}");
    // What an answer gave way to is still known.
    let oldest = replies.begin(name("k0"), payload(), WITHIN).await;
    let is_known = matches!(oldest, Found::InDoubt(State::Completed));
    assert!(is_known, "{oldest:?}");
}

#[tokio::test]
async fn rows_end() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", Bounds::default());
    ticket(&replies, "k").await.answered(answer("{}"));
    drop(ticket(&replies, "doubt").await);
    let age = "UPDATE replies SET ends_at = 1";
    store
        .append(move |connection| connection.execute(age, []))
        .await
        .unwrap();
    ticket(&replies, "k").await.undone();
    ticket(&replies, "doubt").await.undone();
}

/// Holds the writer up until the returned value is dropped.
fn hold_up(store: &Store) -> std::sync::mpsc::Sender<()> {
    let (free, freed) = std::sync::mpsc::channel::<()>();
    let held = store.offer(
        move |_| {
            freed.recv().ok();
            Ok(())
        },
        |_| {},
    );
    held.unwrap();
    free
}

#[tokio::test]
async fn a_slow_disk_hides_neither_what_is_under_way_nor_what_was_answered() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let replies = Replies::new(store.clone(), "boot-1", Bounds::default());
    ticket(&replies, "old").await.answered(answer("{}"));
    // Committed before the writer is held up.
    drop(replies.begin(name("old"), payload(), WITHIN).await);
    let free = hold_up(&store);
    let soon = Duration::from_millis(300);
    let begin = |key| replies.begin(name(key), payload(), soon);
    let found = begin("new").await;
    let Found::Unrecorded(first, Unrecorded::Late) = found else {
        panic!("{found:?}");
    };
    let again = begin("new").await;
    assert!(matches!(again, Found::InFlight), "{again:?}");
    let other = Digest::of(b"[]");
    let other = replies.begin(name("new"), other, soon).await;
    assert!(matches!(other, Found::OtherPayload(_)), "{other:?}");
    let old = begin("old").await;
    assert!(matches!(old, Found::Answered(_)), "{old:?}");
    first.answered(answer("{\"late\":1}"));
    drop(free);
    let kept = replies.begin(name("new"), payload(), WITHIN).await;
    assert!(matches!(kept, Found::Answered(_)), "{kept:?}");
}

#[tokio::test]
async fn an_end_that_cannot_be_written_leaves_a_doubt_that_goes() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let config = Bounds {
        max_rows: 1,
        max_bytes: 1 << 30,
    };
    let replies = Replies::new(store.clone(), "boot-1", config);
    let held = ticket(&replies, "held").await;
    let lost = ticket(&replies, "lost").await;
    let forbid = "CREATE TRIGGER full BEFORE UPDATE ON replies
                  BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    let free = "DROP TRIGGER full";
    let run = |sql: &'static str| store.append(move |connection| connection.execute_batch(sql));
    run(forbid).await.unwrap();
    lost.answered(answer("{}"));
    run(free).await.unwrap();
    let found = replies.begin(name("lost"), payload(), WITHIN).await;
    assert!(matches!(found, Found::InDoubt(_)), "{found:?}");
    for number in 0..=table::PRUNE_EVERY {
        ticket(&replies, &format!("k{number}")).await.undone();
    }
    let rest = replies.begin(name("lost"), payload(), WITHIN).await;
    assert!(matches!(rest, Found::New(_)), "{rest:?}");
    let found = replies.begin(name("held"), payload(), WITHIN).await;
    assert!(matches!(found, Found::InFlight), "{found:?}");
    drop(held);
}
