//! All errors. Every error has a stable code, which `docs/errors` explains: see [`Error::code`].

pub use crate::flow::{FlowFileError, Mistake, WorkflowError};
pub use sapwood_core::StoreError;
pub use sapwood_core::agent::AgentError;
pub use sapwood_core::compact::OptionError;
pub use sapwood_core::entry::codec::CodecError;
pub use sapwood_core::id::IdError;
pub use sapwood_core::port::embedder::EmbedderError;
pub use sapwood_core::port::hook::HookError;
pub use sapwood_core::port::model::ModelError;
pub use sapwood_core::port::skill::SkillError;
pub use sapwood_core::port::summariser::SummariserError;
pub use sapwood_core::port::tool::ToolError;
pub use sapwood_core::pressure::ThresholdsError;
pub use sapwood_core::tree::PlaceError;
pub use sapwood_engine::EngineError as Error;
