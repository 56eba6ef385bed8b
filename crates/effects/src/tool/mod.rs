//! The tools that work outside of the log. Each is a [`Tool`] in a file of its own, bound to what its session was granted
//! when the box is opened.

pub mod http;
pub mod mcp;

use async_trait::async_trait;
use sapwood_core::port::tool::{ToolOutput, ToolSpec};
use serde_json::Value;

/// One tool, bound to its grant.
#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> ToolSpec;
    /// The input fits the spec's schema. Dropping the future ends what it runs.
    async fn run(&self, input: &Value) -> ToolOutput;
}
