//! Setting entries. Settings belong to their path: branching before a change undoes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content::{Json, present};

/// A change of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelChanged {
    /// The new model: `PROVIDER/NAME`.
    pub model: String,
}

/// A change of the reasoning effort.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThinkingChanged {
    /// The new level.
    pub level: String,
}

/// A change of the active skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkillsChanged {
    /// The names of all active skills.
    pub active: Vec<String>,
}

/// Changes the session's working context. Fields that are present replace the previous values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ContextChanged {
    /// The new system prompt.
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
