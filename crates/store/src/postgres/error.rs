//! Converts PostgreSQL errors to store errors with the server's address, and decides whether a
//! retry may help.

use std::error::Error as _;
use std::time::{Duration, Instant};

use deadpool_postgres::PoolError;
use sapwood_core::StoreError;
use tokio_postgres::error::SqlState;

/// How long an operation is retried while the server is unreachable, for example during a restart
/// or a failover.
pub(super) const RETRY_TIME_MAX: Duration = Duration::from_secs(15);
/// The first backoff delay. Each delay is twice the previous delay, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How often a transaction is retried after a conflict with another transaction.
const CONFLICTS_MAX: u32 = 20;

pub(super) fn translate(error: &tokio_postgres::Error, place: &str) -> StoreError {
    let place = place.to_owned();
    if let Some(refused) = tls_refusal(error) {
        return StoreError::Untrusted { place, why: refused.to_string() };
    }
    let Some(db) = error.as_db_error() else {
        let why = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        let is_io = error.source().is_some_and(|source| source.is::<std::io::Error>());
        return match is_io || error.is_closed() {
            true => StoreError::Unreachable { place, why },
            false => StoreError::Backend { place, what: why },
        };
    };
    let what = format!("{} ({})", db.message(), db.code().code());
    match db.code() {
        &SqlState::ADMIN_SHUTDOWN
        | &SqlState::CRASH_SHUTDOWN
        | &SqlState::CANNOT_CONNECT_NOW
        | &SqlState::TOO_MANY_CONNECTIONS
        | &SqlState::CONNECTION_FAILURE
        | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => StoreError::Unreachable { place, why: what },
        &SqlState::T_R_SERIALIZATION_FAILURE
        | &SqlState::T_R_DEADLOCK_DETECTED
        | &SqlState::LOCK_NOT_AVAILABLE
        | &SqlState::FOREIGN_KEY_VIOLATION
        | &SqlState::UNIQUE_VIOLATION => StoreError::Busy { place, waited_ms: 0 },
        &SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::ReadOnly { place, why: what },
        &SqlState::DISK_FULL => StoreError::DiskFull { place },
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => StoreError::Damaged { place, what },
        _ => StoreError::Backend { place, what },
    }
}

/// Returns the error of a failed TLS handshake. The client library wraps it in a socket error.
fn tls_refusal(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let socket = error.source()?.downcast_ref::<std::io::Error>()?;
    socket.get_ref()?.downcast_ref::<rustls::Error>()
}

pub(super) fn translate_pool(error: &PoolError, place: &str) -> StoreError {
    match error {
        PoolError::Backend(error) => translate(error, place),
        other => StoreError::Unreachable { place: place.to_owned(), why: other.to_string() },
    }
}

/// The retry budget of one operation.
pub(super) struct RetryBudget {
    until: Instant,
    pause: Duration,
    conflicts: u32,
}

impl RetryBudget {
    pub fn new() -> Self {
        Self { until: Instant::now() + RETRY_TIME_MAX, pause: PAUSE_FIRST, conflicts: 0 }
    }

    /// Waits before the next retry. Returns the error if a retry cannot help.
    pub async fn wait_for_retry(&mut self, error: StoreError) -> Result<(), StoreError> {
        match &error {
            StoreError::Unreachable { .. } if Instant::now() < self.until => {}
            StoreError::Busy { .. } if self.conflicts < CONFLICTS_MAX => self.conflicts += 1,
            _ => return Err(error),
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}
