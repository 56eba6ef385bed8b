//! Draws a flow run: the nodes in topological order, each with its status and its outgoing edges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Write;

use anstyle::Style;
use sapwood::core::flow::{EdgeKind, EdgeStatus, NodeKind, NodeStatus};
use sapwood::engine::flow::{EdgeView, NodeView, RunStatus, RunView};

use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, Out, RED, YELLOW, clean, fit};

/// Maximum width of a displayed role message, in columns.
const MESSAGE_COLUMNS: usize = 90;
/// Maximum length of a displayed result, in characters. `--json` prints the whole result.
const RESULT_CHARS: usize = 4_000;

pub fn draw(view: &RunView, out: &mut Out) -> Result<()> {
    let style = style_of_run(view.status);
    let status = view.status.as_str();
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}  {style}{status}{style:#}  {DIM}{}{DIM:#}",
        fit(&view.name, 60),
        view.run
    )?;
    if let Some(message) = &view.message {
        writeln!(out, "{RED}{}{RED:#}", clean(message))?;
    }
    let outgoing = outgoing_edges(view);
    for node in topological_order(view, &outgoing) {
        draw_node(node, outgoing.get(node.id.as_str()).map(Vec::as_slice).unwrap_or_default(), out)?;
    }
    for result in &view.results {
        let text: String = result.text.chars().take(RESULT_CHARS).collect();
        writeln!(
            out,
            "\n{BOLD}{} from {}{BOLD:#}\n{}",
            fit(&result.name, 60),
            fit(&result.from, 60),
            clean(&text)
        )?;
    }
    Ok(())
}

/// Outgoing edges by node.
type OutgoingEdges<'v> = HashMap<&'v str, Vec<&'v EdgeView>>;

fn outgoing_edges(view: &RunView) -> OutgoingEdges<'_> {
    let mut outgoing = OutgoingEdges::new();
    for edge in &view.edges {
        outgoing.entry(edge.from.as_str()).or_default().push(edge);
    }
    outgoing
}

/// Sorts the nodes topologically. Ties keep the flow's order, and nodes of the improvement pass are last.
fn topological_order<'v>(view: &'v RunView, outgoing: &OutgoingEdges<'v>) -> Vec<&'v NodeView> {
    let indices: HashMap<&str, usize> =
        view.nodes.iter().enumerate().map(|(at, node)| (node.id.as_str(), at)).collect();
    let mut incoming_counts = vec![0_usize; view.nodes.len()];
    let forward = view.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward);
    forward.filter_map(|edge| indices.get(edge.to.as_str())).for_each(|at| incoming_counts[*at] += 1);
    let free = incoming_counts.iter().enumerate().filter(|(_, count)| **count == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = free.map(|(at, _)| Reverse(at)).collect();
    let mut order = Vec::with_capacity(view.nodes.len());
    while let Some(Reverse(at)) = ready.pop() {
        let node = &view.nodes[at];
        order.push(node);
        let edges = outgoing.get(node.id.as_str()).into_iter().flatten();
        let forward = edges.filter(|edge| edge.kind == EdgeKind::Forward);
        for to in forward.filter_map(|edge| indices.get(edge.to.as_str()).copied()) {
            incoming_counts[to] -= 1;
            if incoming_counts[to] == 0 {
                ready.push(Reverse(to));
            }
        }
    }
    order
}

fn draw_node(node: &NodeView, edges: &[&EdgeView], out: &mut Out) -> Result<()> {
    let (mark, style) = mark_of(node.status);
    let role = node.role.as_deref().filter(|role| *role != node.id);
    let role = role.map(|role| format!(" ({role})")).unwrap_or_default();
    let visits = if node.visits > 1 { format!(", visit {}", node.visits) } else { String::new() };
    let session = node.session.as_deref().filter(|_| node.visits > 0).unwrap_or_default();
    let status = node.status.as_str();
    let shown = match node.kind {
        NodeKind::Agent => format!("{status}{visits}"),
        NodeKind::Input | NodeKind::Output => status.to_owned(),
    };
    writeln!(
        out,
        "{style}{mark} {}{style:#}{role}  {style}{shown}{style:#}  {DIM}{session}{DIM:#}",
        fit(&node.id, 64)
    )?;
    let about = node.why.as_ref().or(node.said.as_ref());
    if let Some(about) = about {
        writeln!(out, "│   {DIM}{}{DIM:#}", fit(about, MESSAGE_COLUMNS))?;
    }
    for (at, edge) in edges.iter().enumerate() {
        let branch = if at + 1 == edges.len() { "└" } else { "├" };
        let arrow = match edge.kind {
            EdgeKind::Forward => "─▶",
            EdgeKind::Backward => "─↺",
        };
        let (mark, style) = mark_of_edge(edge);
        writeln!(out, "{DIM}{branch}{arrow}{DIM:#} {} {style}{mark}{style:#}", fit(&edge.to, 64))?;
    }
    Ok(())
}

fn mark_of(status: NodeStatus) -> (&'static str, Style) {
    match status {
        NodeStatus::Idle => ("○", DIM),
        NodeStatus::Running => ("◐", CYAN),
        NodeStatus::Waiting => ("?", YELLOW),
        NodeStatus::Holding => ("◑", YELLOW),
        NodeStatus::Done => ("●", GREEN),
        NodeStatus::Closed => ("■", GREEN),
        NodeStatus::Skipped => ("·", DIM),
        NodeStatus::Failed => ("✗", RED),
    }
}

fn mark_of_edge(edge: &EdgeView) -> (&'static str, Style) {
    match (edge.kind, edge.status) {
        (EdgeKind::Backward, _) => ("", DIM),
        (EdgeKind::Forward, EdgeStatus::Open) => ("pending", DIM),
        (EdgeKind::Forward, EdgeStatus::Completed) => ("✓", GREEN),
        (EdgeKind::Forward, EdgeStatus::Closed) => ("closed", DIM),
    }
}

fn style_of_run(status: RunStatus) -> Style {
    match status {
        RunStatus::Open => CYAN,
        RunStatus::Waiting => YELLOW,
        RunStatus::Completed => GREEN,
        RunStatus::Failed => RED,
        RunStatus::Cancelled => DIM,
    }
}

#[cfg(test)]
mod tests {
    use sapwood::core::TimestampMs;
    use sapwood::core::flow::Phase;

    use super::*;

    fn node(id: String) -> NodeView {
        NodeView {
            id,
            kind: NodeKind::Agent,
            name: None,
            role: None,
            agent: None,
            status: NodeStatus::Idle,
            visits: 0,
            attempt: 0,
            session: None,
            said: None,
            why: None,
            code: None,
        }
    }

    fn edge(from: &str, to: &str) -> EdgeView {
        let (from, to) = (from.to_owned(), to.to_owned());
        EdgeView { from, to, kind: EdgeKind::Forward, status: EdgeStatus::Open }
    }

    fn view_of(nodes: Vec<NodeView>, edges: Vec<EdgeView>) -> RunView {
        RunView {
            run: "flow-r".parse().unwrap(),
            flow: "f".to_owned(),
            name: "f".to_owned(),
            status: RunStatus::Open,
            phase: Phase::Forward,
            input: String::new(),
            code: None,
            message: None,
            created_at: TimestampMs(1),
            updated_at: TimestampMs(1),
            nodes,
            edges,
            approvals: Vec::new(),
            results: Vec::new(),
            mirror: None,
        }
    }

    /// A quadratic algorithm would take about an hour here.
    #[test]
    fn a_wide_flow_is_drawn_with_sources_before_their_targets() {
        let names: Vec<String> = (1..=50_000).map(|at| format!("a{at}")).collect();
        let all = std::iter::once("end".to_owned()).chain(names.clone()).chain(["begin".to_owned()]);
        let mut edges: Vec<EdgeView> = names.iter().map(|name| edge("begin", name)).collect();
        edges.extend(names.iter().map(|name| edge(name, "end")));
        let view = view_of(all.map(node).collect(), edges);
        let order: Vec<&str> =
            topological_order(&view, &outgoing_edges(&view)).iter().map(|node| node.id.as_str()).collect();
        assert_eq!((order[0], order[1], order[50_000], order[50_001]), ("begin", "a1", "a50000", "end"));
    }
}
