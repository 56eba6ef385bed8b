//! Reading a log: pages, paths, entries by id, and search in one session.

use std::sync::Arc;

use sapwood_core::entry::{Kind, Record};
use sapwood_core::port::store::{Hit, PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::tree::{Lookup, nth_message, settings_at};
use sapwood_core::view::Settings;
use sapwood_core::{Body, EntryId, Seq, StoreError};

use super::shelf::{Row, Stored, Walk, first_not_before};
use super::Logbook;
use crate::match_text::Query;

/// A piece of a path, the newest entry first.
type Steps<B> = Vec<(Seq, Arc<Row<B>>)>;

impl<B: Stored> Logbook<B> {
    /// Entries after `after`, in order; of these kinds only, if any are named.
    pub fn read_after(&self, kinds: Option<&[Kind]>, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        let mut records = Vec::new();
        let mut seq = after;
        while seq < self.summary.head.seq && records.len() < limit {
            seq = seq.next();
            let row = self.row(seq)?;
            if kinds.is_none_or(|kinds| kinds.contains(&row.meta.kind)) {
                records.push(self.record(seq, &row)?);
            }
        }
        Ok(records)
    }

    pub fn read_entry(&self, seq: Seq) -> Result<Record> {
        let row = self.row(seq)?;
        self.record(seq, &row)
    }

    /// At most two entries whose id begins with the prefix, by bisection (I13).
    pub fn find_entries(&self, id_prefix: &str) -> Result<Vec<Record>> {
        let Some((low, high)) = EntryId::prefix_range(id_prefix) else { return Ok(Vec::new()) };
        let last = self.summary.head.seq;
        let start = first_not_before(&self.shelf, last, low);
        let mut found = Vec::new();
        for seq in (start.0..=last.0).take(2).map(Seq) {
            let row = self.row(seq)?;
            if row.meta.id > high {
                break;
            }
            found.push(self.record(seq, &row)?);
        }
        Ok(found)
    }

    pub fn nth_message(&self, leaf: Seq, count: u32) -> Result<Option<Seq>> {
        nth_message(leaf, count, &mut self.ways())
    }

    pub fn read_path(&self, at: Option<Seq>, until: Until) -> Result<PathSlice> {
        let at = at.or(self.summary.head.leaf);
        if let Some(at) = at {
            self.ways().node(at)?;
        }
        let steps = self.walk_back(at, until)?;
        let first = steps.last().map(|(seq, _)| *seq);
        let ended_turns = match first {
            Some(first) => {
                let from = self.ended.partition_point(|(seq, ..)| *seq < first);
                self.ended[from..].iter().map(|(_, turn, outcome)| (*turn, *outcome)).collect()
            }
            None => Vec::new(),
        };
        let records: Result<Vec<Record>> = steps.iter().rev().map(|(seq, row)| self.record(*seq, row)).collect();
        Ok(PathSlice {
            head: self.summary.head,
            records: records?,
            inherited: self.summary.inherited,
            settings_before: self.settings_before(first)?,
            ended_turns,
            open_turn: self.summary.open_turn,
        })
    }

    fn settings_before(&self, first: Option<Seq>) -> Result<Settings> {
        let Some(first) = first else { return Ok(Settings::default()) };
        match self.ways().node(first)?.parent {
            Some(parent) => settings_at(parent, &mut self.ways()),
            None => Ok(Settings::default()),
        }
    }

    fn walk_back(&self, at: Option<Seq>, until: Until) -> Result<Steps<B>> {
        let walk = Walk::from(&self.shelf, at);
        match until {
            Until::Root => Ok(walk.collect()),
            Until::Entries(count) => Ok(walk.take(count as usize).collect()),
            Until::ContextStart => self.walk_to_context_start(walk),
        }
    }

    /// Back to the latest compaction, and from there to the first entry it keeps.
    fn walk_to_context_start(&self, walk: Walk<'_, B>) -> Result<Steps<B>> {
        let mut steps = Steps::new();
        let mut first_kept = None;
        for (seq, row) in walk {
            let is_latest = row.meta.kind == Kind::Compaction && first_kept.is_none();
            if is_latest {
                first_kept = Some(self.first_kept(seq, &row)?);
            }
            steps.push((seq, row));
            if first_kept == Some(seq) {
                break;
            }
        }
        Ok(steps)
    }

    /// Where the compaction lets the context begin: at itself, if it keeps nothing.
    fn first_kept(&self, seq: Seq, row: &Row<B>) -> Result<Seq> {
        let Body::Compaction(compaction) = decode(self.record(seq, row)?)? else { return Ok(seq) };
        let kept = compaction.first_kept.map(|id| self.ways().find(id)).transpose()?.flatten();
        Ok(kept.map_or(seq, |(kept, _)| kept))
    }

    /// This session's own entries that match, the newest first.
    pub fn search(&self, query: &Query) -> Result<Vec<Hit>> {
        let mut hits = Vec::new();
        for seq in (self.summary.inherited + 1..=self.summary.head.seq.0).rev().map(Seq) {
            let row = self.row(seq)?;
            let text = decode(self.record(seq, &row)?)?.search_text();
            if query.matches(&text) {
                hits.push(Hit {
                    session: self.summary.id.clone(),
                    title: self.summary.title.clone(),
                    seq,
                    id: row.meta.id,
                    kind: row.meta.kind.as_str(),
                    at: row.meta.at,
                    snippet: query.snippet(&text),
                });
            }
        }
        Ok(hits)
    }
}

fn decode(record: Record) -> Result<Body> {
    record.decode().map_err(|error| StoreError::Damaged {
        place: format!("entry {}", record.meta.id),
        what: error.to_string(),
    })
}
