//! The turn: one input through to its end. [`Machine`] is pure: it is told what happened ([`Input`]) and answers with
//! entries to append and things to do ([`TurnStep`]). Its state is nothing but the fold of the turn's own entries
//! ([`TurnState`]), so a turn that is read back from the log after a crash stands exactly where it stood.
//!
//! The order is always: append, then act. A call is in the log before its tool runs, and a `round` without a result
//! stands behind it; so what the log does not show to have begun has not begun, and what it shows to have begun is
//! never begun again, unless the tool says that it may be.

pub mod confidence;
mod machine;
mod recover;
mod state;
mod terms;

pub use machine::{Machine, Rules};
pub use recover::continuation;
pub use state::{CallState, CallStatus, Gate, TurnState};
pub use terms::{CallersTool, Terms};

use std::collections::BTreeMap;

use crate::content::{Part, ToolCall};
use crate::entry::{ApprovalAnswer, Body, Compaction, Stop, ToolResult, Trigger, Usage};
use crate::id::EntryId;

/// What a model answered, ready to become an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub parts: Vec<Part>,
    pub model: String,
    pub usage: Option<Usage>,
    pub cost_nano_usd: Option<u64>,
    pub stop: Stop,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The model answered. `faults` says for each call, by its place among the calls, why its input does not fit.
    /// `leaf` is the entry the answer will hang from.
    Answered {
        answer: Answer,
        faults: BTreeMap<usize, String>,
        leaf: Option<EntryId>,
    },
    /// Every model of the chain failed; what had streamed is in `partial`.
    ModelFailed {
        code: String,
        message: String,
        partial: Option<Answer>,
    },
    /// The context is over the model's window, or close to it.
    TooFull {
        trigger: Trigger,
    },
    /// What became of [`Effect::Compact`]; none if there was nothing to leave out.
    Compacted {
        trigger: Trigger,
        compaction: Option<Compaction>,
    },
    /// The next call could cost more than is left.
    OverBudget {
        question: String,
        ask: bool,
    },
    ToolDone(ToolResult),
    /// Somebody answered; the entry that says so is in the log already.
    ApprovalGiven {
        approval: String,
        answer: ApprovalAnswer,
        reason: Option<String>,
    },
    /// Somebody added words to the turn that runs.
    Steered {
        input: EntryId,
        parts: Vec<Part>,
    },
    Cancelled {
        partial: Option<Answer>,
    },
    /// The turn's time is over.
    TimeOver {
        partial: Option<Answer>,
    },
}

/// What is to be done next, after the entries are durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    CallModel,
    RunTool(ToolCall),
    Compact(Trigger),
    /// Nothing can be done until a person answers.
    AwaitPerson,
}

/// What the machine wants: entries first, then effects. Once [`TurnState::ended`] is set there is nothing more to do.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnStep {
    pub entries: Vec<Body>,
    pub effects: Vec<Effect>,
}
