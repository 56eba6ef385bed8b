//! Searches many logs sequentially. A hit is reported in the session it was written to. If that
//! session is erased or not visible to the caller, the hit is reported in a fork that shares the
//! entry. A search that is limited to one session reports all hits in that session.

use std::collections::HashSet;

use sapwood_core::port::store::{Hit, Page, Result, SearchQuery};
use sapwood_core::{EntryId, Right, Scope, Seq, SessionId, StoreError};

use super::read::into_entry;
use super::{InMemoryLog, StoredBody};
use crate::authorize::authorize;
use crate::match_text::TextQuery;
use crate::validate::{self, HitCursor};

/// Number of hits beyond the page size above which the oldest hits are dropped. Checked after each
/// log.
const SPARE_HITS_MAX: usize = 1_000;

pub struct LogSearch<'a> {
    scope: &'a Scope,
    only: Option<&'a SessionId>,
    words: TextQuery,
    limit: usize,
    after: Option<HitCursor>,
    hits: Vec<Hit>,
    /// Shared entries that were found in a fork. Each is reported once.
    shared_hits: HashSet<EntryId>,
}

impl<'a> LogSearch<'a> {
    pub fn new(scope: &'a Scope, query: &'a SearchQuery) -> Result<Self> {
        let (limit, after) = validate::check_search(query)?;
        Ok(Self {
            scope,
            only: query.session.as_ref(),
            words: TextQuery::parse(&query.text),
            limit,
            after,
            hits: Vec::new(),
            shared_hits: HashSet::new(),
        })
    }

    /// Searches one log. `is_orphan` returns whether a shared entry cannot be found in the session
    /// it was written to, because that session is erased or not visible to the caller.
    pub fn visit<B: StoredBody>(
        &mut self,
        log: &InMemoryLog<B>,
        is_orphan: impl Fn(Seq) -> bool,
    ) -> Result<()> {
        let summary = &log.summary;
        let is_included = self.only.is_none_or(|only| *only == summary.id);
        if self.words.is_empty() || !is_included || authorize(self.scope, summary, Right::Read).is_err() {
            return Ok(());
        }
        for seq in (1..=summary.head.seq.0).map(Seq) {
            let is_shared = seq.0 <= summary.inherited;
            if is_shared && self.only.is_none() && !is_orphan(seq) {
                continue;
            }
            let Some(hit) = find_in(log, seq, &self.words)? else { continue };
            if !is_shared || self.shared_hits.insert(hit.id) {
                self.hits.push(hit);
            }
        }
        if self.hits.len() > self.limit + SPARE_HITS_MAX {
            validate::keep_newest(&mut self.hits, self.limit + 1, self.after.as_ref());
        }
        Ok(())
    }

    pub fn finish(self) -> Page<Hit> {
        validate::page_of_hits(self.hits, self.limit, self.after.as_ref())
    }
}

/// Checks that the caller may read the session that a search is limited to.
pub fn check_session_readable<B: StoredBody>(
    scope: &Scope,
    session: &SessionId,
    log: Option<&InMemoryLog<B>>,
) -> Result<()> {
    let log = log.ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
    authorize(scope, &log.summary, Right::Read)
}

fn find_in<B: StoredBody>(log: &InMemoryLog<B>, seq: Seq, words: &TextQuery) -> Result<Option<Hit>> {
    let row = log.row(seq)?;
    let entry = into_entry(log.record(seq, &row)?)?;
    let text = entry.body.search_text();
    if !words.matches(&text) {
        return Ok(None);
    }
    Ok(Some(validate::hit_of(&log.summary, &entry.meta, words, &text)))
}
