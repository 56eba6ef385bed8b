//! Wire types of skills and triggers.

use sapwood::core::trigger::LastFiring;
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

/// Skill names in the order of their activation.
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
    /// When a cron trigger fires next, in Unix milliseconds.
    pub next_at: Option<i64>,
    /// Number of firings that are still queued.
    pub waiting: u64,
    pub running: u64,
    /// The last finished firing.
    pub last: Option<LastFiring>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Fired {
    pub trigger: String,
    /// The firing's seq in the trigger's log.
    pub firing: u32,
}
