//! Checks that only the store can perform: the pages of the file, the entry index, the links of
//! entries, the search index, the summaries and the blobs. A repair rebuilds derived rows.

use rusqlite::types::ValueRef;
use std::collections::HashMap;

use rusqlite::params;
use sapwood_core::port::store::{Finding, Repair, Result};
use sapwood_core::tree::Lookup;
use sapwood_core::{Kind, Scope, Seq, StoreError};

use super::connection::{StoreConnection, has_wal};
use super::error::AtPath;
use super::log::{LogRows, key_of, last_key, seq_of};
use super::{blob, entry_index, head, index, rebuild_summary, recovery, seal, search};
use crate::database::{FINDINGS_MAX, NamedDatabase};

pub(super) fn check(db: &StoreConnection, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = or_finding(db, check_file(db))?;
    // Derived rows are rebuilt only from pages that are known to be right: a damaged page could make right rows look
    // wrong, and a change of its neighbours could overwrite rows that are still readable.
    let repair = if findings.is_empty() { repair } else { Repair::No };
    findings.extend(or_finding(db, head::check(db, repair))?);
    findings.extend(recovery::find_torn_end(&db.path));
    findings.extend(or_finding(db, check_entry_index(db, repair))?);
    findings.extend(or_finding(db, check_links(db, scope, repair))?);
    findings.extend(or_finding(db, check_search_index(db, scope, repair))?);
    if repair == Repair::Yes {
        // Without repair, `sapwood doctor` itself compares the summaries with the logs.
        findings.extend(or_finding(db, rebuild_summary::repair_summaries(db, scope))?);
    }
    findings.extend(or_finding(db, check_blobs(db, scope))?);
    Ok(findings)
}

/// Turns damage that ended a check into a finding, so that the other checks still run.
fn or_finding(db: &StoreConnection, checked: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    match checked {
        Err(StoreError::Damaged { what, .. }) => Ok(vec![db.finding("damaged", what, Repair::No)]),
        checked => checked,
    }
}

fn check_blobs(db: &StoreConnection, scope: &Scope) -> Result<Vec<Finding>> {
    let damaged = blob::find_damaged(db, scope)?.into_iter().take(FINDINGS_MAX);
    Ok(damaged.map(|what| db.finding("blobs", what, Repair::No)).collect())
}

fn check_file(db: &StoreConnection) -> Result<Vec<Finding>> {
    let mut findings = seal::check_pages(db)?;
    findings.extend(truncated_page(db)?.map(|what| db.finding("file", what, Repair::No)));
    Ok(findings)
}

/// Returns a description if the last page is truncated. SQLite silently reads missing bytes as
/// zeros. A page that is still in the write-ahead log is not missing.
fn truncated_page(db: &StoreConnection) -> Result<Option<String>> {
    // The pragma returns a number, or text if the file is encrypted.
    let read = |row: &rusqlite::Row<'_>| match row.get_ref(0)? {
        ValueRef::Integer(bytes) => Ok(u64::try_from(bytes).unwrap_or(0)),
        other => Ok(other.as_str().ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)),
    };
    let page_bytes: u64 = db.conn.pragma_query_value(None, "page_size", read).at(&db.path)?;
    let len = std::fs::metadata(&db.path).map_or(0, |file| file.len());
    let missing = len.next_multiple_of(page_bytes.max(1)) - len;
    Ok((missing > 0 && !has_wal(&db.path)).then(|| format!("its last {missing} bytes are missing")))
}

/// Checks that every entry can be found by its session and seq.
fn check_entry_index(db: &StoreConnection, repair: Repair) -> Result<Vec<Finding>> {
    let wrong = entry_index::count_wrong(db)?;
    if wrong == 0 {
        return Ok(Vec::new());
    }
    if repair == Repair::Yes {
        entry_index::rebuild(db)?;
    }
    let what = format!("{wrong} entries have a wrong position in the entry index");
    Ok(vec![db.finding("places", what, repair)])
}

/// Recomputes each entry's depth and message count from its parent.
fn check_links(db: &StoreConnection, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(findings) };
    let pks: Vec<i64> =
        db.query_all("SELECT pk FROM sessions WHERE tenant = ?1 AND id NOT NULL", [tenant])?;
    for pk in pks {
        let wrong = match wrong_links(db, pk) {
            Err(StoreError::Damaged { what, .. }) => {
                findings.push(db.finding("damaged", format!("session row {pk}: {what}"), Repair::No));
                continue;
            }
            wrong => wrong?,
        };
        for (seq, depth, messages) in wrong {
            if findings.len() < FINDINGS_MAX {
                let what = format!("entry {seq} of session row {pk} has wrong links");
                findings.push(db.finding("links", what, repair));
            }
            if repair == Repair::Yes {
                // A jump pointer to the entry itself is slower, but always correct.
                let sql = "UPDATE entries SET depth = ?2, messages = ?3, jump = ?4 
                           WHERE arrival = (SELECT arrival FROM placed WHERE key = ?1)";
                db.execute(sql, params![key_of(pk, seq), depth, messages, seq.0])?;
            }
        }
    }
    Ok(findings)
}

fn wrong_links(db: &StoreConnection, pk: i64) -> Result<Vec<(Seq, u32, u32)>> {
    let mut log = LogRows::open(db, pk)?;
    let mut computed: HashMap<Seq, (u32, u32)> = HashMap::new();
    let mut wrong = Vec::new();
    let sql = "SELECT key, parent, kind, depth, messages FROM log
               WHERE key > ?1 AND key <= ?2 AND depth NOT NULL ORDER BY key";
    let mut select = db.prepare(sql)?;
    let mut rows = select.query([key_of(pk, Seq::ZERO), last_key(pk)]).at(&db.path)?;
    while let Some(row) = rows.next().at(&db.path)? {
        let seq = seq_of(row.get(0).at(&db.path)?);
        let kind = Kind::from_code(row.get(2).at(&db.path)?);
        let above = match row.get::<_, Option<u32>>(1).at(&db.path)?.map(Seq) {
            None => (0, 0),
            Some(parent) if parent.0 <= log.inherited => (parent.0, log.node(parent)?.links.messages),
            Some(parent) => computed.get(&parent).copied().unwrap_or_default(),
        };
        let expected = (above.0 + 1, above.1 + u32::from(kind.is_some_and(Kind::is_message)));
        let stored: (u32, u32) = (row.get(3).at(&db.path)?, row.get(4).at(&db.path)?);
        if stored != expected {
            wrong.push((seq, expected.0, expected.1));
        }
        computed.insert(seq, expected);
    }
    Ok(wrong)
}

/// Checks that the search index is readable and contains every text up to the last indexed entry.
fn check_search_index(db: &StoreConnection, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if !index::is_readable(db)? {
        findings.push(db.finding("index", "the search index is damaged".to_owned(), repair));
    } else if let missing @ 1.. = search::count_missing(db, scope)? {
        let what = format!("{missing} entries are missing from the search index");
        findings.push(db.finding("index", what, repair));
    }
    if repair == Repair::Yes && findings.iter().any(|finding| finding.rule == "index") {
        search::rebuild(db)?;
    }
    Ok(findings)
}
