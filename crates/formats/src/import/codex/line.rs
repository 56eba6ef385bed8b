//! The fields of rollout lines that the importer reads.

use std::borrow::Cow;

use sapwood_core::entry::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::import::blocks::Content;
use crate::import::text::Time;

/// The rollout that a fork continues.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HistoryBase {
    pub thread_id: String,
    /// Records of the base from this ordinal on do not belong to the fork.
    pub end_ordinal_exclusive: u64,
}

#[derive(Deserialize)]
pub(super) struct CodexLine<'a> {
    pub(super) timestamp: Option<Time>,
    pub(super) ordinal: Option<u64>,
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) payload: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct SessionMeta {
    pub(super) id: Option<String>,
    pub(super) timestamp: Option<Time>,
    pub(super) cwd: Option<String>,
    pub(super) forked_from_id: Option<String>,
    pub(super) history_base: Option<HistoryBase>,
    pub(super) base_instructions: Option<Instructions>,
    pub(super) model_provider: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Instructions {
    Text(String),
    Object { text: String },
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TurnContext {
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CodexItem<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) role: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    #[serde(borrow)]
    pub(super) summary: Content<'a>,
    pub(super) encrypted_content: Option<serde::de::IgnoredAny>,
    pub(super) call_id: Option<String>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
    #[serde(borrow)]
    pub(super) input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) action: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) output: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CodexOutput<'a> {
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    #[serde(borrow)]
    pub(super) content_items: Content<'a>,
    pub(super) success: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CodexEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    pub(super) info: Option<TokenInfo>,
    pub(super) num_turns: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TokenInfo {
    pub(super) total_token_usage: Option<Tokens>,
    pub(super) last_token_usage: Option<Tokens>,
}

/// Token counts. Record keys contain the `Debug` output, so the names of the type and its fields must not change.
#[derive(Debug, Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(default)]
pub(super) struct Tokens {
    pub(super) input_tokens: u64,
    pub(super) cached_input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) reasoning_output_tokens: u64,
}

#[derive(Deserialize)]
pub(super) struct Compacted<'a> {
    #[serde(default)]
    pub(super) message: String,
    #[serde(borrow)]
    pub(super) replacement_history: Option<Vec<&'a RawValue>>,
}

impl Tokens {
    pub(super) fn since(self, before: Tokens) -> Tokens {
        Tokens {
            input_tokens: self.input_tokens.saturating_sub(before.input_tokens),
            cached_input_tokens: self.cached_input_tokens.saturating_sub(before.cached_input_tokens),
            output_tokens: self.output_tokens.saturating_sub(before.output_tokens),
            reasoning_output_tokens: self
                .reasoning_output_tokens
                .saturating_sub(before.reasoning_output_tokens),
        }
    }

    pub(super) fn usage(self) -> Usage {
        Usage {
            input: self.input_tokens.saturating_sub(self.cached_input_tokens),
            output: self.output_tokens,
            cache_read: self.cached_input_tokens,
            cache_write: 0,
            reasoning: self.reasoning_output_tokens,
        }
    }
}

/// Events that are repeated in response items or are only for display.
pub(super) const REPEATED_EVENTS: &[&str] = &[
    "user_message",
    "agent_message",
    "agent_reasoning",
    "agent_reasoning_raw_content",
    "agent_reasoning_section_break",
    "context_compacted",
    "task_started",
    "task_complete",
    "turn_started",
    "turn_complete",
    "item_started",
    "item_completed",
    "exec_command_begin",
    "exec_command_end",
    "exec_command_output_delta",
    "patch_apply_begin",
    "patch_apply_end",
    "mcp_tool_call_begin",
    "mcp_tool_call_end",
    "web_search_begin",
    "web_search_end",
    "turn_diff",
    "raw_response_item",
];
