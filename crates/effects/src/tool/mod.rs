//! The tools that work outside of the log. Each [`Tool`] is bound to its session's grant when the toolbox is opened.
//! [`host`] assembles the toolboxes. [`files`], [`search`], [`command`], [`git`], [`http`] and [`mcp`] implement the
//! tools.

mod blocking;
pub mod command;
pub mod files;
pub mod git;
pub mod host;
pub mod http;
pub mod mcp;
mod own;
pub(crate) mod process;
mod schema;
pub mod search;
pub mod workspace;

use std::sync::Arc;

pub use own::{OwnTools, ToolFn};

use async_trait::async_trait;
use sapwood_core::port::tool::{Replay, ToolError, ToolGrant, ToolOutput, ToolSpec, Touch};
use serde_json::Value;

/// A tool, bound to its grant.
#[async_trait]
pub trait Tool: Send + Sync {
    /// The tool's name, description, input schema and side effects.
    fn spec(&self) -> ToolSpec;
    /// Run the tool. The input matches the spec's schema. Dropping the future stops the tool.
    async fn run(&self, input: &Value) -> ToolOutput;
}

/// A source of further tools, for example from a program that embeds Sapwood. A source must not open tools beyond the
/// grant.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// Open the tools of this source for a session. Called at the start of each turn.
    async fn open(&self, grant: &ToolGrant) -> Result<Vec<Arc<dyn Tool>>, ToolError>;
}

/// Build a spec with a schema given as a value.
fn spec(name: &str, description: &str, input_schema: &Value, touch: Touch, replay: Replay) -> ToolSpec {
    ToolSpec::new(name, description, input_schema).with_touch(touch).with_replay(replay)
}

/// The value of a string field that the schema requires.
fn text_field<'a>(input: &'a Value, field: &str) -> &'a str {
    input[field].as_str().unwrap_or_default()
}
