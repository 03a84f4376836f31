//! A few connections to PostgreSQL, made when they are needed.
//!
//! - a lease that is not given back closes its connection: whatever was half done is undone there
//! - after a failed try nobody tries again for a moment, so that requests are answered at once
//! - what is known of the server (schema, settings) is checked on every new connection

use super::address::Address;
use super::fault::Error;
use super::schema;
use super::tls::Tls;
use crate::backoff::Backoff;
use crate::telemetry::log::Chain;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, Statement, Transaction};
use tokio_util::task::TaskTracker;

/// Connections at the same time; PostgreSQL has 100 for everybody by default.
const MOST: usize = 8;
/// Requests that may wait for one.
const MOST_WAITING: usize = 256;
const WAIT: Duration = Duration::from_secs(5);
/// For one connection, from the look-up of its name to its tables.
const CONNECT: Duration = Duration::from_secs(5);
const LEAST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// For the last connections to end.
const CLOSE: Duration = Duration::from_secs(2);

/// What holds for each session, whatever the server's or the role's defaults are. A commit is on
/// disk when it is confirmed; one that waits for a standby to apply it, too, is stronger still.
const SESSION: &str = "
    SET statement_timeout = '8s';
    SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '30s';
    SET default_transaction_isolation = 'read committed';
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') <> 'remote_apply'";

/// All connections; closed once.
pub(super) struct Pool {
    config: Config,
    tls: Option<Tls>,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    idle: Mutex<Vec<Connected>>,
    trouble: Mutex<Trouble>,
    is_away: AtomicBool,
    connections: TaskTracker,
}

/// One connection and the statements prepared on it; dropped, it is cut, whatever it waits for.
struct Connected {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    driver: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What the last tries to connect came to.
struct Trouble {
    backoff: Backoff,
    until: Option<Instant>,
}

/// The use of one connection.
pub(super) struct Lease {
    pool: Arc<Pool>,
    connected: Connected,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(super) fn new(address: &Address) -> Result<Self, Error> {
        let mut config = address.config.clone();
        config.connect_timeout(CONNECT);
        config.keepalives_idle(Duration::from_secs(30));
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(Tls::new(address.authorities.as_deref())?),
        };
        Ok(Self {
            config,
            tls,
            permits: Arc::new(Semaphore::new(MOST)),
            waiting: AtomicUsize::new(0),
            idle: Mutex::default(),
            trouble: Mutex::new(Trouble {
                backoff: Backoff::new(LEAST_PAUSE, LONGEST_PAUSE),
                until: None,
            }),
            is_away: AtomicBool::new(false),
            connections: TaskTracker::new(),
        })
    }

    /// Takes a connection, a new one if no other is idle.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, Error> {
        let permit = self.permit().await?;
        let idle = loop {
            match self.idle().pop() {
                Some(idle) if idle.client.is_closed() => continue,
                idle => break idle,
            }
        };
        let connected = match idle {
            Some(idle) => idle,
            None => self.connect().await?,
        };
        Ok(Lease {
            pool: self.clone(),
            connected,
            _permit: permit,
        })
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = Waiting::enter(&self.waiting).ok_or(Error::Full)?;
        let permit = timeout(WAIT, self.permits.clone().acquire_owned()).await;
        drop(waiting);
        permit.or(Err(Error::Full))?.or(Err(Error::Closed))
    }

    async fn connect(&self) -> Result<Connected, Error> {
        if self
            .trouble()
            .until
            .is_some_and(|until| until > Instant::now())
        {
            return Err(Error::Pausing);
        }
        let made = timeout(CONNECT, self.open()).await;
        let made = made.unwrap_or(Err(Error::Silent(CONNECT)));
        match &made {
            Ok(_) => self.came_back(),
            Err(error) => self.went_away(error),
        }
        made
    }

    async fn open(&self) -> Result<Connected, Error> {
        let away = |error: tokio_postgres::Error| Error::Away(error.into());
        let (client, driver) = match &self.tls {
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(away)?;
                (client, self.connections.spawn(driven(connection)))
            }
            Some(tls) => {
                let connecting = self.config.connect(tls.clone());
                let (client, connection) = connecting.await.map_err(away)?;
                (client, self.connections.spawn(driven(connection)))
            }
        };
        let connected = Connected {
            client,
            statements: HashMap::new(),
            driver: driver.abort_handle(),
        };
        connected.client.batch_execute(SESSION).await?;
        schema::prepare(&connected.client).await?;
        Ok(connected)
    }

    fn came_back(&self) {
        let mut trouble = self.trouble();
        trouble.backoff.reset();
        trouble.until = None;
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!("PostgreSQL is back");
        }
    }

    fn went_away(&self, error: &Error) {
        let mut trouble = self.trouble();
        // Never at once, however the dice fall.
        let pause = LEAST_PAUSE + trouble.backoff.next_wait();
        trouble.until = Some(Instant::now() + pause);
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::error!(
                error = %Chain(error),
                "PostgreSQL cannot be used; it is tried again until it can, and reports wait \
                 at their senders"
            );
        }
    }

    /// Says whether the last try to connect failed.
    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Cuts what is idle and refuses whoever comes now.
    pub(super) async fn close(&self) {
        self.permits.close();
        self.idle().clear();
        self.connections.close();
        timeout(CLOSE, self.connections.wait()).await.ok();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connected>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(super) fn client(&self) -> &Client {
        &self.connected.client
    }

    /// Begins a transaction; dropped before its commit, it is undone.
    pub(super) async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        Ok(self.connected.client.transaction().await?)
    }

    /// Returns a statement, prepared once per connection.
    pub(super) async fn prepared(&mut self, sql: &'static str) -> Result<Statement, Error> {
        if let Some(statement) = self.connected.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.connected.client.prepare(sql).await?;
        self.connected.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    /// Lets others use the connection, which no transaction is open on.
    pub(super) fn give_back(self) {
        self.pool.idle().push(self.connected);
    }
}

/// Carries a connection on until its client is dropped or the server is gone; whoever uses it then
/// is told by the client.
async fn driven(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    connection.await.ok();
}

/// A place among those who wait.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicUsize) -> Option<Self> {
        let place = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < MOST_WAITING).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
