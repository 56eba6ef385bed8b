//! Conversion of a session to a workflow. Each completed turn is an agent node, in a straight chain from input to
//! output. No parallel or conditional steps are inferred. The metadata contains the whole conversation, including
//! incomplete turns.
//!
//! A turn is a run of user messages and all entries that follow, up to the next user message after an answer.
//! A turn is completed if the model's last message has text, and neither the message nor any of its tool
//! calls was interrupted.

use std::collections::BTreeMap;

use sapwood_core::Body;
use sapwood_core::content::Part;
use sapwood_core::entry::{Entry, Stop};
use sapwood_core::project::summary::Summary;
use serde_json::{Value, json};

use super::{Document, NodeKind, SCHEMA_VERSION, Workflow, WorkflowEdge, WorkflowNode};
use crate::import::text::write_rfc3339;

/// The metadata key of the conversation.
pub const EXPORT_KEY: &str = "sapwood_export";
const FALLBACK_ID: &str = "exported-session";
const FALLBACK_AGENT: &str = "assistant";

/// The exported document and the number of its turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    pub document: Document,
    pub turns: usize,
}

#[derive(Default)]
struct SessionTurn {
    prompts: Vec<String>,
    tools: Vec<String>,
    answered: bool,
    has_final_text: bool,
}

/// Export a session. `path` is the active path from its root, oldest first.
pub fn of_session(summary: &Summary, path: &[Entry]) -> Exported {
    let agent = summary.agent.clone().unwrap_or_else(|| FALLBACK_AGENT.to_owned());
    let completed: Vec<SessionTurn> = turns_of(path).into_iter().filter(|turn| turn.has_final_text).collect();
    let mut nodes = vec![WorkflowNode::new("input", NodeKind::Input)];
    let turns = completed.len();
    for (number, turn) in completed.into_iter().enumerate() {
        let prompt = neutralise(&turn.prompts.join("\n\n"));
        nodes.push(WorkflowNode {
            agent_ref: Some(agent.clone()),
            prompt_template: Some(prompt).filter(|prompt| !prompt.is_empty()),
            tools: turn.tools,
            ..WorkflowNode::new(format!("turn-{}", number + 1), NodeKind::Agent)
        });
    }
    nodes.push(WorkflowNode::new("output", NodeKind::Output));
    let edges =
        nodes.windows(2).map(|pair| WorkflowEdge::forward(pair[0].id.clone(), pair[1].id.clone())).collect();
    let workflow = Workflow {
        id: id_of(summary.title.as_deref().unwrap_or_default()),
        name: summary.title.clone(),
        agents: agent_snapshot(path).into_iter().collect(),
        roles: Vec::new(),
        record_folder: None,
        required_readings: None,
        improvement: None,
        nodes,
        edges,
        metadata: BTreeMap::from([(EXPORT_KEY.to_owned(), export_of(summary, &agent, path))]),
    };
    Exported { document: Document { schema_version: SCHEMA_VERSION.to_owned(), workflow }, turns }
}

fn turns_of(path: &[Entry]) -> Vec<SessionTurn> {
    let mut turns: Vec<SessionTurn> = Vec::new();
    for entry in path {
        match &entry.body {
            Body::UserMessage(_) => {
                if turns.last().is_none_or(|turn| turn.answered) {
                    turns.push(SessionTurn::default());
                }
                if let Some(turn) = turns.last_mut() {
                    turn.prompts.extend(Some(entry.body.text()).filter(|text| !text.is_empty()));
                }
            }
            Body::AssistantMessage(answer) if answer.stop != Stop::Error => {
                let Some(turn) = turns.last_mut() else { continue };
                turn.answered = true;
                turn.has_final_text = answer.stop != Stop::Aborted && !entry.body.text().trim().is_empty();
                for call in answer.parts.iter().filter_map(Part::as_tool_call) {
                    if !turn.tools.contains(&call.name) {
                        turn.tools.push(call.name.clone());
                    }
                }
            }
            Body::ToolResult(result) if result.interrupted => {
                turns.iter_mut().last().into_iter().for_each(|turn| turn.has_final_text = false);
            }
            _ => {}
        }
    }
    turns
}

/// Insert a space into every `{{`, so that user text cannot open a template.
fn neutralise(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(ch) = chars.next() {
        safe.push(ch);
        if ch == '{' && chars.peek() == Some(&'{') {
            safe.push(' ');
        }
    }
    safe
}

/// Join the title's ASCII letters and digits with hyphens, in lower case.
fn id_of(title: &str) -> String {
    let words = title.split(|ch: char| !ch.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    if id.is_empty() { FALLBACK_ID.to_owned() } else { id }
}

fn agent_snapshot(path: &[Entry]) -> Option<Value> {
    path.iter().rev().find_map(|entry| match &entry.body {
        Body::ContextChanged(changed) => changed.agent.as_ref().map(sapwood_core::Json::to_value),
        _ => None,
    })
}

fn export_of(summary: &Summary, agent: &str, path: &[Entry]) -> Value {
    let messages: Vec<Value> = path.iter().filter_map(message_of).collect();
    // Use the path, not the log: an export appends an entry to the log, which must not change the next
    // export.
    let updated = path.iter().map(|entry| entry.meta.at).max().unwrap_or(summary.created_at);
    let mut export = json!({
        "source": "session", "session_id": summary.id, "agent_slug": agent,
        "created_at": write_rfc3339(summary.created_at), "updated_at": write_rfc3339(updated),
        "messages": messages,
    });
    if let Some(title) = &summary.title {
        export["title"] = json!(title);
    }
    export
}

/// Convert an entry to a message. Parts have no reasoning signature, and entries contain no secrets (I12).
fn message_of(entry: &Entry) -> Option<Value> {
    let role = match &entry.body {
        Body::UserMessage(_) | Body::CustomMessage(_) | Body::BranchSummary(_) => "user",
        Body::AssistantMessage(_) => "assistant",
        Body::ToolResult(_) => "tool",
        Body::SystemNote(_) => "system",
        _ => return None,
    };
    let content = match entry.body.parts() {
        [] => json!([{ "type": "text", "text": entry.body.text() }]),
        parts => json!(parts),
    };
    let mut message = json!({
        "id": entry.meta.id, "role": role, "content": content, "timestamp": write_rfc3339(entry.meta.at),
    });
    match &entry.body {
        Body::AssistantMessage(answer) => {
            if let Some(model) = &answer.model {
                message["model"] = json!(model);
            }
        }
        Body::ToolResult(result) => {
            message["call_id"] = json!(result.call_id);
            message["is_error"] = json!(result.is_error);
            if let Some(tool) = &result.tool {
                message["tool"] = json!(tool);
            }
        }
        _ => {}
    }
    Some(message)
}
