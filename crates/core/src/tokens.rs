//! Token counting. Text is counted by a [`Tokenizer`], media by size or duration. The count covers the whole
//! request: the system prompt, the tool schemas, reasoning, and every part.

mod parts;

pub use parts::{Estimate, count_parts, text_bytes};

use crate::port::tokens::Tokenizer;
use crate::project::context::{Context, Message};

/// Counts the tokens of messages and texts. The engine's implementation caches counts; a plain tokenizer does not.
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
