//! What clients get.

use std::collections::BTreeMap;

use sapwood::SessionId;
use sapwood::engine::turn::Running;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What went wrong (RFC 9457), with a stable code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub code: String,
    pub detail: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Head {
    /// The log's last entry.
    pub seq: u32,
    /// The entry the next one hangs from.
    pub leaf: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: String,
    pub owner: String,
    #[serde(default)]
    pub title: Option<String>,
    /// The beginning of the first thing the user said.
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
    /// Per model.
    pub spend: BTreeMap<String, Total>,
    pub turns: u32,
    #[serde(default)]
    pub open_turn: Option<String>,
    /// Who it is shared with, and as what.
    #[serde(default)]
    pub members: BTreeMap<String, String>,
    #[serde(default)]
    pub parent: Option<Value>,
    /// Entries it shares with the session it was forked from.
    pub inherited: u32,
    pub version: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Total {
    pub calls: u64,
    pub cost_nano_usd: u64,
    /// Calls whose price is not known: they are not in the cost, and are not free.
    pub unpriced_calls: u64,
    #[serde(flatten)]
    pub tokens: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sessions {
    pub items: Vec<Session>,
    /// Where the next page begins; none on the last.
    pub next: Option<String>,
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
    /// As it is in the log.
    pub body: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Entries {
    pub items: Vec<Entry>,
    /// The seq to go on after; none if this was the end.
    pub next: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EntryKey {
    pub seq: u32,
    pub id: String,
}

/// Who the caller is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Me {
    pub principal: String,
    pub tenant: String,
    /// Whether every session of the tenant is theirs to see.
    pub operator: bool,
    pub may_write: bool,
    /// How it was proven: `local`, `key` or `token`.
    pub proof: String,
    /// What and where the store is; for operators.
    #[serde(default)]
    pub store: Option<String>,
    pub version: String,
}

/// What was appended, durably.
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
    pub messages: Vec<Message>,
    pub tokens: u64,
    /// What the system prompt takes; with `count`.
    #[serde(default)]
    pub system_tokens: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Message {
    pub role: String,
    pub text: String,
    pub parts: Vec<Value>,
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub tool: Option<String>,
    #[serde(default)]
    pub is_error: Option<bool>,
    /// The id of the entry it comes from.
    pub entry: Option<String>,
    pub seq: Option<u32>,
    /// What it takes by the model's own tokenizer; with `count`.
    #[serde(default)]
    pub tokens: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tree {
    pub roots: Vec<u32>,
    pub leaf: Option<u32>,
    pub nodes: Vec<Node>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub seq: u32,
    pub id: String,
    pub parent: Option<u32>,
    pub kind: String,
    pub at: i64,
    pub text: String,
    #[serde(default)]
    pub label: Option<String>,
    pub children: Vec<u32>,
    pub on_path: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Feed {
    pub items: Vec<FeedItem>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FeedItem {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub label: String,
    pub text: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ledger {
    pub items: Vec<LedgerLine>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LedgerLine {
    pub seq: u32,
    pub at: i64,
    pub turn: Option<String>,
    pub round: u32,
    pub action: Value,
    pub result: Option<Value>,
    pub confidence: Option<f32>,
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    pub total: Total,
    pub models: BTreeMap<String, Total>,
}

/// How full the context is for the model that would answer next.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pressure {
    /// `green`, `yellow`, `orange` or `red`; none where the model's window is not known.
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
    /// What the context took then; none if nobody counted.
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

/// What became of a session of a file.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// None if nothing in the file says.
    pub session: Option<String>,
    pub format: Option<String>,
    pub added: u64,
    /// Records that were there already.
    pub skipped: u64,
    /// At most a hundred of a session, and a thousand of a file.
    pub problems: Vec<ImportProblem>,
    /// How many there are beside those that are told.
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
    /// How many messages it stands in for.
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
    /// From the session to its root.
    pub chain: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Trimmed {
    /// Messages in the context now.
    pub kept: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Compacted {
    pub kept: u64,
    pub archived: u64,
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// The entry that was written; none if there was nothing to do.
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
    /// The number to go on after; none if this was the end.
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
    /// Covers the line and the hash before it.
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

/// How a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// It runs, or its process died and it can be resumed.
    Open,
    /// A person has been asked.
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
    /// Why, for failed and limited turns.
    pub code: Option<String>,
    /// What the model said last.
    pub text: Option<String>,
    pub started_at: i64,
    pub ended_at: Option<i64>,
    pub approvals: Vec<Approval>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    pub approval: String,
    pub session: String,
    pub question: String,
    pub kind: String,
    #[serde(default)]
    pub call: Option<Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Approvals {
    pub items: Vec<Approval>,
}

/// A turn that was begun, or input that waits for the one that runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    pub session: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// The entry that holds the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<String>,
    /// What to know about how the turn runs: an imported session continues under your own agent.
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
    pub content: Blob,
    /// How often this name was put.
    pub version: u32,
    pub seq: u32,
    pub at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Blob {
    /// The BLAKE3 hash of the bytes, which is also their `ETag`.
    pub blob: String,
    pub mime: String,
    #[serde(default)]
    pub name: Option<String>,
    pub bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Artifacts {
    pub items: Vec<Artifact>,
}

/// A run that was started, carried on or asked to end.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FlowAccepted {
    /// The run, which is also its session.
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
    /// Nodes that roles work on, and how many of them are over.
    pub nodes: u32,
    pub done: u32,
    pub created_at: i64,
    pub updated_at: i64,
}

/// A run: its graph, and where everything stands.
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
    /// What roles ask people.
    pub approvals: Vec<Approval>,
    pub results: Vec<FlowResult>,
    /// Where role files are kept, if they are.
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
    /// The session of the role; it exists once the node was entered.
    pub session: Option<String>,
    /// What the role said last.
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
    /// Its beginning, or all of it.
    pub text: String,
    pub bytes: u64,
}

/// One event of a stream; `data` is JSON as a text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StreamEvent {
    pub data: String,
    /// The seq of what is durable; none for fragments.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub event: Option<String>,
}
