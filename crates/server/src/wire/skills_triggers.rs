//! Skills and triggers, as clients see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SkillList {
    pub items: Vec<Skill>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Skill {
    pub name: String,
    pub description: String,
}

/// The names of skills, in the order in which they were made active.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActiveSkills {
    pub active: Vec<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TriggerList {
    pub items: Vec<Trigger>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Trigger {
    pub name: String,
    /// `webhook`, `cron`, `watch` or `event`.
    pub kind: String,
    /// When the calendar fires next, in milliseconds.
    pub next_at: Option<i64>,
    /// Firings that were not sent yet.
    pub waiting: u64,
    pub running: u64,
    /// The last firing that is over: `firing`, `at`, `outcome`, `session`.
    pub last: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Fired {
    pub trigger: String,
    /// The firing's seq in the trigger's log.
    pub firing: u32,
}
