//! Where a flow's nodes and edges are. Everything is found once, so that neither a check nor a run looks through all of a
//! flow for one of its nodes: the export of a long session has one for each turn. The forward edges give an order of the
//! nodes, who is reached, and what lies between two of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::graph::{EdgeKind, Flow};

/// GraphIndex back that are looked at together, one bit each.
const MASK_BITS: usize = u64::BITS as usize;

/// Nodes and edges by their places in [`Flow::nodes`] and [`Flow::edges`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GraphIndex {
    nodes: BTreeMap<String, usize>,
    /// Where each edge begins and ends; none for one that leads nowhere.
    ends: Vec<Option<(usize, usize)>>,
    /// The edge between two nodes: there is one at most.
    places: BTreeMap<(usize, usize), usize>,
    kinds: Vec<EdgeKind>,
    /// The edges that leave each node, of both kinds.
    leaving: Vec<Vec<usize>>,
    /// The forward edges that lead to each node.
    arriving: Vec<Vec<usize>>,
    /// Which node comes when; by node, when it comes. Empty if forward edges go round in a circle.
    order: Vec<usize>,
    ranks: Vec<usize>,
}

impl GraphIndex {
    pub fn of(flow: &Flow) -> Self {
        let mut ways = Self {
            leaving: vec![Vec::new(); flow.nodes.len()],
            arriving: vec![Vec::new(); flow.nodes.len()],
            kinds: flow.edges.iter().map(|edge| edge.kind).collect(),
            ..Self::default()
        };
        for (at, node) in flow.nodes.iter().enumerate() {
            ways.nodes.entry(node.id.clone()).or_insert(at);
        }
        for (at, edge) in flow.edges.iter().enumerate() {
            let ends = ways.node(&edge.from).zip(ways.node(&edge.to));
            ways.ends.push(ends);
            let Some((from, to)) = ends else { continue };
            ways.places.entry((from, to)).or_insert(at);
            ways.leaving[from].push(at);
            if edge.kind == EdgeKind::Forward {
                ways.arriving[to].push(at);
            }
        }
        ways.order = ways.sorted().unwrap_or_default();
        ways.ranks = vec![0; ways.order.len()];
        for (rank, node) in ways.order.iter().enumerate() {
            ways.ranks[*node] = rank;
        }
        ways
    }

    pub fn node(&self, id: &str) -> Option<usize> {
        self.nodes.get(id).copied()
    }

    /// Nodes in an order in which work can flow, of equals the one that stands first in the file.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// When a node comes.
    pub fn rank(&self, node: usize) -> usize {
        self.ranks.get(node).copied().unwrap_or_default()
    }

    /// The edges of a kind that leave a node, and where each leads.
    pub fn leaving(&self, node: usize, kind: EdgeKind) -> impl Iterator<Item = (usize, usize)> + '_ {
        let edges = self.leaving.get(node).into_iter().flatten().copied();
        let is_meant = move |edge: &usize| self.kinds[*edge] == kind;
        edges.filter(is_meant).filter_map(|edge| self.ends[edge].map(|(_, to)| (edge, to)))
    }

    /// The forward edges that lead to a node.
    pub fn arriving(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.arriving.get(node).into_iter().flatten().copied()
    }

    /// The edge of a kind from one node to another.
    pub fn edge(&self, from: &str, to: &str, kind: EdgeKind) -> Option<usize> {
        let ends = self.node(from).zip(self.node(to))?;
        self.places.get(&ends).copied().filter(|edge| self.kinds[*edge] == kind)
    }

    /// Where an edge leads.
    pub fn end(&self, edge: usize) -> Option<usize> {
        self.ends.get(edge).copied().flatten().map(|(_, to)| to)
    }

    /// The nodes so that every forward edge leads onwards; the nodes of a circle if there is no such order.
    pub fn sorted(&self) -> Result<Vec<usize>, Vec<usize>> {
        let mut missing: Vec<usize> = self.arriving.iter().map(Vec::len).collect();
        let free = missing.iter().enumerate().filter(|(_, count)| **count == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = free.map(|(node, _)| Reverse(node)).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for (_, to) in self.leaving(node, EdgeKind::Forward) {
                missing[to] -= 1;
                if missing[to] == 0 {
                    ready.push(Reverse(to));
                }
            }
        }
        if order.len() == missing.len() {
            return Ok(order);
        }
        Err((0..missing.len()).filter(|node| missing[*node] > 0).collect())
    }

    /// Which nodes forward edges lead to from these, which are among them.
    pub fn reached(&self, begin: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        spread(begin, |node| self.behind(node).collect())
    }

    fn behind(&self, node: usize) -> impl Iterator<Item = usize> {
        self.leaving(node, EdgeKind::Forward).map(|(_, to)| to)
    }

    fn before(&self, node: usize) -> impl Iterator<Item = usize> {
        self.arriving(node).filter_map(|edge| self.ends[edge].map(|(from, _)| from))
    }

    /// The forward edges that lie on a way from one node to another.
    pub fn edges_between(&self, from: &str, to: &str) -> Vec<usize> {
        let Some((from, to)) = self.node(from).zip(self.node(to)) else { return Vec::new() };
        // What comes before the one or behind the other is not looked at: most ways back are short.
        let (first, last) = (self.rank(from), self.rank(to));
        let after =
            spread([from], |node| self.behind(node).filter(|node| self.rank(*node) <= last).collect());
        let before =
            spread([to], |node| self.before(node).filter(|node| self.rank(*node) >= first).collect());
        let leaving = after.iter().flat_map(|node| self.leaving(*node, EdgeKind::Forward));
        let mut between: Vec<usize> =
            leaving.filter(|(_, to)| before.contains(to)).map(|(edge, _)| edge).collect();
        between.sort_unstable();
        between
    }

    /// The backward edges that lead to no earlier node.
    pub fn dead_ways_back(&self) -> Vec<usize> {
        let is_back = |edge: &usize| self.kinds[*edge] == EdgeKind::Backward;
        let back: Vec<usize> = (0..self.ends.len()).filter(is_back).collect();
        back.chunks(MASK_BITS).flat_map(|chunk| self.dead_of(chunk)).collect()
    }

    /// The same of as many as a mask has bits: each node gets the bits of those it comes behind.
    fn dead_of(&self, back: &[usize]) -> Vec<usize> {
        let mut masks = vec![0_u64; self.leaving.len()];
        for (bit, edge) in back.iter().enumerate() {
            if let Some((_, to)) = self.ends[*edge] {
                masks[to] |= 1 << bit;
            }
        }
        for node in &self.order {
            for (_, to) in self.leaving(*node, EdgeKind::Forward) {
                masks[to] |= masks[*node];
            }
        }
        let is_dead = |(bit, edge): &(usize, &usize)| {
            // A node does not come behind itself.
            self.ends[**edge].is_none_or(|(from, to)| from == to || masks[from] & (1 << bit) == 0)
        };
        back.iter().enumerate().filter(is_dead).map(|(_, edge)| *edge).collect()
    }
}

fn spread(begin: impl IntoIterator<Item = usize>, next: impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = begin.into_iter().collect();
    while let Some(here) = open.pop() {
        if found.insert(here) {
            open.extend(next(here).into_iter().filter(|node| !found.contains(node)));
        }
    }
    found
}
