//! A pool of read connections. Work runs on the caller's own thread, on one consistent snapshot.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use sapwood_core::port::store::Result;

use super::connection::{Mode, StoreConnection};
use super::writer::blocking;
use crate::Key;

/// Maximum number of idle connections that are kept open.
const IDLE_MAX: usize = 8;

pub(super) struct Readers {
    idle: Mutex<Vec<StoreConnection>>,
    mode: Mode,
    path: PathBuf,
    key: Option<Key>,
}

impl Readers {
    pub fn new(mode: Mode, path: PathBuf, key: Option<Key>) -> Self {
        Self { idle: Mutex::default(), mode, path, key }
    }

    pub fn read<T>(&self, work: impl FnOnce(&StoreConnection) -> Result<T>) -> Result<T> {
        blocking(|| self.with_connection(|db| in_snapshot(db, work)))
    }

    /// Runs `work` on a connection without a transaction and without `block_in_place`. Use it for a
    /// single small statement, which reads a consistent snapshot and takes less time than
    /// `block_in_place`.
    pub fn with_connection<T>(&self, work: impl FnOnce(&StoreConnection) -> Result<T>) -> Result<T> {
        let db = self.take()?;
        let outcome = work(&db);
        self.give_back(db);
        outcome
    }

    fn take(&self) -> Result<StoreConnection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(db) => Ok(db),
            None => StoreConnection::open(&self.path, self.mode, self.key.as_ref()),
        }
    }

    fn give_back(&self, db: StoreConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(db);
        }
    }
}

pub(super) fn in_snapshot<T>(
    db: &StoreConnection,
    work: impl FnOnce(&StoreConnection) -> Result<T>,
) -> Result<T> {
    db.execute("BEGIN", [])?;
    let outcome = work(db);
    match outcome {
        Ok(done) => db.execute("COMMIT", []).map(|_| done),
        Err(error) => {
            // SQLite has already ended the transaction if a page was damaged.
            let _ = db.conn.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}
