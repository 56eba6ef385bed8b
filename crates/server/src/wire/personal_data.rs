//! Types for legal holds, erasure and retention.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The data of a user.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserData {
    /// The user's sessions, with their inputs and artifacts.
    pub sessions: Vec<String>,
    /// Those of them that a legal hold protects.
    pub held: Vec<String>,
    /// Forks of the sessions that belong to other owners.
    pub forks: Vec<String>,
    /// The number of memories.
    pub memories: u64,
    /// The number of API keys that are not revoked.
    pub keys: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EraseUser {
    /// Also erase forks of the sessions that belong to other owners.
    pub forks: bool,
}

/// What an erasure has done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErasedUser {
    pub erased: Vec<String>,
    /// Sessions that a legal hold protects. They were kept.
    pub held: Vec<String>,
    /// Forks of other owners that still have entries of erased sessions.
    pub forks: Vec<String>,
    pub memories: u64,
    /// The number of revoked API keys.
    pub keys: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHold {
    /// `session:ID` or `user:NAME`.
    pub target: String,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// `session:ID` or `user:NAME`.
    pub target: String,
    pub reason: Option<String>,
    pub at: i64,
    pub by: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Holds {
    pub items: Vec<Hold>,
}

/// How long the tenant keeps inactive sessions.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionPolicy {
    /// Days without an entry after which a session is announced.
    #[schema(minimum = 1, maximum = 36500)]
    pub days: u32,
    /// Days between the announcement and the erasure.
    #[schema(minimum = 1, maximum = 36500)]
    pub notice_days: u32,
}

/// An announced erasure.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RetentionNotice {
    pub session: String,
    pub announced_at: i64,
    pub erase_at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Retention {
    /// Null if sessions are kept forever.
    pub policy: Option<RetentionPolicy>,
    /// The announced erasures of sessions that you can read.
    pub notices: Vec<RetentionNotice>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunRetention {
    /// Only list what would be announced and erased.
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RetentionRun {
    pub announced: Vec<RetentionNotice>,
    pub erased: Vec<String>,
    /// Inactive sessions that a legal hold protects.
    pub held: Vec<String>,
    /// Sessions whose announcement was withdrawn.
    pub withdrawn: Vec<String>,
}
