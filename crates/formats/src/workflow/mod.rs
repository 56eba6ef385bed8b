//! Workflows: deterministic YAML documents. Reading is strict: an unknown key is an error that names it. Writing
//! sorts keys and has one form for each value, so reading and writing a document again produces the same bytes.
//!
//! | file | does |
//! |---|---|
//! | [`session`] | converts a session to a document |
//! | [`flow`] | converts a document to a runnable flow |
//! | [`readings`] | reads the required readings of roles |
//! | [`yaml`] | writes values as YAML |

pub mod flow;
pub mod readings;
pub mod session;
mod yaml;

use std::collections::BTreeMap;

use sapwood_core::flow::graph::{EdgeKind, HandoffBy, Improvement, Route};
use sapwood_core::port::tool::FsScope;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::NESTING_MAX;

pub use flow::{OwnAgents, flow_of, obstacle};
pub use readings::{ReadingIndex, Readings, RequiredReadings};
pub use session::{Exported, SessionToExport, of_session};

pub const SCHEMA_VERSION: &str = "1.0";
/// Maximum document size, in bytes.
pub const WORKFLOW_BYTES_MAX: usize = 64 << 20;
/// Number of nesting levels around the content of a message: `workflow`, `metadata`, the messages, their parts.
const FRAME_DEPTH: usize = 12;
/// Stack size of the parser thread: several times the stack needed for [`FRAME_DEPTH`] plus [`NESTING_MAX`] levels.
const STACK_BYTES: usize = 16 << 20;
/// Additional nodes that the parser allows, so that the limit also fits the smallest documents.
const NODES_SPARE: usize = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub schema_version: String,
    pub workflow: Workflow,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The agents that the document defines; in an export, the session's agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<WorkflowRole>,
    /// The folder for role records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_folder: Option<String>,
    /// The file that lists the required readings. Defaults to `required-readings.yaml` next to this document,
    /// if it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_readings: Option<String>,
    /// The improvement pass that follows the forward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub improvement: Option<Improvement>,
    /// The values of `{{ctx.NAME}}` in prompts, by name. A caller may override them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    pub nodes: Vec<WorkflowNode>,
    pub edges: Vec<WorkflowEdge>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

/// A role. `curator_2` is another instance of `curator`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowRole {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_readings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowNode {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: NodeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_template: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The file access at this node, at most that of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_scope: Option<FsScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role instance whose session this node uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The id of the session that this node uses, which may belong to another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The role, node or session whose fork this node uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_from: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub await_all_inputs: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<HandoffBy>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub human_colab: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_readings: Vec<String>,
}

impl WorkflowNode {
    pub fn new(id: impl Into<String>, kind: NodeKind) -> Self {
        Self {
            id: id.into(),
            kind,
            agent_ref: None,
            prompt_template: None,
            tools: Vec::new(),
            fs_scope: None,
            name: None,
            role: None,
            session_id: None,
            fork_from: None,
            await_all_inputs: false,
            route: None,
            handoff: None,
            human_colab: false,
            required_readings: Vec::new(),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    Input,
    Agent,
    Output,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowEdge {
    pub from: String,
    pub to: String,
    #[serde(default, rename = "type", skip_serializing_if = "is_forward")]
    pub kind: EdgeKind,
    /// The required name of the artifact passed along this edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
}

impl WorkflowEdge {
    pub fn forward(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { from: from.into(), to: to.into(), kind: EdgeKind::Forward, artifact: None }
    }
}

fn is_forward(kind: &EdgeKind) -> bool {
    *kind == EdgeKind::Forward
}

/// A text that is not a valid workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowError {
    /// The text is not valid YAML, or its fields do not match the schema.
    #[error("failed to read the workflow: {why}")]
    Invalid { why: String },
    /// The workflow has another schema version.
    #[error(
        "the workflow has schema version {found:?}, but this version of Sapwood reads {SCHEMA_VERSION:?}"
    )]
    Version { found: String },
    /// The text exceeds the size limit.
    #[error("the workflow has {bytes} bytes, over the limit of {WORKFLOW_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

impl WorkflowError {
    /// Return the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            WorkflowError::Invalid { .. } => "workflow.invalid",
            WorkflowError::Version { .. } => "workflow.version",
            WorkflowError::TooLarge { .. } => "input.too_large",
        }
    }
}

/// Read a document.
pub fn parse(text: &str) -> Result<Document, WorkflowError> {
    if text.len() > WORKFLOW_BYTES_MAX {
        return Err(WorkflowError::TooLarge { bytes: text.len() });
    }
    let document = read_deep(text).map_err(|why| WorkflowError::Invalid { why })?;
    match document.schema_version.as_str() {
        SCHEMA_VERSION => Ok(document),
        _ => Err(WorkflowError::Version { found: document.schema_version }),
    }
}

/// Parse on a separate thread with a large stack: the parser needs about 20 KB per level, and callers may
/// have only 2 MB.
fn read_deep(text: &str) -> Result<Document, String> {
    let read = || {
        serde_saphyr::from_str_with_options::<Document>(text, limits_for(text))
            .map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let reading = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, read);
        let reading = reading.map_err(|error| format!("failed to start the parser thread: {error}"))?;
        reading.join().unwrap_or_else(|_| Err("the parser panicked".to_owned()))
    })
}

/// Return parser limits that allow any export of this size. The parser's defaults are meant for settings files and
/// would refuse a conversation with about ten thousand messages.
fn limits_for(text: &str) -> serde_saphyr::Options {
    // A node needs at least two bytes, such as `- ` before another node. Each node has a start and an end event.
    let nodes_max = text.len() / 2 + NODES_SPARE;
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: NESTING_MAX + FRAME_DEPTH,
            max_nodes: nodes_max,
            max_events: nodes_max.saturating_mul(2),
            max_total_scalar_bytes: WORKFLOW_BYTES_MAX,
        },
    }
}

/// Write a document with sorted keys, ordered arrays, and one form for each value.
pub fn serialise(document: &Document) -> String {
    let value =
        serde_json::to_value(document).expect("a workflow contains only values that JSON can represent");
    yaml::write(&value)
}
