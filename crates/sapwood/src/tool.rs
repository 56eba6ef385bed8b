//! Tools. A closure is enough for most tools: [`SapwoodBuilder::tool`](crate::SapwoodBuilder::tool). A [`ToolSource`]
//! creates tools that depend on the session:
//!
//! ```
//! # fn main() -> Result<(), sapwood::Error> {
//! use std::sync::Arc;
//!
//! use sapwood::tool::{Tool, ToolError, ToolGrant, ToolOutput, ToolSource, ToolSpec, Touch};
//! use serde_json::{Value, json};
//!
//! /// Tells the model in which session it is.
//! struct WhichSession(String);
//!
//! #[sapwood::async_trait]
//! impl Tool for WhichSession {
//!     fn spec(&self) -> ToolSpec {
//!         ToolSpec::new("which_session", "The id of this session.", &json!({"type": "object"}))
//!             .with_touch(Touch::Reads)
//!     }
//!     async fn run(&self, _input: &Value) -> ToolOutput {
//!         ToolOutput::text(self.0.as_str())
//!     }
//! }
//!
//! struct SessionTools;
//!
//! #[sapwood::async_trait]
//! impl ToolSource for SessionTools {
//!     async fn open(&self, grant: &ToolGrant) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
//!         let is_granted = grant.tools.iter().any(|name| name == "which_session");
//!         let tool = || Arc::new(WhichSession(grant.session.to_string())) as Arc<dyn Tool>;
//!         Ok(is_granted.then(tool).into_iter().collect())
//!     }
//! }
//!
//! let sapwood = sapwood::Sapwood::builder("memory:")?.tool_source(SessionTools).build()?;
//! # Ok(())
//! # }
//! ```

pub use sapwood_core::content::ToolCall;
pub use sapwood_core::port::tool::{
    FsScope, McpServer, OutputPart, ProgramLimits, Replay, ServerSandbox, ToolError, ToolGrant, ToolOutput,
    ToolSpec, Touch,
};
pub use sapwood_effects::tool::{Tool, ToolSource};
