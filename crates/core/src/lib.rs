//! Sapwood's data types and logic. Nothing here accesses a clock, a file, a socket or a database: every function is
//! pure, so everything can be tested with tables and properties.
//!
//! A tour, in reading order:
//!
//! 1. [`entry`]: the immutable records of a session's log, and their encoding.
//! 2. [`tree`]: the position of new entries, and finding ancestors in logarithmic time.
//! 3. [`project`]: folds of the log: the model's context ([`project::context`]), the operator's feed, usage and cost.
//! 4. [`compact`] and [`pressure`]: replacing older messages with a summary, and when to do so.
//! 5. [`turn`] and [`flow`]: the state machines of a turn and of a run with several roles; [`memory`]: memories across
//!    sessions.
//! 6. [`port`]: the interfaces to external systems. Stores implement [`port::store::Store`]; the conformance suite in
//!    `sapwood-store` defines the contract.
//!
//! The invariants I1–I13 that comments and assertions cite are listed in `docs/spec/log-format.md`.

pub mod agent;
pub mod approval;
pub mod authority;
pub mod compact;
pub mod content;
pub mod custom_type;
pub mod delegation;
pub mod entry;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod flow;
pub mod id;
pub mod input;
pub mod media_type;
pub mod memory;
pub mod model_choice;
pub mod nesting;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod policy;
pub mod port;
pub mod pressure;
pub mod project;
pub mod retry;
pub mod scope;
pub mod secret_shape;
pub mod session_config;
pub mod settings;
pub mod summary_frame;
pub mod tokens;
pub mod tree;
pub mod trigger;
pub mod trim;
pub mod turn;

pub use agent::Agent;
pub use authority::{Authority, Source};
pub use content::{BlobRef, Json, Part};
pub use entry::{Body, Draft, Entry, Kind, Record};
pub use id::{BlobHash, EntryId, MemoryId, Seq, SessionId, TenantId, TimestampMs, TurnId};
pub use port::store::{Store, StoreError};
pub use scope::{Principal, Right, Role, Scope};
