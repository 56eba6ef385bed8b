//! Import of role sessions. `transcript.json` is one object with the current conversation and, for each compaction, the
//! conversation that it replaced. The log consists of the archived messages, the compaction and the later messages, in
//! this order. `feed.json` in the same folder contains the operator's feed, whose items are stored outside the tree.

use sapwood_core::content::Part;
use sapwood_core::entry::{
    AssistantMessage, Compaction, ContextChanged, CustomInfo, Stop, Strategy, Trigger, UserMessage,
};
use sapwood_core::{Body, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::blocks::tool_result;
use super::document::{Records, read_document};
use super::steps::{Author, PathKind, RecordKey, StepAction, StepBatch, StepParent};
use super::text::{Time, input_json, keep_json};
use super::{Format, LineLocator, ProblemKind, Reader};
use crate::export::OMITTED_SUMMARY;

/// The custom type of an entry with a role's state, stored outside the tree.
pub const STATE_TYPE: &str = "role-files:state";
pub const FEED_TYPE: &str = "role-files:feed";

const RECORDS: Records = Records {
    keys: &["transcriptHistory", "archivedTranscriptHistory"],
    container_keys: &["compactionArchives"],
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleSession<'a> {
    #[serde(default)]
    role_name: Option<String>,
    logical_session_id: String,
    #[serde(borrow, default)]
    transcript_history: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    compaction_archives: Option<Vec<CompactionArchive<'a>>>,
    #[serde(default)]
    is_active: Option<bool>,
    #[serde(default)]
    current_node_id: Option<String>,
    #[serde(default)]
    system_prompt: Option<String>,
    #[serde(default)]
    latest_context_usage: Option<f64>,
    #[serde(borrow, default)]
    current_node_context: Option<NodeContext<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeContext<'a> {
    node_id: String,
    #[serde(borrow, default)]
    exchanges: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompactionArchive<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    node_id: Option<String>,
    #[serde(default)]
    trigger: String,
    compacted_at: Option<Time>,
    #[serde(borrow, default)]
    archived_transcript_history: Vec<&'a RawValue>,
    /// Missing if the file is truncated. In that case nothing was replaced.
    #[serde(borrow)]
    replacement_message: Option<&'a RawValue>,
}

/// A message: from the user, from the assistant, with tool calls, or with a tool result.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleMessage<'a> {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    calls: Option<Vec<RoleCall<'a>>>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    is_error: Option<bool>,
}

#[derive(Deserialize)]
struct RoleCall<'a> {
    #[serde(default, alias = "callId")]
    id: String,
    #[serde(default, alias = "toolName")]
    name: String,
    #[serde(borrow, alias = "arguments", alias = "args")]
    input: Option<&'a RawValue>,
}

#[derive(Default)]
pub struct Importer {
    last: Option<RecordKey>,
}

/// The state of an imported role: everything in its file that is neither a message nor the system prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleState {
    /// Whether the file was written during a turn. Such a turn was interrupted.
    pub is_active: bool,
    pub current_node_id: Option<String>,
    pub latest_context_usage: Option<f64>,
    pub current_node_context: Option<NodeState>,
    /// The names of the archives that have a compaction, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub archives: Vec<ArchiveName>,
}

/// The current node of an imported role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub node_id: String,
    /// Number of messages at the node. They are the last messages of the history.
    pub exchanges: usize,
}

/// The id of an imported archive, and the node that was active when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ArchiveName {
    pub id: String,
    pub node_id: String,
}

impl RoleState {
    /// Read the state from the entry that records it; `None` for other entries.
    pub fn of_info(info: &CustomInfo) -> Option<Self> {
        let is_state = info.custom_type == STATE_TYPE;
        is_state.then(|| serde_json::from_str(info.data.get()).ok())?
    }

    fn to_info(&self) -> Option<CustomInfo> {
        let data = serde_json::to_value(self).ok()?;
        Some(CustomInfo { custom_type: STATE_TYPE.to_owned(), data: Json::from_value(&data) })
    }
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], _number: u64, batch: &mut StepBatch) {
        self.push_document(line, batch);
    }

    fn push_document(&mut self, bytes: &[u8], batch: &mut StepBatch) {
        read_document(bytes, RECORDS, batch, |bytes, batch| {
            if bytes.trim_ascii_start().starts_with(b"[") {
                return take_feed(bytes, batch);
            }
            let session: RoleSession<'_> = serde_json::from_slice(bytes)?;
            if session.transcript_history.is_none() && session.compaction_archives.is_none() {
                return Err(serde::de::Error::missing_field("transcriptHistory"));
            }
            self.take(session, bytes, batch);
            Ok(())
        });
    }
}

fn take_feed(bytes: &[u8], batch: &mut StepBatch) -> Result<(), serde_json::Error> {
    let items: Vec<&RawValue> = serde_json::from_slice(bytes)?;
    for (number, raw) in items.into_iter().enumerate() {
        if batch.is_given_up() {
            break;
        }
        let Some(data) = keep_json(raw.get()) else { continue };
        let key = RecordKey::of(&format!("feed {number} {}", raw.get()));
        batch.note(key, CustomInfo { custom_type: FEED_TYPE.to_owned(), data });
    }
    Ok(())
}

impl Importer {
    fn take(&mut self, session: RoleSession<'_>, bytes: &[u8], batch: &mut StepBatch) {
        let archives = session.compaction_archives.unwrap_or_default();
        let at = archives.first().and_then(|archive| archive.compacted_at).and_then(|time| time.0);
        let new = batch.open(Format::RoleFiles, &session.logical_session_id, at);
        new.agent.clone_from(&session.role_name);
        let system = session.system_prompt;
        self.open(system.as_deref(), batch);
        let (began, mut replaced) = (self.last, None::<&str>);
        let mut lines = LineLocator::new(bytes);
        let mut names = Vec::new();
        for archive in archives {
            self.take_history(&archive.archived_transcript_history, replaced, &mut lines, batch);
            batch.at = archive.compacted_at.and_then(|time| time.0).or(batch.at);
            let Some(replacement) = archive.replacement_message.map(RawValue::get) else { continue };
            batch.line = lines.line_of(replacement);
            self.take_archive(&archive.trigger, replacement, batch);
            let (id, node_id) = (archive.id.unwrap_or_default(), archive.node_id.unwrap_or_default());
            names.push(ArchiveName { id, node_id });
            replaced = Some(replacement);
        }
        let history = session.transcript_history.unwrap_or_default();
        self.take_history(&history, replaced, &mut lines, batch);
        if system.is_none() && self.last == began {
            // The conversation is empty or unreadable.
            return;
        }
        if let Some(system) = system {
            batch.step(RecordKey::of(&format!("system {system}")), StepAction::System(system));
        }
        let node = session.current_node_context;
        let node = node.map(|node| NodeState { node_id: node.node_id, exchanges: node.exchanges.len() });
        let state = RoleState {
            is_active: session.is_active.unwrap_or(false),
            current_node_id: session.current_node_id,
            latest_context_usage: session.latest_context_usage,
            current_node_context: node,
            archives: names,
        };
        if let Some(info) = state.to_info() {
            batch.note(RecordKey::of(&format!("state {}", info.data.get())), info);
        }
    }

    /// Start the key chain with a fixed key for the instructions, even if they are missing. Otherwise a change of
    /// instructions would change the keys of all later messages.
    fn open(&mut self, system: Option<&str>, batch: &mut StepBatch) {
        let key = RecordKey::after(RecordKey::of("role"), b"system");
        match system {
            Some(system) => {
                let changed = ContextChanged { system: Some(system.to_owned()), ..ContextChanged::default() };
                batch.step(key, StepAction::Opening(changed.into()));
            }
            None => batch.alias(key, StepParent::Root, PathKind::Main),
        }
        self.last = Some(key);
    }

    /// Add the messages of a history. The first message is skipped if a compaction inserted it.
    fn take_history(
        &mut self,
        history: &[&RawValue],
        replaced: Option<&str>,
        lines: &mut LineLocator<'_>,
        batch: &mut StepBatch,
    ) {
        let same = |raw: &&&RawValue| replaced.is_some_and(|replaced| is_same(raw.get(), replaced));
        let skipped = usize::from(history.first().filter(same).is_some());
        for raw in &history[skipped..] {
            if batch.is_given_up() {
                return;
            }
            batch.line = lines.line_of(raw.get());
            match serde_json::from_str::<RoleMessage<'_>>(raw.get()) {
                Ok(message) => match body_of(message) {
                    Ok((body, by)) => self.add(raw.get().as_bytes(), body, by, batch),
                    Err(problem) => batch.report(problem),
                },
                Err(error) => batch.report(ProblemKind::BadLine { why: error.to_string() }),
            }
        }
    }

    fn take_archive(&mut self, trigger: &str, replacement: &str, batch: &mut StepBatch) {
        let message = serde_json::from_str::<RoleMessage<'_>>(replacement);
        let summary = message.ok().and_then(|message| message.content.or(message.text));
        // Sapwood's export writes this placeholder for a missing summary.
        let summary = summary.filter(|summary| summary != OMITTED_SUMMARY);
        let compaction = Compaction {
            summary,
            trigger: if trigger == "manual" { Trigger::Manual } else { Trigger::Pressure },
            ..Compaction::new(Strategy::Imported, Trigger::Imported)
        };
        self.add(replacement.as_bytes(), compaction.into(), Author::Agent, batch);
    }

    fn add(&mut self, content: &[u8], body: Body, by: Author, batch: &mut StepBatch) {
        let under = self.last.map_or(StepParent::Root, StepParent::RecordKey);
        let key = RecordKey::after(self.last.unwrap_or_else(|| RecordKey::of("role")), content);
        batch.add(key, under, by, body);
        self.last = Some(key);
    }
}

/// Whether two JSON texts have the same value.
fn is_same(one: &str, other: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || read(one).is_some_and(|one| read(other) == Some(one))
}

fn body_of(message: RoleMessage<'_>) -> Result<(Body, Author), ProblemKind> {
    let text = |content: Option<String>| content.filter(|text| !text.is_empty()).map(Part::text);
    match message.role.as_str() {
        "user" => {
            let parts = text(message.content).into_iter().collect();
            Ok((UserMessage { parts, origin: None }.into(), Author::Caller))
        }
        "assistant" | "assistant_tool_calls" => {
            let mut parts: Vec<Part> = text(message.content.or(message.text)).into_iter().collect();
            let calls = message.calls.unwrap_or_default();
            let stop = if calls.is_empty() { Stop::Stop } else { Stop::ToolUse };
            parts.extend(
                calls.into_iter().map(|call| Part::tool_call(call.id, call.name, input_json(call.input))),
            );
            Ok((
                AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop }.into(),
                Author::Agent,
            ))
        }
        "tool_result" => {
            let (call_id, is_error) =
                (message.call_id.unwrap_or_default(), message.is_error.unwrap_or(false));
            let tool = message.tool_name.filter(|tool| !tool.is_empty());
            let parts = text(message.content).into_iter().collect();
            Ok((tool_result(call_id, tool, parts, is_error).into(), Author::Agent))
        }
        role => {
            let role: String = role.chars().take(40).collect();
            Err(ProblemKind::BadLine { why: format!("unknown role {role:?}") })
        }
    }
}
