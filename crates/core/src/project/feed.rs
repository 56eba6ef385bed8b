//! The activity feed for operators. Items change in place: a tool call by its outcome, an approval by its answer, queued
//! input when it is consumed. A replay of the log and a live watcher therefore end with the same list.

use std::collections::{BTreeMap, HashMap};

pub use super::feed_item::{
    FeedAnswer, FeedApproval, FeedApprovalState, FeedChange, FeedItem, FeedQueued, FeedTool, FeedToolStatus,
    FeedType,
};

use crate::approval::Escalation;
use crate::content::{Part, ToolCall};
use crate::entry::{
    ApprovalAnswer, ArtifactPut, ArtifactUse, AssistantMessage, Body, Entry, Outcome, Round, RoundStatus,
    Stop, SystemNote, ToolResult,
};
use crate::flow::visit::{ENTRY_REASON, REPAIR_REASON};
use crate::flow::{Assignment, HANDOFF_TOOL, RunEvent, RunOutcome};
use crate::id::{EntryId, TurnId};
use crate::port::hook::{HookNote, HookResult};
use crate::pressure::Pressure;
use crate::trigger::TriggerNote;

/// Maximum total size of the pending items that a feed keeps after they were taken out. Beyond that, a call loses its
/// input, and other items are not changed any more.
const KEPT_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Feed {
    pub items: Vec<FeedItem>,
    pub open_turn: Option<TurnId>,
    /// The approvals that the open turn asked for.
    asked: Vec<String>,
    /// The number of items that were taken out before `items`.
    taken: usize,
    /// Items that a later entry may change.
    pending: HashMap<PendingKey, PendingItem>,
    /// The positions of the pending items among all items.
    waiting: BTreeMap<usize, PendingKey>,
    /// Bytes of the pending items that were taken out.
    kept_bytes: usize,
    /// The items that the latest entry changed in place, and the number of items before that entry.
    changed: Vec<usize>,
    before: usize,
}

/// The reference by which a later entry finds a pending item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum PendingKey {
    Call(String),
    Approval(String),
    Input(EntryId),
}

#[derive(Debug, Clone, PartialEq)]
struct PendingItem {
    /// The item's position among all items, including those taken out.
    at: usize,
    /// The item, if it was taken out.
    taken: Option<Box<FeedItem>>,
}

impl Feed {
    pub fn fold<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut feed = Self::default();
        for entry in entries {
            feed.apply(entry);
        }
        feed
    }

    /// The items that the latest entry changed or added. An item with a known id replaces the earlier item
    /// with that id.
    pub fn news(&self) -> impl Iterator<Item = &FeedItem> {
        let changed = self.changed.iter().filter_map(|at| self.items.get(*at));
        changed.chain(&self.items[self.before..])
    }

    /// Take out all items, so that a long feed can be sent in batches. If a pending item was taken and then changes,
    /// it becomes a new item with the same id, which replaces the earlier one.
    pub fn take_items(&mut self) -> Vec<FeedItem> {
        for (at, key) in self.waiting.range(self.taken..) {
            let Some(pending) = self.pending.get_mut(key) else { continue };
            let mut item = self.items[at - self.taken].clone();
            // The outcome of a call replaces the text, but not the input.
            if item.tool.is_some() {
                item.text.clear();
            }
            if self.kept_bytes + item.kept_bytes() > KEPT_BYTES_MAX {
                let Some(tool) = &mut item.tool else { continue };
                tool.input = None;
            }
            self.kept_bytes += item.kept_bytes();
            pending.taken = Some(Box::new(item));
        }
        self.taken += self.items.len();
        (self.changed, self.before) = (Vec::new(), 0);
        std::mem::take(&mut self.items)
    }

    /// Apply an entry and take out its change.
    pub fn take_change(&mut self, entry: &Entry) -> FeedChange {
        self.apply(entry);
        FeedChange { items: self.take_items(), open_turn: self.open_turn }
    }

    /// Take out the items that will not change any more: those before the first pending item.
    pub fn take_settled(&mut self) -> Vec<FeedItem> {
        let waiting = self.waiting.range(self.taken..).next().map(|(at, _)| at - self.taken);
        let rest = self.items.split_off(waiting.unwrap_or(self.items.len()));
        let settled = std::mem::replace(&mut self.items, rest);
        self.taken += settled.len();
        (self.changed, self.before) = (Vec::new(), self.items.len());
        settled
    }

    /// Add an item that a later entry may change.
    fn push_pending(&mut self, key: PendingKey, item: FeedItem) {
        self.remove_pending(&key);
        let at = self.taken + self.items.len();
        self.pending.insert(key.clone(), PendingItem { at, taken: None });
        self.waiting.insert(at, key);
        self.items.push(item);
    }

    fn remove_pending(&mut self, key: &PendingKey) -> Option<PendingItem> {
        let pending = self.pending.remove(key)?;
        self.waiting.remove(&pending.at);
        self.kept_bytes -= pending.taken.as_ref().map_or(0, |item| item.kept_bytes());
        Some(pending)
    }

    /// Change a pending item for the last time, if there is one.
    fn settle(&mut self, key: &PendingKey, change: impl FnOnce(&mut FeedItem)) {
        let Some(pending) = self.remove_pending(key) else { return };
        match pending.taken {
            Some(mut item) => {
                change(&mut item);
                self.items.push(*item);
            }
            None => {
                let Some(at) = pending.at.checked_sub(self.taken) else { return };
                change(&mut self.items[at]);
                self.changed.push(at);
            }
        }
    }

    pub fn apply(&mut self, entry: &Entry) {
        use FeedType::{Activation, Error, Event, User};
        (self.changed, self.before) = (Vec::new(), self.items.len());
        let text = entry.body.text();
        match &entry.body {
            Body::UserMessage(message) => self.push_message(entry, User, "user", &message.parts),
            Body::AssistantMessage(message) => self.push_answer(entry, message),
            Body::ToolResult(result) => self.finish_tool(entry, result, text),
            Body::SystemNote(note) => self.push_note(entry, note),
            Body::CustomMessage(message) if message.display => {
                self.push_message(entry, Event, &message.custom_type, &message.parts);
            }
            Body::PressureChanged(_)
            | Body::CustomInfo(_)
            | Body::FlowEvent(_)
            | Body::FlowAssigned(_)
            | Body::HookRan(_)
            | Body::TriggerEvent(_) => self.push_record(entry),
            Body::Configured(configured) => {
                let text = configured.context.working_dir.clone().unwrap_or_default();
                self.push(entry, Activation, "session started", text);
            }
            Body::ContextSet(set) => self.push(entry, Event, "context changed", set.context.to_string()),
            Body::LimitsChanged(changed) => self.push(entry, Event, "limits changed", changed.to_string()),
            Body::Round(round) => self.push_round(entry, round),
            Body::CustomMessage(_) | Body::TurnTerms(_) | Body::UsageReported(_) | Body::MemoryLearned(_) => {
            }
            Body::Compaction(_) => self.push(entry, Event, "compacted", text),
            Body::BranchSummary(_) => self.push(entry, Event, "left a branch", text),
            Body::ModelChanged(changed) => self.push(entry, Event, "model", changed.model.clone()),
            Body::ThinkingChanged(changed) => self.push(entry, Event, "thinking", changed.level.clone()),
            Body::SkillsChanged(changed) => self.push(entry, Activation, "skills", changed.active.join(", ")),
            Body::ContextChanged(_) => self.push(entry, Event, "context changed", String::new()),
            Body::Graft(graft) => self.push(entry, Event, "grafted", graft.source.to_string()),
            Body::LeafMoved(_) => self.push(entry, Event, "moved to another branch", String::new()),
            Body::Label(label) => self.push(entry, Event, "label", label.text.clone().unwrap_or_default()),
            Body::SessionNamed(_) => self.push(entry, Event, "renamed", text),
            Body::TurnStarted(_) => {
                self.open_turn = entry.meta.turn;
                self.push(entry, Activation, "turn started", String::new());
            }
            Body::TurnEnded(ended) => {
                self.end_turn();
                match ended.outcome {
                    Outcome::Completed => {}
                    Outcome::Cancelled => self.push(entry, Event, "cancelled", String::new()),
                    Outcome::Failed | Outcome::Limited => {
                        self.push(entry, Error, "turn ended", ended.code.clone().unwrap_or_default());
                    }
                }
            }
            Body::ApprovalAsked(_)
            | Body::ApprovalAnswered(_)
            | Body::InputQueued(_)
            | Body::InputTaken(_) => self.apply_pending(entry),
            Body::ArtifactPut(put) => self.push(entry, Event, artifact_label(put), artifact_text(put)),
            Body::MemberChanged(changed) => self.push(entry, Event, "shared", changed.member.to_string()),
            Body::StateChanged(changed) => self.push(entry, Event, changed.state.as_str(), String::new()),
            Body::Exported(exported) => self.push(entry, Event, "exported", exported.format.clone()),
            Body::CancelAsked(_) => self.push(entry, Event, "cancel asked", String::new()),
        }
    }

    /// Apply a question, queued input, or the entry that changes it.
    fn apply_pending(&mut self, entry: &Entry) {
        let id = entry.meta.seq.to_string();
        match &entry.body {
            Body::ApprovalAsked(asked) => {
                let question = asked.question.clone();
                let mut item = FeedItem::new(entry, id, FeedType::Waiting, "approval", question);
                let (id, about, state) = (asked.approval.clone(), asked.kind(), FeedApprovalState::Open);
                item.approval = Some(FeedApproval { id, about, state, why: asked.why(), reason: None });
                self.asked.push(asked.approval.clone());
                self.push_pending(PendingKey::Approval(asked.approval.clone()), item);
            }
            Body::ApprovalAnswered(answered) => {
                let (label, state) = match answered.answer {
                    ApprovalAnswer::Approved => ("approved", FeedApprovalState::Approved),
                    ApprovalAnswer::Denied => ("denied", FeedApprovalState::Denied),
                };
                self.settle_approval(&answered.approval, state, answered.reason.as_ref());
                self.push(entry, FeedType::Event, label, answered.reason.clone().unwrap_or_default());
            }
            Body::InputQueued(queued) => {
                let mut item = FeedItem::new(entry, id, FeedType::Waiting, "queued", entry.body.text());
                item.parts = parts_beyond_text(&queued.parts);
                item.queued = Some(FeedQueued { queue: queued.queue, taken: false });
                self.push_pending(PendingKey::Input(entry.meta.id), item);
            }
            Body::InputTaken(taken) => {
                self.settle(&PendingKey::Input(taken.input), |item| {
                    item.queued.iter_mut().for_each(|queued| queued.taken = true);
                });
            }
            _ => {}
        }
    }

    fn settle_approval(&mut self, approval: &str, state: FeedApprovalState, reason: Option<&String>) {
        self.settle(&PendingKey::Approval(approval.to_owned()), |item| {
            if let Some(approval) = &mut item.approval {
                (approval.state, approval.reason) = (state, reason.cloned());
            }
        });
    }

    /// Close the turn. Its unanswered questions expire.
    fn end_turn(&mut self) {
        self.open_turn = None;
        for approval in std::mem::take(&mut self.asked) {
            self.settle_approval(&approval, FeedApprovalState::Expired, None);
        }
    }

    fn push(&mut self, entry: &Entry, kind: FeedType, label: &str, text: String) {
        self.items.push(FeedItem::new(entry, entry.meta.seq.to_string(), kind, label, text));
    }

    fn push_message(&mut self, entry: &Entry, kind: FeedType, label: &str, parts: &[Part]) {
        let mut item = FeedItem::new(entry, entry.meta.seq.to_string(), kind, label, entry.body.text());
        item.parts = parts_beyond_text(parts);
        self.items.push(item);
    }

    /// Add an item for a round that the other items do not explain: an answer that was given up.
    fn push_round(&mut self, entry: &Entry, round: &Round) {
        let status = round.result.as_ref().map(|result| result.status);
        if status == Some(RoundStatus::Backtracked) {
            let text = round.reason.clone().unwrap_or_default();
            self.push(entry, FeedType::Event, "answer given up", text);
        }
    }

    fn push_note(&mut self, entry: &Entry, note: &SystemNote) {
        let (kind, label) = match note.reason.as_deref() {
            Some("continuation") => (FeedType::Resume, "resumed"),
            Some(REPAIR_REASON) => (FeedType::Repair, "repair"),
            Some(ENTRY_REASON) => (FeedType::Event, "node"),
            _ => (FeedType::Event, "note"),
        };
        self.push(entry, kind, label, note.text.clone());
    }

    /// Add items for records of the engine that an operator should see.
    fn push_record(&mut self, entry: &Entry) {
        let body = &entry.body;
        if let Some(pressure) = Pressure::of_body(body) {
            self.push(entry, FeedType::Pressure, "pressure", pressure.to_string());
        } else if let Some(assignment) = Assignment::of_body(body) {
            let text = format!("{} · visit {}", assignment.flow, assignment.visit);
            self.push(entry, FeedType::Activation, &assignment.node, text);
        } else if let Some(event) = RunEvent::of_body(body) {
            self.push_run_event(entry, event);
        } else if let Some(note) = HookNote::of_body(body) {
            let is_bad = matches!(note.result, HookResult::Refused | HookResult::Failed);
            let kind = if is_bad { FeedType::Error } else { FeedType::Event };
            self.push(entry, kind, "hook", note.to_string());
        } else if let Some(escalation) = Escalation::of_body(body) {
            let to = escalation.to.map(|to| format!(" to {to}")).unwrap_or_default();
            self.push(entry, FeedType::Event, "escalated", format!("{}{to}", escalation.approval));
        } else if let Some(note) = TriggerNote::of_body(body) {
            self.push(entry, FeedType::Event, "trigger", note.to_string());
        }
    }

    fn push_run_event(&mut self, entry: &Entry, event: RunEvent) {
        use FeedType::{Activation, Error, Event, Handoff, Resume, Waiting};
        match event {
            RunEvent::Started { flow, .. } => {
                self.push(entry, Activation, "flow started", flow.title().to_owned());
            }
            RunEvent::Entered { node, visit, session, .. } => {
                self.push(entry, Activation, &node, format!("visit {visit} in session {session}"));
            }
            RunEvent::Waits { node, approvals, .. } => self.push(entry, Waiting, &node, approvals.join(", ")),
            RunEvent::Handed { node, handed, .. } => {
                let to: Vec<&str> = handed.to.iter().map(|(to, _)| to.as_str()).collect();
                let text = match (to.is_empty(), handed.closed.or(handed.waits)) {
                    (false, _) => format!("→ {}", to.join(", ")),
                    (true, Some(why)) => why,
                    (true, None) => handed.said,
                };
                self.push(entry, Handoff, &node, text);
            }
            RunEvent::Failed { node, code, message, .. } => {
                self.push(entry, Error, &node, format!("{code}: {message}"));
            }
            RunEvent::Retried { node, attempt, .. } => {
                self.push(entry, Resume, &node, format!("attempt {attempt}"));
            }
            RunEvent::Improving => {
                self.push(entry, Event, "improvement", "the roles review the run".to_owned())
            }
            RunEvent::CancelAsked => self.push(entry, Event, "cancel asked", String::new()),
            RunEvent::Ended { outcome, message, .. } => {
                let kind = if outcome == RunOutcome::Failed { Error } else { Event };
                self.push(entry, kind, outcome.as_str(), message.unwrap_or_default());
            }
        }
    }

    /// Add one item for all text of an answer, and one for each other part.
    fn push_answer(&mut self, entry: &Entry, message: &AssistantMessage) {
        let mut has_text_item = false;
        let id_of = |number: usize| format!("{}.{number}", entry.meta.seq);
        for (number, part) in message.parts.iter().enumerate() {
            match part {
                Part::Reasoning(reasoning) => {
                    let (kind, text) = (FeedType::Reasoning, reasoning.text.clone());
                    self.items.push(FeedItem::new(entry, id_of(number), kind, "reasoning", text));
                }
                Part::ToolCall(call) => self.push_call(entry, id_of(number), call),
                Part::Media(media) => {
                    let name = media.name.as_ref().unwrap_or(&media.mime).clone();
                    let item = FeedItem::new(entry, id_of(number), FeedType::Assistant, "media", name);
                    self.items.push(FeedItem { parts: vec![part.clone()], ..item });
                }
                Part::Text(_) if !has_text_item => {
                    has_text_item = true;
                    self.push_answer_text(entry, message);
                }
                Part::Text(_) => {}
            }
        }
        if message.stop == Stop::Error {
            // Numbered after the parts. The text item's id is the entry's seq.
            let (id, text) = (id_of(message.parts.len()), "the model's answer failed".to_owned());
            self.items.push(FeedItem::new(entry, id, FeedType::Error, "error", text));
        }
    }

    fn push_answer_text(&mut self, entry: &Entry, message: &AssistantMessage) {
        let text = entry.body.text();
        if text.is_empty() {
            return;
        }
        let AssistantMessage { model, usage, cost_nano_usd, stop, .. } = message;
        let answer =
            FeedAnswer { model: model.clone(), usage: *usage, cost_nano_usd: *cost_nano_usd, stop: *stop };
        let id = entry.meta.seq.to_string();
        let item = FeedItem::new(entry, id, FeedType::Assistant, "assistant", text);
        self.items.push(FeedItem { answer: Some(answer), ..item });
    }

    fn push_call(&mut self, entry: &Entry, id: String, call: &ToolCall) {
        let item = FeedItem::new(entry, id, FeedType::Tool, &call.name, call.input.get().to_owned());
        let tool = Some(FeedTool::running(&call.call_id, &call.name, Some(call.input.clone())));
        self.push_pending(PendingKey::Call(call.call_id.clone()), FeedItem { tool, ..item });
    }

    /// Change the call's item, or add an item if the call is unknown.
    fn finish_tool(&mut self, entry: &Entry, result: &ToolResult, text: String) {
        let key = PendingKey::Call(result.call_id.clone());
        if self.pending.contains_key(&key) {
            self.settle(&key, |item| finish_call(item, result, text));
            return;
        }
        let id = entry.meta.seq.to_string();
        let mut item = FeedItem::new(entry, id, FeedType::Tool, "tool", String::new());
        let name = result.tool.as_deref().unwrap_or("tool");
        item.tool = Some(FeedTool::running(&result.call_id, name, None));
        finish_call(&mut item, result, text);
        self.items.push(item);
    }
}

fn finish_call(item: &mut FeedItem, result: &ToolResult, text: String) {
    item.kind = match (item.label == HANDOFF_TOOL, result.is_error) {
        (true, true) => FeedType::Repair,
        (true, false) => FeedType::Handoff,
        (false, true) => FeedType::ToolError,
        (false, false) => FeedType::ToolSuccess,
    };
    (item.text, item.parts) = (text, parts_beyond_text(&result.parts));
    if let Some(tool) = &mut item.tool {
        tool.status = match (result.interrupted, result.is_error) {
            (true, _) => FeedToolStatus::Interrupted,
            (false, true) => FeedToolStatus::Failed,
            (false, false) => FeedToolStatus::Done,
        };
        (tool.duration_ms, tool.full) = (result.duration_ms, result.full.clone());
    }
}

fn artifact_label(put: &ArtifactPut) -> &'static str {
    match put.usage {
        ArtifactUse::Input => "input",
        ArtifactUse::Artifact => "artifact",
    }
}

/// The name of a file, and the source of a snippet.
fn artifact_text(put: &ArtifactPut) -> String {
    match &put.source {
        Some(source) => format!("{} · {source}", put.name),
        None => put.name.clone(),
    }
}

/// All parts of a message, or none if the message is a single text, because the item's text already has it.
fn parts_beyond_text(parts: &[Part]) -> Vec<Part> {
    match parts {
        [] | [Part::Text(_)] => Vec::new(),
        parts => parts.to_vec(),
    }
}
