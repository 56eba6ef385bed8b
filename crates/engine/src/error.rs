//! What can go wrong with a verb, beyond what can go wrong with a store.

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
    #[error("there is no session {given}")]
    NoSuchSession { given: String },
    #[error("there is no memory {given}")]
    NoSuchMemory { given: String },
    #[error("there are no sessions yet")]
    NoSessions,
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    #[error("session {session} is forked onto itself")]
    ForkOntoItself { session: SessionId },
    #[error("session {session}: {source}")]
    Unreadable { session: SessionId, source: CodecError },
    #[error("session {session} kept changing: gave up after {tries} tries")]
    Contended { session: SessionId, tries: u32 },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("this engine has no models and tools to run turns with")]
    NoBackends,
    #[error("a turn is running in session {session}")]
    TurnRunning { session: SessionId },
    #[error("turn {turn} of session {session} was interrupted, or waits for a person")]
    TurnOpen { session: SessionId, turn: TurnId },
    #[error("no turn is open in session {session}")]
    NoTurn { session: SessionId },
    #[error("turn {turn} of session {session} has ended")]
    TurnEnded { session: SessionId, turn: TurnId },
    #[error("session {session} has had its {limit} turns")]
    TurnLimit { session: SessionId, limit: u32 },
    #[error("session {session} has spent its budget of ${cap_usd}")]
    OverBudget { session: SessionId, cap_usd: f64 },
    #[error("nobody waits for an answer to {approval}")]
    NoApproval { approval: String },
    #[error("session {session} was taken over by another process")]
    LeaseLost { session: SessionId },
    #[error("the task that ran the turn of session {session} is gone")]
    TurnLost { session: SessionId },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("the option {0}")]
    Option(#[from] OptionError),
    #[error("{key} is llm, and there is no model to write the summary")]
    NoSummariser { key: &'static str },
    #[error("the summary could not be written: {source}")]
    Summariser { source: SummariserError },
    #[error("session {source_session} cannot be grafted so: {why}")]
    NothingToGraft { source_session: SessionId, why: String },
    #[error("what was grafted from session {source_session} is withheld: you may not read it, or it is gone")]
    Withheld { source_session: SessionId },
    #[error("session {session} has no compaction on its path")]
    NotCompacted { session: SessionId },
    #[error("the hook {hook} ({on}) refused this: {reason}")]
    HookRefused { hook: String, on: HookName, reason: String },
    #[error("hooks led to hooks more than {limit} times")]
    HookDepth { limit: u8 },
    #[error(transparent)]
    Skill(#[from] SkillError),
    #[error("there is no trigger {name}")]
    NoTrigger { name: String },
    #[error("session {session} should keep what a trigger does, and belongs to {owner}")]
    TriggerTaken { session: SessionId, owner: Principal },
    #[error("the flow {flow} cannot be run: {}", list_mistakes(mistakes))]
    Flow { flow: String, mistakes: Vec<Mistake> },
    #[error("session {session} is not the run of a flow")]
    NoFlow { session: SessionId },
    #[error("run {run} has ended")]
    FlowEnded { run: SessionId },
    #[error("run {run} was imported: its state is history, and nothing of it is started")]
    FlowImported { run: SessionId },
    #[error("session {session} was imported, and there is no default agent to continue it under")]
    NotConfigured { session: SessionId },
    #[error(
        "the model {model} reads a file of this machine, and neither the operator nor the local command line named it"
    )]
    ModelNotAllowed { model: String },
    #[error("the session id {id} is reserved: ids that begin with {prefix} are given out by Sapwood itself")]
    ReservedId { id: SessionId, prefix: &'static str },
    #[error("session {session} should keep what a trigger does, and was imported")]
    TriggerImported { session: SessionId },
    #[error("the trigger addresses session {session}, which its owner {owner} may not write")]
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
