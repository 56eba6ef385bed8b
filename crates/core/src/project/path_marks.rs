//! Which entries of a part of the log are on another branch.

use crate::entry::{Meta, Stance};
use crate::id::Seq;

/// The parents of a range of entries, to find out which of them are not on the path to the leaf. An entry whose parent is
/// the previous entry of the tree needs four bytes.
#[derive(Debug, Clone, Default)]
pub struct PathMarks {
    seqs: Vec<Seq>,
    /// Parents that are not the previous entry of the tree, with the index of their child.
    other_parents: Vec<(u32, Option<Seq>)>,
}

impl PathMarks {
    pub fn add(&mut self, meta: &Meta) {
        if meta.kind.stance() == Stance::InTree {
            if self.seqs.last().copied() != meta.parent {
                let index = u32::try_from(self.seqs.len()).expect("a seq has 32 bits (I1)");
                self.other_parents.push((index, meta.parent));
            }
            self.seqs.push(meta.seq);
        }
    }

    /// The entries of the tree that are not on the path to `leaf`, in order.
    pub fn off_path(&self, leaf: Option<Seq>) -> Vec<Seq> {
        let (mut next, mut off) = (leaf, Vec::new());
        let mut others = self.other_parents.iter().rev().peekable();
        // A parent has a smaller seq than its child, so one pass from the end visits the path.
        for (index, seq) in self.seqs.iter().enumerate().rev() {
            let other = others.next_if(|(child, _)| *child as usize == index);
            let previous = || index.checked_sub(1).map(|index| self.seqs[index]);
            let parent = other.map_or_else(previous, |(_, parent)| *parent);
            if next == Some(*seq) {
                next = parent;
            } else {
                off.push(*seq);
            }
        }
        off.reverse();
        off
    }
}
