//! What only the store can see: the file's pages, the links of each entry, the search index. Derived rows can be rebuilt.

use std::collections::HashMap;

use rusqlite::params;
use rusqlite::types::ValueRef;
use sapwood_core::port::store::{Finding, Repair, Result};
use sapwood_core::tree::Lookup;
use sapwood_core::{Kind, Scope, Seq};

use super::desk::{Desk, has_wal};
use super::fault::Fault;
use super::log::{LogRows, key_of, last_key, seq_of};
use super::{blob, index, places, search, session};

/// Most findings of one kind: the first few tell what is wrong.
const FINDINGS_MAX: usize = 20;

pub(super) fn check(desk: &Desk, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = check_pages(desk)?;
    findings.extend(check_places(desk, repair)?);
    findings.extend(check_links(desk, scope, repair)?);
    findings.extend(check_index(desk, scope, repair)?);
    findings.extend(session::check_summaries(desk, scope, repair)?);
    let damaged = blob::find_damaged(desk, scope)?.into_iter().take(FINDINGS_MAX);
    findings.extend(damaged.map(|what| finding(desk, "blobs", what, Repair::No)));
    Ok(findings)
}

fn finding(desk: &Desk, rule: &'static str, what: String, repair: Repair) -> Finding {
    Finding { rule, place: desk.path.display().to_string(), what, repaired: repair == Repair::Yes }
}

fn check_pages(desk: &Desk) -> Result<Vec<Finding>> {
    let mut select = desk.conn.prepare("PRAGMA integrity_check(20)").at(&desk.path)?;
    let lines: Vec<String> =
        select.query_map([], |row| row.get(0)).and_then(Iterator::collect).at(&desk.path)?;
    let bad = lines.into_iter().filter(|line| line != "ok").chain(short_page(desk)?);
    Ok(bad.map(|line| finding(desk, "file", line, Repair::No)).collect())
}

/// SQLite reads what is missing of the last page as zeros, and says nothing. A page that is in the write-ahead log is not
/// missing.
fn short_page(desk: &Desk) -> Result<Option<String>> {
    // A number, but from an encrypted file a text.
    let read = |row: &rusqlite::Row<'_>| match row.get_ref(0)? {
        ValueRef::Integer(bytes) => Ok(u64::try_from(bytes).unwrap_or(0)),
        other => Ok(other.as_str().ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)),
    };
    let page_bytes: u64 = desk.conn.pragma_query_value(None, "page_size", read).at(&desk.path)?;
    let len = std::fs::metadata(&desk.path).map_or(0, |file| file.len());
    let missing = len.next_multiple_of(page_bytes.max(1)) - len;
    Ok((missing > 0 && !has_wal(&desk.path)).then(|| format!("its last {missing} bytes are missing")))
}

/// Every entry is found by its session and seq.
fn check_places(desk: &Desk, repair: Repair) -> Result<Vec<Finding>> {
    let wrong = places::count_wrong(desk)?;
    if wrong == 0 {
        return Ok(Vec::new());
    }
    if repair == Repair::Yes {
        places::rebuild(desk)?;
    }
    let what = format!("{wrong} entries are not where their session looks for them");
    Ok(vec![finding(desk, "places", what, repair)])
}

/// Recomputes each entry's depth and message count from its parent's.
fn check_links(desk: &Desk, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(findings) };
    let mut select = desk.prepare("SELECT pk FROM sessions WHERE tenant = ?1 AND id NOT NULL")?;
    let pks: Vec<i64> =
        select.query_map([tenant], |row| row.get(0)).and_then(Iterator::collect).at(&desk.path)?;
    for pk in pks {
        for (seq, depth, messages) in wrong_links(desk, pk)? {
            if findings.len() < FINDINGS_MAX {
                let what = format!("entry {seq} of session row {pk} has wrong links");
                findings.push(finding(desk, "links", what, repair));
            }
            if repair == Repair::Yes {
                // The entry itself as its jump is slower and always right.
                let sql = "UPDATE entries SET depth = ?2, messages = ?3, jump = ?4 
                           WHERE arrival = (SELECT arrival FROM placed WHERE key = ?1)";
                desk.prepare(sql)?.execute(params![key_of(pk, seq), depth, messages, seq.0]).at(&desk.path)?;
            }
        }
    }
    Ok(findings)
}

fn wrong_links(desk: &Desk, pk: i64) -> Result<Vec<(Seq, u32, u32)>> {
    let mut log = LogRows::open(desk, pk)?;
    let mut known: HashMap<Seq, (u32, u32)> = HashMap::new();
    let mut wrong = Vec::new();
    let sql = "SELECT key, parent, kind, depth, messages FROM log
               WHERE key > ?1 AND key <= ?2 AND depth NOT NULL ORDER BY key";
    let mut select = desk.prepare(sql)?;
    let mut rows = select.query([key_of(pk, Seq::ZERO), last_key(pk)]).at(&desk.path)?;
    while let Some(row) = rows.next().at(&desk.path)? {
        let seq = seq_of(row.get(0).at(&desk.path)?);
        let kind = Kind::from_code(row.get(2).at(&desk.path)?);
        let above = match row.get::<_, Option<u32>>(1).at(&desk.path)?.map(Seq) {
            None => (0, 0),
            Some(parent) if parent.0 <= log.inherited => (parent.0, log.node(parent)?.links.messages),
            Some(parent) => known.get(&parent).copied().unwrap_or_default(),
        };
        let right = (above.0 + 1, above.1 + u32::from(kind.is_some_and(Kind::is_message)));
        let stored: (u32, u32) = (row.get(3).at(&desk.path)?, row.get(4).at(&desk.path)?);
        if stored != right {
            wrong.push((seq, right.0, right.1));
        }
        known.insert(seq, right);
    }
    Ok(wrong)
}

/// Every text that the index has seen is in it, and the index is sound.
fn check_index(desk: &Desk, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if !index::is_sound(desk)? {
        findings.push(finding(desk, "index", "the search index is damaged".to_owned(), repair));
    } else if let missing @ 1.. = search::count_missing(desk, scope)? {
        let what = format!("{missing} entries are missing in the search index");
        findings.push(finding(desk, "index", what, repair));
    }
    if repair == Repair::Yes && findings.iter().any(|finding| finding.rule == "index") {
        search::rebuild(desk)?;
    }
    Ok(findings)
}
