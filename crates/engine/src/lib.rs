//! The session operations, independent of the store type.
//!
//! [`Engine`] is the main entry point. Its operations are grouped into services, each in its own module. Operations
//! on behalf of a caller require a [`Scope`](sapwood_core::Scope). Changes to a session are appended to its log.
//!
//! | accessor | module | operations |
//! |---|---|---|
//! | [`Engine::sessions`] | [`sessions`] | start, fork, share, close, archive and erase sessions |
//! | [`Engine::turns`] | [`turn`] | send input, run and resume turns |
//! | [`Engine::turn_control`] | [`turn`] | cancel, steer, answer and show turns from any process |
//! | [`Engine::approvals`] | [`turn`] | list questions of all sessions, escalate and expire them, answer links |
//! | [`Engine::edits`] | [`edits`], [`branch`] | inject messages, branch, label, trim, name artifacts |
//! | [`Engine::inputs`] | [`inputs`] | add inputs and read their text |
//! | [`Engine::views`] | [`views`], [`export`] | context, tree, feed, ledger, usage, exports |
//! | [`Engine::directory`] | [`directory`] | find, list and search sessions; the audit log |
//! | [`Engine::events`] | [`follow`], [`subscribe`] | follow entries and fragments |
//! | [`Engine::compaction`] | [`compact`], [`pressure`] | replace older messages with a summary, and decide when |
//! | [`Engine::configuration`] | [`configuration`] | the agent and the models of a turn; which entries may set them |
//! | [`Engine::flows`] | [`flow`] | flows of roles |
//! | [`Engine::memories`] | [`memory`] | facts learned from sessions |
//! | [`Engine::grafts`] | [`graft`] | content of other sessions by reference |
//! | [`Engine::hooks`] | [`hook`] | call the installed hooks |
//! | [`Engine::triggers`] | [`trigger`] | start turns on events and schedules |
//! | [`Engine::skills`] | [`skill`] | the active skills of a session |
//! | [`Engine::allowances`] | [`allowance`] | the models that callers may use, and how much per day |
//! | [`Engine::personal_data`] | [`personal_data`] | legal holds, erasure and retention of a person's data |
//! | [`Engine::imports`] | [`import`] | import sessions |
//! | [`Engine::log`] | [`log`] | read and append entries, for the services above |
//!
//! [`doctor`] checks the invariants of a store, [`verify`] the hashes of its entries, [`migrate`] copies one store to another, and
//! [`TakeoverTask`](turn::TakeoverTask) resumes the turns of dead processes.

pub mod adopt;
pub mod allowance;
mod backends;
pub mod blob;
pub mod branch;
pub mod compact;
pub mod config_changes;
pub mod configuration;
pub mod context_reader;
pub mod directory;
pub mod doctor;
mod document_cache;
pub mod edits;
mod engine;
mod error;
pub mod export;
pub mod flow;
pub mod follow;
pub mod fragments;
pub mod graft;
mod graft_cache;
pub mod hook;
pub mod import;
mod inbox;
pub mod inputs;
mod lease;
pub mod log;
pub mod memory;
mod metered_model;
pub mod migrate;
mod model_chain;
pub mod page_reader;
mod path_reader;
pub mod personal_data;
pub mod pressure;
mod session_defaults;
pub mod sessions;
pub mod skill;
mod spans;
pub mod subscribe;
pub mod summarise;
mod tokens;
mod tree_cache;
pub mod tree_pages;
pub mod trigger;
pub mod turn;
pub mod verify;
pub mod views;
mod wakeups;

pub use backends::Backends;
pub(crate) use engine::service;
pub use engine::{Engine, EngineConfig, TraceIds};
pub use error::{EngineError, Result};
pub use follow::Follower;
pub use fragments::{Fragment, FragmentKind};
pub use session_defaults::{FileModels, SessionDefaults};
pub use spans::SPAN_TARGET;
pub use subscribe::{Listener, SessionEvent, Subscription};
