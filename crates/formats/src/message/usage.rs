//! Token counts and stop reasons, with the key names of Sapwood, OpenAI and Anthropic.
//!
//! Like Anthropic's count, Sapwood's `input` excludes tokens read from or written to a cache. The context size is thus
//! the sum of `input`, `cache_read` and `cache_write`. OpenAI's `prompt_tokens` include cached tokens, which are
//! subtracted here. `output` includes `reasoning`.

use sapwood_core::entry::{Stop, Usage};

use super::fields::Fields;
use super::{MessageError, Result, TOKENS_MAX};

const STOPS: &str =
    "stop, length, tool_use, content_filter, error or aborted, or a vendor's name for one of these";

pub(super) fn read_usage(fields: &mut Fields<'_>) -> Result<Option<Usage>> {
    let Some(mut given) = fields.object("usage")? else { return Ok(None) };
    let mut count = |key: &str| given.number(key, TOKENS_MAX);
    let own = Usage {
        input: count("input")?.unwrap_or(0),
        output: count("output")?.unwrap_or(0),
        cache_read: count("cache_read")?.unwrap_or(0),
        cache_write: count("cache_write")?.unwrap_or(0),
        reasoning: count("reasoning")?.unwrap_or(0),
    };
    if own != Usage::default() {
        return Ok(Some(own));
    }
    let input = count("prompt_tokens")?.or(count("input_tokens")?);
    let output = count("completion_tokens")?.or(count("output_tokens")?);
    let cache_read = count("cache_read_input_tokens")?;
    let cache_write = count("cache_creation_input_tokens")?;
    let cached = detail(&mut given, ["prompt_tokens_details", "input_tokens_details"], "cached_tokens")?;
    let reasoning =
        detail(&mut given, ["completion_tokens_details", "output_tokens_details"], "reasoning_tokens")?;
    Ok(Some(Usage {
        input: input.unwrap_or(0).saturating_sub(cached),
        output: output.unwrap_or(0),
        cache_read: cache_read.unwrap_or(cached),
        cache_write: cache_write.unwrap_or(0),
        reasoning,
    }))
}

fn detail(usage: &mut Fields<'_>, objects: [&str; 2], key: &str) -> Result<u64> {
    for object in objects {
        if let Some(mut details) = usage.object(object)? {
            return Ok(details.number(key, TOKENS_MAX)?.unwrap_or(0));
        }
    }
    Ok(0)
}

pub(super) fn read_stop(fields: &mut Fields<'_>) -> Result<Option<Stop>> {
    let Some(name) = fields.one_of(&["stop", "stop_reason", "finish_reason"])? else { return Ok(None) };
    match name.as_str() {
        "stop" | "end_turn" | "stop_sequence" | "pause_turn" => Ok(Some(Stop::Stop)),
        "length" | "max_tokens" | "model_context_window_exceeded" => Ok(Some(Stop::Length)),
        "tool_use" | "tool_calls" | "function_call" => Ok(Some(Stop::ToolUse)),
        "content_filter" | "refusal" => Ok(Some(Stop::ContentFilter)),
        "error" => Ok(Some(Stop::Error)),
        "aborted" => Ok(Some(Stop::Aborted)),
        other => {
            let found = other.chars().take(64).collect();
            Err(MessageError::UnknownValue { at: "stop".to_owned(), found, expected: STOPS })
        }
    }
}
