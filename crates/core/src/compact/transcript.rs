//! The text form of a message in a summary: speaker, text, calls and results.

use super::shorten::{first_line, one_line};
use crate::content::{Part, joined_text};
use crate::project::context::{Message, Role};

/// Phrases that only acknowledge the previous message.
const ACKNOWLEDGEMENTS: &[&str] = &[
    "ok",
    "okay",
    "yes",
    "y",
    "sure",
    "thanks",
    "thank you",
    "great",
    "good",
    "go on",
    "continue",
    "go ahead",
    "done",
    "nice",
    "perfect",
];
const ACKNOWLEDGEMENT_CHARS_MAX: usize = 16;

/// The speaker of a message.
pub fn speaker(message: &Message) -> String {
    match (message.role, &message.answers) {
        (Role::User, _) => "user".to_owned(),
        (Role::Assistant, _) => "assistant".to_owned(),
        (Role::System, _) => "note".to_owned(),
        (Role::Tool, Some(answers)) if answers.is_error => format!("{} failed", tool_name(message)),
        (Role::Tool, _) => tool_name(message),
    }
}

pub fn tool_name(message: &Message) -> String {
    let tool = message.answers.as_ref().and_then(|answers| answers.tool.as_deref());
    tool.unwrap_or("tool").to_owned()
}

/// The calls and media of a message, in brackets. Reasoning is omitted.
pub fn bracketed_parts(message: &Message, input_chars_max: usize) -> Vec<String> {
    let bracket = |part: &Part| match part {
        Part::ToolCall(call) => {
            Some(format!("[calls {} {}]", call.name, one_line(call.input.get(), input_chars_max)))
        }
        Part::Media(media) => {
            let name = media.name.as_deref().map(|name| format!(" {}", first_line(name, 80)));
            Some(format!("[{}{}, {} bytes]", media.mime, name.unwrap_or_default(), media.bytes))
        }
        Part::Text(_) | Part::Reasoning(_) => None,
    };
    message.parts.iter().filter_map(bracket).collect()
}

/// The message as text, with complete tool inputs. Reasoning is omitted.
pub fn verbatim(message: &Message) -> String {
    render_message(message, &joined_text(&message.parts), usize::MAX)
}

/// The message with `text` in place of its original text.
pub fn render_message(message: &Message, text: &str, input_chars_max: usize) -> String {
    let mut text_block = format!("{}: {}", speaker(message), text.trim_end());
    for bracket in bracketed_parts(message, input_chars_max) {
        text_block.push_str(if text_block.ends_with(' ') { "" } else { "\n" });
        text_block.push_str(&bracket);
    }
    text_block.truncate(text_block.trim_end().len());
    text_block
}

/// Whether a message has low value: it is empty, a mere acknowledgement, or a note from the engine.
pub fn has_low_value(message: &Message) -> bool {
    let text = joined_text(&message.parts);
    let text = text.trim();
    let is_text_only = message.parts.iter().all(|part| part.as_text().is_some());
    match message.role {
        Role::System => true,
        Role::Tool => text.is_empty() && is_text_only,
        Role::User | Role::Assistant => {
            let is_acknowledgement = || {
                let plain = text.trim_end_matches(['.', '!', ' ']).to_lowercase();
                ACKNOWLEDGEMENTS.contains(&plain.as_str())
            };
            is_text_only
                && (text.is_empty() || (text.len() <= ACKNOWLEDGEMENT_CHARS_MAX && is_acknowledgement()))
        }
    }
}
