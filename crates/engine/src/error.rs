//! Errors of the engine's operations. Errors of the store are passed through.

use sapwood_core::agent::AgentError;
use sapwood_core::compact::OptionError;
use sapwood_core::entry::codec::CodecError;
use sapwood_core::flow::Mistake;
use sapwood_core::id::{IdError, TurnId};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::skill::SkillError;
use sapwood_core::port::summariser::SummariserError;
use sapwood_core::port::tool::ToolError;
use sapwood_core::{Principal, SessionId, StoreError};

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{what} {given:?} is ambiguous: it could be {first} or {second}")]
    Ambiguous { what: &'static str, given: String, first: String, second: String },
    #[error("no session `{given}`")]
    NoSuchSession { given: String },
    #[error("no memory `{given}`")]
    NoSuchMemory { given: String },
    #[error("no sessions exist yet")]
    NoSessions,
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    #[error("session {session} cannot be forked onto itself")]
    ForkOntoItself { session: SessionId },
    #[error("session {session}: {source}")]
    Unreadable { session: SessionId, source: CodecError },
    #[error("gave up after {tries} attempts: session {session} kept changing")]
    Contended { session: SessionId, tries: u32 },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("cannot run turns: no models and tools are configured")]
    NoBackends,
    #[error("a turn is already running in session {session}")]
    TurnRunning { session: SessionId },
    #[error("turn {turn} of session {session} was interrupted or is waiting for an answer")]
    TurnOpen { session: SessionId, turn: TurnId },
    #[error("no open turn in session {session}")]
    NoTurn { session: SessionId },
    #[error("turn {turn} of session {session} has already ended")]
    TurnEnded { session: SessionId, turn: TurnId },
    #[error("session {session} has reached its limit of {limit} turns")]
    TurnLimit { session: SessionId, limit: u32 },
    #[error("session {session} has used up its budget of ${cap_usd}")]
    OverBudget { session: SessionId, cap_usd: f64 },
    #[error("no pending approval `{approval}`")]
    NoApproval { approval: String },
    #[error("session {session} was taken over by another process")]
    LeaseLost { session: SessionId },
    #[error("the task running the turn in session {session} has died")]
    TurnLost { session: SessionId },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("invalid option {0}")]
    Option(#[from] OptionError),
    #[error("cannot summarize: {key} is llm, but no model is configured")]
    NoSummariser { key: &'static str },
    #[error("failed to write the summary: {source}")]
    Summariser { source: SummariserError },
    #[error("cannot graft from session {source_session}: {why}")]
    NothingToGraft { source_session: SessionId, why: String },
    #[error(
        "the graft from session {source_session} is withheld: you cannot read the source, or it was erased"
    )]
    Withheld { source_session: SessionId },
    #[error("session {session} has no compaction on its path")]
    NotCompacted { session: SessionId },
    #[error("hook {hook} ({on}) refused the operation: {reason}")]
    HookRefused { hook: String, on: HookName, reason: String },
    #[error("hooks are nested more than {limit} levels deep")]
    HookDepth { limit: u8 },
    #[error(transparent)]
    Skill(#[from] SkillError),
    #[error("no trigger `{name}`")]
    NoTrigger { name: String },
    #[error("the trigger cannot record its firings in session {session}: it belongs to {owner}")]
    TriggerTaken { session: SessionId, owner: Principal },
    #[error("cannot run flow {flow}: {}", list_mistakes(mistakes))]
    Flow { flow: String, mistakes: Vec<Mistake> },
    #[error("session {session} is not a flow run")]
    NoFlow { session: SessionId },
    #[error("run {run} has already ended")]
    FlowEnded { run: SessionId },
    #[error("run {run} was imported and cannot be resumed")]
    FlowImported { run: SessionId },
    #[error("session {session} was imported, and no default agent is configured to continue it")]
    NotConfigured { session: SessionId },
    #[error(
        "model {model} is not allowed: it reads a local file that neither the operator nor the local command line named"
    )]
    ModelNotAllowed { model: String },
    #[error("session id {id} is reserved: only Sapwood creates ids that begin with {prefix}")]
    ReservedId { id: SessionId, prefix: &'static str },
    #[error("the trigger cannot record its firings in session {session}: it was imported")]
    TriggerImported { session: SessionId },
    #[error("the trigger's owner {owner} has no write access to session {session}")]
    TriggerTarget { session: SessionId, owner: Principal },
}

impl EngineError {
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
            EngineError::NoApproval { .. } => "approval.not_found",
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
            EngineError::NoFlow { .. } => "flow.not_found",
            EngineError::FlowEnded { .. } => "flow.ended",
            EngineError::FlowImported { .. } => "flow.imported",
            EngineError::NotConfigured { .. } => "session.not_configured",
            EngineError::ModelNotAllowed { .. } => "model.not_allowed",
            EngineError::ReservedId { .. } => "session.reserved_id",
            EngineError::TriggerImported { .. } => "trigger.imported",
            EngineError::TriggerTarget { .. } => "trigger.target_denied",
        }
    }
}

fn list_mistakes(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("; ")
}
