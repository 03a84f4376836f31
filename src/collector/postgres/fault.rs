//! What can go wrong with PostgreSQL, without a word of what was to be stored.

use crate::identity::web::WebError;
use std::error::Error as _;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// Why PostgreSQL did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("all connections to PostgreSQL are in use, and enough wait for one")]
    Full,
    #[error("PostgreSQL cannot be reached")]
    Away(#[source] Fault),
    /// Nothing was tried: the last try failed a moment ago.
    #[error("PostgreSQL could not be reached a moment ago")]
    Pausing,
    #[error("PostgreSQL did not answer within {0:?}")]
    Silent(Duration),
    #[error("use PostgreSQL")]
    Query(#[from] Fault),
    #[error("others changed the same rows at the same time, again and again")]
    Contended,
    #[error(
        "its schema hermes was written by a newer release (version {found}, this one knows {known}); \
         it is left untouched"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "the database is encoded as {0}, but reports need UTF8: create one with ENCODING 'UTF8'"
    )]
    Encoding(String),
    #[error("a stored {0} cannot be read")]
    Unreadable(&'static str),
    #[error("set up TLS to PostgreSQL")]
    Tls(#[from] WebError),
    #[error("the store is closed")]
    Closed,
}

/// What the client says went wrong. Details of the server are left out: they quote rows.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    code: Option<SqlState>,
    message: String,
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(told) = error.as_db_error() {
            return Self {
                code: Some(told.code().clone()),
                message: format!("{} ({})", told.message(), told.code().code()),
            };
        }
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(of) = cause {
            message = format!("{message}: {of}");
            cause = of.source();
        }
        Self {
            code: None,
            message,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Query(error.into())
    }
}

impl Error {
    /// Says whether the same again may go well: others were in the way.
    pub(super) fn is_race(&self) -> bool {
        let races = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::UNIQUE_VIOLATION,
        ];
        match self {
            Self::Contended => true,
            Self::Query(fault) => fault.code.as_ref().is_some_and(|code| races.contains(code)),
            _ => false,
        }
    }

    /// Says whether a person must change something: waiting alone does not help.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Newer { .. } | Self::Encoding(_) | Self::Tls(_) => true,
            Self::Away(fault) | Self::Query(fault) => fault.code.as_ref().is_some_and(is_refusal),
            _ => false,
        }
    }

    /// Says whether it repeats what was told when the server was lost.
    pub fn is_repeat(&self) -> bool {
        matches!(self, Self::Pausing)
    }

    /// Says whether too much is waiting already.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

fn is_refusal(code: &SqlState) -> bool {
    [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ]
    .contains(code)
}
