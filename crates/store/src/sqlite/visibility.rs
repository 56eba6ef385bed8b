//! The session in which a caller sees an entry: the session it was written to, or a fork that
//! shares it.

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Record, Right, Scope, Seq};

use super::connection::StoreConnection;
use super::log::{LogRows, pk_of, seq_of};
use crate::authorize::authorize;
use crate::database::session::read_summary;

/// Returns the entry in the numbering of one session: its own entry, or an entry that it shares
/// with its source. Returns `None` if the session does not contain the entry.
pub(super) fn read_in_session(log: &mut LogRows<'_>, key: i64) -> Result<Option<Record>> {
    if pk_of(key) == log.pk {
        return log.record(seq_of(key));
    }
    let depth: Option<Option<u32>> = log.db.query_opt("SELECT depth FROM log WHERE key = ?1", [key])?;
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
        let forks: Vec<i64> = db.query_all("SELECT pk FROM sessions WHERE base = ?1", [pk])?;
        candidates.extend(forks);
    }
    Ok(None)
}

/// Returns `None` for an erased session that is only kept for its forks.
fn summary_of(db: &StoreConnection, pk: i64) -> Result<Option<Summary>> {
    let json: Option<String> = db.query_value("SELECT summary FROM sessions WHERE pk = ?1", [pk])?;
    json.map(|json| read_summary(db, &json)).transpose()
}
