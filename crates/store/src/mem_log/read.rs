//! Reads of a log: pages, paths, entries by id.

use std::sync::Arc;

use sapwood_core::entry::{Entry, Kind, Meta, Outcome, Record};
use sapwood_core::port::store::{PAGE_BYTES, PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::tree::{Lookup, nth_message, settings_at};
use sapwood_core::{Body, EntryId, Seq, TurnId};

use super::InMemoryLog;
use super::row_store::{LogRow, PathWalk, StoredBody, first_not_before, meta_at};
use crate::validate::damaged;

/// A section of a path, newest entry first.
type PathRows<B> = Vec<(Seq, Arc<LogRow<B>>)>;

impl<B: StoredBody> InMemoryLog<B> {
    /// Returns entries after `after` in order, filtered by kind if `kinds` is given.
    pub fn read_after(&self, kinds: Option<&[Kind]>, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let limit = limit.min(PAGE_ROWS_MAX);
        let (mut records, mut bytes) = (Vec::new(), 0);
        let mut seq = after;
        while seq < self.summary.head.seq && records.len() < limit && bytes < PAGE_BYTES {
            seq = seq.next();
            let row = self.row(seq)?;
            if kinds.is_none_or(|kinds| kinds.contains(&row.meta.kind)) {
                let record = self.record(seq, &row)?;
                // The byte limit does not apply to filtered pages.
                bytes += if kinds.is_none() { record.body.len() } else { 0 };
                records.push(record);
            }
        }
        Ok(records)
    }

    pub fn read_entry(&self, seq: Seq) -> Result<Record> {
        let row = self.row(seq)?;
        self.record(seq, &row)
    }

    /// Returns at most two entries whose id begins with the prefix, by binary search (I13).
    pub fn find_entries(&self, id_prefix: &str) -> Result<Vec<Record>> {
        let Some((low, high)) = EntryId::prefix_range(id_prefix) else { return Ok(Vec::new()) };
        let last = self.summary.head.seq;
        let start = first_not_before(&self.rows, last, low);
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

    /// Returns the first entry whose id is at least `id`, or the seq after the last entry.
    pub fn first_at_or_after(&self, id: EntryId) -> Seq {
        first_not_before(&self.rows, self.summary.head.seq, id)
    }

    pub fn nth_message(&self, leaf: Seq, count: u32) -> Result<Option<Seq>> {
        nth_message(leaf, count, &mut self.lookup())
    }

    pub fn read_path(&self, at: Option<Seq>, until: Until) -> Result<PathSlice> {
        let at = at.or(self.summary.head.leaf);
        if let Some(at) = at {
            self.lookup().node(at)?;
        }
        let path = self.walk_back(at, until)?;
        let first = path.last().map(|(seq, _)| *seq);
        let above = first.map(|first| self.lookup().node(first)).transpose()?.and_then(|node| node.parent);
        let entries: Result<Vec<Entry>> =
            path.iter().rev().map(|(seq, row)| into_entry(self.record(*seq, row)?)).collect();
        Ok(PathSlice {
            head: self.summary.head,
            entries: entries?,
            inherited: self.summary.inherited,
            settings_before: above
                .map(|above| settings_at(above, &mut self.lookup()))
                .transpose()?
                .unwrap_or_default(),
            ended_turns: self.ended_turns(first, above),
            open_turn: self.summary.open_turn,
            config_entries: self.summary.config.clone(),
            config: None,
        })
    }

    /// Returns the metadata of a path, newest first.
    pub fn walk_path(&self, from: Option<Seq>, limit: usize) -> Result<Vec<Meta>> {
        let from = from.or(self.summary.head.leaf);
        if let Some(from) = from {
            self.lookup().node(from)?;
        }
        let walk = PathWalk::from(&self.rows, from).take(limit.min(PAGE_ROWS_MAX));
        Ok(walk.map(|(seq, row)| meta_at(&self.rows, seq, &row)).collect())
    }

    /// Returns the outcomes of the turns that began after the parent of a path section.
    fn ended_turns(&self, first: Option<Seq>, above: Option<Seq>) -> Vec<(TurnId, Outcome)> {
        if first.is_none() {
            return Vec::new();
        }
        let above = above.unwrap_or_default();
        let from = self.ended.partition_point(|turn| turn.ended <= above);
        let inside = self.ended[from..].iter().filter(|turn| turn.began > above);
        inside.map(|turn| (turn.turn, turn.outcome)).collect()
    }

    fn walk_back(&self, at: Option<Seq>, until: Until) -> Result<PathRows<B>> {
        let walk = PathWalk::from(&self.rows, at);
        match until {
            Until::Root => Ok(walk.collect()),
            Until::Entries(count) => Ok(walk.take(count as usize).collect()),
            Until::ContextStart => self.walk_to_context_start(walk),
        }
    }

    /// Walks back to the latest compaction, and from there to the first entry it keeps.
    fn walk_to_context_start(&self, walk: PathWalk<'_, B>) -> Result<PathRows<B>> {
        let mut path = PathRows::new();
        let mut first_kept = None;
        for (seq, row) in walk {
            let is_latest = row.meta.kind == Kind::Compaction && first_kept.is_none();
            if is_latest {
                first_kept = Some(self.first_kept(seq, &row)?);
            }
            path.push((seq, row));
            if first_kept == Some(seq) {
                break;
            }
        }
        Ok(path)
    }

    /// Returns the first entry of the context after a compaction: the compaction itself if it keeps
    /// no entry.
    fn first_kept(&self, seq: Seq, row: &LogRow<B>) -> Result<Seq> {
        let Body::Compaction(compaction) = into_entry(self.record(seq, row)?)?.body else { return Ok(seq) };
        let kept = compaction.first_kept.map(|id| self.lookup().find(id)).transpose()?.flatten();
        Ok(kept.map_or(seq, |(kept, _)| kept))
    }
}

pub(super) fn into_entry(record: Record) -> Result<Entry> {
    let place = format!("entry {}", record.meta.id);
    record.into_entry().map_err(|error| damaged(place, error))
}
