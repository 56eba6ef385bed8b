//! What clients send. Strict: a key that is not known is an error.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSession {
    /// Made up if none; an id that exists is opened as it is.
    pub id: Option<String>,
    pub title: Option<String>,
    /// One of `/v1/agents`.
    pub agent: Option<String>,
    /// The directory it is about: only for whoever operates the server.
    pub cwd: Option<String>,
    /// What `{{ctx.NAME}}` in the agent's prompt stands for. Plain text: what looks like a key is refused.
    pub variables: BTreeMap<String, String>,
    /// Only these of the agent's tools.
    pub tools: Option<Vec<String>>,
    /// `sandboxed` or `project`: no more than the agent has.
    pub fs_scope: Option<String>,
    /// `plan`, `ask`, `accept-edits` or `auto`: no freer than the agent is.
    pub approvals: Option<String>,
}

impl NewSession {
    /// Whether something is said that only an agent can be told.
    pub fn needs_agent(&self) -> bool {
        !self.variables.is_empty()
            || self.tools.is_some()
            || self.fs_scope.is_some()
            || self.approvals.is_some()
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionPatch {
    pub title: Option<String>,
    /// `active`, `closed` or `archived`.
    pub state: Option<String>,
    /// The model that answers from here on: `PROVIDER/NAME`.
    pub model: Option<String>,
    /// How much it thinks from here on: `off`, `low`, `medium`, `high`.
    pub thinking: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    #[default]
    Newest,
    Oldest,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListSessions {
    /// `created`, `active`, `closed` or `archived`.
    pub state: Option<String>,
    /// Words that occur in the session, or in its title. A session can come again on a later page.
    pub q: Option<String>,
    pub cwd: Option<String>,
    pub agent: Option<String>,
    /// A user's name, or `agent:NAME`.
    pub owner: Option<String>,
    /// Changed at this time or later, in milliseconds.
    pub since: Option<i64>,
    /// Changed before this time.
    pub until: Option<i64>,
    /// Words that are all in the title, in what stands in for a missing one, or in the id.
    pub title: Option<String>,
    /// Which end of the list comes first; a search has the newest first.
    #[param(inline)]
    pub order: Option<ListOrder>,
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// What the page before had as `next`. A page can have fewer rows than asked for, or none, and still a `next`.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListEntries {
    /// Only entries after this seq.
    pub after: Option<u32>,
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListFlows {
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// What the page before had as `next`.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    pub session: Option<String>,
    /// Only lines after this number.
    pub after: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SearchParams {
    /// Words that must all occur; "words in quotes" occur together; a trailing * matches the rest of a word.
    pub q: String,
    /// Only in this session.
    pub session: Option<String>,
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ContextAt {
    /// As of this entry: a seq, an id, a unique prefix or a label. The leaf if none.
    pub at: Option<String>,
    /// Count each message with the model's own tokenizer.
    pub count: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ImportFile {
    /// What the file is called: formats without ids of their own are known by it.
    pub name: Option<String>,
    /// Its format; told by its content if none.
    pub from: Option<String>,
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsAfter {
    /// Only events after this seq; `Last-Event-ID` wins.
    pub after: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct InjectParams {
    /// Fails with a conflict unless the log ends here.
    pub expected_head: Option<u32>,
}

/// One message, or an array of them: `{"role", "content"}`, where content is a string or an array of parts in Sapwood's,
/// OpenAI's or Anthropic's shape.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Injected {
    One(MessageIn),
    Many(Vec<MessageIn>),
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MessageIn {
    /// `user`, `assistant`, `tool`, `system` or `developer`.
    pub role: String,
    #[serde(default)]
    pub content: Value,
}

/// A seq, an id, a unique prefix of one, or a label.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EntryName {
    Seq(u32),
    Name(String),
}

impl EntryName {
    pub fn text(&self) -> String {
        match self {
            EntryName::Seq(seq) => seq.to_string(),
            EntryName::Name(name) => name.clone(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    pub entry: EntryName,
    /// What was learned on the branch that is left.
    #[serde(default)]
    pub summary: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    pub id: Option<String>,
    pub title: Option<String>,
    /// The last entry that is shared; the leaf if none.
    pub at: Option<EntryName>,
    /// Share the first so many messages; not together with `at`.
    pub keep_first: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    pub entry: EntryName,
    /// Takes the name away if none.
    #[serde(default)]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Trim {
    pub keep_last: u32,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Uncompact {
    /// Which compaction is taken back; the latest if none.
    pub entry: Option<EntryName>,
}

/// As `sapwood compact` takes them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Compact {
    #[schema(nullable = false)]
    pub keep_last: Option<u32>,
    #[schema(nullable = false)]
    pub keep_recent_tokens: Option<u64>,
    #[schema(nullable = false)]
    pub keep_first: Option<u32>,
    #[schema(nullable = false)]
    pub token_threshold: Option<u64>,
    #[schema(nullable = false, minimum = 80)]
    pub tool_output_max_chars: Option<u32>,
    /// `truncate`, `observation_mask` or `llm`.
    #[schema(nullable = false)]
    pub compact_strategy: Option<String>,
    #[schema(nullable = false, minimum = 1)]
    pub hard_limit_tokens: Option<u64>,
    #[schema(nullable = false)]
    pub hard_limit_strategy: Option<String>,
    #[schema(nullable = false)]
    pub instructions: Option<String>,
}

/// What a client says: words, or an array of parts or items.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Said {
    Words(String),
    Pieces(Vec<Map<String, Value>>),
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTurn {
    /// Words, or an array of parts.
    #[schema(value_type = Said)]
    pub input: Value,
    /// Answer with the turn's events instead of its id.
    #[serde(default)]
    pub stream: bool,
    /// What becomes of the words if a turn is running.
    #[serde(default)]
    pub if_running: IfRunning,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfRunning {
    #[default]
    Refuse,
    Queue,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Steer {
    /// Words, or an array of parts.
    #[schema(value_type = Said)]
    pub input: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub answer: AnswerGiven,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerGiven {
    Approved,
    Denied,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    pub format: ExportFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportFormat {
    /// The whole log, lossless.
    Jsonl,
    /// The whole tree as a session file of pi.
    Pi,
    /// The whole tree as a session file of operator.
    Operator,
    RoleFiles,
    Messages,
    MessagesAnthropic,
    Markdown,
    Html,
    /// The completed turns as a chain of agents, in YAML.
    Workflow,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// A user's name, or `agent:NAME`.
    pub member: String,
    /// `reader` or `collaborator`; takes the role away if none.
    #[serde(default)]
    pub role: Option<ShareRole>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShareRole {
    Reader,
    Collaborator,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadName {
    /// The name it is kept under; the latest under a name is what lists show.
    pub name: String,
}

/// A flow as YAML, or as the object that the YAML would be.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FlowText {
    Yaml(String),
    Object(Map<String, Value>),
}

/// A run to be started.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFlow {
    /// The workflow document: its YAML as a string, or the same as an object.
    #[schema(value_type = FlowText)]
    pub flow: Value,
    /// What the flow is given to work on.
    #[serde(default)]
    pub input: Option<String>,
    /// The run's id; made up if none.
    #[serde(default)]
    pub id: Option<String>,
    /// Whether roles look back after the forward pass.
    #[serde(default)]
    pub improve: bool,
    /// The texts of required readings, by name.
    #[serde(default)]
    pub readings: BTreeMap<String, String>,
    /// Where the roles work: only for whoever operates the server.
    #[serde(default)]
    pub cwd: Option<String>,
}
