//! Control a turn from any process: cancel, steer and answer it, and read its status. Each message is an entry, so it is
//! durable and needs no lease.

use sapwood_core::approval::{Due, Escalated, Escalation};
use sapwood_core::content::ToolCall;
use sapwood_core::entry::{
    ApprovalAnswer, ApprovalAnswered, ApprovalDeadlines, Body, CancelAsked, CustomInfo, InputQueued, Queue,
    TurnEnded,
};
use sapwood_core::port::store::{Append, Appended, AuditAction, AuditNote, Expect, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::turn::TurnState;
use sapwood_core::{
    Draft, Entry, EntryId, Kind, Part, Principal, Right, Scope, SessionId, TimestampMs, TurnId,
};

use super::turn_log::{Extent, TurnLog};
use crate::directory::check_role;
use crate::log::{TRIES_MAX, edit, edit_by_other, note};
use crate::{EngineError, Result, service};

/// Maximum number of inputs that wait for a turn in one session. Their positions are part of its summary.
pub const QUEUED_INPUTS_MAX: usize = 256;

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
    /// Why a person is asked, if it is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The call that needs approval, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// When the question was asked.
    pub asked_at: TimestampMs,
    /// When the question is escalated and when it expires.
    #[serde(flatten)]
    pub deadlines: ApprovalDeadlines,
    /// When the question was escalated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<TimestampMs>,
}

impl PendingApproval {
    fn escalated(&self) -> Escalated {
        if self.escalated_at.is_some() { Escalated::Yes } else { Escalated::No }
    }

    /// What the question's deadlines require now.
    pub(super) fn due(&self, now: TimestampMs) -> Option<Due> {
        self.deadlines.due(self.escalated(), now)
    }

    /// The next deadline of the question.
    pub(super) fn next_deadline(&self) -> Option<TimestampMs> {
        self.deadlines.next(self.escalated())
    }
}

/// An answer to a question, and how it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenAnswer {
    pub answer: ApprovalAnswer,
    pub reason: Option<String>,
    /// The detail of the audit line.
    pub audited: String,
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
        let summary = self.engine.store.summary(scope, session).await?;
        TurnLog::open(self.engine, scope, &summary).await?.queued().await
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
        let summary = self.engine.store.summary(scope, session).await?;
        check_queue(&summary)?;
        let audit = edit_by_other(scope, &summary, "turn");
        let appended =
            self.engine.log().append_one(scope, session, InputQueued { queue, parts }, audit).await?;
        appended.entries.first().map(|(_, id)| *id).ok_or(EngineError::TurnLost { session: session.clone() })
    }

    /// The entries of a turn and the messages to it, in order, up to its end; empty for an unknown turn. Imported
    /// entries that claim to belong to a local turn are left out. Imported and unknown turns require a scan of all turns;
    /// the cost for others does not depend on the length of the log.
    pub async fn turn_entries(self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<Vec<Entry>> {
        let summary = self.engine.store.summary(scope, session).await?;
        TurnLog::open(self.engine, scope, &summary).await?.entries(turn, Extent::UntilEnd).await
    }

    /// Like [`TurnControl::turn_entries`], with the notes that [`TurnControl::note_in_turn`] added after the turn's end.
    pub async fn turn_entries_and_notes(
        self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
    ) -> Result<Vec<Entry>> {
        let summary = self.engine.store.summary(scope, session).await?;
        TurnLog::open(self.engine, scope, &summary).await?.entries(turn, Extent::WithNotes).await
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

    /// Request cancellation of this turn only. Fails with [`EngineError::TurnEnded`] if it is no longer open.
    pub async fn cancel_turn(self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<()> {
        let now = self.engine.clock.now();
        let draft = Draft::new(now, CancelAsked { turn }).in_turn(turn);
        self.append_while_open(scope, session, turn, "cancel", draft).await.map(|_| ())
    }

    /// Add input to this turn only. Fails with [`EngineError::TurnEnded`] if it is no longer open.
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
            if matches!(draft.body, Body::InputQueued(_)) {
                check_queue(&summary)?;
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

    /// Answer a pending approval. The first answer counts: a later one fails with `approval.not_found`. After the
    /// question's deadline the answer is refused, and the system answers `denied`.
    pub async fn answer(
        self,
        scope: &Scope,
        approval: &str,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<SessionId> {
        self.answer_as(scope, approval, GivenAnswer { answer, reason, audited: "answer".to_owned() }).await
    }

    pub(super) async fn answer_as(
        self,
        scope: &Scope,
        approval: &str,
        given: GivenAnswer,
    ) -> Result<SessionId> {
        let (mut scope, mut given, mut is_expired) = (scope.clone(), given, false);
        let mut failure = EngineError::NoApproval { approval: approval.to_owned() };
        for _ in 0..TRIES_MAX {
            let (summary, pending) = self.find_pending(&scope, approval).await?;
            if !is_expired && pending.due(self.engine.clock.now()) == Some(Due::Expire) {
                check_role(&scope, &summary, Right::Write)?;
                (scope, given) = (Scope::operator(scope.tenant, Principal::System), expiry_of(&pending));
                is_expired = true;
            }
            match self.append_answer(&scope, &summary, approval, &given).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {
                    failure = EngineError::Contended { session: summary.id, tries: TRIES_MAX };
                }
                Ok(()) if is_expired => {
                    return Err(EngineError::ApprovalExpired { approval: approval.to_owned() });
                }
                answered => return answered.map(|()| summary.id),
            }
        }
        Err(failure)
    }

    /// The pending approval with this id. An approval of a session that the caller cannot see is not found.
    pub(super) async fn find_pending(
        self,
        scope: &Scope,
        approval: &str,
    ) -> Result<(Summary, PendingApproval)> {
        let unknown = || EngineError::NoApproval { approval: approval.to_owned() };
        let session: SessionId =
            approval.rsplit_once('~').and_then(|(session, _)| session.parse().ok()).ok_or_else(unknown)?;
        let summary = match self.engine.store.summary(scope, &session).await {
            Err(StoreError::NoSession { .. }) => return Err(unknown()),
            summary => summary?,
        };
        let waiting = self.pending(scope, &summary).await?;
        let pending = waiting.into_iter().find(|pending| pending.approval == approval);
        Ok((summary, pending.ok_or_else(unknown)?))
    }

    /// Append an answer if the log has not changed since the summary was read.
    pub(super) async fn append_answer(
        self,
        scope: &Scope,
        summary: &Summary,
        approval: &str,
        given: &GivenAnswer,
    ) -> Result<()> {
        let GivenAnswer { answer, reason, audited } = given.clone();
        let body = ApprovalAnswered { approval: approval.to_owned(), answer, reason };
        self.append_at(scope, summary, body.into(), note(AuditAction::Edit, &summary.id, Some(audited))).await
    }

    /// Append an entry to the open turn if the log has not changed since the summary was read.
    pub(super) async fn append_at(
        self,
        scope: &Scope,
        summary: &Summary,
        body: Body,
        audit: AuditNote,
    ) -> Result<()> {
        let now = self.engine.clock.now();
        let drafts = vec![Draft { turn: summary.open_turn, ..Draft::new(now, body) }];
        let append = Append {
            expect: Expect::Head(summary.head.seq),
            audit: Some(audit),
            ..Append::new(summary.id.clone(), now, drafts)
        };
        self.engine.log().append(scope, append).await.map(|_| ())
    }

    /// The pending approvals of a session.
    pub async fn approvals(self, scope: &Scope, session: &SessionId) -> Result<Vec<PendingApproval>> {
        let summary = self.engine.store.summary(scope, session).await?;
        self.pending(scope, &summary).await
    }

    pub(super) async fn pending(self, scope: &Scope, summary: &Summary) -> Result<Vec<PendingApproval>> {
        let Some(turn) = summary.open_turn else { return Ok(Vec::new()) };
        let log = TurnLog::open(self.engine, scope, summary).await?;
        Ok(pending_of(&summary.id, &log.entries(turn, Extent::UntilEnd).await?))
    }
}

/// Refuse more queued input than a session may have.
fn check_queue(summary: &Summary) -> Result<()> {
    match summary.queued.as_ref().is_some_and(|queued| queued.len() >= QUEUED_INPUTS_MAX) {
        true => Err(EngineError::QueueFull { session: summary.id.clone(), limit: QUEUED_INPUTS_MAX }),
        false => Ok(()),
    }
}

/// The system's answer to a question that has expired.
pub(super) fn expiry_of(pending: &PendingApproval) -> GivenAnswer {
    let waited_ms = pending.deadlines.expires_at.map_or(0, |at| at.0.saturating_sub(pending.asked_at.0));
    let reason = format!("The question expired: it was not answered within {} s.", waited_ms / 1_000);
    GivenAnswer {
        answer: ApprovalAnswer::Denied,
        reason: Some(reason),
        audited: "answer: expired".to_owned(),
    }
}

fn escalated_at(entries: &[Entry], approval: &str) -> Option<TimestampMs> {
    let escalation = |entry: &&Entry| {
        Escalation::of_body(&entry.body).is_some_and(|escalation| escalation.approval == approval)
    };
    entries.iter().find(escalation).map(|entry| entry.meta.at)
}

pub(super) fn pending_of(session: &SessionId, entries: &[Entry]) -> Vec<PendingApproval> {
    let state = TurnState::fold(entries.iter().map(|entry| &entry.body));
    let asked = entries.iter().filter_map(|entry| match &entry.body {
        Body::ApprovalAsked(asked) => Some((entry.meta.at, asked)),
        _ => None,
    });
    let waiting = state.waiting_for();
    asked
        .filter(|(_, asked)| waiting.contains(&asked.approval.as_str()))
        .map(|(asked_at, asked)| PendingApproval {
            approval: asked.approval.clone(),
            session: session.clone(),
            question: asked.question.clone(),
            kind: asked.kind(),
            why: asked.why(),
            call: state
                .calls
                .iter()
                .find(|call| Some(&call.call.call_id) == asked.call_id.as_ref())
                .map(|call| call.call.clone()),
            asked_at,
            deadlines: asked.deadlines.clone().unwrap_or_default(),
            escalated_at: escalated_at(entries, &asked.approval),
        })
        .collect()
}
