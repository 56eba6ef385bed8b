//! Permanently erases a session: its rows, its texts in the search index, its blobs, and its stored
//! answers. Entries that forks share are retained, under a row without a session id, until the last
//! of these forks is erased.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_core::port::store::{AuditAction, Result};
use sapwood_core::{Right, Scope, Seq, SessionId, TimestampMs};

use super::audit::write_line;
use super::blob;
use super::connection::StoreConnection;
use super::log::{LogRows, int, seq_of};
use super::memories;
use super::session_table::{RowLock, find};
use crate::validate::session_note;

/// Rows processed at a time.
const CHUNK_ROWS: i64 = 2_000;

pub(super) async fn erase(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    now: TimestampMs,
) -> Result<()> {
    let row = find(db, scope, session, Right::Own, RowLock::Yes).await?;
    erase_rows(db, row.pk).await?;
    memories::erase_session(db, session).await?;
    write_line(db, scope, session_note(AuditAction::Erase, session), now).await
}

/// Deletes a session's rows, except entries that forks share. If the session is a fork of an erased
/// session, also deletes the retained rows of that session that no other fork needs.
async fn erase_rows(db: &StoreConnection, pk: i64) -> Result<()> {
    let tenant = db.tenant.as_str();
    let mut next = Some(pk);
    while let Some(pk) = next.take() {
        let needed = needed_by_forks(db, pk).await?;
        delete_entries(db, pk, &needed).await?;
        db.execute("DELETE FROM answers WHERE tenant = $1 AND session = $2", &[&tenant, &pk]).await?;
        let sql = "SELECT base, (SELECT count(*) FROM sessions f WHERE f.tenant = $1 AND f.base = $2 AND f.base IS NOT NULL)
                   FROM sessions WHERE tenant = $1 AND pk = $2";
        let row = db.query_one(sql, &[&tenant, &pk]).await?;
        let (base, forks): (Option<i64>, i64) = (row.get(0), row.get(1));
        if forks > 0 {
            let sql = "UPDATE sessions SET version = version + 1, id = NULL, parent = NULL, summary = NULL, behind = false, is_open = false,
                              lease_holder = NULL, authority = NULL
                       WHERE tenant = $1 AND pk = $2";
            db.execute(sql, &[&tenant, &pk]).await?;
            return Ok(());
        }
        db.execute("DELETE FROM sessions WHERE tenant = $1 AND pk = $2", &[&tenant, &pk]).await?;
        // The source may be an erased session whose rows are retained only for forks.
        if let Some(base) = base {
            let sql = "SELECT 1 FROM sessions WHERE tenant = $1 AND pk = $2 AND id IS NULL FOR UPDATE";
            next = db.query_opt(sql, &[&tenant, &base]).await?.map(|_| base);
        }
    }
    Ok(())
}

/// Returns the session's own entries that are on the path to a fork point.
async fn needed_by_forks(db: &StoreConnection, pk: i64) -> Result<HashSet<Seq>> {
    let sql = "SELECT DISTINCT base_seq FROM sessions WHERE tenant = $1 AND base = $2 AND base IS NOT NULL";
    let points = db.query(sql, &[&db.tenant.as_str(), &pk]).await?;
    let mut needed = HashSet::new();
    let sql = "SELECT inherited FROM sessions WHERE tenant = $1 AND pk = $2";
    let inherited = seq_of(db.query_one(sql, &[&db.tenant.as_str(), &pk]).await?.get(0)).0;
    let log = LogRows::open(db, pk, inherited).await?;
    for point in points {
        log.walk(seq_of(point.get(0)), &mut |step| {
            let is_known = step.meta.seq.0 <= inherited || !needed.insert(step.meta.seq);
            Ok(if is_known { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .await?;
    }
    Ok(needed)
}

/// Deletes a session's entries, their texts and their blobs, except those that forks need.
async fn delete_entries(db: &StoreConnection, pk: i64, needed: &HashSet<Seq>) -> Result<()> {
    let tenant = db.tenant.as_str();
    let mut after = 0;
    loop {
        let sql =
            "SELECT seq FROM entries WHERE tenant = $1 AND session = $2 AND seq > $3 ORDER BY seq LIMIT $4";
        let rows = db.query(sql, &[&tenant, &pk, &after, &CHUNK_ROWS]).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.get(0);
        let gone: Vec<Seq> =
            rows.iter().map(|row| seq_of(row.get(0))).filter(|seq| !needed.contains(seq)).collect();
        blob::drop_uses(db, pk, &gone).await?;
        let seqs: Vec<i32> = gone.iter().map(|seq| int(seq.0)).collect();
        for table in ["texts", "entries"] {
            let sql = format!("DELETE FROM {table} WHERE tenant = $1 AND session = $2 AND seq = ANY ($3)");
            db.execute(&sql, &[&tenant, &pk, &seqs]).await?;
        }
    }
}
