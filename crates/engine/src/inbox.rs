//! Messages to a running turn: cancel, steer, answer an approval. Each message is an entry outside the tree, so it
//! is durable, needs no lease, and reaches the turn in any process.

use sapwood_core::entry::{Body, InputQueued, Queue};
use sapwood_core::turn::Input;
use sapwood_core::{Kind, Record, Scope, Seq, SessionId, TurnId};

use crate::follow::Follower;
use crate::{Engine, Result};

/// Reads entries that other callers append while the turn runs.
pub(crate) struct Inbox {
    follower: Follower,
    turn: TurnId,
}

impl Inbox {
    pub(crate) async fn open(
        engine: &Engine,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        after: Seq,
    ) -> Result<Self> {
        Ok(Self { follower: engine.events().follow(scope, session, after).await?, turn })
    }

    /// Wait for the next message to this turn. Entries that the turn itself wrote are skipped, and so are imported
    /// ones: an import must not answer, cancel or steer a local turn. A cancel is returned without the partial answer,
    /// which only the task running the model has.
    pub(crate) async fn next(&mut self) -> Result<Input> {
        loop {
            let record = self.follower.next().await?;
            if let Some(input) = self.read(&record)?
                && self.follower.is_own(&record).await?
            {
                return Ok(input);
            }
        }
    }

    fn read(&self, record: &Record) -> Result<Option<Input>> {
        let is_ours = record.meta.turn == Some(self.turn);
        match record.meta.kind {
            Kind::CancelAsked | Kind::ApprovalAnswered if is_ours => {}
            Kind::InputQueued => {}
            _ => return Ok(None),
        }
        let body = self.follower.decode(record)?;
        Ok(match body {
            Body::CancelAsked(asked) if asked.turn == self.turn => Some(Input::Cancelled { partial: None }),
            Body::ApprovalAnswered(given) => Some(Input::ApprovalGiven {
                approval: given.approval,
                answer: given.answer,
                reason: given.reason,
            }),
            Body::InputQueued(InputQueued { queue: Queue::Steer, parts }) => {
                Some(Input::Steered { input: record.meta.id, parts })
            }
            _ => None,
        })
    }
}
