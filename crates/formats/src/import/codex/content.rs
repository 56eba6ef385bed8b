//! The content of messages and tool outputs.

use sapwood_core::Body;
use sapwood_core::content::Part;
use serde_json::value::RawValue;

use super::line::CodexOutput;
use crate::import::blocks::Content;
use crate::import::steps::StepBatch;

/// Return the content that identifies a body at its position. Rollouts are append-only, so the beginning and the length
/// of each part are sufficient.
pub(super) fn outline(body: &Body) -> Vec<u8> {
    const OUTLINE_BYTES: usize = 1_024;
    let mut bytes = body.kind().as_str().as_bytes().to_vec();
    let mut push = |text: &[u8]| {
        bytes.extend_from_slice(&text[..text.len().min(OUTLINE_BYTES)]);
        bytes.extend_from_slice(&text.len().to_le_bytes());
    };
    for part in body.parts() {
        match part {
            Part::Text(text) => push(text.text.as_bytes()),
            Part::Reasoning(reasoning) => push(reasoning.text.as_bytes()),
            Part::ToolCall(call) => {
                push(call.call_id.as_bytes());
                push(call.input.get().as_bytes());
            }
            Part::Media(media) => push(media.blob.as_bytes()),
        }
    }
    if body.parts().is_empty() {
        push(body.text().as_bytes());
    }
    bytes
}

/// Whether Codex itself inserted this text as a user message.
pub(super) fn is_context(text: &str) -> bool {
    const OPENINGS: &[&str] = &[
        "<environment_context>",
        "<user_instructions>",
        "# AGENTS.md instructions",
        "<INSTRUCTIONS>",
        "<turn_aborted>",
        "<user_shell_command>",
        "<skill>",
        "<subagent_notification>",
    ];
    OPENINGS.iter().any(|opening| text.trim_start().starts_with(opening))
}

/// Read a tool's output: text, blocks, or an object that contains either.
pub(super) fn output_parts(output: Option<&RawValue>, batch: &mut StepBatch) -> (Vec<Part>, bool) {
    let Some(raw) = output else { return (Vec::new(), false) };
    if raw.get().starts_with('{')
        && let Ok(output) = serde_json::from_str::<CodexOutput<'_>>(raw.get())
    {
        let mut parts = output.content_items.into_parts(batch);
        if parts.is_empty() {
            parts = output.content.into_parts(batch);
        }
        return (parts, output.success == Some(false));
    }
    let content = serde_json::from_str::<Content<'_>>(raw.get()).unwrap_or_default();
    (content.into_parts(batch), false)
}
