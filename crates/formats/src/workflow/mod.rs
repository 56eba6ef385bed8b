//! Workflows: a deterministic YAML document. Reading is strict: an unknown key is an error that names it. Writing sorts
//! keys and has one form for each value, so that reading what was written and writing it again gives the same bytes.
//!
//! | file | does |
//! |---|---|
//! | [`session`] | makes the document of a session |
//! | [`yaml`] | writes values as YAML |

pub mod session;
mod yaml;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use session::{Exported, of_session};

pub const SCHEMA_VERSION: &str = "1.0";
/// Largest document that is read.
pub const WORKFLOW_BYTES_MAX: usize = 64 << 20;

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
    /// Agents as they were when the session began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Value>,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: NodeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_template: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
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
pub struct Edge {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowError {
    #[error("the workflow cannot be read: {why}")]
    Invalid { why: String },
    #[error(
        "the workflow has schema version {found:?}, and this version of Sapwood reads {SCHEMA_VERSION:?}"
    )]
    Version { found: String },
    #[error("the workflow has {bytes} bytes, and the limit is {WORKFLOW_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

impl WorkflowError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            WorkflowError::Invalid { .. } => "workflow.invalid",
            WorkflowError::Version { .. } => "workflow.version",
            WorkflowError::TooLarge { .. } => "input.too_large",
        }
    }
}

/// Reads a document.
pub fn parse(text: &str) -> Result<Document, WorkflowError> {
    if text.len() > WORKFLOW_BYTES_MAX {
        return Err(WorkflowError::TooLarge { bytes: text.len() });
    }
    let invalid = |error: serde_saphyr::Error| WorkflowError::Invalid { why: error.to_string() };
    let document: Document = serde_saphyr::from_str(text).map_err(invalid)?;
    match document.schema_version.as_str() {
        SCHEMA_VERSION => Ok(document),
        _ => Err(WorkflowError::Version { found: document.schema_version }),
    }
}

/// Writes a document: keys sorted, arrays in order, one form for each value.
pub fn serialise(document: &Document) -> String {
    let value = serde_json::to_value(document).expect("a workflow holds strings, lists and JSON only");
    yaml::write(&value)
}
