//! The tables, in a schema of their own so that others may share the database.
//!
//! - migrations are an append-only list; under a lock, so that of collectors that start together
//!   one applies them and the others find them applied
//! - names are compared byte by byte (`COLLATE "C"`), whatever the database's language is

use super::fault::Error;
use tokio_postgres::Client;

/// Taken while migrations are applied: "HeCo" and "mig".
const LOCK: i64 = 0x4865_436F_006D_6967;

// Asked of the catalogue's rows: `to_regclass` and its like answer from what the session remembers,
// and waiting for the lock does not tell it what another collector has made meanwhile.
const SCHEMA: &str = "
    SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'hermes')";
const VERSIONS: &str = "
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS of ON of.oid = relnamespace
        WHERE nspname = 'hermes' AND relname = 'versions'
    )";

const MIGRATIONS: &[&str] = &[
    r#"
    CREATE TABLE hermes.reports (
        call_id  text COLLATE "C" NOT NULL,
        attempt  bigint           NOT NULL,
        voice    text COLLATE "C" NOT NULL, -- who says it as what
        state    text COLLATE "C" NOT NULL,
        seen     bigint           NOT NULL, -- a bit per state that this voice has told
        detail   text COLLATE "C",
        body     text COLLATE "C" NOT NULL,
        PRIMARY KEY (call_id, attempt, voice)
    );
    CREATE TABLE hermes.conflicts (
        call_id  text COLLATE "C" NOT NULL,
        attempt  bigint           NOT NULL,
        voice    text COLLATE "C" NOT NULL,
        state    text COLLATE "C" NOT NULL,
        at       bigint           NOT NULL,
        body     text COLLATE "C" NOT NULL,
        PRIMARY KEY (call_id, attempt, voice, state)
    );
    CREATE TABLE hermes.calls (
        call_id     text COLLATE "C" PRIMARY KEY,
        task_id     text COLLATE "C" NOT NULL,
        state       text COLLATE "C" NOT NULL,
        started_at  bigint           NOT NULL,
        ended_at    bigint,
        deadline_at bigint           NOT NULL,
        is_root     boolean          NOT NULL, -- whether no step made this call
        by_sidecar  boolean          NOT NULL,
        agent       text COLLATE "C" NOT NULL,
        application text COLLATE "C" NOT NULL,
        sla_level   text COLLATE "C" NOT NULL,
        breaks      bigint           NOT NULL,
        marked      boolean          NOT NULL -- whether nobody but the watchdog has told of the end
    );
    CREATE INDEX calls_of_task ON hermes.calls (task_id, started_at, call_id);
    CREATE INDEX calls_open ON hermes.calls (task_id, by_sidecar, started_at, call_id)
        WHERE ended_at IS NULL;
    CREATE INDEX calls_roots ON hermes.calls (task_id, started_at, call_id) WHERE is_root;
    CREATE INDEX calls_due ON hermes.calls (deadline_at) WHERE ended_at IS NULL;
    CREATE INDEX calls_marked ON hermes.calls (call_id) WHERE marked;
    CREATE TABLE hermes.tasks (
        task_id     text COLLATE "C" PRIMARY KEY,
        state       text COLLATE "C" NOT NULL,
        agent       text COLLATE "C" NOT NULL,
        application text COLLATE "C" NOT NULL,
        sla_level   text COLLATE "C" NOT NULL,
        degraded    boolean          NOT NULL,
        started_at  bigint           NOT NULL,
        ended_at    bigint,          -- null while a call is open
        latest_end  bigint           NOT NULL
    );
    CREATE INDEX tasks_by_start ON hermes.tasks (started_at, task_id);
"#,
    r#"
    CREATE INDEX calls_ended ON hermes.calls (task_id, by_sidecar, ended_at)
        WHERE ended_at IS NOT NULL;
    ALTER TABLE hermes.tasks DROP COLUMN latest_end;
"#,
    r#"
    DROP INDEX hermes.calls_marked;
    CREATE INDEX calls_marked_at ON hermes.calls (ended_at) WHERE marked;
"#,
];

/// Sees to it that a fresh connection finds the tables as this release knows them.
pub(super) async fn prepare(client: &Client) -> Result<(), Error> {
    let encoding = client.query_one("SHOW server_encoding", &[]).await?;
    let encoding: String = encoding.try_get(0)?;
    if encoding != "UTF8" {
        return Err(Error::Encoding(encoding));
    }
    if version(client).await? != Some(known()) {
        migrate(client).await?;
    }
    Ok(())
}

fn known() -> i32 {
    MIGRATIONS.len() as i32
}

/// Applies what is missing; dropped half-way, nothing of it stays.
async fn migrate(client: &Client) -> Result<(), Error> {
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})");
    client.batch_execute(&lock).await?;
    // Whoever had the lock before may have done it all.
    let found = version(client).await?.unwrap_or(0);
    let known = known();
    if found > known {
        return Err(Error::Newer { found, known });
    }
    if found == 0 {
        create(client).await?;
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(found.max(0) as usize) {
        client.batch_execute(migration).await?;
        let noted = format!("INSERT INTO hermes.versions (version) VALUES ({number})");
        client.batch_execute(&noted).await?;
        tracing::info!(
            version = number,
            "the schema in PostgreSQL was brought up to date"
        );
    }
    client.batch_execute("COMMIT").await?;
    Ok(())
}

/// Makes the schema, unless its owner has: the right to do so may be theirs alone.
async fn create(client: &Client) -> Result<(), Error> {
    if !has(client, SCHEMA).await? {
        client.batch_execute("CREATE SCHEMA hermes").await?;
    }
    let versions = "CREATE TABLE IF NOT EXISTS hermes.versions (
                        version    integer     PRIMARY KEY,
                        applied_at timestamptz NOT NULL DEFAULT now()
                    )";
    Ok(client.batch_execute(versions).await?)
}

/// Reads how far the tables have been brought; nothing where there are none.
async fn version(client: &Client) -> Result<Option<i32>, Error> {
    if !has(client, VERSIONS).await? {
        return Ok(None);
    }
    let newest = "SELECT max(version) FROM hermes.versions";
    Ok(client.query_one(newest, &[]).await?.try_get(0)?)
}

async fn has(client: &Client, query: &str) -> Result<bool, Error> {
    Ok(client.query_one(query, &[]).await?.try_get(0)?)
}
