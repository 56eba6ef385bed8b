//! Erasing for good: rows, texts in the index, blobs, kept answers. What forks share stays, without a name; when the last
//! of them goes, it goes too.

use std::collections::HashSet;
use std::ops::ControlFlow;

use rusqlite::OptionalExtension;
use sapwood_core::port::store::{AuditAction, AuditNote, Result};
use sapwood_core::{Right, Scope, Seq, SessionId, TimestampMs};

use super::audit::write_line;
use super::blob;
use super::desk::Desk;
use super::fault::Fault;
use super::log::{LogRows, key_of, last_key, seq_of};
use super::memories;
use super::places;
use super::search;
use super::session::find;

/// Rows looked at in one go.
const CHUNK_ROWS: i64 = 1_000;

pub(super) fn erase(desk: &Desk, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()> {
    let row = find(desk, scope, session, Right::Own)?;
    desk.hot.forget(row.pk);
    search::really_forgetting(desk, |gone| erase_rows(desk, row.pk, gone))?;
    memories::erase_session(desk, scope, session)?;
    let note = AuditNote { action: AuditAction::Erase, session: Some(session.clone()), detail: None };
    write_line(desk, scope, note, now)
}

/// Erases a session's rows but for those its forks share, then what only it kept alive.
fn erase_rows(desk: &Desk, pk: i64, gone: &mut HashSet<i64>) -> Result<()> {
    let mut next = Some(pk);
    while let Some(pk) = next.take() {
        let needed = needed_by_forks(desk, pk)?;
        delete_entries(desk, pk, &needed, gone)?;
        for table in ["answers", "leases"] {
            desk.prepare(&format!("DELETE FROM {table} WHERE session = ?1"))?.execute([pk]).at(&desk.path)?;
        }
        let (base, forks) = neighbours(desk, pk)?;
        if forks > 0 {
            let sql = "UPDATE sessions SET id = NULL, parent = NULL, summary = NULL, authority = NULL WHERE pk = ?1";
            desk.prepare(sql)?.execute([pk]).at(&desk.path)?;
            return Ok(());
        }
        desk.prepare("DELETE FROM sessions WHERE pk = ?1")?.execute([pk]).at(&desk.path)?;
        // The session it was forked from may itself be erased already, and have stayed only for this one.
        next = match base {
            Some(base) if is_nameless(desk, base)? => Some(base),
            _ => None,
        };
    }
    Ok(())
}

/// The session this one was forked from, and how many were forked from it.
fn neighbours(desk: &Desk, pk: i64) -> Result<(Option<i64>, i64)> {
    let sql = "SELECT base, (SELECT count(*) FROM sessions WHERE base = ?1) FROM sessions WHERE pk = ?1";
    desk.prepare(sql)?.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?))).at(&desk.path)
}

fn is_nameless(desk: &Desk, pk: i64) -> Result<bool> {
    let mut select = desk.prepare("SELECT id IS NULL FROM sessions WHERE pk = ?1")?;
    Ok(select.query_row([pk], |row| row.get(0)).optional().at(&desk.path)?.unwrap_or(false))
}

/// The session's own entries that lie on the path to a fork point.
fn needed_by_forks(desk: &Desk, pk: i64) -> Result<HashSet<Seq>> {
    let mut select = desk.prepare("SELECT DISTINCT base_seq FROM sessions WHERE base = ?1")?;
    let points: Vec<u32> =
        select.query_map([pk], |row| row.get(0)).and_then(Iterator::collect).at(&desk.path)?;
    let mut needed = HashSet::new();
    let mut log = LogRows::open(desk, pk)?;
    let inherited = log.inherited;
    for point in points {
        log.walk(Seq(point), &mut |step| {
            let known = step.seq.0 <= inherited || !needed.insert(step.seq);
            Ok(if known { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(needed)
}

/// Deletes a session's entries and their blobs, but for what is needed, and says which are gone.
fn delete_entries(desk: &Desk, pk: i64, needed: &HashSet<Seq>, gone: &mut HashSet<i64>) -> Result<()> {
    let mut after = key_of(pk, Seq::ZERO);
    loop {
        let sql = "SELECT key, arrival FROM placed WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3";
        let mut select = desk.prepare(sql)?;
        let rows: Vec<(i64, i64)> = select
            .query_map([after, last_key(pk), CHUNK_ROWS], |row| Ok((row.get(0)?, row.get(1)?)))
            .and_then(Iterator::collect)
            .at(&desk.path)?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        after = *last;
        for (key, arrival) in rows.into_iter().filter(|(key, _)| !needed.contains(&seq_of(*key))) {
            blob::drop_uses(desk, key)?;
            let sql = "DELETE FROM entries WHERE arrival = ?1 AND key = ?2";
            if desk.prepare(sql)?.execute([arrival, key]).at(&desk.path)? == 0 {
                let what = "an entry is not where its place says; sapwood doctor --repair puts it right";
                return Err(desk.damaged(what.to_owned()));
            }
            places::forget(desk, key)?;
            gone.insert(arrival);
        }
    }
}
