//! The store over crashes, damage, and a disk that does not keep up.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicUsize;
use tempfile::TempDir;

const SCHEMA: Schema = Schema {
    name: "test",
    application_id: 0x4845_0001,
    migrations: &["CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"],
};

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("deep/notes.db")
    }

    fn open(&self) -> Result<(Store, Opened), OpenError> {
        let options = Options {
            probes: &["SELECT text FROM notes"],
            ..Options::default()
        };
        Store::open(&self.path(), &SCHEMA, options)
    }

    fn store(&self) -> Store {
        self.open().unwrap().0
    }
}

fn insert(text: &str) -> impl FnOnce(&Connection) -> rusqlite::Result<i64> + Send + 'static {
    let text = text.to_owned();
    move |connection| {
        connection.execute("INSERT INTO notes (text) VALUES (?1)", [text])?;
        Ok(connection.last_insert_rowid())
    }
}

async fn count(store: &Store) -> i64 {
    let query = |connection: &Connection| {
        connection.query_row("SELECT count(*) FROM notes", [], |row| row.get(0))
    };
    store.read(query).await.unwrap()
}

#[tokio::test]
async fn appended_rows_are_there_after_an_end_without_close() {
    let place = Place::new();
    let store = place.store();
    for _ in 0..10 {
        store.append(insert("row")).await.unwrap();
    }
    drop(store);
    let store = place.store();
    assert_eq!(count(&store).await, 10);
}

#[tokio::test]
async fn the_files_of_a_killed_process_hold_every_appended_row() {
    let place = Place::new();
    let store = place.store();
    for _ in 0..50 {
        store.append(insert("row")).await.unwrap();
    }
    // What a kill would leave behind; copied by another process, since a descriptor of this one
    // on the live file would drop its locks.
    let image = Place::new();
    let from = place.path().parent().unwrap().to_owned();
    let copy = std::process::Command::new("cp")
        .arg("-r")
        .args([&from, &image.path().parent().unwrap().to_owned()])
        .status();
    assert!(copy.unwrap().success());
    let log = std::fs::metadata(file::sibling(&image.path(), "-wal")).unwrap();
    assert!(log.len() > 0);
    assert_eq!(count(&image.store()).await, 50);
}

#[tokio::test]
async fn close_commits_what_was_only_offered() {
    let place = Place::new();
    let store = place.store();
    for _ in 0..1000 {
        store.offer(insert("row"), |_| {}).unwrap();
    }
    store.close().await.unwrap();
    let refused = store.append(insert("late")).await.unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Closed);
    assert!(store.close().await.is_err());
    assert_eq!(count(&place.store()).await, 1000);
}

#[tokio::test]
async fn a_failing_job_takes_nobody_along() {
    let place = Place::new();
    let store = place.store();
    let settled = Arc::new(AtomicUsize::new(0));
    let broken = |connection: &Connection| {
        connection.execute("INSERT INTO notes (text) VALUES ('half')", [])?;
        connection.execute("INSERT INTO notes (text) VALUES (NULL)", [])
    };
    for _ in 0..5 {
        let settled = settled.clone();
        let failed = move |outcome: Result<usize, StoreError>| {
            assert!(outcome.is_err());
            settled.fetch_add(1, Ordering::Relaxed);
        };
        store.offer(insert("good"), |_| {}).unwrap();
        store.offer(broken, failed).unwrap();
    }
    let error = store.append(broken).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Other);
    store.append(insert("last")).await.unwrap();
    assert_eq!(count(&store).await, 6);
    assert_eq!(settled.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn files_are_private_and_set_up_as_promised() {
    let place = Place::new();
    let store = place.store();
    store.append(insert("row")).await.unwrap();
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let file = std::fs::metadata(file::sibling(&place.path(), suffix)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{suffix}");
    }
    let pragma = |name: &'static str| {
        store.read(move |c| c.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)))
    };
    assert_eq!(pragma("auto_vacuum").await.unwrap(), 2);
    assert_eq!(pragma("user_version").await.unwrap(), 1);
    assert_eq!(pragma("application_id").await.unwrap(), 0x4845_0001);
}

#[tokio::test]
async fn the_log_is_emptied_while_rows_keep_coming() {
    let place = Place::new();
    let store = place.store();
    let text = "x".repeat(64 << 10);
    let log = file::sibling(&place.path(), "-wal");
    let mut longest = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        store.append(insert(&text)).await.unwrap();
        let length = std::fs::metadata(&log).unwrap().len();
        if length < longest {
            break;
        }
        longest = length;
        assert!(Instant::now() < deadline, "the log has {length} bytes");
    }
    // Emptied by force, since nothing rests here.
    assert!(longest > 4 << 20, "emptied at {longest} bytes");
}

#[tokio::test]
async fn a_second_opener_is_refused_until_the_first_has_closed() {
    let place = Place::new();
    let store = place.store();
    assert!(matches!(place.open(), Err(OpenError::InUse { .. })));
    store.close().await.unwrap();
    place.open().unwrap();
}

#[tokio::test]
async fn damaged_files_are_moved_aside() {
    let place = Place::new();
    let store = place.store();
    for _ in 0..500 {
        store.append(insert(&"y".repeat(500))).await.unwrap();
    }
    store.close().await.unwrap();
    let sound = std::fs::read(place.path()).unwrap();
    let mut holed = sound.clone();
    holed[8 * 4096..9 * 4096].fill(0xA5);
    let text = b"this is a text file, not a database, and long enough to have a header".repeat(9);
    for (what, bytes) in [
        ("text", text),
        ("holed", holed),
        ("cut", sound[..9000].to_vec()),
    ] {
        std::fs::write(place.path(), &bytes).unwrap();
        let (store, opened) = place.open().unwrap();
        let aside = opened.moved_aside.expect(what);
        assert_eq!(std::fs::read(&aside).unwrap(), bytes, "{what}");
        assert_eq!(count(&store).await, 0, "{what}");
        store.append(insert("fresh")).await.unwrap();
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn damage_in_a_large_file_is_met_by_the_probes() {
    let place = Place::new();
    let store = place.store();
    let text = "y".repeat(16 << 10);
    for _ in 0..640 {
        store.offer(insert(&text), |_| {}).unwrap();
    }
    store.close().await.unwrap();
    let mut bytes = std::fs::read(place.path()).unwrap();
    assert!(bytes.len() > 8 << 20);
    // The root of the table, right behind the pages of the schema and the pointer map.
    bytes[2 * 4096..3 * 4096].fill(0xA5);
    std::fs::write(place.path(), &bytes).unwrap();
    let (store, opened) = place.open().unwrap();
    assert!(opened.moved_aside.is_some());
    assert_eq!(count(&store).await, 0);
}

#[tokio::test]
async fn an_empty_file_becomes_a_database() {
    let place = Place::new();
    std::fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    std::fs::write(place.path(), b"").unwrap();
    let (store, opened) = place.open().unwrap();
    assert!(opened.moved_aside.is_none());
    assert_eq!(count(&store).await, 0);
}

#[tokio::test]
async fn newer_and_foreign_files_are_left_untouched() {
    for (sql, newer) in [
        ("PRAGMA user_version = 2", true),
        ("PRAGMA application_id = 77", false),
    ] {
        let place = Place::new();
        let store = place.store();
        store.append(move |c| c.execute_batch(sql)).await.unwrap();
        store.close().await.unwrap();
        let before = std::fs::read(place.path()).unwrap();
        let error = place.open().unwrap_err();
        match error {
            OpenError::Newer { found, known, .. } => assert!(newer && (found, known) == (2, 1)),
            OpenError::Foreign { .. } => assert!(!newer),
            other => panic!("{other}"),
        }
        assert_eq!(std::fs::read(place.path()).unwrap(), before);
    }
}

#[tokio::test]
async fn migrations_continue_where_the_file_stands() {
    let place = Place::new();
    let store = place.store();
    store.append(insert("old")).await.unwrap();
    store.close().await.unwrap();
    const NEXT: Schema = Schema {
        migrations: &[
            SCHEMA.migrations[0],
            "ALTER TABLE notes ADD COLUMN rank INTEGER NOT NULL DEFAULT 7",
        ],
        ..SCHEMA
    };
    let (store, _) = Store::open(&place.path(), &NEXT, Options::default()).unwrap();
    let rank =
        store.read(|c| c.query_row("SELECT rank FROM notes", [], |row| row.get::<_, i64>(0)));
    assert_eq!(rank.await.unwrap(), 7);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let place = Place::new();
    std::fs::write(place.directory.path().join("deep"), b"a file").unwrap();
    let error = place.open().unwrap_err();
    assert!(matches!(error, OpenError::Directory { .. }), "{error}");
}

#[tokio::test]
async fn a_full_file_fails_jobs_and_recovers_by_itself() {
    let place = Place::new();
    let store = place.store();
    let limit = |pages: i64| {
        move |c: &Connection| {
            c.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        }
    };
    store.append(limit(16)).await.unwrap();
    let large = "z".repeat(1 << 20);
    let error = store.append(insert(&large)).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::DiskFull);
    store.append(limit(1_000_000)).await.unwrap();
    store.append(insert(&large)).await.unwrap();
    assert_eq!(count(&store).await, 1);
}

#[tokio::test]
async fn a_panicking_job_closes_the_store_instead_of_hanging_it() {
    let place = Place::new();
    let store = place.store();
    let panicking = |_: &Connection| -> rusqlite::Result<()> { panic!("a bug") };
    let error = store.append(panicking).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Closed);
    let after = store.append(insert("after")).await.unwrap_err();
    assert_eq!(after.kind(), FaultKind::Closed);
}

#[tokio::test]
async fn space_is_given_back() {
    let place = Place::new();
    let store = place.store();
    for _ in 0..400 {
        store.offer(insert(&"w".repeat(32 << 10)), |_| {}).unwrap();
    }
    store
        .append(|c| c.execute("DELETE FROM notes", []))
        .await
        .unwrap();
    let full = 400 * (32 << 10);
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.disk_bytes() > full / 2 {
        assert!(
            Instant::now() < deadline,
            "{} bytes left",
            store.disk_bytes()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
