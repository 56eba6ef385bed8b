//! The record of what this store wrote itself, in a column beside each session's summary. A server of the previous version
//! on the same database neither reads nor writes the column: sessions that it makes have none, until a server of this
//! version works it out from the audit.

use sapwood_core::authority::Trace;
use sapwood_core::port::store::{PAGE_ROWS_MAX, Result};
use sapwood_core::{Authority, Principal, Right, Scope, SessionId, Source};

use super::audit::read_lines;
use super::desk::Desk;
use super::refold::store_summary;
use super::session::{Hold, SessionRow, find};
use crate::rules;

/// A record as it is in its column; none for a session of an earlier version.
pub(super) fn read(desk: &Desk, column: Option<&str>) -> Result<Option<Authority>> {
    let parsed = column.map(rules::parse_authority).transpose();
    parsed.map_err(|error| desk.damaged(format!("a session's authority record: {error}")))
}

/// Write the record of a session whose row the caller holds.
pub(super) async fn store(desk: &Desk, pk: i64, record: &str) -> Result<()> {
    let sql = "UPDATE sessions SET authority = $3 WHERE tenant = $1 AND pk = $2";
    desk.execute(sql, &[&desk.tenant.as_str(), &pk, &record]).await?;
    Ok(())
}

/// What the audit says about the origin of a session.
pub(super) async fn trace(desk: &Desk, scope: &Scope, session: &SessionId) -> Result<Source> {
    let whole_tenant = Scope::operator(scope.tenant.clone(), Principal::System);
    let mut trace = Trace::of(session.clone());
    while let Some(wanted) = trace.wanted().cloned() {
        let (mut lines, mut after) = (Vec::new(), 0);
        loop {
            let page = read_lines(desk, &whole_tenant, Some(&wanted), after, PAGE_ROWS_MAX).await?;
            let is_last = page.len() < PAGE_ROWS_MAX;
            after = page.last().map_or(after, |line| line.number);
            lines.extend(page.into_iter().filter(Trace::is_about_origin));
            if is_last {
                break;
            }
        }
        trace.feed(&lines);
    }
    Ok(trace.source())
}

/// The session's record. One of an earlier version gets it here.
pub(super) async fn settle(desk: &Desk, scope: &Scope, session: &SessionId) -> Result<Authority> {
    let mut row = find(desk, scope, session, Right::Read, Hold::Yes).await?;
    store_settled(desk, scope, &mut row).await?;
    Ok(row.summary.authority.unwrap_or_default())
}

async fn store_settled(desk: &Desk, scope: &Scope, row: &mut SessionRow) -> Result<()> {
    if row.summary.authority.is_some() {
        return Ok(());
    }
    let source = trace(desk, scope, &row.summary.id).await?;
    rules::settle_summary(&mut row.summary, source);
    store_summary(desk, row.pk, &row.summary).await?;
    store(desk, row.pk, &print(&row.summary.authority)).await
}

/// Record a file-backed model that the local command line named.
pub(super) async fn grant_model(desk: &Desk, scope: &Scope, session: &SessionId, model: &str) -> Result<()> {
    let mut row = find(desk, scope, session, Right::Write, Hold::Yes).await?;
    store_settled(desk, scope, &mut row).await?;
    row.summary.authority.get_or_insert_default().grant_model(model.to_owned());
    // Appends that were prepared on the row as it was are prepared anew.
    let sql = "UPDATE sessions SET version = version + 1 WHERE tenant = $1 AND pk = $2";
    desk.execute(sql, &[&desk.tenant.as_str(), &row.pk]).await?;
    store(desk, row.pk, &print(&row.summary.authority)).await
}

fn print(record: &Option<Authority>) -> String {
    record.as_ref().map(rules::print_json).unwrap_or_default()
}
