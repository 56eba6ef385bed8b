//! Helpers of the built-in tools: their specs, and the typed input of a call.

use sapwood_core::content::{Json, ToolCall};
use sapwood_core::port::tool::{Replay, ToolSpec, Touch};
use serde::Deserialize;
use serde_json::json;

pub(super) fn spec(
    name: &str,
    description: &str,
    touch: Touch,
    replay: Replay,
    properties: serde_json::Value,
    required: &[&str],
) -> ToolSpec {
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let (name, description) = (name.to_owned(), description.to_owned());
    ToolSpec { name, description, input_schema: Json::from_value(&schema), touch, replay }
}

/// Parse the input of a call. The error is for the model.
pub(super) fn parse_input<T: for<'de> Deserialize<'de>>(call: &ToolCall) -> Result<T, String> {
    serde_json::from_str(call.input.get()).map_err(|error| error.to_string())
}
