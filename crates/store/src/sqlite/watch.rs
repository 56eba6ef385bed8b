//! Detects writes by any process to wake followers, and reads the heads of logs.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::Result;
use sapwood_core::scope::Reach;
use sapwood_core::{Right, Scope, Seq, SessionId, StoreError};

use super::connection::{Mode, StoreConnection};
use super::error::AtPath;
use super::session_table::find;
use super::writer::blocking;
use crate::Key;

/// A connection that only checks whether other connections have written. SQLite's data version is
/// only comparable within one connection, so the watcher always uses the same one.
pub(super) struct Watcher {
    db: Mutex<Option<StoreConnection>>,
    path: PathBuf,
    key: Option<Key>,
}

impl Watcher {
    pub fn new(path: PathBuf, key: Option<Key>) -> Self {
        Self { db: Mutex::default(), path, key }
    }

    pub fn change_mark(&self) -> Result<u64> {
        blocking(|| {
            let mut held = self.db.lock().unwrap_or_else(PoisonError::into_inner);
            let db = match held.take() {
                Some(db) => db,
                None => StoreConnection::open(&self.path, Mode::Read, self.key.as_ref())?,
            };
            let version: i64 = db.query_value("PRAGMA data_version", [])?;
            *held = Some(db);
            Ok(version.unsigned_abs())
        })
    }
}

/// Selects the head of a session. Selects and orders by the key itself, because only then does
/// SQLite use a lookup in both halves of the view.
pub(super) const HEAD: &str = "
    SELECT COALESCE((SELECT key FROM placed
                     WHERE key BETWEEN (s.pk << 32) AND ((s.pk << 32) | 4294967295)
                     ORDER BY key DESC LIMIT 1) & 4294967295, s.inherited)
    FROM sessions s WHERE s.tenant = ?1 AND s.id = ?2";

/// Returns the heads of logs. For operators, reads only the key of each last entry instead of the
/// summary.
pub(super) fn heads(db: &StoreConnection, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
    if scope.reach != Reach::Tenant {
        return sessions.iter().map(|session| head_of_visible(db, scope, session)).collect();
    }
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(vec![None; sessions.len()]) };
    let mut select = db.prepare(HEAD)?;
    let mut heads = Vec::with_capacity(sessions.len());
    for session in sessions {
        let head = select.query_row(params![tenant, session.as_str()], |row| row.get::<_, u32>(0));
        heads.push(head.optional().at(&db.path)?.map(Seq));
    }
    Ok(heads)
}

fn head_of_visible(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Option<Seq>> {
    match find(db, scope, session, Right::Read) {
        Ok(row) => Ok(Some(row.summary.head.seq)),
        Err(StoreError::NoSession { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
