//! Agents: a model, its tools, its limits and its rights. `docs/spec/agents.md` describes the fields and the file format.

pub use sapwood_core::agent::{
    Agent, AgentError, Budget, ChainLink, Confidence, Learn, Limits, MemoryUse, Narrowing, OnExceed,
    OnInterrupt, Recall,
};
pub use sapwood_core::approval::ApprovalWait;
pub use sapwood_core::policy::ApprovalMode;
pub use sapwood_core::port::model::Thinking;
pub use sapwood_core::port::tool::{FsScope, McpServer, ProgramLimits, ServerSandbox};
pub use sapwood_core::pressure::{Level, Thresholds, ThresholdsError};
