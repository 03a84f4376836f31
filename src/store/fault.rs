//! What can go wrong with a database, and what a caller may ask about it.

use rusqlite::ErrorCode;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a database could not be opened; the file on disk is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("prepare the directory {}", path.display())]
    Directory {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("create {}", path.display())]
    Create {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{} is in use by another process; a second copy on one machine needs an \
         application.instance and a STATE_DIRECTORY of its own",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(
        "{} was written by a newer release (version {found}, this one knows {known}); it is left untouched",
        path.display()
    )]
    Newer {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("{} is the database of something else than {name}; it is left untouched", path.display())]
    Foreign { path: PathBuf, name: &'static str },
    #[error("move the damaged {} aside", path.display())]
    MoveAside {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("open the database {}", path.display())]
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
    #[error("count what is in {}", path.display())]
    Unreadable { path: PathBuf, source: StoreError },
    #[error("start the threads of {}", path.display())]
    Thread {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Why a job had no effect.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the queue of the database is full")]
    QueueFull,
    #[error("the database is closed")]
    Closed,
    #[error("use the database")]
    Sqlite(#[source] Arc<rusqlite::Error>),
}

/// The few kinds of failure that callers tell apart; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    QueueFull,
    Closed,
    Busy,
    DiskFull,
    Io,
    Corrupt,
    ReadOnly,
    Other,
}

impl FaultKind {
    /// All kinds, so that every label value can start at zero.
    pub const ALL: [FaultKind; 8] = [
        FaultKind::QueueFull,
        FaultKind::Closed,
        FaultKind::Busy,
        FaultKind::DiskFull,
        FaultKind::Io,
        FaultKind::Corrupt,
        FaultKind::ReadOnly,
        FaultKind::Other,
    ];

    /// Returns the label value.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::QueueFull => "queue_full",
            FaultKind::Closed => "closed",
            FaultKind::Busy => "busy",
            FaultKind::DiskFull => "disk_full",
            FaultKind::Io => "io",
            FaultKind::Corrupt => "corrupt",
            FaultKind::ReadOnly => "read_only",
            FaultKind::Other => "other",
        }
    }
}

impl StoreError {
    /// Tells which kind of failure this is.
    pub fn kind(&self) -> FaultKind {
        match self {
            StoreError::QueueFull => FaultKind::QueueFull,
            StoreError::Closed => FaultKind::Closed,
            StoreError::Sqlite(error) => sqlite_kind(error),
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::Sqlite(Arc::new(error))
    }
}

/// Says whether the file itself is at fault, so that a fresh one would work.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    sqlite_kind(error) == FaultKind::Corrupt
}

fn sqlite_kind(error: &rusqlite::Error) -> FaultKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FaultKind::Busy,
        Some(ErrorCode::DiskFull) => FaultKind::DiskFull,
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => FaultKind::Io,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => FaultKind::Corrupt,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => FaultKind::ReadOnly,
        _ => FaultKind::Other,
    }
}
