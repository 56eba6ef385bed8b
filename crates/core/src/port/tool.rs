//! The tool port. A [`ToolHost`] opens a [`Toolbox`] for one session, restricted to the session's grant. Whether a call
//! may run at all is decided earlier, by [`crate::policy`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{Json, ToolCall};
use crate::id::{SessionId, TenantId};

/// The side effects of a tool, which determine how its calls are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// Only reads. Such calls run in parallel.
    Reads,
    /// Changes files in the session's scope.
    Edits,
    /// Runs programs or accesses the network.
    Acts,
    /// Has a permanent effect, such as a commit. Approval mode `plan` refuses it; all other modes require a person's
    /// approval.
    Commits,
    /// Asks a person.
    Asks,
    /// Is run by the caller of the turn. The turn ends with the call, and the next turn starts with its result.
    Callers,
}

/// Whether a call that may have run before a crash is safe to run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// The call is run again.
    Safe,
    /// The call is not run again; the model is told that its effect is unknown.
    #[default]
    Never,
}

/// The description of a tool for the model and the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolSpec {
    /// The name that the model and agents use.
    pub name: String,
    /// What the tool does, for the model.
    pub description: String,
    /// JSON Schema of the input: an object.
    pub input_schema: Json,
    /// The tool's side effects, which determine whether a call needs approval.
    pub touch: Touch,
    /// Whether a call that may have run is run again after a crash.
    pub replay: Replay,
}

impl ToolSpec {
    /// Describe a tool. `input_schema` is the JSON Schema of an object. By default the tool is assumed to
    /// act ([`Touch::Acts`]) and is not run again after a crash ([`Replay::Never`]).
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: &Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: Json::from_value(input_schema),
            touch: Touch::Acts,
            replay: Replay::Never,
        }
    }

    /// Declare the tool's side effects. [`Touch::Reads`] needs no approval.
    pub fn with_touch(self, touch: Touch) -> Self {
        Self { touch, ..self }
    }

    /// Declare whether a call that may have run before a crash is run again.
    pub fn with_replay(self, replay: Replay) -> Self {
        Self { replay, ..self }
    }
}

/// The file access of the file tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsScope {
    /// The session's scratch directory.
    #[default]
    Sandboxed,
    /// The working directory, without protected paths.
    Project,
    /// Everything the process can access. Not available over the network.
    Full,
}

/// A server that offers tools over the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum McpServer {
    /// A program that exchanges messages over its standard input and output.
    Stdio {
        command: String,
        #[serde(default)]
        args: Vec<String>,
        /// Values may be `secret:NAME`.
        #[serde(default)]
        env: BTreeMap<String, String>,
        /// What the program needs. Without it, the program has what the operator allows to MCP servers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<ServerSandbox>,
    },
    /// A server at an HTTP address.
    Http {
        url: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

/// The part of the operator's rights that the program of an MCP server keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSandbox {
    /// `false` denies all sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<bool>,
    /// The paths that the program may read besides the system's and the session's files: absolute, or below `~/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Vec<String>>,
    /// The paths that it may read and write besides the session's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Vec<String>>,
}

/// Limits that an agent sets for the programs of its tools. A limit above the operator's has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProgramLimits {
    /// Memory of a program and of all processes that it starts, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Processor time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<u64>,
    /// Size of a file that a program writes, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mb: Option<u64>,
    /// Number of open files per process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
}

impl ProgramLimits {
    /// The name of a limit that is zero. No program could run with it.
    pub fn zero_limit(&self) -> Option<&'static str> {
        let limits = [
            ("memory_mb", self.memory_mb),
            ("processes", self.processes),
            ("cpu_s", self.cpu_s),
            ("file_mb", self.file_mb),
            ("open_files", self.open_files),
        ];
        limits.into_iter().find(|(_, limit)| *limit == Some(0)).map(|(name, _)| name)
    }
}

/// The rights of a session's tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolGrant {
    /// The session's tenant.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// The working directory of `project` scope and commands.
    pub cwd: Option<String>,
    /// Which files the tools can access.
    pub fs_scope: FsScope,
    /// The names of the available tools.
    pub tools: Vec<String>,
    /// Exact commands or globs. An empty list disables `run_command`.
    pub allowed_commands: Vec<String>,
    /// Exact host names. An empty list denies all connections.
    pub allowed_hosts: Vec<String>,
    /// The MCP servers by name. All their tools are available.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// The agent's limits for programs.
    pub sandbox: ProgramLimits,
}

/// One part of a tool's output. Bytes become blobs before they are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// Text.
    Text(String),
    /// An image, a recording or a file.
    Media { mime: String, name: Option<String>, bytes: Vec<u8> },
}

/// The output of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// The content.
    pub parts: Vec<OutputPart>,
    /// Whether the call failed.
    pub is_error: bool,
}

impl ToolOutput {
    /// A successful output with this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![OutputPart::Text(text.into())], is_error: false }
    }
    /// An error that the model should read and may fix.
    pub fn error(text: impl Into<String>) -> Self {
        Self { parts: vec![OutputPart::Text(text.into())], is_error: true }
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl<T: Into<ToolOutput>, E: std::fmt::Display> From<Result<T, E>> for ToolOutput {
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(|error| Self::error(error.to_string()), Into::into)
    }
}

/// Why a session's tools cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The agent lists a tool that does not exist. `known` names the available tools.
    #[error("there is no tool {name}: {known}")]
    Unknown { name: String, known: String },
    /// The working directory cannot be used.
    #[error("the working directory {dir} cannot be used: {why}")]
    NoDirectory { dir: String, why: String },
    /// An MCP server cannot be started or reached, or its tools cannot be used.
    #[error("MCP server {server}: {why}")]
    Server { server: String, why: String },
    /// A setting or a tool's description is not valid.
    #[error("{what} is not valid: {why}")]
    Invalid { what: String, why: String },
}

impl ToolError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
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
    async fn open(&self, grant: &ToolGrant) -> Result<Arc<dyn Toolbox>, ToolError>;
}

/// The tools of one session, bound to its grant.
#[async_trait]
pub trait Toolbox: Send + Sync {
    fn specs(&self) -> &[ToolSpec];
    /// Run one call with valid input. A failure is reported in the output. Dropping the future stops the tool. Known
    /// secrets are removed from the output (I12).
    async fn run(&self, call: &ToolCall) -> ToolOutput;
    /// Check the input against the tool's schema. The error message is for the model.
    fn check(&self, call: &ToolCall) -> Result<(), String>;
}
