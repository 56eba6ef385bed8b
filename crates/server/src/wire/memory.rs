//! Memories and grafts, as clients send and get them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct MemoryQuery {
    /// A question in whatever words: the memories that answer it, the best first.
    pub q: Option<String>,
    /// Words that must all occur.
    pub words: Option<String>,
    /// `fact`, `preference`, `decision` or `error_pattern`.
    pub kind: Option<String>,
    /// Only what this session taught.
    pub session: Option<String>,
    /// Also those that others stand in for.
    pub superseded: Option<bool>,
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// What the page before had as `next`.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMemory {
    pub text: String,
    /// `fact` if none.
    #[serde(default)]
    pub kind: Option<String>,
    /// For everybody of the tenant, and not only for you.
    #[serde(default)]
    pub everybody: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryPatch {
    pub text: Option<String>,
    pub kind: Option<String>,
    /// Makes it everybody's, or yours alone again.
    pub everybody: Option<bool>,
    /// Fails with a conflict unless it has this version.
    pub expected_version: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MemorySource {
    pub session: String,
    pub entries: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    pub id: String,
    /// `user:NAME`, or `tenant`.
    pub belongs: String,
    pub kind: String,
    pub text: String,
    pub sources: Vec<MemorySource>,
    /// `by_hand`, `by_rules`, or `{"by_model": NAME}`.
    pub learned: Value,
    /// How many entries support it.
    pub strength: u32,
    pub by: String,
    pub version: u64,
    pub created_at: i64,
    pub updated_at: i64,
    #[serde(default)]
    pub superseded_by: Option<String>,
    /// Where it comes from, in words.
    pub provenance: String,
    /// How well it answers, where something was asked.
    #[serde(default)]
    pub score: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Memories {
    pub items: Vec<Memory>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeptMemory {
    #[schema(value_type = Memory)]
    pub memory: Value,
    /// `learned`, `strengthened`, `known` or `superseded`.
    pub outcome: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Learning {
    pub session: String,
    pub how: Value,
    /// Why the model's answer was not used.
    pub fell_back: Option<String>,
    /// How many entries were looked at.
    pub entries: u32,
    pub kept: Vec<KeptMemory>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGraft {
    pub source: String,
    /// Something the source delivered.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Rounds in full. A digest if neither is given.
    #[serde(default)]
    pub rounds: Option<GraftRounds>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GraftRounds {
    pub first: u32,
    pub last: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Graft {
    pub seq: u32,
    pub id: String,
    pub at: i64,
    pub by: String,
    pub source: String,
    /// The entry of the source that says how it was.
    pub upto: String,
    /// `artifact`, `digest` or `rounds`.
    pub what: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub first: Option<u32>,
    #[serde(default)]
    pub last: Option<u32>,
    /// `readable` or `withheld`.
    pub state: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Grafts {
    pub items: Vec<Graft>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GraftContent {
    #[serde(flatten)]
    pub graft: Graft,
    pub text: String,
    /// Of an artifact.
    #[serde(default)]
    pub content: Option<Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Digest {
    pub items: Vec<DigestRound>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DigestRound {
    pub number: u32,
    pub asked: Option<String>,
    pub answered: String,
    pub tools: Vec<String>,
    pub artifacts: Vec<String>,
}
