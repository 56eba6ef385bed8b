//! Recomputes a session's summary from its log, to repair a wrong one.

use sapwood_core::entry::{Body, SessionState, Stance};
use sapwood_core::port::store::{Finding, ListFilter, Repair, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::Head;
use sapwood_core::{Right, Scope, Seq};

use super::check::finding;
use super::connection::StoreConnection;
use super::log::{LogRows, int};
use super::prefetch::{node_at, settings_at};
use super::session::{RowLock, SLOT_MS, find, list};
use crate::validate::print_json;

/// Rows read at a time.
const CHECK_ROWS: usize = 500;

/// Compares each session's summary with its log, and repairs it.
pub(super) async fn repair_summaries(db: &StoreConnection, scope: &Scope) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut filter = ListFilter { limit: CHECK_ROWS, ..ListFilter::default() };
    loop {
        let page = list(db, scope, &filter).await?;
        for summary in page.items {
            let row = find(db, scope, &summary.id, Right::Read, RowLock::Yes).await?;
            let expected = recompute(db, row.pk, &row.summary).await?;
            if expected != row.summary {
                store_summary(db, row.pk, &expected).await?;
                let what = format!("the summary of session {} did not match its log", summary.id);
                findings.push(finding(db, "cache", what, Repair::Yes));
            }
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(findings),
        }
    }
}

pub(super) async fn store_summary(db: &StoreConnection, pk: i64, summary: &Summary) -> Result<()> {
    let sql =
        "UPDATE sessions SET version = version + 1, summary = $3, head = $4, listed_at = $5, listed_slot = $6, is_open = $7
               WHERE tenant = $1 AND pk = $2";
    let (at, slot) = (summary.updated_at.0, summary.updated_at.0.div_euclid(SLOT_MS));
    let head = int(summary.head.seq.0);
    db.execute(
        sql,
        &[&db.tenant.as_str(), &pk, &print_json(summary), &head, &at, &slot, &summary.open_turn.is_some()],
    )
    .await?;
    Ok(())
}

async fn recompute(db: &StoreConnection, pk: i64, stored: &Summary) -> Result<Summary> {
    let log = LogRows::open(db, pk, stored.inherited).await?;
    let mut summary = stored.unfolded();
    let (mut leaf, mut after) =
        ((stored.inherited > 0).then_some(Seq(stored.inherited)), Seq(stored.inherited));
    if let Some(shared) = leaf {
        summary.head = Head { seq: shared, leaf };
        if node_at(&log, shared).await?.links.messages > 0 {
            summary.state = SessionState::Active;
        }
    }
    loop {
        let records = log.read_after(after, CHECK_ROWS).await?;
        let Some(last) = records.last() else { break };
        after = last.meta.seq;
        for record in records {
            let entry = record.into_entry().map_err(|error| db.damaged(error))?;
            leaf = match &entry.body {
                Body::LeafMoved(moved) => match moved.to {
                    Some(id) => log.find(id).await?.map(|(seq, _)| seq),
                    None => None,
                },
                _ if entry.meta.kind.stance() == Stance::InTree => Some(entry.meta.seq),
                _ => leaf,
            };
            summary.apply(&entry);
        }
    }
    summary.head.leaf = leaf;
    (summary.messages, summary.model) = match leaf {
        Some(leaf) => (node_at(&log, leaf).await?.links.messages, settings_at(&log, leaf).await?.model),
        None => (0, None),
    };
    Ok(summary)
}
