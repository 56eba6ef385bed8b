//! The entry tree for display: one node per entry with its children, in log order.

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Kind, Stance};
use crate::id::{EntryId, Seq, TimestampMs};
use crate::settings::Labels;

/// Maximum length of a node's text, in characters.
const NODE_TEXT_CHARS_MAX: usize = 120;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Node))]
pub struct OutlineNode {
    pub seq: Seq,
    pub id: EntryId,
    pub parent: Option<Seq>,
    pub kind: Kind,
    pub at: TimestampMs,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub children: Vec<Seq>,
    pub on_path: bool,
}

impl OutlineNode {
    /// The node of an entry, without what only other entries decide: its label, its children, and whether it is on the
    /// path.
    pub fn of(entry: &Entry) -> Self {
        let meta = &entry.meta;
        Self {
            seq: meta.seq,
            id: meta.id,
            parent: meta.parent,
            kind: meta.kind,
            at: meta.at,
            text: node_text(entry),
            label: None,
            children: Vec::new(),
            on_path: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Tree))]
pub struct Outline {
    pub roots: Vec<Seq>,
    pub leaf: Option<Seq>,
    /// Sorted by seq.
    pub nodes: Vec<OutlineNode>,
    /// Pass this as `after` to get the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Seq>,
}

impl Outline {
    pub fn fold<'a>(entries: impl IntoIterator<Item = &'a Entry>, leaf: Option<Seq>) -> Self {
        let mut outline = Outline { leaf, ..Outline::default() };
        let mut labels = Labels::default();
        for entry in entries {
            labels.apply(&entry.body);
            if entry.meta.kind.stance() == Stance::InTree {
                outline.add(entry);
            }
        }
        for node in &mut outline.nodes {
            node.label = labels.get(node.id).map(str::to_owned);
        }
        outline.mark_path();
        outline
    }

    fn add(&mut self, entry: &Entry) {
        let meta = &entry.meta;
        match meta.parent.and_then(|parent| self.index_of(parent)) {
            Some(parent) => self.nodes[parent].children.push(meta.seq),
            None => self.roots.push(meta.seq),
        }
        self.nodes.push(OutlineNode::of(entry));
    }

    fn mark_path(&mut self) {
        let mut next = self.leaf;
        while let Some(index) = next.and_then(|seq| self.index_of(seq)) {
            self.nodes[index].on_path = true;
            next = self.nodes[index].parent;
        }
    }

    pub fn index_of(&self, seq: Seq) -> Option<usize> {
        self.nodes.binary_search_by_key(&seq, |node| node.seq).ok()
    }
}

fn node_text(entry: &Entry) -> String {
    let mut text = entry.body.text();
    if text.is_empty() {
        let calls: Vec<&str> = entry
            .body
            .parts()
            .iter()
            .filter_map(|part| part.as_tool_call())
            .map(|call| call.name.as_str())
            .collect();
        text = if calls.is_empty() { setting_text(entry) } else { format!("→ {}", calls.join(", ")) };
    }
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut short: String = line.chars().take(NODE_TEXT_CHARS_MAX).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

fn setting_text(entry: &Entry) -> String {
    use crate::entry::Body;
    match &entry.body {
        Body::ModelChanged(changed) => changed.model.clone(),
        Body::ThinkingChanged(changed) => changed.level.clone(),
        Body::SkillsChanged(changed) => changed.active.join(", "),
        Body::Graft(graft) => format!("from {}", graft.source),
        Body::Compaction(_) if entry.meta.kind == Kind::Compaction => "(trimmed)".to_owned(),
        _ => String::new(),
    }
}
