//! The status of a turn: its outcome, its latest text, and its pending approvals.

use sapwood_core::entry::{Body, TurnEnded};
use sapwood_core::{Scope, SessionId, TimestampMs, TurnId};

use super::PendingApproval;
use super::send::pending_of;
use crate::{Engine, Result};

/// The state of a turn, derived from its entries.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnSnapshot {
    pub turn: TurnId,
    pub started_at: TimestampMs,
    pub ended: Option<(TimestampMs, TurnEnded)>,
    /// The latest text from the model.
    pub text: Option<String>,
    pub waiting: Vec<PendingApproval>,
}

impl Engine {
    /// The state of a turn, or `None` if the session has no such turn.
    pub async fn turn(
        &self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
    ) -> Result<Option<TurnSnapshot>> {
        let entries = self.turn_entries(scope, session, turn).await?;
        let Some(started) = entries.first().filter(|entry| matches!(entry.body, Body::TurnStarted(_))) else {
            return Ok(None);
        };
        let mut snapshot =
            TurnSnapshot { turn, started_at: started.meta.at, ended: None, text: None, waiting: Vec::new() };
        for entry in &entries {
            match &entry.body {
                Body::AssistantMessage(_) => {
                    snapshot.text = Some(entry.body.text()).filter(|text| !text.is_empty()).or(snapshot.text);
                }
                Body::TurnEnded(ended) => snapshot.ended = Some((entry.meta.at, ended.clone())),
                _ => {}
            }
        }
        if snapshot.ended.is_none() {
            snapshot.waiting = pending_of(session, &entries);
        }
        Ok(Some(snapshot))
    }
}
