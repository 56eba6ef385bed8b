//! Converts the corpus to entries.

use sapwood::Body;
use sapwood::core::entry::{AssistantMessage, Stop, ToolResult, Usage, UserMessage, codec};
use sapwood::core::{Json, Part};

use super::corpus::{Corpus, CorpusMessage};

/// The entry that an agent would append for a message.
pub fn body_of(message: CorpusMessage) -> Body {
    match message {
        CorpusMessage::User { text } => UserMessage { parts: vec![Part::text(text)], origin: None }.into(),
        CorpusMessage::Assistant { text, call } => {
            let (input, output) = (12_000 + text.len() as u64, text.len() as u64 / 4);
            let stop = if call.is_some() { Stop::ToolUse } else { Stop::Stop };
            let call = call.and_then(|call| {
                let input = Json::parse(&call.input).ok()?;
                Some(Part::tool_call(call.call_id, call.tool, input))
            });
            AssistantMessage {
                parts: std::iter::once(Part::text(text)).chain(call).collect(),
                model: Some("bench-model-1".to_owned()),
                usage: Some(Usage { input, output, ..Usage::default() }),
                cost_nano_usd: Some(1_000 * output),
                stop,
            }
            .into()
        }
        CorpusMessage::Tool { call_id, tool, text } => ToolResult {
            call_id,
            tool: Some(tool.to_owned()),
            parts: vec![Part::text(text)],
            is_error: false,
            duration_ms: Some(12),
            interrupted: false,
            full: None,
        }
        .into(),
    }
}

/// Messages of ordinary length.
pub fn bodies(seed: u64) -> impl Iterator<Item = Body> {
    Corpus::new(seed).map(body_of)
}

/// Messages with at most 200 bytes of text, for sessions in which only the number of entries matters.
pub fn short_bodies(seed: u64) -> impl Iterator<Item = Body> {
    Corpus::new(seed).map(|message| body_of(shortened(message)))
}

fn shortened(mut message: CorpusMessage) -> CorpusMessage {
    let (CorpusMessage::User { text }
    | CorpusMessage::Tool { text, .. }
    | CorpusMessage::Assistant { text, .. }) = &mut message;
    let end = (0..=text.len().min(200)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    text.shrink_to_fit();
    if let CorpusMessage::Assistant { call: Some(call), .. } = &mut message {
        call.input = "{}".to_owned();
    }
    message
}

/// The body as a line of a JSONL file.
pub fn line_of(body: &Body) -> Vec<u8> {
    let mut line = codec::encode(body);
    line.push(b'\n');
    line
}

/// Size of text and tool input, without the envelope.
pub fn content_bytes(body: &Body) -> u64 {
    let part = |part: &Part| {
        part.as_text().map_or(0, str::len) + part.as_tool_call().map_or(0, |call| call.input.get().len())
    };
    body.parts().iter().map(part).sum::<usize>() as u64
}
