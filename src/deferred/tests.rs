use super::*;
use crate::store::{Options, Schema};
use http::HeaderValue;
use proptest::prelude::*;
use tempfile::TempDir;

static SCHEMA: Schema = Schema {
    name: "test",
    application_id: 1,
    migrations: &[MIGRATION],
};

fn store(directory: &TempDir) -> Store {
    let path = directory.path().join("state.db");
    Store::open(&path, &SCHEMA, Options::default()).unwrap().0
}

fn deferred(store: &Store, boot: &str, config: Bounds) -> Deferred {
    Deferred::new(Side::Caller, store.clone(), boot, config, Arc::new(|| {}))
}

fn name(call: &str) -> Name {
    Name {
        scope: "shop".into(),
        call_id: Id::parse(call).unwrap(),
    }
}

fn reply(body: impl Into<Bytes>) -> Reply {
    let mut headers = HeaderMap::new();
    headers.append("x-a", HeaderValue::from_static("1: one"));
    headers.append("x-a", HeaderValue::from_bytes(b"caf\xe9").unwrap());
    Reply {
        status: StatusCode::CREATED,
        headers,
        body: body.into(),
    }
}

async fn begin(deferred: &Deferred, call: &str) -> Entry {
    let open = Open::new(Id::parse("t").unwrap(), Id::parse(call).unwrap());
    let seat = deferred.seat().unwrap();
    deferred.begin(name(call), open, seat).await
}

async fn found(deferred: &Deferred, call: &str) -> String {
    match deferred.find(&name(call)).await.unwrap() {
        Found::Open(open) => format!("open {}", open.state()),
        Found::Ended(reply) => format!("{} {:?}", reply.status.as_u16(), reply.body),
        Found::InDoubt { task_id, state } => format!("in doubt {} {state}", task_id.as_str()),
        Found::Unknown => "unknown".to_owned(),
    }
}

#[tokio::test]
async fn a_reply_is_found_also_by_the_next_process() {
    let directory = TempDir::new().unwrap();
    let store = store(&directory);
    let first = deferred(&store, "boot-1", Bounds::default());
    let entry = begin(&first, "c").await;
    entry.open.moved(State::Executing);
    assert_eq!(found(&first, "c").await, "open executing");
    let open = entry.open.clone();
    entry.answered(reply("{}")).await;
    assert!(matches!(open.stage(), Stage::Ended(_)));
    let second = deferred(&store, "boot-2", Bounds::default());
    for side in [&first, &second] {
        match side.find(&name("c")).await.unwrap() {
            Found::Ended(again) => assert_eq!(*again, reply("{}")),
            other => panic!("{other:?}"),
        }
    }
    let foreign = Name {
        scope: "billing".into(),
        ..name("c")
    };
    assert!(matches!(
        first.find(&foreign).await.unwrap(),
        Found::Unknown
    ));
    assert_eq!(found(&first, "d").await, "unknown");
}

#[tokio::test]
async fn what_was_left_open_is_in_doubt() {
    let directory = TempDir::new().unwrap();
    let store = store(&directory);
    let first = deferred(&store, "boot-1", Bounds::default());
    // As a kill leaves it.
    std::mem::forget(begin(&first, "killed").await);
    let given_up = begin(&first, "given-up").await;
    let open = given_up.open.clone();
    drop(given_up);
    assert!(matches!(open.stage(), Stage::Lost));
    let second = deferred(&store, "boot-2", Bounds::default());
    // The end that was queued is behind this.
    drop(begin(&second, "behind").await);
    assert_eq!(found(&second, "killed").await, "in doubt t executing");
    let left = "in doubt t failed_execution";
    assert_eq!(found(&second, "given-up").await, left);
    assert_eq!(found(&first, "given-up").await, left);
}

#[tokio::test]
async fn a_newer_attempt_takes_the_place_of_an_older_one() {
    let directory = TempDir::new().unwrap();
    let deferred = deferred(&store(&directory), "boot-1", Bounds::default());
    let older = begin(&deferred, "c").await;
    let newer = begin(&deferred, "c").await;
    older.answered(reply("old")).await;
    assert_eq!(found(&deferred, "c").await, "open pending");
    newer.answered(reply("new")).await;
    assert_eq!(found(&deferred, "c").await, "201 b\"new\"");
}

#[tokio::test]
async fn the_oldest_replies_go_when_there_are_too_many() {
    let directory = TempDir::new().unwrap();
    let config = Bounds {
        max_rows: 200,
        max_bytes: 2 << 20,
    };
    let store = store(&directory);
    let deferred = deferred(&store, "boot-1", config);
    let kept_open = begin(&deferred, "open").await;
    for number in 0..400 {
        let entry = begin(&deferred, &format!("c-{number}")).await;
        entry.answered(reply("{}")).await;
    }
    assert_eq!(found(&deferred, "c-0").await, "unknown");
    assert_eq!(found(&deferred, "c-399").await, "201 b\"{}\"");
    assert_eq!(found(&deferred, "open").await, "open pending");
    // Large ones go by their bytes, long before there are many.
    let large = Bytes::from(vec![b' '; 1 << 20]);
    for call in ["large-1", "large-2", "large-3"] {
        let entry = begin(&deferred, call).await;
        entry.answered(reply(large.clone())).await;
    }
    // So large a commit may not have been waited for.
    store.append(|_| Ok(())).await.unwrap();
    for (call, is_kept) in [("large-1", false), ("large-2", false), ("large-3", true)] {
        let found = deferred.find(&name(call)).await.unwrap();
        assert_eq!(matches!(found, Found::Ended(_)), is_kept, "{call}");
    }
    assert_eq!(found(&deferred, "open").await, "open pending");
    drop(kept_open);
}

#[tokio::test]
async fn there_is_an_end_to_open_calls() {
    let directory = TempDir::new().unwrap();
    let deferred = deferred(&store(&directory), "boot-1", Bounds::default());
    let seats: Vec<Seat> = std::iter::from_fn(|| deferred.seat()).collect();
    assert_eq!(seats.len(), MOST_OPEN);
    drop(seats);
    assert!(deferred.seat().is_some());
}

#[test]
fn a_reply_has_its_time() {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(MIGRATION).unwrap();
    let row = table::Row {
        side: "caller",
        name: name("c"),
        run: Id::mint(),
        task_id: Id::mint(),
        boot: "boot".into(),
    };
    let now = Timestamp::now();
    table::begin(&connection, &row, now).unwrap();
    table::answered(&connection, &row, &reply("{}"), now).unwrap();
    let known = |at| {
        table::find(&connection, "caller", &row.name, at)
            .unwrap()
            .is_some()
    };
    assert!(known(now.plus(KEPT - Duration::from_secs(1))));
    assert!(!known(now.plus(KEPT)));
    table::prune(&connection, now.plus(KEPT)).unwrap();
    assert!(!known(now));
}

proptest! {
    #[test]
    fn fields_come_back_as_they_were(value in proptest::collection::vec(32u8..=255, 0..64)) {
        prop_assume!(!value.contains(&127));
        let value = HeaderValue::from_bytes(&value).unwrap();
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(MIGRATION).unwrap();
        let row = table::Row {
            side: "callee",
            name: name("c"),
            run: Id::mint(),
            task_id: Id::mint(),
            boot: "boot".into(),
        };
        let mut told = reply("{}");
        told.headers.append("x-b", value);
        table::answered(&connection, &row, &told, Timestamp::now()).unwrap();
        match table::find(&connection, "callee", &row.name, Timestamp::now()).unwrap() {
            Some(table::Known::Ended(again)) => prop_assert_eq!(again, told),
            _ => prop_assert!(false),
        }
    }
}
