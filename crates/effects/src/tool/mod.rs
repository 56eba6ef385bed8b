//! The tools that work outside of the log. Each is a [`Tool`] in a file of its own, bound to what its session was granted
//! when the box is opened. [`host`] puts the boxes together; [`files`], [`search`], [`command`], [`git`], [`http`]
//! and [`mcp`] are the tools.

mod blocking;
pub mod command;
pub mod files;
pub mod git;
pub mod host;
pub mod http;
pub mod mcp;
pub(crate) mod process;
mod schema;
pub mod search;

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::content::Json;
use sapwood_core::port::tool::{Grant, Replay, ToolError, ToolOutput, ToolSpec, Touch};
use serde_json::Value;

/// One tool, bound to its grant.
#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> ToolSpec;
    /// The input fits the spec's schema. Dropping the future ends what it runs.
    async fn run(&self, input: &Value) -> ToolOutput;
}

/// Where further tools come from, such as those of a program that embeds Sapwood. A source reads in the grant what it may
/// open, and gives nothing beyond it.
#[async_trait]
pub trait ToolSource: Send + Sync {
    async fn open(&self, grant: &Grant) -> Result<Vec<Arc<dyn Tool>>, ToolError>;
}

/// A spec whose schema is written as a value.
fn spec(name: &str, description: &str, input_schema: &Value, touch: Touch, replay: Replay) -> ToolSpec {
    let (name, description) = (name.to_owned(), description.to_owned());
    ToolSpec { name, description, input_schema: Json::from_value(input_schema), touch, replay }
}

/// A string field that the schema requires.
fn text_field<'a>(input: &'a Value, field: &str) -> &'a str {
    input[field].as_str().unwrap_or_default()
}
