//! The session in which a caller sees an entry: the session it was written to, or a fork that
//! shares it.

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Record, Right, Scope, Seq};

use super::connection::StoreConnection;
use super::log::{LogRows, int, seq_of};
use super::session_table::by_pk;
use crate::authorize::authorize;

/// The key of an entry's row: the pk of its session, and its seq in that session.
pub(super) type EntryKey = (i64, Seq);

/// Returns the entry as one session sees it: its own entry, or an entry it shares with its source.
pub(super) async fn seen_from(log: &LogRows<'_>, key: EntryKey) -> Result<Option<Record>> {
    if key.0 == log.pk() {
        return log.record(key.1).await;
    }
    let sql = "SELECT depth FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3";
    let row = log.db.query_opt(sql, &[&log.db.tenant.as_str(), &key.0, &int(key.1.0)]).await?;
    match row.and_then(|row| row.get::<_, Option<i32>>(0)).map(seq_of) {
        Some(seq) if seq.0 <= log.inherited() && log.home_of(seq).await? == key => log.record(seq).await,
        _ => Ok(None),
    }
}

/// Returns the entry in a session that the caller may read: the session it was written to, or else
/// a fork that shares it.
pub(super) async fn seen_by(
    db: &StoreConnection,
    scope: &Scope,
    key: EntryKey,
) -> Result<Option<(Summary, Record)>> {
    let mut candidates = vec![key.0];
    while let Some(pk) = candidates.pop() {
        let visible = by_pk(db, pk).await?.filter(|row| authorize(scope, &row.summary, Right::Read).is_ok());
        if let Some(row) = visible {
            let log = LogRows::open(db, pk, row.summary.inherited).await?;
            if let Some(record) = seen_from(&log, key).await? {
                return Ok(Some((row.summary, record)));
            }
        }
        let sql = "SELECT pk FROM sessions WHERE tenant = $1 AND base = $2 AND base IS NOT NULL ORDER BY pk";
        let forks = db.query(sql, &[&db.tenant.as_str(), &pk]).await?;
        candidates.extend(forks.iter().map(|row| row.get::<_, i64>(0)));
    }
    Ok(None)
}
