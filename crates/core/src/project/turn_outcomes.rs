//! How the turns of a path ended. Exports need the recorded outcome: a cancelled or killed turn may also contain text,
//! next to a tool call, so messages alone do not show whether a turn was completed.

use std::collections::HashMap;

use crate::entry::{Meta, Outcome};
use crate::id::TurnId;
use crate::port::store::PathSlice;

/// The outcomes of the turns on a path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnOutcomes {
    ended: HashMap<TurnId, Outcome>,
    /// The outcomes of turns up to this seq are unknown, because the caller cannot read the session that has them.
    unknown_up_to: u32,
    /// Whether the path was imported and ends with an unfinished turn.
    ends_interrupted: bool,
}

impl TurnOutcomes {
    /// The outcomes that a slice contains. A fork's slice has only the turns of the fork itself, so the caller adds those
    /// of its sources.
    pub fn of_slice(slice: &PathSlice) -> Self {
        Self { ended: slice.ended_turns.iter().copied().collect(), ..Self::default() }
    }

    /// Add the outcome of a turn.
    pub fn add(&mut self, turn: TurnId, outcome: Outcome) {
        self.ended.insert(turn, outcome);
    }

    /// Record that the outcomes of turns up to this seq cannot be read.
    pub fn set_unknown_up_to(&mut self, seq: u32) {
        self.unknown_up_to = seq;
    }

    /// Record that the imported path ends with an unfinished turn.
    pub fn set_ends_interrupted(&mut self) {
        self.ends_interrupted = true;
    }

    /// Whether the path was imported and ends with an unfinished turn.
    pub fn ends_interrupted(&self) -> bool {
        self.ends_interrupted
    }

    /// Whether the turn of this entry ended `completed`. `None` if the entry belongs to no turn, or if the outcome cannot
    /// be read. The caller then has to decide by the messages.
    pub fn is_completed(&self, meta: &Meta) -> Option<bool> {
        let turn = meta.turn?;
        match self.ended.get(&turn) {
            Some(outcome) => Some(*outcome == Outcome::Completed),
            None if meta.seq.0 <= self.unknown_up_to => None,
            // The turn runs, waits for a person, or was killed.
            None => Some(false),
        }
    }
}
