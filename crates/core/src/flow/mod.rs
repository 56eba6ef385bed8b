//! Flows: roles that work on nodes of a graph and hand their results on. Pure, like the turn: [`Machine`] is told what
//! happened and answers with events to write down and visits to make ([`FlowStep`]); its state is the fold of the run's own
//! events ([`RunState`]), so a run that is read back from its log after a crash stands exactly where it stood.
//!
//! | file | says |
//! |---|---|
//! | [`graph`] | what a flow is, and what is wrong with one |
//! | [`event`] | what a run writes into its own session |
//! | [`state`] | where a run stands |
//! | [`machine`] | what it does next |
//! | [`assignment`] | what a role's session knows of the node it is at, and which handoffs are right there |
//! | [`visit`] | how far one visit of a node has come, as the role's session tells it |
//! | [`prompts`] | what roles are told |
//!
//! Two logs take part. The run's session says which visits there are; a role's session says what came of one. A visit is
//! begun by one append to the role's session, which names it; so whether it was begun is never a guess.

pub mod assignment;
pub mod event;
pub mod graph;
mod graph_index;
pub mod machine;
pub mod prompts;
mod queue;
pub mod state;
pub mod visit;

pub use assignment::{Assignment, HANDOFF_TOOL, Handoff};
pub use event::{Artifact, Handed, Received, RunEvent, RunOutcome};
pub use graph::{Edge, EdgeKind, Flow, HandoffBy, Improvement, Join, Mistake, Node, NodeKind, Order, Route};
pub use machine::{Effect, FlowStep, Input, Machine, VisitKey, VisitResult};
pub use state::{EdgeStatus, NodeState, NodeStatus, Phase, RunState};
pub use visit::{NextMove, Visit};

/// How often a role may mend its handoff at one visit.
pub const REPAIRS_MAX: u32 = 5;
/// Visits of one node: a loop of handing back and forth ends here.
pub const VISITS_MAX: u32 = 20;
/// Nodes that run side by side.
pub const PARALLEL_MAX: usize = 8;
