//! Reads of a path: where a walk from an entry towards the root ends, and the outcomes of the turns
//! since its first entry.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_core::entry::{Body, Entry, Outcome, Stance};
use sapwood_core::port::store::{PAGE_ROWS_MAX, PathSlice, Result, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::{EntryId, Kind, Record, Seq, SessionId, TurnId};

use super::NamedDatabase;
use crate::decode::RawEntry;
use crate::validate::{beside_tree, no_entry};

/// Checks that an entry exists and is in the tree.
pub(crate) fn check_in_tree(session: &SessionId, seq: Seq, record: Option<Record>) -> Result<Record> {
    let record = record.ok_or_else(|| no_entry(session, seq))?;
    match record.meta.kind.stance() {
        Stance::InTree => Ok(record),
        Stance::OutsideTree => Err(beside_tree(seq, record.meta.kind)),
    }
}

/// Finds the last entry of a walk towards the root.
pub(crate) struct PathEnd {
    until: Until,
    goal: ContextGoal,
    visited: usize,
}

/// The next goal of a walk from the leaf back to the start of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContextGoal {
    /// The latest compaction.
    Searching,
    /// The oldest entry that the compaction keeps.
    Kept(EntryId),
    /// None: the compaction keeps no older entry, so the context starts with it.
    Reached,
}

impl PathEnd {
    pub fn of(until: Until) -> Self {
        Self { until, goal: ContextGoal::Searching, visited: 0 }
    }

    /// Returns `Break` if `raw` is the last entry of the path.
    pub fn visit(&mut self, db: &impl NamedDatabase, raw: &RawEntry) -> Result<ControlFlow<()>> {
        self.visited += 1;
        let is_last = match self.until {
            Until::Root => false,
            Until::Entries(count) => self.visited >= count as usize,
            Until::ContextStart => {
                if raw.meta.kind == Kind::Compaction && self.goal == ContextGoal::Searching {
                    self.goal = goal_of(&raw.body().map_err(|what| db.damaged(what))?);
                }
                self.goal == ContextGoal::Reached || self.goal == ContextGoal::Kept(raw.meta.id)
            }
        };
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

fn goal_of(body: &Body) -> ContextGoal {
    match body {
        Body::Compaction(compaction) => compaction.first_kept.map_or(ContextGoal::Reached, ContextGoal::Kept),
        _ => ContextGoal::Searching,
    }
}

/// Collects the outcomes of the turns that began after the parent of a path's first entry. The
/// caller reads the pages that [`EndedTurns::next_page`] asks for.
pub(crate) struct EndedTurns {
    kind: Option<Kind>,
    start: Seq,
    after: Seq,
    began: HashSet<TurnId>,
    ended: Vec<(TurnId, Outcome)>,
}

impl EndedTurns {
    pub fn of(entries: &[Entry]) -> Self {
        let start = entries.first().and_then(|first| first.meta.parent).unwrap_or_default();
        let kind = (!entries.is_empty()).then_some(Kind::TurnStarted);
        Self { kind, start, after: start, began: HashSet::new(), ended: Vec::new() }
    }

    /// Returns the next page to read: up to [`PAGE_ROWS_MAX`] entries of the returned kind, after the
    /// returned seq.
    pub fn next_page(&self) -> Option<(Kind, Seq)> {
        self.kind.map(|kind| (kind, self.after))
    }

    pub fn add_page(&mut self, db: &impl NamedDatabase, page: &[Record]) -> Result<()> {
        for record in page {
            self.add(record).map_err(|what| db.damaged(what))?;
        }
        match page.last().filter(|_| page.len() >= PAGE_ROWS_MAX) {
            Some(last) => self.after = last.meta.seq,
            None => {
                let has_turns = self.kind == Some(Kind::TurnStarted) && !self.began.is_empty();
                (self.kind, self.after) = (has_turns.then_some(Kind::TurnEnded), self.start);
            }
        }
        Ok(())
    }

    fn add(&mut self, record: &Record) -> Result<(), sapwood_core::entry::codec::CodecError> {
        if record.meta.kind == Kind::TurnStarted {
            self.began.extend(record.meta.turn);
        } else if let Body::TurnEnded(body) = record.decode()? {
            let turn = record.meta.turn.filter(|turn| self.began.contains(turn));
            self.ended.extend(turn.map(|turn| (turn, body.outcome)));
        }
        Ok(())
    }

    /// Returns the section of the path. Call it after the last page.
    pub fn into_slice(self, summary: &Summary, entries: Vec<Entry>, settings_before: Settings) -> PathSlice {
        PathSlice {
            head: summary.head,
            entries,
            inherited: summary.inherited,
            settings_before,
            ended_turns: self.ended,
            open_turn: summary.open_turn,
        }
    }
}
