//! Reach a turn from any process: cancel, steer and answer it, and read its status. Each message is an entry, so it is
//! durable and needs no lease.

use sapwood_core::content::ToolCall;
use sapwood_core::entry::{
    ApprovalAnswer, ApprovalAnswered, Body, CancelAsked, CustomInfo, InputQueued, Queue, TurnEnded,
};
use sapwood_core::port::store::{Append, Appended, AuditNote, Expect, StoreError};
use sapwood_core::turn::TurnState;
use sapwood_core::{Draft, Entry, EntryId, Kind, Part, Scope, Seq, SessionId, TimestampMs, TurnId};

use crate::log::{TRIES_MAX, edit, edit_by_other};
use crate::{EngineError, Result, service};

/// A question that is waiting for an answer.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PendingApproval {
    /// The id of the approval, for the answer.
    pub approval: String,
    /// The session.
    pub session: SessionId,
    /// The question.
    pub question: String,
    /// `tool`, `question`, `handoff`, `budget`, `confidence` or `consent`.
    pub kind: String,
    /// The call that needs approval, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
}

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

service! {
    /// Cancels, steers or answers a turn from any process, and reads its status.
    pub struct TurnControl;
    turn_control
}

impl TurnControl<'_> {
    /// Queued input that no turn has consumed yet, oldest first.
    pub(crate) async fn queued(
        self,
        scope: &Scope,
        session: &SessionId,
    ) -> Result<Vec<(EntryId, InputQueued)>> {
        let kinds = [Kind::InputQueued, Kind::InputTaken];
        let mut waiting: Vec<(EntryId, InputQueued)> = Vec::new();
        self.engine
            .configuration()
            .each_own_of_kinds(scope, session, &kinds, Seq::ZERO, |entry| match entry.body {
                Body::InputQueued(queued) => waiting.push((entry.meta.id, queued)),
                Body::InputTaken(taken) => waiting.retain(|(id, _)| *id != taken.input),
                _ => {}
            })
            .await?;
        Ok(waiting)
    }

    /// The state of a turn, or `None` if the session has no such turn.
    pub async fn turn(
        self,
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

    pub(super) async fn queue(
        self,
        scope: &Scope,
        session: &SessionId,
        queue: Queue,
        parts: Vec<Part>,
    ) -> Result<EntryId> {
        let audit = edit_by_other(scope, &self.engine.store.summary(scope, session).await?, "turn");
        let appended =
            self.engine.log().append_one(scope, session, InputQueued { queue, parts }, audit).await?;
        appended.entries.first().map(|(_, id)| *id).ok_or(EngineError::TurnLost { session: session.clone() })
    }

    /// All entries of a turn and the messages to it, in order; empty for an unknown turn. Imported entries that
    /// claim to belong to a local turn are left out.
    pub async fn turn_entries(self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<Vec<Entry>> {
        let mut after = Seq::ZERO;
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::TurnStarted], |entry| {
                if entry.meta.turn == Some(turn) {
                    after = Seq(entry.meta.seq.0.saturating_sub(1));
                }
            })
            .await?;
        let mut entries = Vec::new();
        self.engine
            .log()
            .each_entry(scope, session, after, |entry| {
                if entry.meta.turn == Some(turn) {
                    entries.push(entry);
                }
            })
            .await?;
        self.engine.configuration().retain_own(scope, session, &mut entries).await?;
        Ok(entries)
    }

    /// The parent of the turn's first user message.
    pub(super) async fn entry_before(
        self,
        scope: &Scope,
        session: &SessionId,
        entries: &[Entry],
    ) -> Result<Option<EntryId>> {
        let first = entries.iter().find(|entry| entry.meta.kind == Kind::UserMessage);
        let Some(parent) = first.and_then(|entry| entry.meta.parent) else { return Ok(None) };
        Ok(Some(self.engine.store.read_entry(scope, session, parent).await?.meta.id))
    }

    /// Append a note to a turn, even after it has ended. `what` names the operation in the audit log.
    pub async fn note_in_turn(
        self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        info: CustomInfo,
        what: &'static str,
    ) -> Result<()> {
        self.append_to_turn(scope, session, turn, info.into(), Some(edit(session, what))).await
    }

    /// Request cancellation of the open turn. The process that runs the turn ends it; a turn without a process ends when
    /// it is resumed.
    pub async fn cancel(self, scope: &Scope, session: &SessionId) -> Result<TurnId> {
        let summary = self.engine.store.summary(scope, session).await?;
        let turn = summary.open_turn.ok_or_else(|| EngineError::NoTurn { session: session.clone() })?;
        let audit = edit_by_other(scope, &summary, "cancel");
        self.append_to_turn(scope, session, turn, CancelAsked { turn }.into(), audit).await?;
        Ok(turn)
    }

    /// Add input to the running turn; the model sees it in its next call.
    pub async fn steer(self, scope: &Scope, session: &SessionId, parts: Vec<Part>) -> Result<EntryId> {
        self.open_turn(scope, session).await?;
        let parts = self.engine.turns().ask_before_send(scope, session, parts).await?;
        self.queue(scope, session, Queue::Steer, parts).await
    }

    /// Request cancellation of this turn only, even if another turn is open by now.
    pub async fn cancel_turn(self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<()> {
        let now = self.engine.clock.now();
        let draft = Draft::new(now, CancelAsked { turn }).in_turn(turn);
        self.append_while_open(scope, session, turn, "cancel", draft).await.map(|_| ())
    }

    /// Add input to this turn only, even if another turn is open by now.
    pub async fn steer_turn(
        self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        parts: Vec<Part>,
    ) -> Result<EntryId> {
        let parts = self.engine.turns().ask_before_send(scope, session, parts).await?;
        let draft = Draft::new(self.engine.clock.now(), InputQueued { queue: Queue::Steer, parts });
        let appended = self.append_while_open(scope, session, turn, "turn", draft).await?;
        appended.entries.first().map(|(_, id)| *id).ok_or(EngineError::TurnLost { session: session.clone() })
    }

    /// Append only while the turn is open: on a conflict, check again and retry.
    async fn append_while_open(
        self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        what: &'static str,
        draft: Draft,
    ) -> Result<Appended> {
        for _ in 0..TRIES_MAX {
            let summary = self.engine.store.summary(scope, session).await?;
            if summary.open_turn != Some(turn) {
                return Err(EngineError::TurnEnded { session: session.clone(), turn });
            }
            let append = Append {
                expect: Expect::Head(summary.head.seq),
                audit: edit_by_other(scope, &summary, what),
                ..Append::new(session.clone(), self.engine.clock.now(), vec![draft.clone()])
            };
            match self.engine.log().append(scope, append).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                answer => return answer,
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: TRIES_MAX })
    }

    async fn open_turn(self, scope: &Scope, session: &SessionId) -> Result<TurnId> {
        let summary = self.engine.store.summary(scope, session).await?;
        summary.open_turn.ok_or_else(|| EngineError::NoTurn { session: session.clone() })
    }

    async fn append_to_turn(
        self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        body: Body,
        audit: Option<AuditNote>,
    ) -> Result<()> {
        let now = self.engine.clock.now();
        let drafts = vec![Draft::new(now, body).in_turn(turn)];
        self.engine
            .log()
            .append(scope, Append { audit, ..Append::new(session.clone(), now, drafts) })
            .await?;
        Ok(())
    }

    /// Answer a pending approval. The first answer counts.
    pub async fn answer(
        self,
        scope: &Scope,
        approval: &str,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<SessionId> {
        let unknown = || EngineError::NoApproval { approval: approval.to_owned() };
        let session: SessionId =
            approval.rsplit_once('~').and_then(|(session, _)| session.parse().ok()).ok_or_else(unknown)?;
        let waiting = match self.approvals(scope, &session).await {
            Err(EngineError::Store(StoreError::NoSession { .. })) => return Err(unknown()),
            waiting => waiting?,
        };
        if !waiting.iter().any(|pending| pending.approval == approval) {
            return Err(unknown());
        }
        let summary = self.engine.store.summary(scope, &session).await?;
        let turn = summary.open_turn.ok_or_else(unknown)?;
        let audit = edit_by_other(scope, &summary, "answer");
        let answered = ApprovalAnswered { approval: approval.to_owned(), answer, reason };
        self.append_to_turn(scope, &session, turn, answered.into(), audit).await?;
        Ok(session)
    }

    /// The pending approvals of a session.
    pub async fn approvals(self, scope: &Scope, session: &SessionId) -> Result<Vec<PendingApproval>> {
        let summary = self.engine.store.summary(scope, session).await?;
        let Some(turn) = summary.open_turn else { return Ok(Vec::new()) };
        let entries = self.turn_entries(scope, session, turn).await?;
        Ok(pending_of(session, &entries))
    }
}

pub(super) fn pending_of(session: &SessionId, entries: &[Entry]) -> Vec<PendingApproval> {
    let state = TurnState::fold(entries.iter().map(|entry| &entry.body));
    let asked = entries.iter().filter_map(|entry| match &entry.body {
        Body::ApprovalAsked(asked) => Some(asked),
        _ => None,
    });
    let waiting = state.waiting_for();
    asked
        .filter(|asked| waiting.contains(&asked.approval.as_str()))
        .map(|asked| PendingApproval {
            approval: asked.approval.clone(),
            session: session.clone(),
            question: asked.question.clone(),
            kind: asked.kind(),
            call: state
                .calls
                .iter()
                .find(|call| Some(&call.call.call_id) == asked.call_id.as_ref())
                .map(|call| call.call.clone()),
        })
        .collect()
}
