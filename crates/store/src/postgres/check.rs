//! Consistency checks of the store's own data: the links of entries, the search index, the blobs
//! and the summaries. Derived rows can be rebuilt.

use std::collections::HashMap;

use sapwood_core::port::store::{Finding, Repair, Result};
use sapwood_core::{Kind, Scope, Seq};

use super::connection::StoreConnection;
use super::log::{LogRows, int, seq_of};
use super::prefetch::node_at;
use super::{blob, rebuild_summary, search};
use crate::database::{FINDINGS_MAX, NamedDatabase};

/// Rows read at a time.
const CHUNK_ROWS: i64 = 5_000;

pub(super) async fn check(db: &StoreConnection, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = check_links(db, repair).await?;
    let missing = search::count_missing(db).await?;
    if missing > 0 {
        let what = format!("{missing} entries are missing from the search index");
        findings.push(db.finding("index", what, repair));
        if repair == Repair::Yes {
            search::clear_index(db).await?;
        }
    }
    let damaged = blob::find_damaged(db).await?.into_iter().take(FINDINGS_MAX);
    findings.extend(damaged.map(|what| db.finding("blobs", what, Repair::No)));
    if repair == Repair::Yes {
        // Without repair, `sapwood doctor` itself compares the summaries with the logs.
        findings.extend(rebuild_summary::repair_summaries(db, scope).await?);
    }
    Ok(findings)
}

/// Recomputes each entry's depth and message count from its parent.
async fn check_links(db: &StoreConnection, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let sql = "SELECT pk, inherited FROM sessions WHERE tenant = $1 AND id IS NOT NULL";
    for row in db.query(sql, &[&db.tenant.as_str()]).await? {
        let log = LogRows::open(db, row.get(0), seq_of(row.get(1)).0).await?;
        for (seq, depth, messages) in wrong_links(&log).await? {
            if findings.len() < FINDINGS_MAX {
                let what = format!("entry {seq} of session row {} has wrong links", log.pk());
                findings.push(db.finding("links", what, repair));
            }
            if repair == Repair::Yes {
                // A jump pointer to the entry itself is slower, but always correct.
                let sql = "UPDATE entries SET depth = $4, messages = $5, jump = $3
                           WHERE tenant = $1 AND session = $2 AND seq = $3";
                let tenant = db.tenant.as_str();
                db.execute(sql, &[&tenant, &log.pk(), &int(seq.0), &int(depth), &int(messages)]).await?;
            }
        }
    }
    Ok(findings)
}

async fn wrong_links(log: &LogRows<'_>) -> Result<Vec<(Seq, u32, u32)>> {
    let mut checked: HashMap<Seq, (u32, u32)> = HashMap::new();
    let mut wrong = Vec::new();
    let sql = "SELECT seq, parent, kind, depth, messages FROM entries
               WHERE tenant = $1 AND session = $2 AND seq > $3 AND depth IS NOT NULL ORDER BY seq LIMIT $4";
    let mut after = 0;
    loop {
        let rows = log.db.query(sql, &[&log.db.tenant.as_str(), &log.pk(), &after, &CHUNK_ROWS]).await?;
        let Some(last) = rows.last() else { return Ok(wrong) };
        after = last.get(0);
        for row in &rows {
            let seq = seq_of(row.get(0));
            let kind = u8::try_from(row.get::<_, i16>(2)).ok().and_then(Kind::from_code);
            let above = match row.get::<_, Option<i32>>(1).map(seq_of) {
                None => (0, 0),
                Some(parent) if parent.0 <= log.inherited() => {
                    (parent.0, node_at(log, parent).await?.links.messages)
                }
                Some(parent) => checked.get(&parent).copied().unwrap_or_default(),
            };
            let expected = (above.0 + 1, above.1 + u32::from(kind.is_some_and(Kind::is_message)));
            let stored = (seq_of(row.get(3)).0, seq_of(row.get(4)).0);
            if stored != expected {
                wrong.push((seq, expected.0, expected.1));
            }
            checked.insert(seq, expected);
        }
    }
}
