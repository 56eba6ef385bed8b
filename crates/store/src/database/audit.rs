//! Pages of the audit log, and the origin of a session according to it.

use sapwood_core::authority::OriginTrace;
use sapwood_core::port::store::{AuditLine, PAGE_ROWS_MAX};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Principal, Scope, SessionId};

use crate::validate::{may_see_line, page_limit, settle_summary};

/// A page of the audit lines that a caller may see.
pub(crate) struct AuditPage<'s> {
    pub scope: &'s Scope,
    pub lines: Vec<AuditLine>,
    pub limit: usize,
}

impl<'s> AuditPage<'s> {
    pub fn new(scope: &'s Scope, limit: usize) -> Self {
        Self { scope, lines: Vec::new(), limit: page_limit(limit) }
    }

    pub fn is_full(&self) -> bool {
        self.lines.len() >= self.limit
    }

    /// Returns the session whose owner may see the line, unless the caller may see it anyway.
    pub fn session_to_check<'l>(&self, line: &'l AuditLine) -> Option<&'l SessionId> {
        line.session.as_ref().filter(|_| !may_see_line(self.scope, line, None))
    }

    /// Adds a line if the caller may see it. `session` is the session to check, if the caller may
    /// read it.
    pub fn add(&mut self, line: AuditLine, session: Option<&Summary>) {
        if may_see_line(self.scope, &line, session) {
            self.lines.push(line);
        }
    }
}

/// Determines the origin of a session that an earlier version created. The caller reads the pages
/// that [`OriginReader::next_page`] asks for.
pub(crate) struct OriginReader {
    /// The scope to read the pages with.
    pub scope: Scope,
    trace: OriginTrace,
    lines: Vec<AuditLine>,
    after: u64,
}

impl OriginReader {
    pub fn of(scope: &Scope, session: &SessionId) -> Self {
        Self {
            scope: Scope::operator(scope.tenant.clone(), Principal::System),
            trace: OriginTrace::of(session.clone()),
            lines: Vec::new(),
            after: 0,
        }
    }

    /// Returns the next page to read: up to [`PAGE_ROWS_MAX`] lines about the returned session, after
    /// the returned line number.
    pub fn next_page(&self) -> Option<(&SessionId, u64)> {
        self.trace.wanted().map(|session| (session, self.after))
    }

    pub fn add_page(&mut self, page: Vec<AuditLine>) {
        let is_last = page.len() < PAGE_ROWS_MAX;
        self.after = page.last().filter(|_| !is_last).map_or(0, |line| line.number);
        self.lines.extend(page.into_iter().filter(OriginTrace::is_about_origin));
        if is_last {
            self.trace.feed(&self.lines);
            self.lines.clear();
        }
    }

    /// Adds the authority record to the session's summary. Call it after the last page.
    pub fn settle(self, summary: &mut Summary) {
        settle_summary(summary, self.trace.source());
    }
}
