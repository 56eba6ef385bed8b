//! Recomputes the sessions' summaries from their logs, to repair wrong ones.

use sapwood_core::port::store::{Finding, ListFilter, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, Seq};

use super::append_cache::ListPosition;
use super::connection::StoreConnection;
use super::log::LogRows;
use super::session::list;
use super::session_table::{find, store_summary};
use crate::database::summary::{SummaryRebuild, repaired};

/// Number of rows that are read at a time.
const CHECK_ROWS: usize = 500;

/// Recomputes each session's summary from its log, and stores it if it differs.
pub(super) fn repair_summaries(db: &StoreConnection, scope: &Scope) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut filter = ListFilter { limit: CHECK_ROWS, ..ListFilter::default() };
    loop {
        let page = list(db, scope, &filter)?;
        for summary in page.items {
            let mut row = find(db, scope, &summary.id, Right::Read)?;
            row.summary = recompute(db, row.pk, &summary)?;
            if row.summary != summary {
                db.append_cache.evict(row.pk);
                store_summary(db, &mut row, ListPosition::Changed)?;
                findings.extend((!summary.matches_fold(&row.summary)).then(|| repaired(db, &summary.id)));
            }
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(findings),
        }
    }
}

fn recompute(db: &StoreConnection, pk: i64, stored: &Summary) -> Result<Summary> {
    let mut log = LogRows::open(db, pk)?;
    let mut rebuild = SummaryRebuild::of(stored, &mut log)?;
    let mut after = Seq(stored.inherited);
    loop {
        let records = log.read_after(after, CHECK_ROWS)?;
        let Some(last) = records.last() else { break };
        after = last.meta.seq;
        records.into_iter().try_for_each(|record| rebuild.add(db, record))?;
    }
    rebuild.finish(&mut log)
}
