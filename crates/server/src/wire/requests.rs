//! Request types. Unknown keys are errors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSession {
    /// Generated if omitted. A session with this id that already exists is opened unchanged.
    pub id: Option<String>,
    pub title: Option<String>,
    /// The id of an agent from `/v1/agents`.
    pub agent: Option<String>,
    /// The session's working directory. Only operators of the server may set it.
    pub cwd: Option<String>,
    /// Values for `{{ctx.NAME}}` in the agent's prompt. Plain text only: values that look like API keys are rejected.
    pub variables: BTreeMap<String, String>,
    /// Limits the agent's tools to these.
    pub tools: Option<Vec<String>>,
    /// `sandboxed` or `project`; cannot exceed the agent's own scope.
    pub fs_scope: Option<String>,
    /// `plan`, `ask`, `accept-edits` or `auto`; cannot be more permissive than the agent's own setting.
    pub approvals: Option<String>,
    /// What the user is looking at. `cwd` takes precedence over its `working_dir`.
    pub context: SessionContext,
    /// Whether a person works in this session. If so, its default limit on turns is higher.
    pub interactive: bool,
}

/// Part of a session's context.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionContext {
    /// The working directory. Only operators of the server may set it.
    pub working_dir: Option<String>,
    pub active_file: Option<String>,
    pub selection: Option<Selection>,
    pub git_ref: Option<String>,
    /// Variables to set. In a PATCH, an empty value removes the variable.
    pub variables: BTreeMap<String, String>,
}

/// Selected lines of a file, counted from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    pub file: String,
    pub start_line: u32,
    pub end_line: u32,
}

impl NewSession {
    /// Whether a field is set that requires an agent.
    pub fn needs_agent(&self) -> bool {
        !self.variables.is_empty()
            || self.tools.is_some()
            || self.fs_scope.is_some()
            || self.approvals.is_some()
            || self.context != SessionContext::default()
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionPatch {
    pub title: Option<String>,
    /// `active`, `closed` or `archived`.
    pub state: Option<String>,
    /// The model for the following turns: `PROVIDER/NAME`.
    pub model: Option<String>,
    /// The thinking level for the following turns: `off`, `low`, `medium`, `high`.
    pub thinking: Option<String>,
    /// The working directory. Only operators of the server may set it.
    pub cwd: Option<String>,
    /// Changes of the context. The model learns of them from a note in the conversation.
    pub context: SessionContext,
    /// Maximum number of turns; 0 for the default. Only the owner may set limits.
    pub turns_max: Option<u32>,
    /// Maximum number of tokens in the context.
    #[schema(minimum = 1)]
    pub token_budget: Option<u64>,
    /// Maximum cost in US dollars.
    #[schema(exclusive_minimum = 0, maximum = 1000000)]
    pub budget_usd: Option<f64>,
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
    /// `created`, `active`, `closed` or `archived`; or the state of the context: `compacted`, `trimmed` or `pruned`.
    pub state: Option<String>,
    /// Words that occur in the session or in its title. A session may appear again on a later page.
    pub q: Option<String>,
    pub cwd: Option<String>,
    pub agent: Option<String>,
    /// A user's name, or `agent:NAME`.
    pub owner: Option<String>,
    /// Only sessions changed at or after this time, in Unix milliseconds.
    pub since: Option<i64>,
    /// Only sessions changed before this time, in Unix milliseconds.
    pub until: Option<i64>,
    /// Words that must all occur in the title, in the preview of an untitled session, or in the id.
    pub title: Option<String>,
    /// Sort order. Full-text matches of `q` always come newest first.
    #[param(inline)]
    pub order: Option<ListOrder>,
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// The `next` of the previous page. A page with a `next` may have fewer rows than `limit`, or none.
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
    /// The `next` of the previous page.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    pub session: Option<String>,
    /// Only audit lines after this number.
    pub after: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SearchParams {
    /// Words that must all occur. "Words in quotes" must occur as a phrase; a trailing * matches any word ending.
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
    /// The entry to build the context at: a seq, an id, a unique prefix or a label. Defaults to the leaf.
    pub at: Option<String>,
    /// Count each message with the model's own tokenizer.
    pub count: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct TreePage {
    /// Only entries after this seq.
    pub after: Option<u32>,
    /// Maximum number of nodes. Without it, all nodes are returned.
    #[param(minimum = 1, maximum = 10000)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ImportFile {
    /// The file name. It identifies the session if the file contains no session id.
    pub name: Option<String>,
    /// The file format. Detected from the content if omitted.
    pub from: Option<String>,
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsAfter {
    /// Only events after this seq. The `Last-Event-ID` header takes precedence.
    pub after: Option<u32>,
    /// Adds to each durable event the `feed` change that it causes, in the feed of the entries after this seq.
    pub feed_after: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct FeedAfter {
    /// Only the feed of the entries after this seq.
    pub after: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct InjectParams {
    /// Fails with a conflict unless the log ends at this seq.
    pub expected_head: Option<u32>,
}

/// One message, or an array of them: `{"role", "content"}`, where content is a string or an array of parts in
/// Sapwood's, OpenAI's or Anthropic's shape. Media as base64 is stored as a blob.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Injected {
    One(MessageIn),
    Many(Vec<MessageIn>),
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MessageIn {
    /// `user`, `assistant`, `tool`, `system`, `developer`, or an extension's `custom` or `info`.
    pub role: String,
    #[serde(default)]
    pub content: Value,
    /// The extension's name for a `custom` message, which the model receives, or for `info`, which it does not.
    #[serde(default)]
    #[schema(nullable = false)]
    pub custom_type: Option<String>,
    /// The data of `info`.
    #[serde(default)]
    pub data: Option<Value>,
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
    /// A summary of the abandoned branch.
    #[serde(default)]
    pub summary: Option<String>,
    /// Let the session's model write the summary. Cannot be combined with `summary`.
    #[serde(default)]
    pub summarize: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    pub id: Option<String>,
    pub title: Option<String>,
    /// The last shared entry. Defaults to the leaf.
    pub at: Option<EntryName>,
    /// Share this many messages from the start. Cannot be combined with `at`.
    pub keep_first: Option<u32>,
    /// The fork's working directory. Only operators of the server may set it.
    pub cwd: Option<String>,
    /// Limits the fork's tools to these.
    pub tools: Option<Vec<String>>,
    /// `sandboxed` or `project`; cannot exceed the source's scope.
    pub fs_scope: Option<String>,
    /// `plan`, `ask`, `accept-edits` or `auto`; cannot be more permissive than the source's setting.
    pub approvals: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    pub entry: EntryName,
    /// The new label. Removes the label if omitted.
    #[serde(default)]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Trim {
    pub keep_last: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// The session must not have been written to for this long.
    pub inactive_for_ms: u64,
    /// Number of recent messages to keep; 12 if omitted.
    #[serde(default)]
    pub keep_last: Option<u32>,
    /// Only compute the result.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Uncompact {
    /// The compaction to undo. Defaults to the latest.
    pub entry: Option<EntryName>,
}

/// The same options as `sapwood compact`.
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
    /// Compact even if the context does not become smaller.
    #[schema(nullable = false)]
    pub force: Option<bool>,
}

/// Input: a string, or an array of parts or items.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Said)]
pub enum TextOrParts {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTurn {
    /// A string, or an array of parts.
    #[schema(value_type = TextOrParts)]
    pub input: Value,
    /// Respond with the turn's events instead of its id.
    #[serde(default)]
    pub stream: bool,
    /// What to do with the input if a turn is running.
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
    /// A string, or an array of parts.
    #[schema(value_type = TextOrParts)]
    pub input: Value,
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
    /// The whole tree as a pi session file.
    Pi,
    /// The whole tree as an operator session file.
    Operator,
    /// A role's `transcript.json`.
    RoleFiles,
    /// A role's `feed.json`.
    RoleFeed,
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
    /// `reader` or `collaborator`. Removes the member if omitted.
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
    /// The name to store it under. Lists show the latest version of each name.
    pub name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadInput {
    /// The name to store it under. Lists show the latest version of each name.
    pub name: String,
    /// Where the text was retrieved from, such as a URL. An input with a source is a snippet: it must be text, and the
    /// model sees it at once.
    #[serde(default)]
    pub source: Option<String>,
}

/// A flow as YAML, or as the equivalent JSON object.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FlowText {
    Yaml(String),
    Object(Map<String, Value>),
}

/// A flow run to start.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFlow {
    /// The workflow document: YAML in a string, or the equivalent object.
    #[schema(value_type = FlowText)]
    pub flow: Value,
    /// The input of the flow.
    #[serde(default)]
    pub input: Option<String>,
    /// The run's id. Generated if omitted.
    #[serde(default)]
    pub id: Option<String>,
    /// Whether roles review their work after the forward pass.
    #[serde(default)]
    pub improve: bool,
    /// The values of `{{ctx.NAME}}` in prompts, by name. They are stored as plain text and override those of the flow.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// The texts of required readings, by name.
    #[serde(default)]
    pub readings: BTreeMap<String, String>,
    /// The roles' working directory. Only operators of the server may set it.
    #[serde(default)]
    pub cwd: Option<String>,
}
