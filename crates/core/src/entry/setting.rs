//! Setting entries. Settings belong to their path: branching before a change undoes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content::{Json, present};

/// A change of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelChanged {
    /// The name of the new model, such as `PROVIDER/NAME` or `demo`.
    pub model: String,
}

/// A change of the reasoning effort.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThinkingChanged {
    /// The new level, such as `off` or `high`.
    pub level: String,
}

/// A change of the active skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkillsChanged {
    /// The names of all skills that are active from now on. Others become inactive.
    pub active: Vec<String>,
}

/// Changes the session's working context. Fields that are present replace the previous values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ContextChanged {
    /// The new system prompt; may contain `{{ctx.NAME}}` variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The new working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Plain text, never secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variables: Option<BTreeMap<String, String>>,
    /// The [`Agent`](crate::Agent) at the time the session started.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub agent: Option<Json>,
}
