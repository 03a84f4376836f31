//! The file on disk: its directory, its lock, its creation, and what is done with a damaged one.
//!
//! - nothing but SQLite ever opens the database once it exists: closing any other descriptor on
//!   it would drop this process's locks
//! - a damaged file is moved aside, never deleted; a newer or foreign one is not touched

use super::fault::is_damage;
use super::{Durability, OpenError, Options, Schema};
use crate::task::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a statement waits for another process that looks into the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Files up to this size are read through once before they are trusted; that takes about 20 ms.
const CHECKED_SIZE: u64 = 8 << 20;

/// A file that is ours, up to date and locked.
pub(super) struct Prepared {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    /// Held as long as the database is in use.
    pub(super) lock: File,
    pub(super) moved_aside: Option<PathBuf>,
}

/// Locks, checks, creates or upgrades the file at `path`.
pub(super) fn prepare(
    path: &Path,
    schema: &Schema,
    options: &Options,
) -> Result<Prepared, OpenError> {
    create_directory(path)?;
    let lock = lock(path)?;
    let mut moved_aside = None;
    let writer = match open_checked(path, schema, options) {
        Err(OpenError::Sqlite { source, .. }) if is_damage(&source) => {
            moved_aside = Some(move_aside(path)?);
            open_checked(path, schema, options)?
        }
        other => other?,
    };
    let reader = open_reader(path).map_err(|source| sqlite(path, source))?;
    Ok(Prepared {
        writer,
        reader,
        lock,
        moved_aside,
    })
}

/// Device and number of a file, which a name may come to lose.
pub(super) type Identity = (u64, u64);

/// Returns which file `path` names now, if any.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the name of a file that SQLite, or we, keep beside the database.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn create_directory(path: &Path) -> Result<(), OpenError> {
    let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    else {
        return Ok(());
    };
    let created = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    created.map_err(|source| OpenError::Directory {
        path: directory.to_owned(),
        source,
    })
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = sibling(path, ".lock");
    let mut how = private();
    let file = how.truncate(false).open(&lock_path);
    let file = file.map_err(|source| OpenError::Create {
        path: lock_path.clone(),
        source,
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(OpenError::Create {
            path: lock_path,
            source,
        }),
    }
}

fn private() -> OpenOptions {
    let mut how = OpenOptions::new();
    how.write(true).create(true).mode(0o600);
    how
}

fn open_checked(path: &Path, schema: &Schema, options: &Options) -> Result<Connection, OpenError> {
    if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        inspect(path, schema)?;
    } else {
        create(path).map_err(|source| OpenError::Create {
            path: path.to_owned(),
            source,
        })?;
    }
    let opened = open_writer(path, schema, options);
    opened.map_err(|source| sqlite(path, source))
}

/// Creates the empty file; SQLite gives its log and index the same mode.
fn create(path: &Path) -> std::io::Result<()> {
    match private().create_new(true).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The name itself must survive a loss of power too.
    match path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Looks at the file without changing it.
fn inspect(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    let look = || -> rusqlite::Result<(i32, i64, i64)> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let id = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let version = number("PRAGMA user_version")?;
        let objects = number("SELECT count(*) FROM sqlite_schema")?;
        Ok((id, version, objects))
    };
    let (id, version, objects) = look().map_err(|source| sqlite(path, source))?;
    let blank = id == 0 && version == 0 && objects == 0;
    if !blank && id != schema.application_id {
        return Err(OpenError::Foreign {
            path: path.to_owned(),
            name: schema.name,
        });
    }
    if version > schema.version() {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found: version,
            known: schema.version(),
        });
    }
    Ok(())
}

fn open_writer(path: &Path, schema: &Schema, options: &Options) -> rusqlite::Result<Connection> {
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    if std::fs::metadata(path).is_ok_and(|file| file.len() <= CHECKED_SIZE) {
        quick_check(&connection)?;
    }
    // Has an effect only before the first table, and before WAL writes the first page.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match options.durability {
        // In WAL mode the log is written, not synced, at each commit: the kernel has it, so it
        // survives a kill of this process, and the file stays sound through a power cut.
        Durability::Process => "NORMAL",
        // The log is synced at each commit: survives a power cut.
        Durability::Disk => "FULL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // An automatic checkpoint would run inside somebody's commit and cost milliseconds.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    schema.migrate(&mut connection)?;
    for query in options.probes {
        probe(&connection, query)?;
    }
    Ok(connection)
}

/// Runs a query to its end.
fn probe(connection: &Connection, query: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(query)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // Not opened read-only: this connection also runs the checkpoints.
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(connection)
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // A full /tmp must not stop us.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn quick_check(connection: &Connection) -> rusqlite::Result<()> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(corrupt, Some(verdict)))
}

/// Renames the database and its log and index files to a dated name beside it.
fn move_aside(path: &Path) -> Result<PathBuf, OpenError> {
    let date = Timestamp::now().to_string().replace(':', "");
    let aside = sibling(path, &format!(".damaged-{date}"));
    for suffix in ["-wal", "-shm", ""] {
        let from = sibling(path, suffix);
        match std::fs::rename(&from, sibling(&aside, suffix)) {
            Err(error) if suffix.is_empty() || error.kind() != std::io::ErrorKind::NotFound => {
                return Err(OpenError::MoveAside {
                    path: from,
                    source: error,
                });
            }
            _ => {}
        }
    }
    Ok(aside)
}

fn sqlite(path: &Path, source: rusqlite::Error) -> OpenError {
    OpenError::Sqlite {
        path: path.to_owned(),
        source,
    }
}
