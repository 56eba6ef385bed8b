//! A path as runs of seqs, so that a long path needs little memory.

use crate::entry::{Meta, Stance};
use crate::id::Seq;

/// The entries of a path as runs, oldest first. Every entry of the tree within a run is on the path. Entries outside the
/// tree may lie within a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathRuns(Vec<(Seq, Seq)>);

impl PathRuns {
    /// The runs of a path whose seqs are given newest first.
    pub fn of_walk(newest_first: impl IntoIterator<Item = Seq>) -> Self {
        let mut runs: Vec<(Seq, Seq)> = Vec::new();
        for seq in newest_first {
            match runs.last_mut() {
                Some((first, _)) if *first == seq.next() => *first = seq,
                _ => runs.push((seq, seq)),
            }
        }
        runs.reverse();
        Self(runs)
    }

    pub fn last(&self) -> Option<Seq> {
        self.0.last().map(|(_, last)| *last)
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this entry is on the path.
    pub fn contains(&self, meta: &Meta) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= meta.seq);
        let is_within = after.checked_sub(1).is_some_and(|index| meta.seq <= self.0[index].1);
        is_within && meta.kind.stance() == Stance::InTree
    }

    /// The first seq after this one that may be on the path.
    pub fn next_after(&self, seq: Seq) -> Option<Seq> {
        let index = self.0.partition_point(|(_, last)| *last <= seq);
        self.0.get(index).map(|(first, _)| (*first).max(seq.next()))
    }
}

/// Joins the runs of a path over entries outside the tree, while the log is read in order.
#[derive(Debug, Clone, Default)]
pub struct RunJoiner {
    runs: Vec<(Seq, Seq)>,
    is_open: bool,
}

impl RunJoiner {
    /// Add the next entry of the log, and whether it is on the path.
    pub fn add(&mut self, meta: &Meta, is_on_path: bool) {
        match self.runs.last_mut() {
            Some((_, last)) if is_on_path && self.is_open => *last = meta.seq,
            _ if is_on_path => {
                self.runs.push((meta.seq, meta.seq));
                self.is_open = true;
            }
            _ => self.is_open &= meta.kind.stance() == Stance::OutsideTree,
        }
    }

    /// Skip entries of the log that are not on the path.
    pub fn skip(&mut self) {
        self.is_open = false;
    }

    pub fn finish(self) -> PathRuns {
        PathRuns(self.runs)
    }
}
