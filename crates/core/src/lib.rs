//! Sapwood's vocabulary and logic. Nothing here touches a clock, a file, a socket or a database: every function is
//! a function of its arguments, so everything can be tested with tables and properties.
//!
//! A tour, in reading order:
//!
//! 1. [`entry`]: the immutable records a session's log consists of, and their bytes.
//! 2. [`tree`]: where a new entry hangs, and how an ancestor is found in logarithmic time.
//! 3. [`project`]: the folds: what a model receives ([`project::context`]), what an operator watches, what it cost.
//! 4. [`compact`] and [`pressure`]: what stands in for older entries, and when that is called for.
//! 5. [`turn`] and [`flow`]: what a turn and a run of several roles do next; [`memory`]: what sessions teach later ones.
//! 6. [`port`]: the seams to the world. Stores implement [`port::store::Store`]; the conformance suite in
//!    `sapwood-store` says what that means.
//!
//! The invariants I1–I13 that comments and assertions cite are listed in `docs/spec/log-format.md`.

pub mod agent;
pub mod authority;
pub mod compact;
pub mod content;
pub mod entry;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod flow;
pub mod id;
pub mod memory;
pub mod policy;
pub mod port;
pub mod pressure;
pub mod project;
pub mod retry;
pub mod scope;
pub mod secret_shape;
pub mod settings;
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
