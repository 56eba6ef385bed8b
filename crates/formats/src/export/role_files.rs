//! The active path as a role's `transcript.json`. It contains the current conversation, the messages of the current node,
//! and the messages that each compaction replaced. The mirror of a flow run and the export of a session both use
//! [`transcript`], so that they write the same file.

use sapwood_core::content::Part;
use sapwood_core::entry::{Entry, Stop, Strategy, Trigger};
use sapwood_core::settings::Settings;
use sapwood_core::{Body, EntryId, Seq};
use serde_json::{Value, json};

use super::OMITTED_SUMMARY;
use super::calls::ToolNames;
use super::messages::plain_text;
use crate::import::role_files::{ArchiveName, RoleState};
use crate::import::text::write_rfc3339;

/// The facts about a role that its active path does not contain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoleFacts {
    /// The role instance, such as `owner` or `curator_2`.
    pub role: String,
    /// The flow and the role instance, as one id.
    pub logical_id: String,
    /// Whether a turn is in progress or was interrupted.
    pub is_active: bool,
    /// The nodes that the role entered, in log order.
    pub nodes: Vec<NodeEntered>,
    /// The names of imported compactions, in log order.
    pub archives: Vec<ArchiveName>,
    /// The tokens of the context in the most recent completed turn.
    pub context_tokens: Option<u64>,
    /// The rendered system prompt of the session's configuration. `None` if the session has no configuration: the
    /// prompt is then that of the path.
    pub configured_system: Option<String>,
}

/// A node that a role entered. Its messages begin after `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEntered {
    pub node: String,
    pub after: Seq,
}

impl NodeEntered {
    /// The node in an imported state. Its messages are the last ones before the state.
    pub fn of_state(state: &RoleState, at: Seq, path: &[Entry]) -> Option<Self> {
        let context = state.current_node_context.as_ref();
        let node = context.map(|context| &context.node_id).or(state.current_node_id.as_ref())?.clone();
        let count = context.map_or(0, |context| context.exchanges);
        let mut before: Vec<Seq> = path
            .iter()
            .zip(messages_of(path))
            .filter(|(entry, message)| message.is_some() && entry.meta.seq < at)
            .map(|(entry, _)| entry.meta.seq)
            .collect();
        before.truncate(before.len().saturating_sub(count));
        Some(Self { node, after: before.last().copied().unwrap_or(Seq::ZERO) })
    }
}

/// Build the transcript. `path` is the active path from its root, oldest first.
pub fn transcript(path: &[Entry], facts: &RoleFacts) -> Value {
    let messages = messages_of(path);
    let mut history: Vec<Value> = Vec::new();
    let mut archives: Vec<Value> = Vec::new();
    let mut names = facts.archives.iter();
    let mut settings = Settings::default();
    for (index, entry) in path.iter().enumerate() {
        settings.apply(&entry.body);
        let Body::Compaction(compaction) = &entry.body else {
            history.extend(messages[index].clone());
            continue;
        };
        let text = compaction.summary.as_deref().unwrap_or(OMITTED_SUMMARY);
        let replacement = json!({ "role": "user", "content": text });
        let name = if compaction.strategy == Strategy::Imported { names.next() } else { None };
        let own_node = || facts.node_at(entry.meta.seq).map(|entered| entered.node.clone());
        archives.push(json!({
            "id": name.map_or_else(|| json!(entry.meta.id), |name| json!(name.id)),
            "trigger": if compaction.trigger == Trigger::Manual { "manual" } else { "auto" },
            "nodeId": name.map(|name| name.node_id.clone()).or_else(own_node).unwrap_or_default(),
            "compactedAt": write_rfc3339(entry.meta.at),
            "archivedTranscriptHistory": std::mem::take(&mut history), "replacementMessage": replacement,
        }));
        // The first kept entry may not be a message (it may be a setting), so use its position on the path.
        let first = compaction.first_kept.and_then(|id| position_of(&path[..index], id));
        let kept = messages[first.unwrap_or(index)..index].iter().flatten().cloned();
        history.extend(std::iter::once(replacement).chain(kept));
    }
    let mut document = facts.document(path, messages);
    document["transcriptHistory"] = Value::Array(history);
    if !archives.is_empty() {
        document["compactionArchives"] = Value::Array(archives);
    }
    let system = facts.configured_system.clone().or_else(|| settings.system_prompt());
    if let Some(system) = system {
        document["systemPrompt"] = json!(system);
    }
    document
}

impl RoleFacts {
    /// The node that the role worked on at this point of the log.
    fn node_at(&self, seq: Seq) -> Option<&NodeEntered> {
        self.nodes.iter().rev().find(|entered| entered.after < seq)
    }

    /// The document without the conversation.
    fn document(&self, path: &[Entry], messages: Vec<Option<Value>>) -> Value {
        let mut document = json!({
            "roleName": self.role, "logicalSessionId": self.logical_id, "isActive": self.is_active,
        });
        if let Some(tokens) = self.context_tokens {
            document["latestContextUsage"] = json!(tokens);
        }
        if let Some(NodeEntered { node, after }) = self.nodes.last() {
            let here = path.iter().zip(messages).filter(|(entry, _)| entry.meta.seq > *after);
            let exchanges: Vec<Value> = here.filter_map(|(_, message)| message).collect();
            document["currentNodeId"] = json!(node);
            document["currentNodeContext"] = json!({ "nodeId": node, "exchanges": exchanges });
        }
        document
    }
}

fn position_of(path: &[Entry], id: EntryId) -> Option<usize> {
    path.iter().rposition(|entry| entry.meta.id == id)
}

/// Convert the entries of a path to messages; `None` for an entry that is not a message.
fn messages_of(path: &[Entry]) -> Vec<Option<Value>> {
    let mut calls = ToolNames::default();
    let message = |entry: &Entry| {
        calls.record(&entry.body);
        message_of(&entry.body, &calls)
    };
    path.iter().map(message).collect()
}

fn message_of(body: &Body, calls: &ToolNames) -> Option<Value> {
    match body {
        Body::AssistantMessage(answer) if answer.stop == Stop::Error => None,
        Body::AssistantMessage(answer) => {
            let text = body.text();
            let calls: Vec<Value> = answer
                .parts
                .iter()
                .filter_map(Part::as_tool_call)
                .map(|call| json!({ "id": call.call_id, "name": call.name, "input": call.input.to_value() }))
                .collect();
            Some(match calls.is_empty() {
                true => json!({ "role": "assistant", "content": text }),
                false if text.is_empty() => json!({ "role": "assistant_tool_calls", "calls": calls }),
                false => json!({ "role": "assistant_tool_calls", "calls": calls, "text": text }),
            })
        }
        Body::ToolResult(result) => Some(json!({
            "role": "tool_result", "callId": result.call_id, "toolName": calls.tool_of(result).unwrap_or_default(),
            "content": plain_text(&result.parts), "isError": result.is_error,
        })),
        Body::UserMessage(user) => Some(json!({ "role": "user", "content": plain_text(&user.parts) })),
        Body::CustomMessage(custom) => Some(json!({ "role": "user", "content": plain_text(&custom.parts) })),
        Body::SystemNote(note) => Some(json!({ "role": "user", "content": note.text })),
        Body::BranchSummary(branch) => Some(json!({ "role": "user", "content": branch.summary })),
        _ => None,
    }
}
