//! Flows: roles work on nodes of a graph and hand over their results. Pure, like the turn: [`Machine`] accepts inputs
//! and returns events to write and visits to start ([`FlowStep`]). Its state is the fold of the run's events
//! ([`RunState`]), so a run read from its log after a crash has exactly the same state.
//!
//! | file | contains |
//! |---|---|
//! | [`graph`], [`mistake`] | the definition of a flow, and its validation |
//! | [`event`] | the events in a run's session |
//! | [`state`] | the state of a run |
//! | [`machine`] | the next steps of a run |
//! | [`assignment`] | the node that a role's session works on, and which handoffs are valid there |
//! | [`visit`] | the progress of one visit, from the role's session |
//! | [`prompts`] | the prompts for roles |
//!
//! There are two kinds of logs. The run's session lists the visits; a role's session has the messages of each visit.
//! A visit begins with one append to the role's session, which shows after a crash whether the visit had begun.

pub mod assignment;
pub mod event;
pub mod graph;
mod graph_index;
pub mod machine;
pub mod mistake;
pub mod prompts;
mod queue;
pub mod state;
mod template;
pub mod visit;

pub use assignment::{Assignment, HANDOFF_TOOL, Handoff};
pub use event::{Artifact, Handed, Received, RunEvent, RunOutcome};
pub use graph::{Edge, EdgeKind, Flow, HandoffBy, Improvement, Join, Node, NodeKind, Order, Route};
pub use machine::{Effect, FlowStep, Input, Machine, VisitKey, VisitResult};
pub use mistake::Mistake;
pub use state::{EdgeStatus, NodeState, NodeStatus, Phase, RunState};
pub use visit::{NextAction, Visit};

/// Maximum number of faults per visit: see [`Visit::faults`].
pub const REPAIRS_MAX: u32 = 5;
/// Maximum number of visits of one node. This limit ends loops in which two nodes keep returning work.
pub const VISITS_MAX: u32 = 20;
/// Maximum number of nodes that run in parallel.
pub const PARALLEL_MAX: usize = 8;
