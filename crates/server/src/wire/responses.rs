//! Response types.

use std::collections::BTreeMap;

use sapwood::SessionId;
pub use sapwood::core::project::feed::FeedItem;
pub use sapwood::core::project::ledger::LedgerLine;
pub use sapwood::core::project::outline::{Outline as Tree, OutlineNode as Node};
use sapwood::core::project::summary::Lineage;
use sapwood::core::{BlobRef, Body, Part};
use sapwood::engine::turn::Running;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Approval;

/// An error (RFC 9457) with a stable code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub code: String,
    pub detail: String,
    /// What the client can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Head {
    /// The seq of the last entry in the log.
    pub seq: u32,
    /// The parent of the next entry.
    pub leaf: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: String,
    pub owner: String,
    #[serde(default)]
    pub title: Option<String>,
    /// The beginning of the first user message.
    #[serde(default)]
    pub preview: Option<String>,
    #[serde(default)]
    pub agent: Option<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    pub state: String,
    pub created_at: i64,
    pub updated_at: i64,
    pub head: Head,
    /// Messages on the path to the leaf.
    pub messages: u32,
    pub compactions: u32,
    #[serde(default)]
    pub model: Option<String>,
    /// Usage per model.
    pub spend: BTreeMap<String, Total>,
    pub turns: u32,
    #[serde(default)]
    pub open_turn: Option<String>,
    /// The seq of the open turn's first entry.
    #[serde(default)]
    pub open_turn_seq: Option<u32>,
    /// Queued input that no turn has consumed yet, oldest first.
    #[serde(default)]
    pub queued: Vec<EntryKey>,
    /// The members it is shared with, and their roles.
    #[serde(default)]
    pub members: BTreeMap<String, String>,
    #[serde(default)]
    pub parent: Option<Lineage>,
    /// Number of entries shared with the session it was forked from.
    pub inherited: u32,
    pub version: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Total {
    pub calls: u64,
    pub cost_nano_usd: u64,
    /// Calls with an unknown price. They are not free, but not included in the cost.
    pub unpriced_calls: u64,
    #[serde(flatten)]
    pub tokens: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sessions {
    pub items: Vec<Session>,
    /// The cursor of the next page; null on the last page.
    pub next: Option<String>,
    /// Present if sessions were left out because they cannot be read: what is damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub incomplete: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    pub seq: u32,
    pub id: String,
    pub parent: Option<u32>,
    pub at: i64,
    pub by: String,
    #[serde(default)]
    pub turn: Option<String>,
    pub kind: String,
    /// The body as stored in the log.
    #[schema(value_type = Body)]
    pub body: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Entries {
    pub items: Vec<Entry>,
    /// Pass this as `after` to get the next page; null at the end.
    pub next: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EntryKey {
    pub seq: u32,
    pub id: String,
}

/// The authenticated caller.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Me {
    pub principal: String,
    pub tenant: String,
    /// Whether the caller can see every session of the tenant.
    pub operator: bool,
    pub may_write: bool,
    /// How the caller was authenticated: `local`, `key` or `token`.
    pub proof: String,
    /// The kind and location of the store; only sent to operators.
    #[serde(default)]
    pub store: Option<String>,
    pub version: String,
}

/// Entries that were durably appended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Appended {
    pub head: Head,
    pub entries: Vec<EntryKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Created {
    pub id: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Context {
    pub system: Option<String>,
    pub model: Option<String>,
    pub thinking: String,
    pub skills: Vec<String>,
    /// The session's context; absent until the session is configured.
    #[serde(default)]
    #[schema(value_type = Option<sapwood::core::entry::SessionContext>)]
    pub context: Option<Value>,
    pub messages: Vec<Message>,
    pub tokens: u64,
    /// Tokens of the system prompt; only with `count`.
    #[serde(default)]
    pub system_tokens: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Message {
    pub role: String,
    pub text: String,
    #[schema(value_type = Vec<Part>)]
    pub parts: Vec<Value>,
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub tool: Option<String>,
    #[serde(default)]
    pub is_error: Option<bool>,
    /// The id of its entry.
    pub entry: Option<String>,
    pub seq: Option<u32>,
    /// Tokens by the model's own tokenizer; only with `count`.
    #[serde(default)]
    pub tokens: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Feed {
    pub items: Vec<FeedItem>,
    /// The last entry of the feed. Pass it as `after` to follow the events after it.
    pub seq: u32,
    #[serde(default)]
    pub open_turn: Option<String>,
    /// The entries that are on another branch: not on the path to the leaf.
    pub off_path: Vec<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ledger {
    pub items: Vec<LedgerLine>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    pub total: Total,
    pub models: BTreeMap<String, Total>,
}

/// Context usage for the model that would answer next.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pressure {
    /// `green`, `yellow`, `orange` or `red`; null if the model's context window is unknown.
    pub level: Option<String>,
    pub used_tokens: Option<u64>,
    pub budget_tokens: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    pub items: Vec<TimelinePoint>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TimelinePoint {
    pub seq: u32,
    pub at: i64,
    /// `answer` or `compaction`.
    pub what: String,
    /// Context tokens at that point; null if not counted.
    pub tokens: Option<u64>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub cost_nano_usd: Option<u64>,
    #[serde(default)]
    pub tokens_before: Option<u64>,
    #[serde(default)]
    pub strategy: Option<String>,
    #[serde(default)]
    pub trigger: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Imports {
    pub items: Vec<Imported>,
}

/// The import result of one session in a file.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Null if the file contains no session id.
    pub session: Option<String>,
    pub format: Option<String>,
    pub added: u64,
    /// Records that already existed.
    pub skipped: u64,
    /// At most 100 per session and 1,000 per file.
    pub problems: Vec<ImportProblem>,
    /// Number of further problems that are not listed.
    pub more_problems: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ImportProblem {
    pub line: Option<u64>,
    pub code: String,
    pub message: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Archives {
    pub items: Vec<Archive>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Archive {
    pub seq: u32,
    pub id: String,
    pub at: i64,
    #[serde(default)]
    pub summary: Option<String>,
    pub strategy: String,
    pub trigger: String,
    #[serde(default)]
    pub tokens_before: Option<u64>,
    #[serde(default)]
    pub tokens_after: Option<u64>,
    /// Number of messages it replaces.
    #[serde(default)]
    pub archived: Option<u32>,
    pub on_path: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ancestry {
    pub id: String,
    pub parent: Option<String>,
    pub children: Vec<String>,
    pub root: String,
    /// The ids from the session to its root.
    pub chain: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Trimmed {
    /// Number of messages left in the context.
    pub kept: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Compacted {
    pub kept: u64,
    pub archived: u64,
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// The compaction entry; null if there was nothing to compact.
    pub entry: Option<EntryKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Members {
    pub items: Vec<Member>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Member {
    pub member: String,
    pub role: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hits {
    pub items: Vec<Hit>,
    pub next: Option<String>,
    /// Present if sessions were left out because they cannot be read: what is damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub incomplete: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hit {
    pub session: String,
    #[serde(default)]
    pub title: Option<String>,
    pub seq: u32,
    pub id: String,
    pub kind: String,
    pub at: i64,
    pub snippet: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    pub items: Vec<AuditLine>,
    /// Pass this as `after` to get the next page; null at the end.
    pub next: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    pub number: u64,
    pub at: i64,
    pub by: String,
    pub action: String,
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub detail: Option<String>,
    /// Covers the line and the previous line's hash.
    pub hash: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Agents {
    pub items: Vec<AgentCard>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AgentCard {
    pub id: String,
    pub name: Option<String>,
    pub description: Option<String>,
    pub model: Option<String>,
    pub tools: Vec<String>,
}

/// The status of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// Running, or interrupted and resumable.
    Open,
    /// Waiting for a person's answer.
    Waiting,
    Completed,
    Cancelled,
    Failed,
    Limited,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Turn {
    pub turn: String,
    pub session: String,
    pub status: TurnStatus,
    /// The error code of a failed or limited turn.
    pub code: Option<String>,
    /// The model's latest message.
    pub text: Option<String>,
    pub started_at: i64,
    pub ended_at: Option<i64>,
    pub approvals: Vec<Approval>,
}

/// The turn that the request started or changed, or the input that it queued.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    pub session: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// The id of the entry that holds the queued input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<String>,
    /// A notice about how the turn runs, such as that an imported session continues under your own agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

impl Accepted {
    pub fn of(session: &SessionId) -> Self {
        Self { session: session.to_string(), turn: None, queued: None, notice: None }
    }

    pub fn begun(self, running: &Running) -> Self {
        Self { turn: Some(running.turn.to_string()), notice: running.notice.clone(), ..self }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    pub name: String,
    /// `artifact` or `input`.
    pub usage: String,
    pub content: BlobRef,
    /// Where a snippet was retrieved from.
    #[serde(default)]
    #[schema(nullable = false)]
    pub source: Option<String>,
    /// Number of versions of this name so far.
    pub version: u32,
    pub seq: u32,
    pub at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Artifacts {
    pub items: Vec<Artifact>,
}

/// The number of messages in a session's context.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Length {
    pub session: String,
    pub length: u32,
}

/// Whether a session exists for the caller.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Exists {
    pub session: String,
    pub exists: bool,
}

/// The result of pruning a session's context.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// The number of messages that are left in the context.
    pub kept: u32,
    /// The number of messages that were removed from the context; 0 if the session was not inactive for long enough.
    pub archived: u32,
    /// The time since the last write.
    pub idle_ms: i64,
    pub tokens_before: u64,
    pub tokens_after: u64,
}

/// A flow run that was started, resumed or cancelled.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowAccepted {
    /// The run's id, which is also its session's id.
    pub run: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowRuns {
    pub items: Vec<FlowRow>,
    pub next: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowRow {
    pub run: String,
    pub flow: String,
    pub name: String,
    /// `open`, `waiting`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// Number of role nodes; `done` counts the finished ones.
    pub nodes: u32,
    pub done: u32,
    pub created_at: i64,
    pub updated_at: i64,
}

/// A flow run: its graph and the status of each node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowRun {
    pub run: String,
    pub flow: String,
    pub name: String,
    /// `open`, `waiting`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// `forward` or `improvement`.
    pub phase: String,
    pub input: String,
    pub code: Option<String>,
    pub message: Option<String>,
    pub created_at: i64,
    pub updated_at: i64,
    pub nodes: Vec<FlowNode>,
    pub edges: Vec<FlowEdge>,
    /// Pending approvals of the roles.
    pub approvals: Vec<Approval>,
    pub results: Vec<FlowResult>,
    /// The directory of the role files, if they are written.
    pub mirror: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowNode {
    pub id: String,
    /// `input`, `agent` or `output`.
    #[serde(rename = "type")]
    pub kind: String,
    pub name: Option<String>,
    pub role: Option<String>,
    pub agent: Option<String>,
    /// `idle`, `running`, `waiting`, `holding`, `done`, `closed`, `skipped` or `failed`.
    pub status: String,
    pub visits: u32,
    pub attempt: u32,
    /// The role's session, which is created when the node is first entered.
    pub session: Option<String>,
    /// The role's latest message.
    pub said: Option<String>,
    pub why: Option<String>,
    pub code: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowEdge {
    pub from: String,
    pub to: String,
    /// `forward` or `backward`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `open`, `completed` or `closed`.
    pub status: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowResult {
    pub from: String,
    pub name: String,
    /// The whole text, or its beginning if it is long.
    pub text: String,
    pub bytes: u64,
}

/// One event of a stream; `data` is the JSON of an `Event`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StreamEvent {
    pub data: String,
    /// The seq of a durable event; null for fragments.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub event: Option<String>,
}
