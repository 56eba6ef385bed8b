//! The ledger: one line per round, with its action, result and confidence.

use serde::{Deserialize, Serialize};

use crate::entry::{Action, Body, Entry, RoundResult};
use crate::id::{Seq, TimestampMs, TurnId};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LedgerLine {
    pub seq: Seq,
    pub at: TimestampMs,
    pub turn: Option<TurnId>,
    pub round: u32,
    pub action: Action,
    /// Absent while the round runs, and if the process died before the round ended.
    pub result: Option<RoundResult>,
    /// Why the round failed, was refused, asked a person or was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub confidence: Option<f32>,
    pub trace_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    pub lines: Vec<LedgerLine>,
}

impl Ledger {
    pub fn apply(&mut self, entry: &Entry) {
        let Body::Round(round) = &entry.body else { return };
        let turn = entry.meta.turn;
        // A round is written several times. Its line can only be among the last few lines.
        let same = |line: &&mut LedgerLine| line.turn == turn && line.round == round.number;
        if let Some(line) = self.lines.iter_mut().rev().take(16).find(same) {
            line.result.clone_from(&round.result);
            line.reason.clone_from(&round.reason);
            line.confidence = round.confidence.or(line.confidence);
            // Keep the trace of the process that opened the round, even if another process finished it.
            line.trace_id = line.trace_id.take().or_else(|| round.trace_id.clone());
            line.action.clone_from(&round.action);
            return;
        }
        self.lines.push(LedgerLine {
            seq: entry.meta.seq,
            at: entry.meta.at,
            turn,
            round: round.number,
            action: round.action.clone(),
            result: round.result.clone(),
            reason: round.reason.clone(),
            confidence: round.confidence,
            trace_id: round.trace_id.clone(),
        });
    }
}
