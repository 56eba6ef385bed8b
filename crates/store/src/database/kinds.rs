//! Reading entries by kind. A row of format 2 stores the engine's records as `custom_info`, see
//! [`sapwood_core::entry::EngineRecord`]; their kind is known after the body is decoded.

use sapwood_core::{Kind, Record, Seq};

/// Returns the kinds of rows that can contain entries of these kinds.
pub(crate) fn stored_kinds(kinds: &[Kind]) -> Vec<Kind> {
    let mut stored = kinds.to_vec();
    if kinds.iter().any(|kind| kind.was_custom_info()) && !kinds.contains(&Kind::CustomInfo) {
        stored.push(Kind::CustomInfo);
    }
    stored
}

/// Collects the entries of some kinds from pages of rows of one stored kind.
pub(crate) struct KindPages<'k> {
    wanted: &'k [Kind],
    limit: usize,
    /// Where the next page starts; `None` after the last page.
    after: Option<Seq>,
    pub found: Vec<Record>,
}

impl<'k> KindPages<'k> {
    pub fn new(wanted: &'k [Kind], after: Seq, limit: usize) -> Self {
        Self { wanted, limit, after: Some(after), found: Vec::new() }
    }

    /// Returns where the next page starts, if another page is needed.
    pub fn next(&self) -> Option<Seq> {
        self.after.filter(|_| self.found.len() < self.limit)
    }

    /// Adds a page that was read with the limit.
    pub fn add(&mut self, page: Vec<Record>) {
        let is_full = page.len() >= self.limit;
        self.after = page.last().map(|record| record.meta.seq).filter(|_| is_full);
        self.found.extend(page.into_iter().filter(|record| self.wanted.contains(&record.meta.kind)));
    }
}
