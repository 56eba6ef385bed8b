//! Session rows: their columns, and pages of lists.

use std::ops::ControlFlow;

use sapwood_core::port::store::{ListFilter, ListOrder, Page, Result};
use sapwood_core::project::session_filter::SessionFilter;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId, StoreError};

use super::NamedDatabase;
use crate::authorize::authorize;
use crate::validate::{page_limit, parse_authority, print_list_cursor};

pub(crate) fn no_session(session: &SessionId) -> StoreError {
    StoreError::NoSession { session: session.clone() }
}

/// Parses the column `summary` without the authority record.
pub(crate) fn read_summary(db: &impl NamedDatabase, json: &str) -> Result<Summary> {
    db.parse("a session's summary", json)
}

/// Parses the columns `summary` and `authority`. The latter is NULL for a session that an earlier
/// version created.
pub(crate) fn read_with_authority(
    db: &impl NamedDatabase,
    json: &str,
    authority: Option<&str>,
) -> Result<Summary> {
    let mut summary = read_summary(db, json)?;
    let parsed = authority.map(parse_authority).transpose();
    summary.authority =
        parsed.map_err(|error| db.damaged(format!("failed to parse an authority record: {error}")))?;
    Ok(summary)
}

/// Returns the SQL operators that compare rows with the start and with the end of a list, and the
/// direction of the order.
pub(crate) fn list_operators(order: ListOrder) -> (&'static str, &'static str, &'static str) {
    match order {
        ListOrder::NewestFirst => ("<", ">", "DESC"),
        ListOrder::OldestFirst => (">", "<", "ASC"),
    }
}

/// A page of a list, filled from rows in list order.
pub(crate) struct SessionPage<'f> {
    scope: &'f Scope,
    wanted: SessionFilter<'f>,
    limit: usize,
    /// The position of the last row that this page covers: its time and number.
    pub last: (i64, i64),
    items: Vec<Summary>,
}

impl<'f> SessionPage<'f> {
    pub fn new(scope: &'f Scope, filter: &'f ListFilter, after: (i64, i64)) -> Self {
        let (wanted, limit) = (SessionFilter::of(filter), page_limit(filter.limit));
        Self { scope, wanted, limit, last: after, items: Vec::new() }
    }

    /// Adds a row if the filter includes it and the caller may see it. Returns `Break` if it belongs
    /// to the next page.
    pub fn add(&mut self, position: (i64, i64), summary: Summary) -> ControlFlow<()> {
        let is_visible =
            self.wanted.includes(&summary) && authorize(self.scope, &summary, Right::Read).is_ok();
        if is_visible && self.items.len() == self.limit {
            return ControlFlow::Break(());
        }
        self.last = position;
        self.items.extend(is_visible.then_some(summary));
        ControlFlow::Continue(())
    }

    /// Returns the last page of a list.
    pub fn into_last(self) -> Page<Summary> {
        Page { items: self.items, next: None }
    }

    /// Returns a page that another page follows.
    pub fn into_page(self) -> Page<Summary> {
        Page { items: self.items, next: Some(print_list_cursor(self.last)) }
    }
}
