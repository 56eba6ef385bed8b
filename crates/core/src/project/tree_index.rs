//! The shape of a tree without its contents, from which pages of the [outline](super::outline) are made. It needs eight
//! bytes per entry and can be extended when the log grows.

use crate::entry::{Entry, Meta, Stance};
use crate::id::Seq;
use crate::project::outline::OutlineNode;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeIndex {
    /// The entries of the tree with their parents, by seq. Roots have the parent zero.
    nodes: Vec<(Seq, Seq)>,
    /// The last entry of the log that was added.
    upto: Seq,
}

impl TreeIndex {
    /// Add the next entry of the log.
    pub fn add(&mut self, meta: &Meta) {
        self.upto = meta.seq;
        if meta.kind.stance() == Stance::InTree {
            self.nodes.push((meta.seq, meta.parent.unwrap_or_default()));
        }
    }

    /// The last entry of the log that was added.
    pub fn upto(&self) -> Seq {
        self.upto
    }

    /// The approximate size in memory.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<(Seq, Seq)>()
    }

    /// The entries without a parent.
    pub fn roots(&self) -> Vec<Seq> {
        self.nodes.iter().filter(|(_, parent)| *parent == Seq::ZERO).map(|(seq, _)| *seq).collect()
    }

    /// The last node of a page that starts after `after`, and whether nodes follow it. `None` after the last node.
    pub fn page_end(&self, after: Seq, limit: usize) -> Option<(Seq, bool)> {
        let first = self.nodes.partition_point(|(seq, _)| *seq <= after);
        let end = first.saturating_add(limit).min(self.nodes.len());
        let last = self.nodes.get(first..end)?.last()?;
        Some((last.0, end < self.nodes.len()))
    }

    /// The part of the tree between two entries, without `after` and with `upto`, and which of them are on the path to
    /// the leaf.
    pub fn part(&self, after: Seq, upto: Seq, leaf: Option<Seq>) -> TreePart {
        let first = self.nodes.partition_point(|(seq, _)| *seq <= after);
        let end = self.nodes.partition_point(|(seq, _)| *seq <= upto);
        let mut edges: Vec<(Seq, Seq)> = self.nodes[first..]
            .iter()
            .filter(|(_, parent)| *parent > after && *parent <= upto)
            .map(|(seq, parent)| (*parent, *seq))
            .collect();
        edges.sort_unstable();
        TreePart { edges, on_path: self.on_path(first, end, leaf) }
    }

    /// The entries of a range of nodes that are on the path to the leaf, in order.
    fn on_path(&self, first: usize, end: usize, leaf: Option<Seq>) -> Vec<Seq> {
        let (mut next, mut on_path) = (leaf.unwrap_or_default(), Vec::new());
        // A parent has a smaller seq than its child, so one pass from the end visits the path.
        for (index, (seq, parent)) in self.nodes.iter().enumerate().skip(first).rev() {
            if *seq == next {
                next = *parent;
                if index < end {
                    on_path.push(*seq);
                }
            }
        }
        on_path.reverse();
        on_path
    }
}

/// The children of the nodes of a page, and which nodes are on the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePart {
    /// Pairs of parent and child, sorted.
    edges: Vec<(Seq, Seq)>,
    on_path: Vec<Seq>,
}

impl TreePart {
    /// The node of an entry. `None` for an entry outside the tree.
    pub fn node(&self, entry: &Entry, label: Option<String>) -> Option<OutlineNode> {
        if entry.meta.kind.stance() != Stance::InTree {
            return None;
        }
        let seq = entry.meta.seq;
        let first = self.edges.partition_point(|(parent, _)| *parent < seq);
        let children = self.edges[first..].iter().take_while(|(parent, _)| *parent == seq);
        let mut node = OutlineNode::of(entry);
        node.label = label;
        node.children = children.map(|(_, child)| *child).collect();
        node.on_path = self.on_path.binary_search(&seq).is_ok();
        Some(node)
    }
}
