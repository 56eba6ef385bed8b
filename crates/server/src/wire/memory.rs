//! Wire types of memories and grafts.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct MemoryQuery {
    /// A question in free text. Returns the memories that answer it, best first.
    pub q: Option<String>,
    /// Words that must all occur.
    pub words: Option<String>,
    /// `fact`, `preference`, `decision` or `error_pattern`.
    pub kind: Option<String>,
    /// Only memories learned from this session.
    pub session: Option<String>,
    /// Include superseded memories.
    pub superseded: Option<bool>,
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMemory {
    pub text: String,
    /// Defaults to `fact`.
    #[serde(default)]
    pub kind: Option<String>,
    /// Share it with the whole tenant instead of keeping it for yourself.
    #[serde(default)]
    pub everybody: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryPatch {
    pub text: Option<String>,
    pub kind: Option<String>,
    /// Share it with the whole tenant, or make it private again.
    pub everybody: Option<bool>,
    /// Fails with a conflict unless the memory has this version.
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
    /// The owner: a principal such as `user:NAME`, or `tenant`.
    pub belongs: String,
    pub kind: String,
    pub text: String,
    pub sources: Vec<MemorySource>,
    /// `by_hand`, `by_rules`, or `{"by_model": NAME}`.
    pub learned: Value,
    /// Number of entries that support it.
    pub strength: u32,
    pub by: String,
    pub version: u64,
    pub created_at: i64,
    pub updated_at: i64,
    #[serde(default)]
    pub superseded_by: Option<String>,
    /// A description of its origin.
    pub provenance: String,
    /// How well it matches the question; only with `q`.
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
    /// Number of entries that were examined.
    pub entries: u32,
    pub kept: Vec<KeptMemory>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGraft {
    pub source: String,
    /// The name of an artifact of the source.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Rounds to graft in full. If neither is given, a digest is grafted.
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
    /// The last entry of the source that the graft covers.
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
    /// Only for an artifact.
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
