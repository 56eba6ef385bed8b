//! The active path as a role's `transcript.json`. It contains the current conversation, and the messages that each
//! compaction replaced.

use sapwood_core::content::Part;
use sapwood_core::entry::{Entry, Stop, Trigger};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Body, EntryId, Seq};
use serde_json::{Value, json};

use super::OMITTED_SUMMARY;
use super::calls::ToolNames;
use super::messages::plain_text;
use crate::import::text::write_rfc3339;

/// Build the transcript. `path` is the active path from its root, oldest first.
pub fn transcript(summary: &Summary, path: &[Entry]) -> Value {
    let messages = messages_of(path);
    let mut history: Vec<Value> = Vec::new();
    let mut archives: Vec<Value> = Vec::new();
    let mut system = None;
    for (index, entry) in path.iter().enumerate() {
        match &entry.body {
            Body::Configured(configured) => system.clone_from(&configured.system),
            Body::ContextChanged(changed) => system = changed.system.clone().or(system),
            Body::Compaction(compaction) => {
                let text = compaction.summary.as_deref().unwrap_or(OMITTED_SUMMARY);
                let replacement = json!({ "role": "user", "content": text });
                archives.push(json!({
                    "id": entry.meta.id, "trigger": if compaction.trigger == Trigger::Manual { "manual" } else { "auto" },
                    "nodeId": "", "compactedAt": write_rfc3339(entry.meta.at),
                    "archivedTranscriptHistory": std::mem::take(&mut history), "replacementMessage": replacement,
                }));
                // The first kept entry may not be a message (it may be a setting), so use its position on the
                // path.
                let first = compaction.first_kept.and_then(|id| position_of(&path[..index], id));
                let kept = messages[first.unwrap_or(index)..index].iter().flatten().cloned();
                history.extend(std::iter::once(replacement).chain(kept));
            }
            _ => history.extend(messages[index].clone()),
        }
    }
    let mut document = json!({
        "roleName": summary.agent.clone().unwrap_or_else(|| "agent".to_owned()),
        "logicalSessionId": summary.id, "isActive": summary.open_turn.is_some(), "transcriptHistory": history,
    });
    if !archives.is_empty() {
        document["compactionArchives"] = Value::Array(archives);
    }
    if let Some(system) = system {
        document["systemPrompt"] = json!(system);
    }
    document
}

/// The position of a role in a flow, which its session does not record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleAt {
    pub role: String,
    /// The current node, and the seq after which its messages begin.
    pub node: Option<(String, Seq)>,
    pub context_tokens: u64,
}

/// Build the transcript of a flow's role, including its position in the flow.
pub fn role_transcript(summary: &Summary, path: &[Entry], at: &RoleAt) -> Value {
    let mut document = transcript(summary, path);
    document["roleName"] = json!(at.role);
    document["latestContextUsage"] = json!(at.context_tokens);
    if let Some((node, since)) = &at.node {
        let here = path.iter().zip(messages_of(path)).filter(|(entry, _)| entry.meta.seq > *since);
        let exchanges: Vec<Value> = here.filter_map(|(_, message)| message).collect();
        document["currentNodeId"] = json!(node);
        document["currentNodeContext"] = json!({ "nodeId": node, "exchanges": exchanges });
    }
    document
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
