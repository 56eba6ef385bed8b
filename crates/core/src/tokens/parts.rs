//! Token counts of message parts, and the estimate without a tokenizer.

use std::sync::Arc;

use crate::content::{BlobRef, Part};
use crate::port::tokens::{Tokenizer, Tokenizers};

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
