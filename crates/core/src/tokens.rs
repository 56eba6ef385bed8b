//! Token counting. Text is counted by a [`Tokenizer`], media by size. The count covers the whole request: the system
//! prompt, the tool schemas, reasoning, and every part.

use std::sync::Arc;

use crate::content::{BlobRef, Part};
use crate::port::tokens::{Tokenizer, Tokenizers};
use crate::project::context::{Context, Message};

/// Bytes per token for the estimate without a tokenizer.
const BYTES_PER_TOKEN: u64 = 4;
/// The cost of an image depends on its area, which the compressed size only approximates. Providers scale down larger
/// images.
const IMAGE_BYTES_PER_TOKEN: u64 = 190;
const IMAGE_TOKENS_MIN: u64 = 85;
const IMAGE_TOKENS_MAX: u64 = 1_600;
const AUDIO_TOKENS_PER_SECOND: u64 = 32;
const VIDEO_TOKENS_PER_SECOND: u64 = 263;
/// Higher than for plain text, because documents also contain fonts and images.
const DOCUMENT_BYTES_PER_TOKEN: u64 = 16;

/// Estimates four bytes per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate;

impl Tokenizer for Estimate {
    fn name(&self) -> &'static str {
        "bytes/4"
    }
    fn count(&self, text: &str) -> u64 {
        (text.len() as u64).div_ceil(BYTES_PER_TOKEN)
    }
}

impl Tokenizers for Estimate {
    fn for_model(&self, _model: Option<&str>) -> Arc<dyn Tokenizer> {
        Arc::new(Estimate)
    }
}

/// Counts tokens when planning a compaction. The engine's implementation caches counts; a plain tokenizer does not.
pub trait Count: Send + Sync {
    fn message(&self, message: &Message) -> u64;
    fn text(&self, text: &str) -> u64;
}

impl<T: Tokenizer> Count for T {
    fn message(&self, message: &Message) -> u64 {
        count_parts(self, &message.parts)
    }
    fn text(&self, text: &str) -> u64 {
        self.count(text)
    }
}

pub fn count_parts(tokenizer: &dyn Tokenizer, parts: &[Part]) -> u64 {
    parts.iter().map(|part| count_part(tokenizer, part)).sum()
}

fn count_part(tokenizer: &dyn Tokenizer, part: &Part) -> u64 {
    match part {
        Part::Text(text) => tokenizer.count(&text.text),
        Part::Reasoning(reasoning) => tokenizer.count(&reasoning.text),
        Part::ToolCall(call) => tokenizer.count(&call.name) + tokenizer.count(call.input.get()),
        Part::Media(media) => media_tokens(media),
    }
}

/// The number of bytes that a tokenizer would process.
pub fn text_bytes(parts: &[Part]) -> usize {
    let bytes = |part: &Part| match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len(),
        Part::ToolCall(call) => call.name.len() + call.input.get().len(),
        Part::Media(_) => 0,
    };
    parts.iter().map(bytes).sum()
}

fn media_tokens(media: &BlobRef) -> u64 {
    let kind = media.mime.split('/').next().unwrap_or_default();
    match (kind, media.duration_ms) {
        ("image", _) => (media.bytes / IMAGE_BYTES_PER_TOKEN).clamp(IMAGE_TOKENS_MIN, IMAGE_TOKENS_MAX),
        ("audio", Some(ms)) => (ms * AUDIO_TOKENS_PER_SECOND).div_ceil(1_000),
        ("video", Some(ms)) => (ms * VIDEO_TOKENS_PER_SECOND).div_ceil(1_000),
        ("text", _) => media.bytes.div_ceil(BYTES_PER_TOKEN),
        _ => media.bytes.div_ceil(DOCUMENT_BYTES_PER_TOKEN),
    }
}

/// Count the whole request. `extra_tokens` covers the data that the caller sends in addition to the context, such as
/// tool schemas.
pub fn count_request(context: &Context, extra_tokens: u64, count: &dyn Count) -> u64 {
    let system = context.system.as_deref().map_or(0, |system| count.text(system));
    extra_tokens + system + count_messages(&context.messages, count)
}

pub fn count_messages(messages: &[Message], count: &dyn Count) -> u64 {
    // Iterate in reverse, so that a counter that becomes approximate after a limit is exact for the newest messages.
    messages.iter().rev().map(|message| count.message(message)).sum()
}

/// Tokens in use: the provider's last report plus the messages after it, or the count of the whole request if that is
/// greater. A report from before the latest compaction is ignored, because it describes an old context.
pub fn count_in_use(context: &Context, extra_tokens: u64, count: &dyn Count) -> u64 {
    let whole = count_request(context, extra_tokens, count);
    whole.max(reported_in_use(context, count).unwrap_or(0))
}

fn reported_in_use(context: &Context, count: &dyn Count) -> Option<u64> {
    let reported = context.reported?;
    let is_reported = |message: &Message| message.entry.is_some_and(|(seq, _)| seq == reported.seq);
    let at = context.messages.iter().rposition(is_reported)?;
    let usage = reported.usage;
    let reported_tokens = [usage.input, usage.cache_read, usage.cache_write, usage.output];
    let reported_tokens = reported_tokens.into_iter().fold(0_u64, u64::saturating_add);
    Some(reported_tokens.saturating_add(count_messages(&context.messages[at + 1..], count)))
}
