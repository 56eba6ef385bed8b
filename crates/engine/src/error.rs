//! Errors of the engine's operations. Errors of the store are passed through.

use sapwood_core::agent::AgentError;
use sapwood_core::compact::OptionError;
use sapwood_core::entry::codec::CodecError;
use sapwood_core::flow::Mistake;
use sapwood_core::id::{IdError, TurnId};
use sapwood_core::model_choice::ModelOrigin;
use sapwood_core::port::hook::HookName;
use sapwood_core::port::model::ModelError;
use sapwood_core::port::skill::SkillError;
use sapwood_core::port::summariser::SummariserError;
use sapwood_core::port::tool::ToolError;
use sapwood_core::{Principal, SessionId, StoreError};

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// A failed operation. [`code`](EngineError::code) is stable, and the message states what failed and why.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A name or id prefix matches more than one item.
    #[error("{what} {given:?} is ambiguous: it could be {first} or {second}")]
    Ambiguous { what: &'static str, given: String, first: String, second: String },
    /// There is no such session, or the caller may not see it.
    #[error("no session `{given}`")]
    NoSuchSession { given: String },
    /// There is no such memory, or the caller may not see it.
    #[error("no memory `{given}`")]
    NoSuchMemory { given: String },
    /// The caller can see no session, or no flow run, that `@last` could name.
    #[error("no sessions exist yet")]
    NoSessions,
    /// An argument is not valid.
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    /// A session cannot be forked to its own id.
    #[error("session {session} cannot be forked onto itself")]
    ForkOntoItself { session: SessionId },
    /// An entry of the session cannot be decoded.
    #[error("session {session}: {source}")]
    Unreadable { session: SessionId, source: CodecError },
    /// The session kept changing while the operation was retried.
    #[error("gave up after {tries} attempts: session {session} kept changing")]
    Contended { session: SessionId, tries: u32 },
    /// A text is not a valid id.
    #[error(transparent)]
    Id(#[from] IdError),
    /// No models and tools are configured.
    #[error("cannot run turns: no models and tools are configured")]
    NoBackends,
    /// A turn is running in the session.
    #[error("a turn is already running in session {session}")]
    TurnRunning { session: SessionId },
    /// A turn was interrupted or is waiting: resume or cancel it first.
    #[error("turn {turn} of session {session} was interrupted or is waiting for an answer")]
    TurnOpen { session: SessionId, turn: TurnId },
    /// The session has no open turn.
    #[error("no open turn in session {session}")]
    NoTurn { session: SessionId },
    /// The turn has ended.
    #[error("turn {turn} of session {session} has already ended")]
    TurnEnded { session: SessionId, turn: TurnId },
    /// The session has had as many turns as its agent allows.
    #[error("session {session} has reached its limit of {limit} turns")]
    TurnLimit { session: SessionId, limit: u32 },
    /// The session has spent its budget.
    #[error("session {session} has used up its budget of ${cap_usd}")]
    OverBudget { session: SessionId, cap_usd: f64 },
    /// The session has as much queued input as it may have.
    #[error("cannot queue the input: {limit} inputs already wait in session {session}")]
    QueueFull { session: SessionId, limit: usize },
    /// No such approval is pending.
    #[error("no pending approval `{approval}`")]
    NoApproval { approval: String },
    /// The approval was not answered before its deadline.
    #[error("approval `{approval}` has expired and was denied")]
    ApprovalExpired { approval: String },
    /// An answer link was changed, has expired, or was used.
    #[error("the answer link is not valid: it was changed, has expired, or its question was answered")]
    InvalidLink,
    /// Answer links are not configured.
    #[error("cannot create an answer link: links are not configured")]
    NoLinks,
    /// Another process has taken over the session.
    #[error("session {session} was taken over by another process")]
    LeaseLost { session: SessionId },
    /// The task of the turn or flow run has died.
    #[error("the task running the turn in session {session} has died")]
    TurnLost { session: SessionId },
    /// The agent is not valid.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A tool is not valid, or the tools cannot be opened.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// An option of a compaction is not valid.
    #[error("invalid option {0}")]
    Option(#[from] OptionError),
    /// The strategy needs a model, but none is configured.
    #[error("cannot summarize: {key} is llm, but no model is configured")]
    NoSummariser { key: &'static str },
    /// The summary cannot be written.
    #[error("failed to write the summary: {source}")]
    Summariser { source: SummariserError },
    /// The source has no such content.
    #[error("cannot graft from session {source_session}: {why}")]
    NothingToGraft { source_session: SessionId, why: String },
    /// The caller cannot read the graft's source, or it was erased.
    #[error(
        "the graft from session {source_session} is withheld: you cannot read the source, or it was erased"
    )]
    Withheld { source_session: SessionId },
    /// The session has no compaction that could be undone.
    #[error("session {session} has no compaction on its path")]
    NotCompacted { session: SessionId },
    /// A hook refused the operation.
    #[error("hook {hook} ({on}) refused the operation: {reason}")]
    HookRefused { hook: String, on: HookName, reason: String },
    /// Hooks are nested more deeply than the limit.
    #[error("hooks are nested more than {limit} levels deep")]
    HookDepth { limit: u8 },
    /// A skill cannot be used.
    #[error(transparent)]
    Skill(#[from] SkillError),
    /// There is no such trigger.
    #[error("no trigger `{name}`")]
    NoTrigger { name: String },
    /// The session that records the trigger's firings belongs to another principal.
    #[error("the trigger cannot record its firings in session {session}: it belongs to {owner}")]
    TriggerTaken { session: SessionId, owner: Principal },
    /// The flow is not valid.
    #[error("cannot run flow {flow}: {}", list_mistakes(mistakes))]
    Flow { flow: String, mistakes: Vec<Mistake> },
    /// A flow's node names a different agent than the one that its session runs with.
    #[error("node {node} names agent {named}, but session {session} runs with agent {agent}")]
    AgentMismatch { node: String, session: SessionId, agent: String, named: String },
    /// The session is not a run of a flow.
    #[error("session {session} is not a flow run")]
    NoFlow { session: SessionId },
    /// The run has ended.
    #[error("run {run} has already ended")]
    FlowEnded { run: SessionId },
    /// An imported run cannot be resumed.
    #[error("run {run} was imported and cannot be resumed")]
    FlowImported { run: SessionId },
    /// The session has had no local turn that configured it, or there is no default agent to configure it with.
    #[error(
        "session {session} is not configured: its first local turn sets the default agent, if there is one"
    )]
    NotConfigured { session: SessionId },
    /// The session is configured, and its agent cannot be replaced.
    #[error("session {session} already runs with agent {agent}")]
    AlreadyConfigured { session: SessionId, agent: String },
    /// The model reads a local file that neither the operator nor the local command line named.
    #[error(
        "model {model} is not allowed: it reads a local file that neither the operator nor the local command line named"
    )]
    ModelNotAllowed { model: String },
    /// The model that would answer cannot be called here. Nothing was written, compacted or sent.
    #[error("{source} ({origin})")]
    ModelUnavailable { origin: ModelOrigin, source: ModelError },
    /// Only Sapwood creates ids with this prefix.
    #[error("session id {id} is reserved: only Sapwood creates ids that begin with {prefix}")]
    ReservedId { id: SessionId, prefix: &'static str },
    /// The session that records the trigger's firings was imported.
    #[error("the trigger cannot record its firings in session {session}: it was imported")]
    TriggerImported { session: SessionId },
    /// The trigger's owner has no write access to the target session.
    #[error("the trigger's owner {owner} has no write access to session {session}")]
    TriggerTarget { session: SessionId, owner: Principal },
    /// A legal hold protects the data.
    #[error("cannot erase {what}: a legal hold on {hold} protects it")]
    Held { what: String, hold: String },
    /// Only an operator may do this.
    #[error("only an operator may {what}")]
    OperatorRequired { what: &'static str },
    /// The store still writes the previous log format, which cannot express this.
    #[error(
        "{what} cannot be stored in the previous log format, which this store uses until `sapwood store upgrade`"
    )]
    FormatTooOld { what: &'static str },
}

impl EngineError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::Store(error) => error.code(),
            EngineError::Ambiguous { .. } => "address.ambiguous",
            EngineError::NoSuchSession { .. } | EngineError::NoSessions => "session.not_found",
            EngineError::NoSuchMemory { .. } => "memory.not_found",
            EngineError::Invalid { .. } | EngineError::Id(_) => "input.invalid",
            EngineError::NoBackends => "model.none",
            EngineError::TurnRunning { .. } => "turn.running",
            EngineError::TurnOpen { .. } => "turn.interrupted",
            EngineError::NoTurn { .. } => "turn.none",
            EngineError::TurnEnded { .. } => "turn.ended",
            EngineError::TurnLimit { .. } => "turn_limit",
            EngineError::OverBudget { .. } => "budget_exceeded",
            EngineError::QueueFull { .. } => "turn.queue_full",
            EngineError::NoApproval { .. } => "approval.not_found",
            EngineError::ApprovalExpired { .. } => "approval.expired",
            EngineError::InvalidLink => "approval.link_not_found",
            EngineError::NoLinks => "approval.no_links",
            EngineError::LeaseLost { .. } => "session.stale_fence",
            EngineError::TurnLost { .. } => "turn.lost",
            EngineError::Agent(error) => error.code(),
            EngineError::Tool(error) => error.code(),
            EngineError::ForkOntoItself { .. } => "session.exists",
            EngineError::Unreadable { .. } => "store.damaged",
            EngineError::Contended { .. } => "session.conflict",
            EngineError::Option(_) => "input.option",
            EngineError::NoSummariser { .. } => "compact.no_model",
            EngineError::Summariser { .. } => "compact.failed",
            EngineError::NothingToGraft { .. } => "graft.not_found",
            EngineError::Withheld { .. } => "graft.withheld",
            EngineError::NotCompacted { .. } => "session.not_compacted",
            EngineError::HookRefused { .. } => "hook.refused",
            EngineError::HookDepth { .. } => "hook.depth",
            EngineError::Skill(error) => error.code(),
            EngineError::NoTrigger { .. } => "trigger.not_found",
            EngineError::TriggerTaken { .. } => "trigger.taken",
            EngineError::Flow { .. } => "flow.invalid",
            EngineError::AgentMismatch { .. } => "agent.mismatch",
            EngineError::NoFlow { .. } => "flow.not_found",
            EngineError::FlowEnded { .. } => "flow.ended",
            EngineError::FlowImported { .. } => "flow.imported",
            EngineError::NotConfigured { .. } => "session.not_configured",
            EngineError::AlreadyConfigured { .. } => "session.configured",
            EngineError::ModelNotAllowed { .. } => "model.not_allowed",
            EngineError::ModelUnavailable { source, .. } => source.code(),
            EngineError::ReservedId { .. } => "session.reserved_id",
            EngineError::TriggerImported { .. } => "trigger.imported",
            EngineError::TriggerTarget { .. } => "trigger.target_denied",
            EngineError::Held { .. } => "session.held",
            EngineError::OperatorRequired { .. } => "operator.required",
            EngineError::FormatTooOld { .. } => "store.format",
        }
    }
}

fn list_mistakes(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("; ")
}
