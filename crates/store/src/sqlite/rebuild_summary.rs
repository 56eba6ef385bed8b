//! Recomputes the sessions' summaries from their logs, to repair wrong ones.

use sapwood_core::port::store::{Finding, ListFilter, Repair, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, Seq, StoreError};

use super::append_cache::ListPosition;
use super::connection::StoreConnection;
use super::log::LogRows;
use super::session::list;
use super::session_table::{find, store_summary};
use crate::database::NamedDatabase;
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
            // A summary is not replaced if its log cannot be read completely.
            match repair_summary(db, scope, &summary) {
                Err(StoreError::Damaged { what, .. }) => {
                    let what = format!("session {}: its summary was not rebuilt: {what}", summary.id);
                    findings.push(db.finding("damaged", what, Repair::No));
                }
                repaired => findings.extend(repaired?),
            }
        }
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(findings),
        }
    }
}

fn repair_summary(db: &StoreConnection, scope: &Scope, stored: &Summary) -> Result<Option<Finding>> {
    let mut row = find(db, scope, &stored.id, Right::Read)?;
    row.summary = recompute(db, row.pk, stored)?;
    if row.summary == *stored {
        return Ok(None);
    }
    db.append_cache.evict(row.pk);
    store_summary(db, &mut row, ListPosition::Changed)?;
    Ok((!stored.matches_fold(&row.summary)).then(|| repaired(db, &stored.id)))
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
