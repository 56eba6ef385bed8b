//! `sapwood tree`: draws the branches of a session.
//!
//! A run of entries is drawn in one column. Where branches diverge, the side branches are drawn first, indented, and
//! the run continues with the active path, or else with the largest branch. The indentation depth is therefore
//! logarithmic in the size of the tree.

use std::io::Write;

use clap::Args;
use sapwood::Seq;
use sapwood::core::Kind;
use sapwood::core::project::outline::{Outline, OutlineNode};

use super::show::role_style;
use crate::app::App;
use crate::failure::Result;
use crate::render::{BOLD, DIM, GREEN, Out, YELLOW, clean, fit};

/// Trees up to this size are drawn completely.
const WHOLE_NODES_MAX: usize = 100;
/// Number of entries drawn at each end of a long run.
const RUN_ENDS: usize = 3;

/// Draw a session's branches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood tree @last
  sapwood tree @last --all")]
pub struct TreeArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Draw every entry, even in a large tree
    #[arg(long)]
    all: bool,
}

pub async fn run(app: &mut App, args: TreeArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let outline = app.engine.views().tree(&app.scope, &session).await?;
    if app.out.is_json() {
        return app.out.json(&outline);
    }
    let whole = args.all || outline.nodes.len() <= WHOLE_NODES_MAX;
    let drawing = Drawing { sizes: subtree_sizes(&outline), outline: &outline, whole };
    for root in &outline.roots {
        drawing.column(&mut app.out, *root, "", "")?;
    }
    Ok(())
}

struct Drawing<'a> {
    outline: &'a Outline,
    /// Size of each node's subtree, by index.
    sizes: Vec<usize>,
    whole: bool,
}

/// Counts the entries of each subtree. An entry follows its parent in the log (I2), so one backward pass is enough.
fn subtree_sizes(outline: &Outline) -> Vec<usize> {
    let mut sizes = vec![1; outline.nodes.len()];
    for index in (0..outline.nodes.len()).rev() {
        if let Some(parent) = outline.nodes[index].parent.and_then(|parent| outline.index_of(parent)) {
            sizes[parent] += sizes[index];
        }
    }
    sizes
}

impl Drawing<'_> {
    /// Draws the run that starts at `top`. `first` is the prefix of its first line, `rest` that of the other lines.
    fn column(&self, out: &mut Out, top: Seq, first: &str, rest: &str) -> Result<()> {
        let mut run: Vec<&OutlineNode> = Vec::new();
        let mut lead = first.to_owned();
        let mut next = Some(top);
        while let Some(node) = next.and_then(|seq| self.node(seq)) {
            run.push(node);
            let main = self.main_child(node);
            if node.children.len() > 1 {
                self.run(out, &std::mem::take(&mut run), &lead, rest)?;
                rest.clone_into(&mut lead);
                for side in node.children.iter().filter(|child| Some(**child) != main) {
                    self.column(out, *side, &format!("{rest}├─"), &format!("{rest}│ "))?;
                }
            }
            next = main;
        }
        self.run(out, &run, &lead, rest)
    }

    fn node(&self, seq: Seq) -> Option<&OutlineNode> {
        self.outline.index_of(seq).map(|index| &self.outline.nodes[index])
    }

    fn main_child(&self, node: &OutlineNode) -> Option<Seq> {
        let weight = |seq: &Seq| {
            let index = self.outline.index_of(*seq);
            index.map(|index| (self.outline.nodes[index].on_path, self.sizes[index]))
        };
        node.children.iter().copied().max_by_key(weight)
    }

    fn run(&self, out: &mut Out, run: &[&OutlineNode], first: &str, rest: &str) -> Result<()> {
        let mut at = 0;
        while at < run.len() {
            let lead = if at == 0 { first } else { rest };
            let hidden = self.hidden_after(run, at);
            if hidden == 0 {
                self.line(out, run[at], lead)?;
                at += 1;
            } else {
                writeln!(out, "{lead}{DIM}┊ … {hidden} more{DIM:#}")?;
                at += hidden;
            }
        }
        Ok(())
    }

    /// Number of entries from `at` that can be elided: plain entries far enough from both ends of the run.
    fn hidden_after(&self, run: &[&OutlineNode], at: usize) -> usize {
        if self.whole || at < RUN_ENDS {
            return 0;
        }
        let end = run.len().saturating_sub(RUN_ENDS);
        let stretch =
            run.get(at..end).unwrap_or_default().iter().take_while(|node| self.is_plain(node)).count();
        if stretch > 1 { stretch } else { 0 }
    }

    fn is_plain(&self, node: &OutlineNode) -> bool {
        node.label.is_none() && node.kind != Kind::Compaction && Some(node.seq) != self.outline.leaf
    }

    fn line(&self, out: &mut Out, node: &OutlineNode, lead: &str) -> Result<()> {
        let style = role_style(short_kind(node.kind.as_str()));
        let dot = if node.on_path { "●" } else { "○" };
        let (seq, kind) = (node.seq, short_kind(node.kind.as_str()));
        let label = node.label.as_deref().map_or(String::new(), |label| format!(" [{}]", clean(label)));
        let leaf = if Some(seq) == self.outline.leaf { " ◀ leaf" } else { "" };
        let used = lead.chars().count() + seq.to_string().len() + kind.len() + label.len() + leaf.len() + 5;
        let text = fit(&node.text, out.width().saturating_sub(used).max(10));
        let text_style = if node.kind == Kind::Compaction { YELLOW } else { anstyle::Style::new() };
        writeln!(
            out,
            "{DIM}{lead}{DIM:#}{GREEN}{dot}{GREEN:#} {DIM}{seq}{DIM:#} {style}{kind}{style:#}  \
             {text_style}{text}{text_style:#}{BOLD}{label}{leaf}{BOLD:#}"
        )?;
        Ok(())
    }
}

/// Returns the role for message kinds, and the kind itself for other entries.
fn short_kind(kind: &str) -> &str {
    match kind {
        "user_message" => "user",
        "assistant_message" => "assistant",
        "tool_result" => "tool",
        "system_note" => "note",
        other => other,
    }
}
