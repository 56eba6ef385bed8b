//! The activity feed for operators. A tool item is replaced in place by its outcome, so a replay of the log and a live
//! watcher end with the same list.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::content::Part;
use crate::entry::{ApprovalAnswer, Body, CustomInfo, Entry, Outcome, Stop, SystemNote};
use crate::flow::visit::{ENTRY_REASON, REPAIR_REASON};
use crate::flow::{Assignment, HANDOFF_TOOL, RunEvent, RunOutcome};
use crate::port::hook::{HookNote, HookResult};
use crate::pressure::Pressure;
use crate::trigger::TriggerNote;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedType {
    Assistant,
    User,
    Event,
    Error,
    Handoff,
    Resume,
    Repair,
    Tool,
    ToolSuccess,
    ToolError,
    Activation,
    Reasoning,
    Waiting,
    Pressure,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FeedItem {
    /// The entry's seq, plus the part's number if an entry has several items. Unique within the feed.
    pub id: String,
    #[serde(rename = "type")]
    pub kind: FeedType,
    pub label: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Feed {
    pub items: Vec<FeedItem>,
    /// The number of items that were taken out before `items`.
    taken: usize,
    /// Items of calls that have no outcome yet, by call id.
    running: HashMap<String, RunningCall>,
    /// The positions of the items in `running` among all items.
    waiting: BTreeSet<usize>,
    /// The item that the latest entry changed in place, and the number of items before that entry.
    changed: Option<usize>,
    before: usize,
}

/// An item that waits for its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RunningCall {
    /// The item's position among all items, including those taken out.
    at: usize,
    id: String,
    label: String,
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
        let changed = self.changed.and_then(|at| self.items.get(at));
        changed.into_iter().chain(&self.items[self.before..])
    }

    /// Take out all items, so that a long feed can be sent in batches. If a call's item was taken before its outcome,
    /// the outcome becomes a new item with the same id, which replaces the earlier one.
    pub fn take_items(&mut self) -> Vec<FeedItem> {
        self.taken += self.items.len();
        (self.changed, self.before) = (None, 0);
        std::mem::take(&mut self.items)
    }

    /// Take out the items that will not change any more: those before the first call without an outcome.
    pub fn take_settled(&mut self) -> Vec<FeedItem> {
        let waiting = self.waiting.range(self.taken..).next().map(|at| at - self.taken);
        let rest = self.items.split_off(waiting.unwrap_or(self.items.len()));
        let settled = std::mem::replace(&mut self.items, rest);
        self.taken += settled.len();
        (self.changed, self.before) = (None, self.items.len());
        settled
    }

    pub fn apply(&mut self, entry: &Entry) {
        use FeedType::{Activation, Error, Event, User, Waiting};
        (self.changed, self.before) = (None, self.items.len());
        let text = entry.body.text();
        match &entry.body {
            Body::UserMessage(_) => self.push(entry, User, "user", text),
            Body::AssistantMessage(message) => {
                self.push_answer(entry, &message.parts);
                if message.stop == Stop::Error {
                    // Numbered after the parts. The text item's id is the entry's seq.
                    let id = format!("{}.{}", entry.meta.seq, message.parts.len());
                    let (label, text) = ("error".to_owned(), "the model's answer failed".to_owned());
                    self.items.push(FeedItem { id, kind: Error, label, text });
                }
            }
            Body::ToolResult(result) => self.finish_tool(entry, &result.call_id, result.is_error, text),
            Body::SystemNote(note) => self.push_note(entry, note),
            Body::CustomMessage(message) if message.display => {
                self.push(entry, Event, &message.custom_type, text)
            }
            Body::CustomInfo(info) => self.push_info(entry, info),
            Body::CustomMessage(_) | Body::Round(_) => {}
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
            Body::TurnStarted(_) => self.push(entry, Activation, "turn started", String::new()),
            Body::TurnEnded(ended) => match ended.outcome {
                Outcome::Completed => {}
                Outcome::Cancelled => self.push(entry, Event, "cancelled", String::new()),
                Outcome::Failed | Outcome::Limited => {
                    self.push(entry, Error, "turn ended", ended.code.clone().unwrap_or_default());
                }
            },
            Body::ApprovalAsked(asked) => self.push(entry, Waiting, "approval", asked.question.clone()),
            Body::ApprovalAnswered(answered) => {
                let label = match answered.answer {
                    ApprovalAnswer::Approved => "approved",
                    ApprovalAnswer::Denied => "denied",
                };
                self.push(entry, Event, label, answered.reason.clone().unwrap_or_default());
            }
            Body::ArtifactPut(put) => self.push(entry, Event, "artifact", put.name.clone()),
            Body::MemberChanged(changed) => self.push(entry, Event, "shared", changed.member.to_string()),
            Body::StateChanged(changed) => self.push(entry, Event, changed.state.as_str(), String::new()),
            Body::Exported(exported) => self.push(entry, Event, "exported", exported.format.clone()),
            Body::InputQueued(_) => self.push(entry, Waiting, "queued", text),
            Body::InputTaken(_) => {}
            Body::CancelAsked(_) => self.push(entry, Event, "cancel asked", String::new()),
        }
    }

    fn push(&mut self, entry: &Entry, kind: FeedType, label: &str, text: String) {
        let id = entry.meta.seq.to_string();
        self.items.push(FeedItem { id, kind, label: label.to_owned(), text });
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

    /// Add items for extension entries that an operator should see.
    fn push_info(&mut self, entry: &Entry, info: &CustomInfo) {
        if let Some(pressure) = Pressure::from_info(info) {
            self.push(entry, FeedType::Pressure, "pressure", pressure.to_string());
        } else if let Some(assignment) = Assignment::of_info(info) {
            let text = format!("{} · visit {}", assignment.flow, assignment.visit);
            self.push(entry, FeedType::Activation, &assignment.node, text);
        } else if let Some(event) = RunEvent::of_info(info) {
            self.push_run_event(entry, event);
        } else if let Some(note) = HookNote::from_info(info) {
            let is_bad = matches!(note.result, HookResult::Refused | HookResult::Failed);
            let kind = if is_bad { FeedType::Error } else { FeedType::Event };
            self.push(entry, kind, "hook", note.to_string());
        } else if let Some(note) = TriggerNote::from_info(info) {
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
    fn push_answer(&mut self, entry: &Entry, parts: &[Part]) {
        let mut has_text_item = false;
        for (number, part) in parts.iter().enumerate() {
            let id = format!("{}.{number}", entry.meta.seq);
            match part {
                Part::Reasoning(reasoning) => {
                    let text = reasoning.text.clone();
                    self.items.push(FeedItem {
                        id,
                        kind: FeedType::Reasoning,
                        label: "reasoning".to_owned(),
                        text,
                    });
                }
                Part::ToolCall(call) => {
                    let (label, text) = (call.name.clone(), call.input.get().to_owned());
                    let at = self.taken + self.items.len();
                    let running = RunningCall { at, id: id.clone(), label: label.clone() };
                    self.waiting.insert(at);
                    if let Some(replaced) = self.running.insert(call.call_id.clone(), running) {
                        self.waiting.remove(&replaced.at);
                    }
                    self.items.push(FeedItem { id, kind: FeedType::Tool, label, text });
                }
                Part::Text(_) if !has_text_item => {
                    has_text_item = true;
                    let text = entry.body.text();
                    if !text.is_empty() {
                        self.push(entry, FeedType::Assistant, "assistant", text);
                    }
                }
                Part::Text(_) | Part::Media(_) => {}
            }
        }
    }

    fn finish_tool(&mut self, entry: &Entry, call_id: &str, is_error: bool, text: String) {
        let Some(running) = self.running.remove(call_id) else {
            let kind = if is_error { FeedType::ToolError } else { FeedType::ToolSuccess };
            return self.push(entry, kind, "tool", text);
        };
        self.waiting.remove(&running.at);
        let kind = match (running.label == HANDOFF_TOOL, is_error) {
            (true, true) => FeedType::Repair,
            (true, false) => FeedType::Handoff,
            (false, true) => FeedType::ToolError,
            (false, false) => FeedType::ToolSuccess,
        };
        let item = FeedItem { id: running.id, kind, label: running.label, text };
        match running.at.checked_sub(self.taken) {
            Some(at) => {
                self.items[at] = item;
                self.changed = Some(at);
            }
            None => self.items.push(item),
        }
    }
}
