//! The forward edges as a graph: an order of the nodes, who is reached, what lies between two of them.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{EdgeKind, Flow};

/// The nodes so that every forward edge leads onwards; the nodes of a circle if there is no such order.
pub(super) fn sorted(flow: &Flow) -> Result<Vec<String>, Vec<String>> {
    let forward = || flow.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward);
    let mut missing: BTreeMap<&str, usize> = flow.nodes.iter().map(|node| (node.id.as_str(), 0)).collect();
    for edge in forward() {
        *missing.entry(edge.to.as_str()).or_default() += 1;
    }
    let mut order: Vec<String> = Vec::with_capacity(flow.nodes.len());
    let mut left: Vec<&str> = flow.nodes.iter().map(|node| node.id.as_str()).collect();
    while let Some(at) = left.iter().position(|id| missing.get(id) == Some(&0)) {
        let id = left.remove(at);
        order.push(id.to_owned());
        for edge in forward().filter(|edge| edge.from == id) {
            if let Some(count) = missing.get_mut(edge.to.as_str()) {
                *count -= 1;
            }
        }
    }
    if left.is_empty() { Ok(order) } else { Err(left.into_iter().map(str::to_owned).collect()) }
}

/// The nodes a run gets to.
pub(super) fn reached(flow: &Flow) -> BTreeSet<&str> {
    let begin: Vec<&str> = flow.entries().iter().map(|node| node.id.as_str()).collect();
    spread(flow, begin, |from, to| (from, to))
}

pub(super) fn edges_between(flow: &Flow, from: &str, to: &str) -> Vec<usize> {
    let after = spread(flow, vec![from], |from, to| (from, to));
    let before = spread(flow, vec![to], |from, to| (to, from));
    let lies_between = |(_, edge): &(usize, &super::Edge)| {
        edge.kind == EdgeKind::Forward
            && after.contains(edge.from.as_str())
            && before.contains(edge.to.as_str())
    };
    flow.edges.iter().enumerate().filter(lies_between).map(|(at, _)| at).collect()
}

/// Everything that forward edges lead to, taken in the direction that `turned` gives them.
fn spread<'a>(
    flow: &'a Flow,
    begin: Vec<&str>,
    turned: impl Fn(&'a str, &'a str) -> (&'a str, &'a str),
) -> BTreeSet<&'a str> {
    let named = |id: &&str| flow.nodes.iter().map(|node| node.id.as_str()).find(|known| known == id);
    let mut found: BTreeSet<&'a str> = begin.iter().filter_map(named).collect();
    let mut open: Vec<&'a str> = found.iter().copied().collect();
    while let Some(here) = open.pop() {
        for edge in flow.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward) {
            let (from, to) = turned(&edge.from, &edge.to);
            if from == here && found.insert(to) {
                open.push(to);
            }
        }
    }
    found
}
