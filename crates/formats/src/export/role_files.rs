//! The active path as a role's `transcript.json`: the conversation as it is now, and for each compaction what it replaced.

use sapwood_core::content::Part;
use sapwood_core::entry::{Entry, Stop, Trigger};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Body, EntryId, Seq};
use serde_json::{Value, json};

use super::LEFT_OUT;
use super::tree::plain;
use crate::import::text::write_rfc3339;

/// `path` is the active path from its root, oldest first.
pub fn transcript(summary: &Summary, path: &[Entry]) -> Value {
    let mut history: Vec<(EntryId, Value)> = Vec::new();
    let mut archives: Vec<Value> = Vec::new();
    let mut system = None;
    for entry in path {
        match &entry.body {
            Body::ContextChanged(changed) => system = changed.system.clone().or(system),
            Body::Compaction(compaction) => {
                let text = compaction.summary.as_deref().unwrap_or(LEFT_OUT);
                let replacement = json!({ "role": "user", "content": text });
                let all: Vec<Value> = history.iter().map(|(_, message)| message.clone()).collect();
                archives.push(json!({
                    "id": entry.meta.id, "trigger": if compaction.trigger == Trigger::Manual { "manual" } else { "auto" },
                    "nodeId": "", "compactedAt": write_rfc3339(entry.meta.at),
                    "archivedTranscriptHistory": all, "replacementMessage": replacement,
                }));
                let kept = compaction.first_kept.and_then(|id| history.iter().position(|(at, _)| *at == id));
                let kept = history.split_off(kept.unwrap_or(history.len()));
                history = std::iter::once((entry.meta.id, replacement)).chain(kept).collect();
            }
            body => history.extend(message_of(body).map(|message| (entry.meta.id, message))),
        }
    }
    let messages: Vec<Value> = history.into_iter().map(|(_, message)| message).collect();
    let mut document = json!({
        "roleName": summary.agent.clone().unwrap_or_else(|| "agent".to_owned()),
        "logicalSessionId": summary.id, "isActive": summary.open_turn.is_some(), "transcriptHistory": messages,
    });
    if !archives.is_empty() {
        document["compactionArchives"] = Value::Array(archives);
    }
    if let Some(system) = system {
        document["systemPrompt"] = json!(system);
    }
    document
}

/// What a flow knows of a role beyond its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleAt {
    pub role: String,
    /// The node it is at, and the messages that were exchanged there.
    pub node: Option<(String, Seq)>,
    pub context_tokens: u64,
}

/// The transcript of a flow's role: the same, with where the role is.
pub fn role_transcript(summary: &Summary, path: &[Entry], at: &RoleAt) -> Value {
    let mut document = transcript(summary, path);
    document["roleName"] = json!(at.role);
    document["latestContextUsage"] = json!(at.context_tokens);
    if let Some((node, since)) = &at.node {
        let here = path.iter().filter(|entry| entry.meta.seq > *since);
        let exchanges: Vec<Value> = here.filter_map(|entry| message_of(&entry.body)).collect();
        document["currentNodeId"] = json!(node);
        document["currentNodeContext"] = json!({ "nodeId": node, "exchanges": exchanges });
    }
    document
}

fn message_of(body: &Body) -> Option<Value> {
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
            "role": "tool_result", "callId": result.call_id, "toolName": result.tool.clone().unwrap_or_default(),
            "content": plain(&result.parts), "isError": result.is_error,
        })),
        Body::UserMessage(user) => Some(json!({ "role": "user", "content": plain(&user.parts) })),
        Body::CustomMessage(custom) => Some(json!({ "role": "user", "content": plain(&custom.parts) })),
        Body::SystemNote(note) => Some(json!({ "role": "user", "content": note.text })),
        Body::BranchSummary(branch) => Some(json!({ "role": "user", "content": branch.summary })),
        _ => None,
    }
}
