//! What a database file is and how older ones become it.

use rusqlite::{Connection, TransactionBehavior};

/// The tables of one kind of file, as an append-only list of steps.
///
/// Step `n` leads from `user_version` n to n + 1. A step that was released is never edited.
#[derive(Debug)]
pub struct Schema {
    /// What the file is called in messages.
    pub name: &'static str,
    /// Marks the file as ours and as of this kind; never zero.
    pub application_id: i32,
    pub migrations: &'static [&'static str],
}

impl Schema {
    /// Returns the `user_version` of a file that is up to date.
    pub(super) fn version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }

    /// Brings the file up to date in one transaction; a crash leaves it as it was.
    pub(super) fn migrate(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let present: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if present >= self.version() {
            return Ok(());
        }
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = usize::try_from(present).unwrap_or(0);
        for migration in &self.migrations[done..] {
            step.execute_batch(migration)?;
        }
        step.pragma_update(None, "application_id", self.application_id)?;
        step.pragma_update(None, "user_version", self.version())?;
        step.commit()
    }
}
