//! Import of role sessions. `transcript.json` is one object with the current conversation and, for each
//! compaction, the conversation it replaced. In order they form the log: archived messages, compaction, later
//! messages. `feed.json` next to it has the operator's feed, whose items are kept outside the tree.

use sapwood_core::content::Part;
use sapwood_core::entry::{
    AssistantMessage, Compaction, ContextChanged, CustomInfo, Stop, Strategy, ToolResult, Trigger,
    UserMessage,
};
use sapwood_core::{Body, Json};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::document::{Records, read_document};
use super::steps::{Act, By, Path, RecordKey, StepBatch, Under};
use super::text::{Time, input_json, keep_json};
use super::{Format, Lines, Reader, Trouble};
use crate::export::LEFT_OUT;

/// The custom type of a role's state, kept outside the tree.
pub const STATE_TYPE: &str = "role-files:state";
pub const FEED_TYPE: &str = "role-files:feed";

/// Where a transcript has its messages.
const RECORDS: Records =
    Records { of: &["transcriptHistory", "archivedTranscriptHistory"], inside: &["compactionArchives"] };

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleSession<'a> {
    #[serde(default)]
    role_name: Option<String>,
    logical_session_id: String,
    #[serde(borrow, default)]
    transcript_history: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    compaction_archives: Option<Vec<Archive<'a>>>,
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
struct Archive<'a> {
    #[serde(default)]
    trigger: String,
    compacted_at: Option<Time>,
    #[serde(borrow, default)]
    archived_transcript_history: Vec<&'a RawValue>,
    /// Missing if the file is truncated. In that case nothing was replaced.
    #[serde(borrow)]
    replacement_message: Option<&'a RawValue>,
}

/// A message in one of four shapes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    calls: Option<Vec<Call<'a>>>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    is_error: Option<bool>,
}

#[derive(Deserialize)]
struct Call<'a> {
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

/// Return whether an imported role was active, if the entry records its state.
pub fn role_is_active(info: &CustomInfo) -> Option<bool> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct State {
        is_active: bool,
    }
    let is_state = info.custom_type == STATE_TYPE;
    let state: Option<State> = is_state.then(|| serde_json::from_str(info.data.get()).ok())?;
    state.map(|state| state.is_active)
}

impl Reader for Importer {
    fn push_line(&mut self, line: &[u8], _number: u64, harvest: &mut StepBatch) {
        self.push_document(line, harvest);
    }

    fn push_document(&mut self, bytes: &[u8], harvest: &mut StepBatch) {
        read_document(bytes, RECORDS, harvest, |bytes, harvest| {
            if bytes.trim_ascii_start().starts_with(b"[") {
                return take_feed(bytes, harvest);
            }
            let session: RoleSession<'_> = serde_json::from_slice(bytes)?;
            if session.transcript_history.is_none() && session.compaction_archives.is_none() {
                return Err(serde::de::Error::missing_field("transcriptHistory"));
            }
            self.take(session, bytes, harvest);
            Ok(())
        });
    }
}

/// Add the operator's feed outside the tree.
fn take_feed(bytes: &[u8], harvest: &mut StepBatch) -> Result<(), serde_json::Error> {
    let items: Vec<&RawValue> = serde_json::from_slice(bytes)?;
    for (number, raw) in items.into_iter().enumerate() {
        if harvest.is_given_up() {
            break;
        }
        let Some(data) = keep_json(raw.get()) else { continue };
        let key = RecordKey::of(&format!("feed {number} {}", raw.get()));
        harvest.note(key, CustomInfo { custom_type: FEED_TYPE.to_owned(), data });
    }
    Ok(())
}

impl Importer {
    fn take(&mut self, session: RoleSession<'_>, bytes: &[u8], harvest: &mut StepBatch) {
        let archives = session.compaction_archives.unwrap_or_default();
        let at = archives.first().and_then(|archive| archive.compacted_at).and_then(|time| time.0);
        let new = harvest.open(Format::RoleFiles, &session.logical_session_id, at);
        new.agent.clone_from(&session.role_name);
        let system = session.system_prompt;
        self.open(system.as_deref(), harvest);
        let (began, mut replaced) = (self.last, None::<&str>);
        let mut lines = Lines::new(bytes);
        for archive in archives {
            self.take_history(&archive.archived_transcript_history, replaced, &mut lines, harvest);
            harvest.at = archive.compacted_at.and_then(|time| time.0).or(harvest.at);
            let Some(replacement) = archive.replacement_message.map(RawValue::get) else { continue };
            harvest.line = lines.of(replacement);
            self.take_archive(&archive.trigger, replacement, harvest);
            replaced = Some(replacement);
        }
        let history = session.transcript_history.unwrap_or_default();
        self.take_history(&history, replaced, &mut lines, harvest);
        if system.is_none() && self.last == began {
            // There is no conversation yet, or none that could be read.
            return;
        }
        if let Some(system) = system {
            harvest.step(RecordKey::of(&format!("system {system}")), Act::System(system));
        }
        let node = session.current_node_context;
        let state = serde_json::json!({
            "isActive": session.is_active.unwrap_or(false),
            "currentNodeId": session.current_node_id,
            "latestContextUsage": session.latest_context_usage,
            "currentNodeContext": node.map(|node| serde_json::json!({ "nodeId": node.node_id, "exchanges": node.exchanges.len() })),
        });
        let key = RecordKey::of(&format!("state {state}"));
        harvest.note(key, CustomInfo { custom_type: STATE_TYPE.to_owned(), data: Json::from_value(&state) });
    }

    /// Start the key chain with a fixed key for the instructions, even if they are missing. Otherwise a change of
    /// instructions would change the keys of all later messages.
    fn open(&mut self, system: Option<&str>, harvest: &mut StepBatch) {
        let key = RecordKey::after(RecordKey::of("role"), b"system");
        match system {
            Some(system) => {
                let changed = ContextChanged { system: Some(system.to_owned()), ..ContextChanged::default() };
                harvest.step(key, Act::Opening(changed.into()));
            }
            None => harvest.alias(key, Under::Root, Path::Main),
        }
        self.last = Some(key);
    }

    /// Add a history, without the first message if a compaction inserted it.
    fn take_history(
        &mut self,
        history: &[&RawValue],
        replaced: Option<&str>,
        lines: &mut Lines<'_>,
        harvest: &mut StepBatch,
    ) {
        let same = |raw: &&&RawValue| replaced.is_some_and(|replaced| is_same(raw.get(), replaced));
        let skipped = usize::from(history.first().filter(same).is_some());
        for raw in &history[skipped..] {
            if harvest.is_given_up() {
                return;
            }
            harvest.line = lines.of(raw.get());
            match serde_json::from_str::<Message<'_>>(raw.get()) {
                Ok(message) => match body_of(message) {
                    Ok((body, by)) => self.add(raw.get().as_bytes(), body, by, harvest),
                    Err(trouble) => harvest.report(trouble),
                },
                Err(error) => harvest.report(Trouble::BadLine { why: error.to_string() }),
            }
        }
    }

    fn take_archive(&mut self, trigger: &str, replacement: &str, harvest: &mut StepBatch) {
        let message = serde_json::from_str::<Message<'_>>(replacement);
        let summary = message.ok().and_then(|message| message.content.or(message.text));
        // Sapwood's export writes this placeholder for a missing summary.
        let summary = summary.filter(|summary| summary != LEFT_OUT);
        let compaction = Compaction {
            summary,
            trigger: if trigger == "manual" { Trigger::Manual } else { Trigger::Pressure },
            ..Compaction::new(Strategy::Imported, Trigger::Imported)
        };
        self.add(replacement.as_bytes(), compaction.into(), By::Agent, harvest);
    }

    fn add(&mut self, content: &[u8], body: Body, by: By, harvest: &mut StepBatch) {
        let under = self.last.map_or(Under::Root, Under::RecordKey);
        let key = RecordKey::after(self.last.unwrap_or_else(|| RecordKey::of("role")), content);
        harvest.add(key, under, by, body);
        self.last = Some(key);
    }
}

/// Whether two JSON texts are equal, ignoring whitespace.
fn is_same(one: &str, other: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || read(one).is_some_and(|one| read(other) == Some(one))
}

fn body_of(message: Message<'_>) -> Result<(Body, By), Trouble> {
    let text = |content: Option<String>| content.filter(|text| !text.is_empty()).map(Part::text);
    match message.role.as_str() {
        "user" => {
            let parts = text(message.content).into_iter().collect();
            Ok((UserMessage { parts, origin: None }.into(), By::Caller))
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
                By::Agent,
            ))
        }
        "tool_result" => {
            let result = ToolResult {
                call_id: message.call_id.unwrap_or_default(),
                tool: message.tool_name.filter(|tool| !tool.is_empty()),
                parts: text(message.content).into_iter().collect(),
                is_error: message.is_error.unwrap_or(false),
                duration_ms: None,
                interrupted: false,
                full: None,
            };
            Ok((result.into(), By::Agent))
        }
        role => {
            let role: String = role.chars().take(40).collect();
            Err(Trouble::BadLine { why: format!("unknown role {role:?}") })
        }
    }
}
