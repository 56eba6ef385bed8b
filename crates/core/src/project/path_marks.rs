//! Which entries of a part of the log are on another branch.

use crate::entry::{Meta, Stance};
use crate::id::Seq;

/// The parents of a range of entries, to find out which of them are not on the path to the leaf.
#[derive(Debug, Clone, Default)]
pub struct PathMarks {
    parents: Vec<(Seq, Option<Seq>)>,
}

impl PathMarks {
    pub fn add(&mut self, meta: &Meta) {
        if meta.kind.stance() == Stance::InTree {
            self.parents.push((meta.seq, meta.parent));
        }
    }

    /// The entries of the tree that are not on the path to `leaf`, in order.
    pub fn off_path(&self, leaf: Option<Seq>) -> Vec<Seq> {
        let mut next = leaf;
        // A parent has a smaller seq than its child, so one pass from the end visits the path.
        let mut is_off = |(seq, parent): &(Seq, Option<Seq>)| {
            let is_on = next == Some(*seq);
            next = if is_on { *parent } else { next };
            (!is_on).then_some(*seq)
        };
        let mut off: Vec<Seq> = self.parents.iter().rev().filter_map(&mut is_off).collect();
        off.reverse();
        off
    }
}
