//! What only the store can see: the links of each entry, the search index, the summaries. Derived rows can be rebuilt.

use std::collections::HashMap;

use sapwood_core::port::store::{Finding, Repair, Result};
use sapwood_core::{Kind, Scope, Seq};

use super::desk::Desk;
use super::known::node_at;
use super::log::{LogRows, int, seq_of};
use super::{blob, refold, search};

/// Most findings of one kind: the first few tell what is wrong.
const FINDINGS_MAX: usize = 20;
/// Rows looked at in one go.
const CHUNK_ROWS: i64 = 5_000;

pub(super) async fn check(desk: &Desk, scope: &Scope, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = check_links(desk, repair).await?;
    let missing = search::count_missing(desk).await?;
    if missing > 0 {
        let what = format!("{missing} entries are missing in the search index");
        findings.push(finding(desk, "index", what, repair));
        if repair == Repair::Yes {
            search::forget_all(desk).await?;
        }
    }
    let damaged = blob::find_damaged(desk).await?.into_iter().take(FINDINGS_MAX);
    findings.extend(damaged.map(|what| finding(desk, "blobs", what, Repair::No)));
    if repair == Repair::Yes {
        // Without repair the doctor compares them anyway, through the port.
        findings.extend(refold::mend_summaries(desk, scope).await?);
    }
    Ok(findings)
}

pub(super) fn finding(desk: &Desk, rule: &'static str, what: String, repair: Repair) -> Finding {
    Finding { rule, place: desk.place.to_string(), what, repaired: repair == Repair::Yes }
}

/// Recomputes each entry's depth and message count from its parent's.
async fn check_links(desk: &Desk, repair: Repair) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let sql = "SELECT pk, inherited FROM sessions WHERE tenant = $1 AND id IS NOT NULL";
    for row in desk.query(sql, &[&desk.tenant.as_str()]).await? {
        let log = LogRows::open(desk, row.get(0), seq_of(row.get(1)).0).await?;
        for (seq, depth, messages) in wrong_links(&log).await? {
            if findings.len() < FINDINGS_MAX {
                let what = format!("entry {seq} of session row {} has wrong links", log.pk());
                findings.push(finding(desk, "links", what, repair));
            }
            if repair == Repair::Yes {
                // The entry itself as its jump is slower and always right.
                let sql = "UPDATE entries SET depth = $4, messages = $5, jump = $3
                           WHERE tenant = $1 AND session = $2 AND seq = $3";
                let tenant = desk.tenant.as_str();
                desk.execute(sql, &[&tenant, &log.pk(), &int(seq.0), &int(depth), &int(messages)]).await?;
            }
        }
    }
    Ok(findings)
}

async fn wrong_links(log: &LogRows<'_>) -> Result<Vec<(Seq, u32, u32)>> {
    let mut known: HashMap<Seq, (u32, u32)> = HashMap::new();
    let mut wrong = Vec::new();
    let sql = "SELECT seq, parent, kind, depth, messages FROM entries
               WHERE tenant = $1 AND session = $2 AND seq > $3 AND depth IS NOT NULL ORDER BY seq LIMIT $4";
    let mut after = 0;
    loop {
        let rows = log.desk.query(sql, &[&log.desk.tenant.as_str(), &log.pk(), &after, &CHUNK_ROWS]).await?;
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
                Some(parent) => known.get(&parent).copied().unwrap_or_default(),
            };
            let right = (above.0 + 1, above.1 + u32::from(kind.is_some_and(Kind::is_message)));
            let stored = (seq_of(row.get(3)).0, seq_of(row.get(4)).0);
            if stored != right {
                wrong.push((seq, right.0, right.1));
            }
            known.insert(seq, right);
        }
    }
}
