//! The session in which a caller sees an entry: the session it was written to, or a fork that
//! shares it.

use rusqlite::OptionalExtension;
use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Record, Right, Scope, Seq};

use super::connection::StoreConnection;
use super::error::AtPath;
use super::log::{LogRows, pk_of, seq_of};
use super::session::read_summary;
use crate::authorize::authorize;

/// Returns the entry in the numbering of one session: its own entry, or an entry that it shares
/// with its source. Returns `None` if the session does not contain the entry.
pub(super) fn read_in_session(log: &mut LogRows<'_>, key: i64) -> Result<Option<Record>> {
    if pk_of(key) == log.pk {
        return log.record(seq_of(key));
    }
    let mut select = log.db.prepare("SELECT depth FROM log WHERE key = ?1")?;
    let depth: Option<Option<u32>> = select.query_row([key], |row| row.get(0)).optional().at(&log.db.path)?;
    match depth.flatten().map(Seq) {
        Some(seq) if seq.0 <= log.inherited && log.locate(seq)? == (pk_of(key), seq_of(key)) => {
            log.record(seq)
        }
        _ => Ok(None),
    }
}

/// Returns the entry in a session that the caller may read: the session it was written to, or else
/// a fork that shares it.
pub(super) fn read_visible(
    db: &StoreConnection,
    scope: &Scope,
    key: i64,
) -> Result<Option<(Summary, Record)>> {
    let mut candidates = vec![pk_of(key)];
    while let Some(pk) = candidates.pop() {
        let visible = summary_of(db, pk)?.filter(|summary| authorize(scope, summary, Right::Read).is_ok());
        let record = match visible {
            Some(_) => read_in_session(&mut LogRows::open(db, pk)?, key)?,
            None => None,
        };
        if let Some(found) = visible.zip(record) {
            return Ok(Some(found));
        }
        let mut select = db.prepare("SELECT pk FROM sessions WHERE base = ?1")?;
        let forks: Vec<i64> =
            select.query_map([pk], |row| row.get(0)).and_then(Iterator::collect).at(&db.path)?;
        candidates.extend(forks);
    }
    Ok(None)
}

/// Returns `None` for an erased session that is only kept for its forks.
fn summary_of(db: &StoreConnection, pk: i64) -> Result<Option<Summary>> {
    let mut select = db.prepare("SELECT summary FROM sessions WHERE pk = ?1")?;
    let json: Option<String> = select.query_row([pk], |row| row.get(0)).at(&db.path)?;
    json.map(|json| read_summary(db, &json)).transpose()
}
