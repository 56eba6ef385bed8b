//! What can go wrong with a verb, beyond what can go wrong with a store.

use sapwood_core::compact::OptionError;
use sapwood_core::entry::codec::CodecError;
use sapwood_core::id::IdError;
use sapwood_core::port::summariser::SummariserError;
use sapwood_core::{SessionId, StoreError};

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{what} {given:?} is ambiguous: it could be {first} or {second}")]
    Ambiguous { what: &'static str, given: String, first: String, second: String },
    #[error("there is no session {given}")]
    NoSuchSession { given: String },
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
    #[error("the option {0}")]
    Option(#[from] OptionError),
    #[error("{key} is llm, and there is no model to write the summary")]
    NoSummariser { key: &'static str },
    #[error("the summary could not be written: {source}")]
    Summariser { source: SummariserError },
    #[error("session {session} has no compaction on its path")]
    NotCompacted { session: SessionId },
}

impl EngineError {
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::Store(error) => error.code(),
            EngineError::Ambiguous { .. } => "address.ambiguous",
            EngineError::NoSuchSession { .. } | EngineError::NoSessions => "session.not_found",
            EngineError::Invalid { .. } | EngineError::Id(_) => "input.invalid",
            EngineError::ForkOntoItself { .. } => "session.exists",
            EngineError::Unreadable { .. } => "store.damaged",
            EngineError::Contended { .. } => "session.conflict",
            EngineError::Option(_) => "input.option",
            EngineError::NoSummariser { .. } => "compact.no_model",
            EngineError::Summariser { .. } => "compact.failed",
            EngineError::NotCompacted { .. } => "session.not_compacted",
        }
    }
}
