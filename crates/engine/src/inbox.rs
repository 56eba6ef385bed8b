//! What others say to a turn that runs: cancel it, add words to it, answer what it asked. They say it by entries beside
//! the tree, so it is durable, needs no lease, and reaches the turn whichever process or server runs it.

use sapwood_core::entry::{Body, InputQueued, Queue};
use sapwood_core::turn::Input;
use sapwood_core::{EntryId, Kind, Record, Scope, Seq, SessionId, TurnId};

use crate::{Engine, Follower, Result};

/// Reads the log behind the turn's own back.
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
        Ok(Self { follower: engine.follow(scope, session, after).await?, turn })
    }

    /// The next message for this turn, whenever it comes. What the turn itself wrote is passed over. A cancel comes
    /// without its partial answer: whoever runs the model has that.
    pub(crate) async fn next(&mut self) -> Result<Input> {
        loop {
            let record = self.follower.next().await?;
            if let Some(input) = self.read(&record)? {
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

impl Engine {
    /// Input that waits and was not taken, oldest first.
    pub(crate) async fn queued(
        &self,
        scope: &Scope,
        session: &SessionId,
    ) -> Result<Vec<(EntryId, InputQueued)>> {
        let kinds = [Kind::InputQueued, Kind::InputTaken];
        let mut waiting: Vec<(EntryId, InputQueued)> = Vec::new();
        self.each_own_of_kinds(scope, session, &kinds, Seq::ZERO, |entry| match entry.body {
            Body::InputQueued(queued) => waiting.push((entry.meta.id, queued)),
            Body::InputTaken(taken) => waiting.retain(|(id, _)| *id != taken.input),
            _ => {}
        })
        .await?;
        Ok(waiting)
    }
}
