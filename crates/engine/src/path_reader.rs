//! Reads a path of any length, oldest entry first, with one page of the log in memory.

use std::collections::VecDeque;

use sapwood_core::entry::{Body, Entry, Kind, Meta, Record};
use sapwood_core::project::path_runs::{PathRuns, RunJoiner};
use sapwood_core::{EntryId, Scope, Seq, SessionId};

use crate::{Engine, EngineError, Result};

/// Entries per step of a walk towards the root.
const WALK_ENTRIES: usize = 4_096;
/// Records of the first and of the largest read of the log. The store also limits the bytes.
const PAGE_RECORDS_MIN: usize = 32;
const PAGE_RECORDS_MAX: usize = 128;

/// Where a path starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathStart {
    Root,
    /// The first entry that the latest compaction keeps.
    Context,
}

/// The end of a walk towards the root.
struct WalkEnd {
    start: PathStart,
    /// The oldest entry that the latest compaction keeps, once that compaction was found.
    kept: Option<EntryId>,
}

/// Walk from an entry, or from the leaf, and return the seqs of the path, newest first. A walk of more than `limit`
/// entries ends early.
pub(crate) async fn walk(
    engine: &Engine,
    scope: &Scope,
    session: &SessionId,
    at: Option<Seq>,
    start: PathStart,
    limit: usize,
) -> Result<Vec<Seq>> {
    let (mut seqs, mut from) = (Vec::new(), at);
    let mut end = WalkEnd { start, kept: None };
    loop {
        let steps = WALK_ENTRIES.min(limit.saturating_sub(seqs.len()).saturating_add(1));
        let metas = engine.store.walk_path(scope, session, from, steps).await?;
        let is_last = metas.len() < steps;
        let mut parent = None;
        for meta in metas {
            parent = meta.parent;
            seqs.push(meta.seq);
            if seqs.len() > limit || end.is_reached(engine, scope, session, &meta).await? {
                return Ok(seqs);
            }
        }
        if is_last || parent.is_none() {
            return Ok(seqs);
        }
        from = parent;
    }
}

impl WalkEnd {
    async fn is_reached(
        &mut self,
        engine: &Engine,
        scope: &Scope,
        session: &SessionId,
        meta: &Meta,
    ) -> Result<bool> {
        if self.start == PathStart::Root {
            return Ok(false);
        }
        if meta.kind == Kind::Compaction && self.kept.is_none() {
            let record = engine.store.read_entry(scope, session, meta.seq).await?;
            let Body::Compaction(compaction) = readable(session, record)?.body else { return Ok(false) };
            self.kept = Some(compaction.first_kept.unwrap_or(meta.id));
        }
        Ok(self.kept == Some(meta.id))
    }
}

/// Returns the entries of a path in order.
pub(crate) struct PathReader {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    runs: PathRuns,
    joined: Option<RunJoiner>,
    after: Seq,
    page: VecDeque<Record>,
    page_records: usize,
}

impl PathReader {
    pub fn new(engine: &Engine, scope: &Scope, session: &SessionId, runs: PathRuns) -> Self {
        Self {
            engine: engine.clone(),
            scope: scope.clone(),
            session: session.clone(),
            runs,
            joined: Some(RunJoiner::default()),
            after: Seq::ZERO,
            page: VecDeque::new(),
            page_records: PAGE_RECORDS_MIN,
        }
    }

    /// The next entry of the path.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            let Some(wanted) = self.runs.next_after(self.after) else { return Ok(None) };
            let is_ahead = self.page.back().is_none_or(|last| last.meta.seq < wanted);
            if is_ahead {
                self.read_page(wanted).await?;
            }
            let Some(record) = self.page.pop_front() else { return Ok(None) };
            self.after = record.meta.seq;
            let is_on_path = self.runs.contains(&record.meta);
            if let Some(joined) = &mut self.joined {
                joined.add(&record.meta, is_on_path);
            }
            if is_on_path {
                return readable(&self.session, record).map(Some);
            }
        }
    }

    async fn read_page(&mut self, wanted: Seq) -> Result<()> {
        if wanted > self.after.next()
            && let Some(joined) = &mut self.joined
        {
            joined.skip();
        }
        self.after = Seq(wanted.0 - 1);
        let read = self.engine.store.read_after(&self.scope, &self.session, self.after, self.page_records);
        self.page = read.await?.into();
        self.page_records = (self.page_records * 2).min(PAGE_RECORDS_MAX);
        Ok(())
    }

    /// Drop the page in memory. The next call reads it again.
    pub fn release(&mut self) {
        (self.page, self.page_records) = (VecDeque::new(), PAGE_RECORDS_MIN);
    }

    /// Read the path again from its start. The runs that the first reading found need less memory.
    pub fn restart(&mut self) {
        if let Some(joined) = self.joined.take() {
            self.runs = joined.finish();
        }
        self.after = Seq::ZERO;
        self.release();
    }

    /// Read one entry of the session.
    pub async fn entry(&self, seq: Seq) -> Result<Entry> {
        readable(&self.session, self.engine.store.read_entry(&self.scope, &self.session, seq).await?)
    }
}

pub(crate) fn readable(session: &SessionId, record: Record) -> Result<Entry> {
    record.into_entry().map_err(|source| EngineError::Unreadable { session: session.clone(), source })
}
