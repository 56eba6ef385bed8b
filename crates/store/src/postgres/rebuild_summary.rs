//! Recomputes the sessions' summaries from their logs, to repair wrong ones.

use sapwood_core::port::store::{Finding, ListFilter, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, Seq};

use super::connection::StoreConnection;
use super::log::LogRows;
use super::prefetch::Prefetched;
use super::session::list;
use super::session_table::{RowLock, find, store_summary};
use crate::database::summary::{SummaryRebuild, repaired};

/// Rows read at a time.
const CHECK_ROWS: usize = 500;

/// Compares each session's summary with its log, and repairs summaries that differ.
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
                findings.extend((!row.summary.matches_fold(&expected)).then(|| repaired(db, &summary.id)));
            }
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(findings),
        }
    }
}

async fn recompute(db: &StoreConnection, pk: i64, stored: &Summary) -> Result<Summary> {
    let log = LogRows::open(db, pk, stored.inherited).await?;
    let mut nodes = Prefetched::new(stored.inherited);
    let mut rebuild = nodes.run_with_fetches(&log, |nodes| SummaryRebuild::of(stored, nodes)).await?;
    let mut after = Seq(stored.inherited);
    loop {
        let records = log.read_after(after, CHECK_ROWS).await?;
        let Some(last) = records.last() else { break };
        after = last.meta.seq;
        records.into_iter().try_for_each(|record| rebuild.add(db, record))?;
    }
    nodes.run_with_fetches(&log, |nodes| rebuild.finish(nodes)).await
}
