//! Conversion of a turn to a response: a fold of the turn's entries, including the entry with the request parameters.

use sapwood_core::entry::{CustomInfo, Outcome, Stop, TurnEnded, Usage};
use sapwood_core::turn::Terms;
use sapwood_core::{Body, Entry, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::items::{Items, output_of};
use super::{Anchor, ResponseId};

/// Custom types of the entries that record the request parameters and the deletion of a response.
const PARAMS_TYPE: &str = "openai_response";
const DELETED_TYPE: &str = "openai_response_deleted";

/// Request parameters that are returned with the response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestParams {
    /// Whether the response belongs to a conversation and continues it.
    pub conversation: bool,
    pub previous_response_id: Option<String>,
    pub store: bool,
    pub background: bool,
    /// The requested model. The response names the model that answered.
    pub model: String,
    pub instructions: Option<String>,
    pub metadata: Value,
    pub tools: Value,
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
    pub reasoning: Value,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub max_output_tokens: Option<u32>,
    pub truncation: Value,
    pub user: Value,
}

impl Default for RequestParams {
    fn default() -> Self {
        Self {
            conversation: false,
            previous_response_id: None,
            store: true,
            background: false,
            model: String::new(),
            instructions: None,
            metadata: json!({}),
            tools: json!([]),
            tool_choice: json!("auto"),
            parallel_tool_calls: true,
            reasoning: Value::Null,
            temperature: None,
            top_p: None,
            max_output_tokens: None,
            truncation: json!("disabled"),
            user: Value::Null,
        }
    }
}

impl RequestParams {
    pub fn to_info(&self) -> CustomInfo {
        let data = serde_json::to_value(self).unwrap_or_default();
        CustomInfo { custom_type: PARAMS_TYPE.to_owned(), data: Json::from_value(&data) }
    }

    /// Return the parameters of a turn. A turn that was not started through this API has the defaults.
    pub fn of(entries: &[Entry]) -> Self {
        let found = infos(entries).find(|info| info.custom_type == PARAMS_TYPE);
        found.and_then(|info| serde_json::from_value(info.data.to_value()).ok()).unwrap_or_default()
    }
}

pub fn deletion() -> CustomInfo {
    CustomInfo { custom_type: DELETED_TYPE.to_owned(), data: Json::from_value(&json!({})) }
}

pub fn is_deleted(entries: &[Entry]) -> bool {
    infos(entries).any(|info| info.custom_type == DELETED_TYPE)
}

fn infos(entries: &[Entry]) -> impl Iterator<Item = &CustomInfo> {
    entries.iter().filter_map(|entry| match &entry.body {
        Body::CustomInfo(info) => Some(info),
        _ => None,
    })
}

/// Return the input items and the output items of a turn.
pub fn items_of(entries: &[Entry]) -> (Vec<Value>, Vec<Value>) {
    let mut items = Items::default();
    for entry in entries {
        items.apply(entry);
    }
    let is_input = |entry: &Entry| output_of(entry).is_none();
    let given: Vec<_> = entries.iter().filter(|entry| is_input(entry)).map(|entry| entry.meta.id).collect();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    for item in items.list {
        match item.id.anchor {
            Anchor::Turn(_) => output.push(item.value),
            Anchor::Entry(entry) if given.contains(&entry) => input.push(item.value),
            Anchor::Entry(_) => {}
        }
    }
    (input, output)
}

/// Build the current state of a response from the turn's entries.
pub fn response_of(id: &ResponseId, entries: &[Entry]) -> Value {
    let (params, terms) = (RequestParams::of(entries), Terms::of(entries.iter().map(|entry| &entry.body)));
    let ended = entries.iter().find_map(|entry| match &entry.body {
        Body::TurnEnded(ended) => Some((entry.meta.at, ended)),
        _ => None,
    });
    let (status, error, incomplete) = outcome_of(entries, ended.map(|(_, ended)| ended));
    let seconds = |at: sapwood_core::TimestampMs| at.0 / 1_000;
    json!({
        "id": id.to_string(),
        "object": "response",
        "created_at": entries.first().map_or(0, |entry| seconds(entry.meta.at)),
        "completed_at": ended.filter(|_| status == "completed").map(|(at, _)| seconds(at)),
        "status": status,
        "background": params.background,
        "error": error,
        "incomplete_details": incomplete,
        "conversation": params.conversation.then(|| json!({ "id": id.session })),
        "previous_response_id": params.previous_response_id,
        "model": model_of(entries, &terms, &params),
        "instructions": params.instructions,
        "output": items_of(entries).1,
        "usage": ended.map(|_| usage_of(entries)),
        "metadata": params.metadata,
        "store": params.store,
        "tools": params.tools,
        "tool_choice": params.tool_choice,
        "parallel_tool_calls": params.parallel_tool_calls,
        "reasoning": params.reasoning,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_output_tokens": params.max_output_tokens,
        "max_tool_calls": null,
        "text": { "format": { "type": "text" } },
        "truncation": params.truncation,
        "service_tier": "default",
        "user": params.user,
    })
}

fn outcome_of(entries: &[Entry], ended: Option<&TurnEnded>) -> (&'static str, Value, Value) {
    let Some(ended) = ended else { return ("in_progress", Value::Null, Value::Null) };
    let reason = |reason: &str| json!({ "reason": reason });
    match ended.outcome {
        Outcome::Completed => match last_stop(entries) {
            Some(Stop::Length) => ("incomplete", Value::Null, reason("max_output_tokens")),
            Some(Stop::ContentFilter) => ("incomplete", Value::Null, reason("content_filter")),
            _ => ("completed", Value::Null, Value::Null),
        },
        Outcome::Cancelled => ("cancelled", Value::Null, Value::Null),
        Outcome::Limited => ("incomplete", Value::Null, json!({ "reason": null })),
        Outcome::Failed => {
            let code = match ended.code.as_deref() {
                Some("model.rate_limited") => "rate_limit_exceeded",
                _ => "server_error",
            };
            let message = ended.message.as_deref().or(ended.code.as_deref()).unwrap_or("the turn failed");
            ("failed", json!({ "code": code, "message": message }), Value::Null)
        }
    }
}

fn answers(entries: &[Entry]) -> impl DoubleEndedIterator<Item = &sapwood_core::entry::AssistantMessage> {
    entries.iter().filter(|entry| output_of(entry).is_some()).filter_map(|entry| match &entry.body {
        Body::AssistantMessage(answer) => Some(answer),
        _ => None,
    })
}

fn last_stop(entries: &[Entry]) -> Option<Stop> {
    answers(entries).next_back().map(|answer| answer.stop)
}

fn model_of(entries: &[Entry], terms: &Terms, params: &RequestParams) -> String {
    let served = answers(entries).rev().find_map(|answer| answer.model.clone());
    served.or_else(|| terms.model.clone()).unwrap_or_else(|| params.model.clone())
}

fn usage_of(entries: &[Entry]) -> Value {
    let mut usage = Usage::default();
    answers(entries).filter_map(|answer| answer.usage).for_each(|more| usage += more);
    let input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write },
        "output_tokens": usage.output,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": input.saturating_add(usage.output),
    })
}
