//! Message entries: from the user, the model, tools, the engine and extensions.

use serde::{Deserialize, Serialize};

use crate::content::{BlobRef, Json, Part, is_false, present};

/// The origin of a user message that was not sent directly to the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Origin {
    /// The channel's name, such as the name of a chat system.
    pub channel: String,
    /// The channel's id of the message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Files that came with the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<BlobRef>,
}

/// A message from a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserMessage {
    /// The content.
    pub parts: Vec<Part>,
    /// Where the message came from, if it came through a channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// Tokens of one model call, as the provider reported them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = TokenUsage))]
#[serde(default)]
pub struct Usage {
    /// Input tokens, without cache reads and writes.
    pub input: u64,
    /// Output tokens, including reasoning.
    pub output: u64,
    /// Input tokens read from the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write: u64,
    /// Output tokens used for reasoning, already included in `output`.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// The sum of all input, output and cache tokens.
    pub fn total(&self) -> u64 {
        [self.output, self.cache_read, self.cache_write]
            .iter()
            .fold(self.input, |sum, tokens| sum.saturating_add(*tokens))
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = StopReason))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The answer is complete.
    #[default]
    Stop,
    /// The answer reached the token limit.
    Length,
    /// The model stopped to call tools.
    ToolUse,
    /// The provider's content filter stopped the answer.
    ContentFilter,
    /// The call failed.
    Error,
    /// The call was cancelled.
    Aborted,
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssistantMessage {
    /// The content.
    pub parts: Vec<Part>,
    /// The model that actually answered, even after a failover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The tokens that the call used; absent if the provider did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Billionths of a US dollar; absent if the model's price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
    /// Why the model stopped.
    #[serde(default)]
    pub stop: Stop,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: String,
    /// The name of the tool, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The content.
    pub parts: Vec<Part>,
    /// Whether the call failed or was refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
    /// How long the tool ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Whether the call was interrupted, so that its effect is unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interrupted: bool,
    /// The whole output, if `parts` contains only its head and tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<BlobRef>,
}

/// A text for the model from the engine or a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SystemNote {
    /// The text.
    pub text: String,
    /// Why the note was added, as a short name such as `continuation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A message from an extension that is part of the context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CustomMessage {
    /// The extension's name for this kind of message.
    pub custom_type: String,
    /// The content that the model receives.
    pub parts: Vec<Part>,
    /// Whether the feed shows the message to people.
    #[serde(default, skip_serializing_if = "is_false")]
    pub display: bool,
    /// Further data for the extension. The model does not receive it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}
