//! A run as a drawing: the nodes in the order in which work flows, each with its state, and below it where its work goes.

use std::io::Write;

use anstyle::Style;
use sapwood::core::flow::{EdgeKind, EdgeStatus, NodeKind, NodeStatus};
use sapwood::engine::flow::{EdgeView, NodeView, RunStatus, RunView};

use crate::failure::Result;
use crate::render::{BOLD, CYAN, DIM, GREEN, Out, RED, YELLOW, clean, fit};

/// How much of what a role said is shown.
const SAID_COLUMNS: usize = 90;
/// How much of a result is shown; all of it is with `--json`.
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
    for node in in_order(view) {
        draw_node(view, node, out)?;
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

/// Sources before their targets; what the improvement pass added comes last.
fn in_order(view: &RunView) -> Vec<&NodeView> {
    let forward = || view.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward);
    let mut left: Vec<&NodeView> = view.nodes.iter().collect();
    let mut order: Vec<&NodeView> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let is_open = |id: &str| left.iter().any(|node| node.id == id);
        let is_next = |node: &&NodeView| !forward().any(|edge| edge.to == node.id && is_open(&edge.from));
        let at = left.iter().position(is_next).unwrap_or(0);
        order.push(left.remove(at));
    }
    order
}

fn draw_node(view: &RunView, node: &NodeView, out: &mut Out) -> Result<()> {
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
        writeln!(out, "│   {DIM}{}{DIM:#}", fit(about, SAID_COLUMNS))?;
    }
    let leaves: Vec<&EdgeView> = view.edges.iter().filter(|edge| edge.from == node.id).collect();
    for (at, edge) in leaves.iter().enumerate() {
        let branch = if at + 1 == leaves.len() { "└" } else { "├" };
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
        (EdgeKind::Forward, EdgeStatus::Open) => ("owed", DIM),
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
