//! Types of OpenAI's Conversations and Responses APIs. Unlike our own types they accept unknown fields, because these
//! clients add fields over time. Options that would change the answer and are not supported are rejected.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::TextOrParts;

/// An error in OpenAI's format; `code` is one of Sapwood's codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiError {
    pub error: OpenAiFault,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiFault {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub code: String,
    pub param: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewConversation {
    /// At most 20.
    #[schema(max_items = 20)]
    pub items: Option<Vec<Map<String, Value>>>,
    /// At most 16 strings with keys of at most 64 characters.
    pub metadata: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConversationPatch {
    /// Replaces all metadata of the conversation.
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewItems {
    /// At most 20.
    #[schema(max_items = 20)]
    pub items: Vec<Map<String, Value>>,
}

/// A session in OpenAI's format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    pub id: String,
    /// `conversation`.
    pub object: String,
    /// In Unix seconds.
    pub created_at: i64,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    pub id: String,
    pub object: String,
    pub deleted: bool,
}

/// A message, a function call, a function result or reasoning.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Item {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ItemList {
    /// `list`.
    pub object: String,
    pub data: Vec<Item>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Asc,
    #[default]
    Desc,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct ListItems {
    /// The id of the last item on the previous page.
    pub after: Option<String>,
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<u32>,
    /// Defaults to newest first.
    #[param(inline)]
    pub order: Option<Order>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct GetResponse {
    /// Respond with the response's events.
    pub stream: Option<bool>,
    /// Only events after this sequence number.
    pub starting_after: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ConversationName {
    Id(String),
    Object { id: String },
}

impl ConversationName {
    pub fn id(&self) -> &str {
        match self {
            ConversationName::Id(id) | ConversationName::Object { id } => id,
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewResponse {
    /// A model name. Without a provider, it selects OpenAI's model if OpenAI is configured, else the session's.
    pub model: Option<String>,
    /// A string, or an array of items.
    #[schema(value_type = TextOrParts, required = true)]
    pub input: Value,
    /// Replaces the system prompt for this response only.
    pub instructions: Option<String>,
    pub conversation: Option<ConversationName>,
    pub previous_response_id: Option<String>,
    /// If false, the response is erased after it was delivered.
    pub store: Option<bool>,
    pub stream: Option<bool>,
    pub background: Option<bool>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// Functions of the client. The response ends when the model calls one.
    pub tools: Option<Vec<Value>>,
    /// `auto` or `none`.
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    #[schema(minimum = 0.0, maximum = 2.0)]
    pub temperature: Option<f64>,
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f64>,
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    pub reasoning: Option<Map<String, Value>>,
    /// Only the plain text format is supported.
    pub text: Option<Map<String, Value>>,
    pub truncation: Option<String>,
    pub user: Option<String>,
    pub prompt: Option<Value>,
}

/// A turn in OpenAI's format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ResponseShown {
    pub id: String,
    /// `response`.
    pub object: String,
    /// `in_progress`, `completed`, `cancelled`, `failed` or `incomplete`.
    pub status: String,
    /// In Unix seconds.
    pub created_at: i64,
    pub model: String,
    pub output: Vec<Item>,
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
