//! The seam to tools. A [`ToolHost`] opens a [`Toolbox`] for one session, bound to what that session was granted; the
//! toolbox can do nothing beyond it. Whether a call may run at all is decided before, by [`crate::policy`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::content::{Json, ToolCall};
use crate::id::{SessionId, TenantId};

/// What a tool does to the world, and so how it is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// Looks only. Such calls run side by side.
    Reads,
    /// Changes files in the session's scope.
    Edits,
    /// Runs programs, or reaches the network.
    Acts,
    /// Leaves a lasting mark that a person must agree to, such as a commit.
    Commits,
    /// Speaks with a person.
    Asks,
    /// Is run by whoever began the turn: it ends with the call, and the next one begins with the result.
    Callers,
}

/// Whether a call that may have run before a crash may be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    Safe,
    #[default]
    Never,
}

/// What a model is told about a tool, and what the engine needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the input: an object.
    pub input_schema: Json,
    pub touch: Touch,
    pub replay: Replay,
}

/// How far the file tools reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsScope {
    /// The session's own scratch directory.
    #[default]
    Sandboxed,
    /// The working directory, without protected paths.
    Project,
    /// Everything the process may touch. Cannot be asked for over the network.
    Full,
}

/// A server that offers tools by the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum McpServer {
    Stdio {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        /// Values may be `secret:NAME`.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    Http {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

/// All that a session's tools may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Where `project` scope and commands work.
    pub cwd: Option<String>,
    pub fs_scope: FsScope,
    /// The tools by name; only these are in the box.
    pub tools: Vec<String>,
    /// Exact commands or globs; none at all disables `run_command`.
    pub allowed_commands: Vec<String>,
    /// Exact host names; none at all denies every address.
    pub allowed_hosts: Vec<String>,
    pub mcp_servers: BTreeMap<String, McpServer>,
}

/// One piece of what a tool brought back. Bytes become blobs before they reach a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    Text(String),
    Media { mime: String, name: Option<String>, bytes: Vec<u8> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    pub parts: Vec<OutputPart>,
    pub is_error: bool,
}

impl ToolOutput {
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![OutputPart::Text(text.into())], is_error: false }
    }
    /// Something the model should read and may mend.
    pub fn error(text: impl Into<String>) -> Self {
        Self { parts: vec![OutputPart::Text(text.into())], is_error: true }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    #[error("there is no tool {name}: {known}")]
    Unknown { name: String, known: String },
    #[error("the working directory {dir} cannot be used: {why}")]
    NoDirectory { dir: String, why: String },
    #[error("MCP server {server}: {why}")]
    Server { server: String, why: String },
    #[error("{what} is not valid: {why}")]
    Invalid { what: String, why: String },
}

impl ToolError {
    pub fn code(&self) -> &'static str {
        match self {
            ToolError::Unknown { .. } => "tool.unknown",
            ToolError::NoDirectory { .. } => "tool.no_directory",
            ToolError::Server { .. } => "tool.server",
            ToolError::Invalid { .. } => "tool.invalid",
        }
    }
}

/// Opens toolboxes.
#[async_trait]
pub trait ToolHost: Send + Sync {
    async fn open(&self, grant: &Grant) -> Result<Arc<dyn Toolbox>, ToolError>;
}

/// The tools of one session, bound to its grant.
#[async_trait]
pub trait Toolbox: Send + Sync {
    fn specs(&self) -> &[ToolSpec];
    /// Runs one call whose input fits its schema. A tool that fails says so in its output; dropping the future ends
    /// what it runs. Known secrets are taken out of the output before it is returned (I12).
    async fn run(&self, call: &ToolCall) -> ToolOutput;
    /// Why the input does not fit the tool's schema, in words a model can act on.
    fn check(&self, call: &ToolCall) -> Result<(), String>;
}
