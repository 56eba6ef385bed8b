//! Sapwood: a session engine for AI agents.
//!
//! A session is a durable, append-only tree of entries. Open a store, start a session with an agent, and send
//! it a message. Every message and tool call is written to the log:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use sapwood::{Agent, Sapwood};
//!
//! let sapwood = Sapwood::open("memory:")?; // or "sqlite:FILE", "jsonl:DIR", "postgres://USER@HOST/DB"
//! let session = sapwood.start(Agent::default()).await?; // no model named: the demo model, which needs no key
//! let report = sapwood.send(&session, "Hello!").await?;
//! assert!(!report.text.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # A program with its own model and tool
//!
//! The dependencies are `sapwood`, `serde_json`, and `tokio` with the features `macros` and `rt`:
//!
//! ```
//! use sapwood::model::{Role, model_fn};
//! use sapwood::tool::{Replay, ToolSpec, Touch};
//! use sapwood::{Agent, Kind, Part, Sapwood, Seq, SessionEvent};
//! use serde_json::json;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), sapwood::Error> {
//!     // The model calls the tool for every user message, and then repeats the tool's result.
//!     let reporter = model_fn(|request| async move {
//!         let text = request.last_text();
//!         Ok(vec![match request.last_role() {
//!             Some(Role::Tool) => Part::text(format!("The weather is {text}.")),
//!             _ => Part::tool_call("call-1", "weather", json!({ "city": text })),
//!         }])
//!     });
//!     // The tool only reads, so a call needs no approval and is safe to repeat after a crash.
//!     let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
//!     let weather = ToolSpec::new("weather", "The current weather in a city.", &schema)
//!         .with_touch(Touch::Reads)
//!         .with_replay(Replay::Safe);
//!
//!     let sapwood = Sapwood::builder("memory:")?
//!         .model("reporter", reporter)
//!         .tool(weather, |input| async move { format!("sunny in {}", input["city"]) })
//!         .build()?;
//!     let session = sapwood.start(Agent::default().with_model("reporter").with_tool("weather")).await?;
//!
//!     let mut events = sapwood.subscribe(&session, Seq::ZERO).await?;
//!     let report = sapwood.send(&session, "Oslo").await?;
//!     loop {
//!         match events.next().await? {
//!             SessionEvent::Entry(record) if record.meta.kind == Kind::TurnEnded => break,
//!             SessionEvent::Entry(record) => println!("{} {}", record.meta.seq, record.meta.kind.as_str()),
//!             SessionEvent::Fragment(fragment) => println!("… {:?}", fragment.kind),
//!         }
//!     }
//!     assert_eq!(report.text, "The weather is sunny in \"Oslo\".");
//!     Ok(())
//! }
//! ```
//!
//! # Where to look
//!
//! | to do this | use |
//! |---|---|
//! | open a store, add models and tools | [`Sapwood::open`], [`Sapwood::builder`], [`SapwoodBuilder`] |
//! | start a session, send, cancel, steer, resume, answer approvals | [`Sapwood::start`] and the methods after it |
//! | follow a session | [`Sapwood::subscribe`] (a stream), [`Sapwood::listen`] (a callback) |
//! | read, list, search, branch, fork, compact and close sessions | [`Sapwood::open_session`] and the methods after it |
//! | write a custom model | [`model`]: [`model::model_fn`] or the trait [`model::Model`] |
//! | write a custom tool | [`tool`]: [`SapwoodBuilder::tool`] or the trait [`tool::Tool`] |
//! | write a custom store | [`storage`]: [`Sapwood::with_store`] |
//! | refuse or change operations | [`hook`]: [`Sapwood::on`] |
//! | keep facts for later sessions, use other sessions' results | [`memory`], [`graft`] |
//! | let several roles work together | [`flow`] |
//! | handle an error | [`Error::code`]; each code has a page in `docs/errors` |
//!
//! The directory `examples/rust` has a runnable program for a custom model, tool and store, and for `subscribe`.

#![deny(missing_docs)]

pub mod agent;
mod builder;
mod clock;
pub mod compaction;
pub mod entry;
pub mod error;
pub mod flow;
pub mod graft;
pub mod hook;
pub mod memory;
pub mod model;
mod sapwood;
pub mod scope;
pub mod session;
pub mod storage;
pub mod tool;
pub mod turn;

pub use async_trait::async_trait;
pub use futures_core::Stream;

pub use builder::{DEFAULT_MODEL, SapwoodBuilder};
pub use sapwood::Sapwood;

pub use agent::{Agent, Narrowing};
pub use compaction::{Compacted, Compacting};
pub use entry::{Body, Json, Kind, Part, Record, user_text};
pub use error::Error;
pub use graft::{GraftState, GraftView, GraftWhat, Grafted};
pub use hook::{
    HookAction, HookAnswer, HookEvent, HookName, HookRegistry, InstalledHook, OnFailure, Verdict,
};
pub use memory::{
    Belongs, Learning, Memory, MemoryConfig, MemoryEdit, MemoryFilter, MemoryKind, MemoryOutcome,
    RecalledMemory, Recollection, StoredMemory, UserMemory, Whose,
};
pub use sapwood_core::{EntryId, MemoryId, Seq, SessionId, TimestampMs, TurnId};
pub use scope::{Principal, Scope, TenantId};
pub use session::{Ancestry, Context, ForkAt, OpenOptions, Snapshot};
pub use turn::{
    ApprovalAnswer, Fragment, FragmentKind, IfRunning, Listener, OnWait, PendingApproval, Running,
    SendOptions, Sent, SessionEvent, StartOptions, Subscription, TurnReport,
};

/// The result of a façade operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

// The server and the command line use the crates below the façade and the engine itself. They are not part of the API:
// they change without notice.
#[doc(hidden)]
pub use builder::{engine_over, open_engine};
#[doc(hidden)]
pub use clock::SystemClock;
#[doc(hidden)]
pub use sapwood_core as core;
#[doc(hidden)]
pub use sapwood_effects as effects;
#[doc(hidden)]
pub use sapwood_engine as engine;
#[doc(hidden)]
pub use sapwood_engine::{Backends, Engine};
#[doc(hidden)]
pub use sapwood_formats as formats;
#[doc(hidden)]
pub use sapwood_store as store;
