//! The turn: the processing of one input. [`Machine`] is pure: it accepts an [`Input`] and returns the entries to
//! append and the effects to run ([`TurnStep`]). Its state is the fold of the turn's entries ([`TurnState`]), so a turn
//! read from the log after a crash has exactly the same state.
//!
//! The order is always: append, then act. Before a tool runs, its call is in the log, followed by a `round` without a
//! result. A call without such a round has not started. A call with such a round is never started again, unless the
//! tool allows it.

mod ask;
pub mod confidence;
mod machine;
mod question;
mod recover;
mod round;
mod state;
mod terms;

pub use machine::{Machine, Rules};
pub use recover::continuation;
pub use state::{CallEnd, CallState, CallStatus, Gate, TurnState};
pub use terms::{CallersTool, Terms};

use std::collections::BTreeMap;

use crate::content::{Part, ToolCall};
use crate::entry::{ApprovalAnswer, Body, Compaction, Stop, ToolResult, Trigger, Usage};
use crate::id::EntryId;

/// A model's answer, ready to become an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub parts: Vec<Part>,
    pub model: String,
    pub usage: Option<Usage>,
    pub cost_nano_usd: Option<u64>,
    pub stop: Stop,
}

/// An input to the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The model answered. `faults` maps call indexes to schema errors of their inputs. `leaf` is the parent entry of
    /// the answer.
    Answered {
        answer: Answer,
        faults: BTreeMap<usize, String>,
        leaf: Option<EntryId>,
    },
    /// Every model of the chain failed. `partial` is the output streamed before the failure.
    ModelFailed {
        code: String,
        message: String,
        partial: Option<Answer>,
    },
    /// The context exceeds the model's window, or nearly does. `note` records a change of the pressure level; it is
    /// durable before the compaction begins.
    TooFull {
        trigger: Trigger,
        note: Option<Body>,
    },
    /// The result of [`Effect::Compact`]; `None` if there was nothing to compact.
    Compacted {
        trigger: Trigger,
        compaction: Option<Compaction>,
    },
    /// The next call could exceed the remaining budget.
    OverBudget {
        question: String,
        ask: bool,
    },
    ToolDone(ToolResult),
    /// A person answered; the entry is already in the log.
    ApprovalGiven {
        approval: String,
        answer: ApprovalAnswer,
        reason: Option<String>,
    },
    /// New input arrived for the running turn.
    Steered {
        input: EntryId,
        parts: Vec<Part>,
    },
    Cancelled {
        partial: Option<Answer>,
    },
    /// The turn exceeded its time limit.
    TimeOver {
        partial: Option<Answer>,
    },
}

/// An effect to run after the entries are durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    CallModel,
    RunTool(ToolCall),
    Compact(Trigger),
    /// Wait until a person answers.
    AwaitPerson,
}

/// The machine's output: entries first, then effects. After [`TurnState::ended`] is set, the machine returns empty
/// steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnStep {
    pub entries: Vec<Body>,
    pub effects: Vec<Effect>,
}
