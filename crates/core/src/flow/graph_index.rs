//! Index of a flow's nodes and edges. It is built once, so that neither validation nor a run scans the whole flow for
//! one node; a flow exported from a long session has one node per turn. The forward edges define the order of the
//! nodes, which nodes are reachable, and which edges lie between two nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::graph::{EdgeKind, Flow};

/// Number of backward edges that are checked together, one bit each.
const MASK_BITS: usize = u64::BITS as usize;

/// Nodes and edges by index into [`Flow::nodes`] and [`Flow::edges`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GraphIndex {
    nodes: BTreeMap<String, usize>,
    /// The start and end node of each edge; `None` if either node does not exist.
    ends: Vec<Option<(usize, usize)>>,
    /// The edge from one node to another. There is at most one.
    edge_by_ends: BTreeMap<(usize, usize), usize>,
    kinds: Vec<EdgeKind>,
    /// The outgoing edges of each node, of both kinds.
    outgoing: Vec<Vec<usize>>,
    /// The incoming forward edges of each node.
    incoming: Vec<Vec<usize>>,
    /// The nodes in topological order, and the rank of each node. Empty if forward edges form a cycle.
    order: Vec<usize>,
    ranks: Vec<usize>,
}

impl Flow {
    /// The forward edges on paths from one node to another.
    pub fn edges_between(&self, from: &str, to: &str) -> Vec<usize> {
        GraphIndex::of(self).edges_between(from, to)
    }
}

impl GraphIndex {
    pub fn of(flow: &Flow) -> Self {
        let mut index = Self {
            outgoing: vec![Vec::new(); flow.nodes.len()],
            incoming: vec![Vec::new(); flow.nodes.len()],
            kinds: flow.edges.iter().map(|edge| edge.kind).collect(),
            ..Self::default()
        };
        for (at, node) in flow.nodes.iter().enumerate() {
            index.nodes.entry(node.id.clone()).or_insert(at);
        }
        for (at, edge) in flow.edges.iter().enumerate() {
            let ends = index.node(&edge.from).zip(index.node(&edge.to));
            index.ends.push(ends);
            let Some((from, to)) = ends else { continue };
            index.edge_by_ends.entry((from, to)).or_insert(at);
            index.outgoing[from].push(at);
            if edge.kind == EdgeKind::Forward {
                index.incoming[to].push(at);
            }
        }
        index.order = index.sorted().unwrap_or_default();
        index.ranks = vec![0; index.order.len()];
        for (rank, node) in index.order.iter().enumerate() {
            index.ranks[*node] = rank;
        }
        index
    }

    pub fn node(&self, id: &str) -> Option<usize> {
        self.nodes.get(id).copied()
    }

    /// The nodes in topological order. Ties are broken by file order.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// A node's position in the order.
    pub fn rank(&self, node: usize) -> usize {
        self.ranks.get(node).copied().unwrap_or_default()
    }

    /// The outgoing edges of the given kind, with their end nodes.
    pub fn outgoing(&self, node: usize, kind: EdgeKind) -> impl Iterator<Item = (usize, usize)> + '_ {
        let edges = self.outgoing.get(node).into_iter().flatten().copied();
        let has_kind = move |edge: &usize| self.kinds[*edge] == kind;
        edges.filter(has_kind).filter_map(|edge| self.ends[edge].map(|(_, to)| (edge, to)))
    }

    /// The incoming forward edges of a node.
    pub fn incoming(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.incoming.get(node).into_iter().flatten().copied()
    }

    /// The edge of the given kind from one node to another.
    pub fn edge(&self, from: &str, to: &str, kind: EdgeKind) -> Option<usize> {
        let ends = self.node(from).zip(self.node(to))?;
        self.edge_by_ends.get(&ends).copied().filter(|edge| self.kinds[*edge] == kind)
    }

    /// The end node of an edge.
    pub fn end(&self, edge: usize) -> Option<usize> {
        self.ends.get(edge).copied().flatten().map(|(_, to)| to)
    }

    /// Sort the nodes topologically. If there is a cycle, the error lists the nodes on it and after it.
    pub fn sorted(&self) -> Result<Vec<usize>, Vec<usize>> {
        let mut in_degrees: Vec<usize> = self.incoming.iter().map(Vec::len).collect();
        let sources = in_degrees.iter().enumerate().filter(|(_, count)| **count == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = sources.map(|(node, _)| Reverse(node)).collect();
        let mut order = Vec::with_capacity(in_degrees.len());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for (_, to) in self.outgoing(node, EdgeKind::Forward) {
                in_degrees[to] -= 1;
                if in_degrees[to] == 0 {
                    ready.push(Reverse(to));
                }
            }
        }
        if order.len() == in_degrees.len() {
            return Ok(order);
        }
        Err((0..in_degrees.len()).filter(|node| in_degrees[*node] > 0).collect())
    }

    /// All nodes that are reachable from `begin` over forward edges, including `begin`.
    pub fn reachable_from(&self, begin: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        traverse(begin, |node| self.successors(node).collect())
    }

    fn successors(&self, node: usize) -> impl Iterator<Item = usize> {
        self.outgoing(node, EdgeKind::Forward).map(|(_, to)| to)
    }

    fn predecessors(&self, node: usize) -> impl Iterator<Item = usize> {
        self.incoming(node).filter_map(|edge| self.ends[edge].map(|(from, _)| from))
    }

    /// The forward edges on paths from one node to another.
    pub fn edges_between(&self, from: &str, to: &str) -> Vec<usize> {
        let Some((from, to)) = self.node(from).zip(self.node(to)) else { return Vec::new() };
        // Skip nodes that rank before `from` or after `to`, because most backward edges span few nodes.
        let (first, last) = (self.rank(from), self.rank(to));
        let after =
            traverse([from], |node| self.successors(node).filter(|node| self.rank(*node) <= last).collect());
        let before =
            traverse([to], |node| self.predecessors(node).filter(|node| self.rank(*node) >= first).collect());
        let outgoing = after.iter().flat_map(|node| self.outgoing(*node, EdgeKind::Forward));
        let mut between: Vec<usize> =
            outgoing.filter(|(_, to)| before.contains(to)).map(|(edge, _)| edge).collect();
        between.sort_unstable();
        between
    }

    /// The backward edges whose end node is not an ancestor of their start node.
    pub fn invalid_back_edges(&self) -> Vec<usize> {
        let is_back = |edge: &usize| self.kinds[*edge] == EdgeKind::Backward;
        let back: Vec<usize> = (0..self.ends.len()).filter(is_back).collect();
        back.chunks(MASK_BITS).flat_map(|chunk| self.invalid_among(chunk)).collect()
    }

    /// [`Self::invalid_back_edges`] for one batch of edges. Each node gets a mask with one bit per edge whose target
    /// precedes the node.
    fn invalid_among(&self, back: &[usize]) -> Vec<usize> {
        let mut masks = vec![0_u64; self.outgoing.len()];
        for (bit, edge) in back.iter().enumerate() {
            if let Some((_, to)) = self.ends[*edge] {
                masks[to] |= 1 << bit;
            }
        }
        for node in &self.order {
            for (_, to) in self.outgoing(*node, EdgeKind::Forward) {
                masks[to] |= masks[*node];
            }
        }
        let is_invalid = |(bit, edge): &(usize, &usize)| {
            // A node does not precede itself.
            self.ends[**edge].is_none_or(|(from, to)| from == to || masks[from] & (1 << bit) == 0)
        };
        back.iter().enumerate().filter(is_invalid).map(|(_, edge)| *edge).collect()
    }
}

fn traverse(begin: impl IntoIterator<Item = usize>, next: impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = begin.into_iter().collect();
    while let Some(here) = open.pop() {
        if found.insert(here) {
            open.extend(next(here).into_iter().filter(|node| !found.contains(node)));
        }
    }
    found
}
