//! Permanent erasure: rows, texts in the index, blobs, stored answers. Entries that forks share are
//! retained without a session id until the last of these forks is erased.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_core::port::store::{AuditAction, Result};
use sapwood_core::{Right, Scope, Seq, SessionId, TimestampMs};

use super::audit::write_line;
use super::blob;
use super::connection::StoreConnection;
use super::entry_index;
use super::error::AtPath;
use super::head;
use super::log::{LogRows, key_of, last_key, seq_of};
use super::memories;
use super::search;
use super::session_table::find;
use crate::database::NamedDatabase;
use crate::validate::session_note;

/// Rows processed at a time.
const CHUNK_ROWS: i64 = 1_000;

pub(super) fn erase(
    db: &StoreConnection,
    scope: &Scope,
    session: &SessionId,
    now: TimestampMs,
) -> Result<()> {
    let row = find(db, scope, session, Right::Own)?;
    db.append_cache.evict(row.pk);
    search::delete_with_index(db, |deleted| erase_rows(db, row.pk, deleted))?;
    memories::erase_session(db, scope, session)?;
    head::count_erasure(db)?;
    write_line(db, scope, session_note(AuditAction::Erase, session), now)
}

/// Erases a session's rows except the rows that forks share. Then erases the retained rows of its
/// erased sources that no other fork needs.
fn erase_rows(db: &StoreConnection, pk: i64, deleted: &mut HashSet<i64>) -> Result<()> {
    let mut next = Some(pk);
    while let Some(pk) = next.take() {
        let needed = needed_by_forks(db, pk)?;
        delete_entries(db, pk, &needed, deleted)?;
        for table in ["answers", "leases"] {
            db.execute(&format!("DELETE FROM {table} WHERE session = ?1"), [pk])?;
        }
        let (base, forks) = base_and_fork_count(db, pk)?;
        if forks > 0 {
            let sql = "UPDATE sessions SET id = NULL, parent = NULL, summary = NULL, authority = NULL WHERE pk = ?1";
            db.execute(sql, [pk])?;
            return Ok(());
        }
        db.execute("DELETE FROM sessions WHERE pk = ?1", [pk])?;
        // The source of this session may be erased as well, and retained only for forks.
        next = match base {
            Some(base) if is_erased(db, base)? => Some(base),
            _ => None,
        };
    }
    Ok(())
}

/// Returns the session that this one was forked from, and the number of its own forks.
fn base_and_fork_count(db: &StoreConnection, pk: i64) -> Result<(Option<i64>, i64)> {
    let sql = "SELECT base, (SELECT count(*) FROM sessions WHERE base = ?1) FROM sessions WHERE pk = ?1";
    db.prepare(sql)?.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&db.path)
}

fn is_erased(db: &StoreConnection, pk: i64) -> Result<bool> {
    Ok(db.query_opt("SELECT id IS NULL FROM sessions WHERE pk = ?1", [pk])?.unwrap_or(false))
}

/// Returns the session's own entries that are on the path to a fork point.
fn needed_by_forks(db: &StoreConnection, pk: i64) -> Result<HashSet<Seq>> {
    let points: Vec<u32> = db.query_all("SELECT DISTINCT base_seq FROM sessions WHERE base = ?1", [pk])?;
    let mut needed = HashSet::new();
    let mut log = LogRows::open(db, pk)?;
    let inherited = log.inherited;
    for point in points {
        log.walk(Seq(point), &mut |step| {
            let is_done = step.seq.0 <= inherited || !needed.insert(step.seq);
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(needed)
}

/// Deletes a session's entries and their blobs, except the entries that forks need. Adds the row
/// numbers of the deleted entries to `deleted`.
fn delete_entries(
    db: &StoreConnection,
    pk: i64,
    needed: &HashSet<Seq>,
    deleted: &mut HashSet<i64>,
) -> Result<()> {
    let mut after = key_of(pk, Seq::ZERO);
    loop {
        let sql = "SELECT key, arrival FROM placed WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3";
        let mut select = db.prepare(sql)?;
        let rows: Vec<(i64, i64)> = select
            .query_map([after, last_key(pk), CHUNK_ROWS], |row| Ok((row.get(0)?, row.get(1)?)))
            .and_then(Iterator::collect)
            .at(&db.path)?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        after = *last;
        for (key, arrival) in rows.into_iter().filter(|(key, _)| !needed.contains(&seq_of(*key))) {
            blob::drop_uses(db, key)?;
            let sql = "DELETE FROM entries WHERE arrival = ?1 AND key = ?2";
            if db.execute(sql, [arrival, key])? == 0 {
                let what = "an entry is not at its indexed position; run `sapwood doctor --repair`";
                return Err(db.damaged(what));
            }
            entry_index::remove(db, key)?;
            deleted.insert(arrival);
        }
    }
}
