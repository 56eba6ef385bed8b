//! The turn operations: start a session with an agent, send it input, and cancel, steer, answer or resume a turn
//! from any process. A turn runs as a separate task and does not depend on its sender.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_core::agent::{Agent, Narrowing};
use sapwood_core::content::ToolCall;
use sapwood_core::entry::{
    ApprovalAnswer, ApprovalAnswered, Body, CancelAsked, CustomInfo, InputQueued, Queue, TurnEnded,
    UserMessage,
};
use sapwood_core::flow::Assignment;
use sapwood_core::port::store::{Append, Appended, AuditNote, Created, Expect, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::turn::{Input, Machine, Terms, TurnState, TurnStep, continuation};
use sapwood_core::{Draft, Entry, EntryId, Kind, Part, Scope, Seq, SessionId, TurnId};
use sapwood_formats::import::role_files::role_is_active;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::TurnContext;
use super::run::{Author, run_turn};
use super::turn_context::{TurnParameters, check_limits, check_variables, settings_of};
use crate::backends::Backends;
use crate::inbox::Inbox;
use crate::lease::Hold;
use crate::spans::{record_end, record_failure};
use crate::write::{OpenOptions, TRIES_MAX, edit, edit_by_other};
use crate::{Engine, EngineError, Result};

/// Options for starting a session with an agent.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// The session's id, title and directory.
    pub open: OpenOptions,
    /// The agent.
    pub agent: Agent,
    /// Restrictions of the agent's rights.
    pub narrowing: Narrowing,
    /// Plain text for the model, never secrets: values that look like a key are refused.
    pub variables: BTreeMap<String, String>,
}

/// What to do with input that is sent while a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfRunning {
    /// Fail with [`TurnRunning`](crate::EngineError::TurnRunning).
    #[default]
    Refuse,
    /// Queue the input durably; it becomes the next turn.
    Queue,
}

/// What a turn does while it waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnWait {
    /// Keep running and keep the session's lease.
    #[default]
    Stay,
    /// Stop; answering and resuming continues the turn in any process.
    Leave,
}

/// Options for sending input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// What to do while a turn runs.
    pub if_running: IfRunning,
    /// What the turn does while it waits for an answer.
    pub on_wait: OnWait,
}

/// The first entries of a turn that starts with more than user input.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Messages, and results of calls that an earlier turn handed over.
    pub bodies: Vec<Body>,
    pub terms: Terms,
    /// Written together with `bodies`, so that the caller can find the turn later.
    pub mark: Option<CustomInfo>,
    /// Fail with a conflict unless this is the leaf.
    pub expected_leaf: Option<Seq>,
    /// The flow assignment, if a flow starts the turn.
    pub assignment: Option<Assignment>,
}

impl Opening {
    fn of_parts(parts: Vec<Part>) -> Self {
        Self { bodies: vec![UserMessage { parts, origin: None }.into()], ..Self::default() }
    }

    fn into_bodies(self) -> Vec<Body> {
        let infos = self.terms.to_info().into_iter().chain(self.mark).map(Body::from);
        infos.chain(self.bodies).collect()
    }

    /// The user input among the bodies.
    fn user_parts(&self) -> Option<&[Part]> {
        self.bodies.iter().find(|body| body.kind() == Kind::UserMessage).map(Body::parts)
    }
}

/// The result of sending input.
pub enum Sent {
    /// A turn has started.
    Started(Running),
    /// The input was queued with this entry.
    Queued(EntryId),
}

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

/// The result of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnReport {
    /// The turn.
    pub turn: TurnId,
    /// `None` if the turn is waiting for an answer.
    pub ended: Option<TurnEnded>,
    /// The pending approvals.
    pub waiting: Vec<PendingApproval>,
    /// The latest text from the model.
    pub text: String,
    /// See [`Running::notice`].
    pub notice: Option<String>,
}

/// A running turn.
#[derive(Debug)]
pub struct Running {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// A notice for the caller, set if an imported session continues with another agent.
    pub notice: Option<String>,
    report: oneshot::Receiver<Result<TurnReport>>,
}

impl Running {
    /// Wait until the turn ends, or stops to wait for an answer. Dropping the returned future does not end the turn.
    pub async fn ended(self) -> Result<TurnReport> {
        let lost = EngineError::TurnLost { session: self.session };
        self.report.await.unwrap_or(Err(lost))
    }
}

impl Engine {
    /// Open a session and freeze the agent into it. Idempotent: an existing session keeps its agent.
    pub async fn start(&self, scope: &Scope, options: StartOptions) -> Result<(SessionId, Created)> {
        self.check_id(scope, options.open.id.as_ref()).await?;
        self.start_any(scope, options).await
    }

    /// Like [`Engine::start`], but also accepts reserved ids.
    pub(crate) async fn start_any(
        &self,
        scope: &Scope,
        options: StartOptions,
    ) -> Result<(SessionId, Created)> {
        let agent = options.agent.narrowed(&options.narrowing)?;
        if let Some(mistake) = agent.mistakes().into_iter().next() {
            return Err(mistake.into());
        }
        check_variables(&agent, &options.variables)?;
        let open = OpenOptions { agent: Some(agent.id.clone()), ..options.open };
        let cwd = open.cwd.clone();
        let (title, id) = (open.title.clone(), open.agent.clone());
        let (session, created) = self.create(scope, open).await?;
        if created == Created::New || self.is_unfinished(scope, &session, &agent).await? {
            let memories = self.memory_prompt(scope, &agent).await;
            let bodies = settings_of(&agent, cwd, options.variables, memories);
            let now = self.clock.now();
            let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
            let expect = Expect::Head(Seq::ZERO);
            match self.append(scope, Append { expect, ..Append::new(session.clone(), now, drafts) }).await {
                // Another process finished the setup, or wrote to the session first.
                Err(EngineError::Store(StoreError::Conflict { .. })) => return Ok((session, created)),
                appended => appended?,
            };
            self.notify_start(scope, &session, title, id).await;
        }
        if created == Created::Existed {
            self.note_open(scope, &session).await?;
        }
        Ok((session, created))
    }

    /// Whether a process created this session for this agent and died before it wrote the agent.
    async fn is_unfinished(&self, scope: &Scope, session: &SessionId, agent: &Agent) -> Result<bool> {
        let summary = self.store.summary(scope, session).await?;
        Ok(summary.head.seq == Seq::ZERO && summary.agent.as_deref() == Some(agent.id.as_str()))
    }

    /// Send input to a session and run the turn that it starts.
    pub async fn send(
        &self,
        scope: &Scope,
        session: &SessionId,
        parts: Vec<Part>,
        options: SendOptions,
    ) -> Result<Sent> {
        if parts.is_empty() {
            return Err(EngineError::Invalid { what: "the input", why: "it is empty".to_owned() });
        }
        self.backends()?;
        let parts = self.ask_before_send(scope, session, parts).await?;
        let hold = match self.hold_to_send(scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. })) => {
                return self.queue_or_refuse(scope, session, parts, options.if_running).await;
            }
            hold => hold?,
        };
        self.begin_turn(scope, session, hold, Opening::of_parts(parts), options.on_wait)
            .await
            .map(Sent::Started)
    }

    /// Run a turn that starts with more than user input. Refused while another turn runs: only user input can
    /// be queued.
    pub async fn send_opening(
        &self,
        scope: &Scope,
        session: &SessionId,
        mut opening: Opening,
        on_wait: OnWait,
    ) -> Result<Running> {
        if opening.bodies.is_empty() {
            return Err(EngineError::Invalid { what: "the input", why: "it is empty".to_owned() });
        }
        for body in &mut opening.bodies {
            if let Body::UserMessage(message) = body {
                let parts = std::mem::take(&mut message.parts);
                message.parts = self.ask_before_send(scope, session, parts).await?;
            }
        }
        let hold = match self.hold_to_send(scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. })) => {
                return Err(EngineError::TurnRunning { session: session.clone() });
            }
            hold => hold?,
        };
        self.begin_turn(scope, session, hold, opening, on_wait).await
    }

    async fn begin_turn(
        &self,
        scope: &Scope,
        session: &SessionId,
        hold: Hold,
        opening: Opening,
        on_wait: OnWait,
    ) -> Result<Running> {
        match self.prepare_send(scope, session, &hold, opening).await {
            Ok(prepared) => Ok(prepared.spawn(hold, on_wait)),
            Err(error) => {
                hold.release().await;
                Err(error)
            }
        }
    }

    /// Take the lease for a new turn. A lease without an open turn belongs to a turn that is starting, has just
    /// ended, or whose process died: wait for its release.
    pub(crate) async fn hold_to_send(&self, scope: &Scope, session: &SessionId) -> Result<Hold> {
        match self.take_hold(scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. }))
                if self.store.summary(scope, session).await?.open_turn.is_none() =>
            {
                self.await_hold(scope, session).await
            }
            hold => hold,
        }
    }

    async fn queue_or_refuse(
        &self,
        scope: &Scope,
        session: &SessionId,
        parts: Vec<Part>,
        if_running: IfRunning,
    ) -> Result<Sent> {
        if if_running == IfRunning::Refuse {
            return Err(EngineError::TurnRunning { session: session.clone() });
        }
        Ok(Sent::Queued(self.queue(scope, session, Queue::Next, parts).await?))
    }

    async fn queue(
        &self,
        scope: &Scope,
        session: &SessionId,
        queue: Queue,
        parts: Vec<Part>,
    ) -> Result<EntryId> {
        let audit = edit_by_other(scope, &self.store.summary(scope, session).await?, "turn");
        let appended = self.append_one(scope, session, InputQueued { queue, parts }, audit).await?;
        appended.entries.first().map(|(_, id)| *id).ok_or(EngineError::TurnLost { session: session.clone() })
    }

    async fn prepare_send(
        &self,
        scope: &Scope,
        session: &SessionId,
        hold: &Hold,
        opening: Opening,
    ) -> Result<PreparedTurn> {
        let summary = self.settled_summary(scope, session).await?;
        if let Some(turn) = summary.open_turn {
            return Err(EngineError::TurnOpen { session: session.clone(), turn });
        }
        if let Some(expected) = opening.expected_leaf.filter(|expected| summary.head.leaf != Some(*expected))
        {
            let actual = summary.head.leaf.unwrap_or(Seq::ZERO);
            return Err(StoreError::Conflict { expected, actual }.into());
        }
        let turn = TurnId::mint(self.clock.now(), self.clock.random());
        let (terms, assignment) = (opening.terms.clone(), opening.assignment.clone());
        let parameters = TurnParameters { fence: hold.fence, turn, terms: &terms, assignment };
        let context = self.build_turn_context(scope, &summary, self.backends()?, parameters).await?;
        check_limits(&summary, &context.agent)?;
        opening.user_parts().into_iter().for_each(|parts| context.set_initial_input(parts));
        let bodies = context.changes.iter().cloned().chain(opening.into_bodies()).collect();
        let (machine, step) = Machine::begin_with(context.rules(), bodies, None);
        let audit = edit_by_other(scope, &summary, "turn");
        PreparedTurn::new(
            context,
            machine,
            step,
            summary.head.seq,
            FirstEntries { author: Author::Caller, audit },
        )
        .await
    }

    /// Resume a turn whose process died or stopped, or start a turn from queued input. Returns `None` if there is
    /// neither.
    pub async fn resume(
        &self,
        scope: &Scope,
        session: &SessionId,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        self.backends()?;
        let hold = self.await_hold(scope, session).await?;
        self.resume_held(scope, session, hold, on_wait).await
    }

    /// Continue an imported session whose latest turn was unfinished, with a new turn under the caller's
    /// configuration. Returns `None` if there is no such turn, or if a local turn followed.
    pub async fn continue_imported(
        &self,
        scope: &Scope,
        session: &SessionId,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        let summary = self.settled_summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        if !authority.has_imports() {
            return Ok(None);
        }
        let (mut turn, mut is_unfinished) = (None, false);
        let kinds = [Kind::TurnStarted, Kind::TurnEnded, Kind::CustomInfo];
        self.each_of_kinds(scope, session, &kinds, |entry| match &entry.body {
            Body::TurnStarted(_) => {
                turn = entry.meta.turn;
                is_unfinished = !authority.is_own(entry.meta.seq);
            }
            Body::TurnEnded(_) if entry.meta.turn == turn => is_unfinished = false,
            // Role files have no turns, but record whether the role was active.
            Body::CustomInfo(info) if !authority.is_own(entry.meta.seq) => {
                is_unfinished = role_is_active(info).unwrap_or(is_unfinished);
            }
            _ => {}
        })
        .await?;
        if !is_unfinished {
            return Ok(None);
        }
        let opening = Opening { bodies: vec![continuation().into()], ..Opening::default() };
        self.send_opening(scope, session, opening, on_wait).await.map(Some)
    }

    /// Return the summary. If an earlier version of the store left the authority unset, compute the authority first,
    /// because an imported turn must not count as open.
    pub(super) async fn settled_summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        let summary = self.store.summary(scope, session).await?;
        if summary.authority.is_some() {
            return Ok(summary);
        }
        self.store.settle_authority(scope, session).await?;
        Ok(self.store.summary(scope, session).await?)
    }

    /// Like [`Engine::resume`], for a caller that already holds the session's lease.
    pub(crate) async fn resume_held(
        &self,
        scope: &Scope,
        session: &SessionId,
        hold: Hold,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        let prepared = match self.backends() {
            Ok(backends) => self.prepare_resume(scope, session, backends, &hold).await,
            Err(error) => Err(error),
        };
        match prepared {
            Ok(Some(prepared)) => Ok(Some(prepared.spawn(hold, on_wait))),
            Ok(None) => {
                hold.release().await;
                Ok(None)
            }
            Err(error) => {
                hold.release().await;
                Err(error)
            }
        }
    }

    /// Start a flow turn in a held session. Its first entries identify the visit.
    pub(crate) async fn begin_held(
        &self,
        scope: &Scope,
        session: &SessionId,
        hold: Hold,
        opening: Opening,
    ) -> Result<Running> {
        self.begin_turn(scope, session, hold, opening, OnWait::Leave).await
    }

    async fn prepare_resume(
        &self,
        scope: &Scope,
        session: &SessionId,
        backends: Backends,
        hold: &Hold,
    ) -> Result<Option<PreparedTurn>> {
        let summary = self.settled_summary(scope, session).await?;
        let Some(turn) = summary.open_turn else {
            return self.prepare_queued(scope, &summary, backends, hold.fence).await;
        };
        let entries = self.turn_entries(scope, session, turn).await?;
        let last = entries.last().map_or(Seq::ZERO, |entry| entry.meta.seq);
        let before = self.entry_before(scope, session, &entries).await?;
        let bodies = entries.iter().map(|entry| &entry.body);
        let terms = Terms::of(bodies.clone());
        let parameters = TurnParameters { fence: hold.fence, turn, terms: &terms, assignment: None };
        let context = self.build_turn_context(scope, &summary, backends, parameters).await?;
        context.restore_initial_input(&entries);
        let (mut machine, mut step) =
            Machine::recover(context.rules(), bodies, context.agent.on_interrupt, before);
        step.entries.splice(..0, context.changes.iter().cloned());
        let steered = self.queued(scope, session).await?.into_iter();
        for (input, queued) in steered.filter(|(_, queued)| queued.queue == Queue::Steer) {
            machine.advance(Input::Steered { input, parts: queued.parts });
        }
        let first_entries = FirstEntries { author: Author::Agent, audit: None };
        Ok(Some(PreparedTurn::new(context, machine, step, last, first_entries).await?))
    }

    /// Prepare the next queued input as a turn.
    async fn prepare_queued(
        &self,
        scope: &Scope,
        summary: &Summary,
        backends: Backends,
        fence: u64,
    ) -> Result<Option<PreparedTurn>> {
        let Some((id, queued)) = self.queued(scope, &summary.id).await?.into_iter().next() else {
            return Ok(None);
        };
        let turn = TurnId::mint(self.clock.now(), self.clock.random());
        let parameters = TurnParameters { fence, turn, terms: &Terms::default(), assignment: None };
        let context = self.build_turn_context(scope, summary, backends, parameters).await?;
        check_limits(summary, &context.agent)?;
        context.set_initial_input(&queued.parts);
        let message = UserMessage { parts: queued.parts, origin: None };
        let bodies = context.changes.iter().cloned().chain([message.into()]).collect();
        let (machine, step) = Machine::begin_with(context.rules(), bodies, Some(id));
        // The sender's audit line was written when the input was queued.
        let first_entries = FirstEntries { author: Author::Caller, audit: None };
        Ok(Some(PreparedTurn::new(context, machine, step, summary.head.seq, first_entries).await?))
    }

    /// All entries of a turn and the messages to it, in order; empty for an unknown turn. Imported entries that
    /// claim to belong to a local turn are left out.
    pub async fn turn_entries(&self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<Vec<Entry>> {
        let mut after = Seq::ZERO;
        self.each_of_kinds(scope, session, &[Kind::TurnStarted], |entry| {
            if entry.meta.turn == Some(turn) {
                after = Seq(entry.meta.seq.0.saturating_sub(1));
            }
        })
        .await?;
        let mut entries = Vec::new();
        self.each_entry(scope, session, after, |entry| {
            if entry.meta.turn == Some(turn) {
                entries.push(entry);
            }
        })
        .await?;
        self.retain_own(scope, session, &mut entries).await?;
        Ok(entries)
    }

    /// The parent of the turn's first message.
    async fn entry_before(
        &self,
        scope: &Scope,
        session: &SessionId,
        entries: &[Entry],
    ) -> Result<Option<EntryId>> {
        let first = entries.iter().find(|entry| entry.meta.kind == Kind::UserMessage);
        let Some(parent) = first.and_then(|entry| entry.meta.parent) else { return Ok(None) };
        Ok(Some(self.store.read_entry(scope, session, parent).await?.meta.id))
    }

    /// Append a note to a turn, even after it has ended. `what` names the operation in the audit.
    pub async fn note_in_turn(
        &self,
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
    pub async fn cancel(&self, scope: &Scope, session: &SessionId) -> Result<TurnId> {
        let summary = self.store.summary(scope, session).await?;
        let turn = summary.open_turn.ok_or_else(|| EngineError::NoTurn { session: session.clone() })?;
        let audit = edit_by_other(scope, &summary, "cancel");
        self.append_to_turn(scope, session, turn, CancelAsked { turn }.into(), audit).await?;
        Ok(turn)
    }

    /// Add input to the running turn; the model sees it in its next call.
    pub async fn steer(&self, scope: &Scope, session: &SessionId, parts: Vec<Part>) -> Result<EntryId> {
        self.open_turn(scope, session).await?;
        let parts = self.ask_before_send(scope, session, parts).await?;
        self.queue(scope, session, Queue::Steer, parts).await
    }

    /// Request cancellation of this turn only, even if another turn is open by now.
    pub async fn cancel_turn(&self, scope: &Scope, session: &SessionId, turn: TurnId) -> Result<()> {
        let now = self.clock.now();
        let draft = Draft::new(now, CancelAsked { turn }).in_turn(turn);
        self.append_while_open(scope, session, turn, "cancel", draft).await.map(|_| ())
    }

    /// Add input to this turn only, even if another turn is open by now.
    pub async fn steer_turn(
        &self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        parts: Vec<Part>,
    ) -> Result<EntryId> {
        let parts = self.ask_before_send(scope, session, parts).await?;
        let draft = Draft::new(self.clock.now(), InputQueued { queue: Queue::Steer, parts });
        let appended = self.append_while_open(scope, session, turn, "turn", draft).await?;
        appended.entries.first().map(|(_, id)| *id).ok_or(EngineError::TurnLost { session: session.clone() })
    }

    /// Append only while the turn is open: on a conflict, check again and retry.
    async fn append_while_open(
        &self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        what: &'static str,
        draft: Draft,
    ) -> Result<Appended> {
        for _ in 0..TRIES_MAX {
            let summary = self.store.summary(scope, session).await?;
            if summary.open_turn != Some(turn) {
                return Err(EngineError::TurnEnded { session: session.clone(), turn });
            }
            let append = Append {
                expect: Expect::Head(summary.head.seq),
                audit: edit_by_other(scope, &summary, what),
                ..Append::new(session.clone(), self.clock.now(), vec![draft.clone()])
            };
            match self.append(scope, append).await {
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                answer => return answer,
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: TRIES_MAX })
    }

    async fn open_turn(&self, scope: &Scope, session: &SessionId) -> Result<TurnId> {
        let summary = self.store.summary(scope, session).await?;
        summary.open_turn.ok_or_else(|| EngineError::NoTurn { session: session.clone() })
    }

    async fn append_to_turn(
        &self,
        scope: &Scope,
        session: &SessionId,
        turn: TurnId,
        body: Body,
        audit: Option<AuditNote>,
    ) -> Result<()> {
        let now = self.clock.now();
        let drafts = vec![Draft::new(now, body).in_turn(turn)];
        self.append(scope, Append { audit, ..Append::new(session.clone(), now, drafts) }).await?;
        Ok(())
    }

    /// Answer a pending approval. The first answer counts.
    pub async fn answer(
        &self,
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
        let summary = self.store.summary(scope, &session).await?;
        let turn = summary.open_turn.ok_or_else(unknown)?;
        let audit = edit_by_other(scope, &summary, "answer");
        let answered = ApprovalAnswered { approval: approval.to_owned(), answer, reason };
        self.append_to_turn(scope, &session, turn, answered.into(), audit).await?;
        Ok(session)
    }

    /// The pending approvals of a session.
    pub async fn approvals(&self, scope: &Scope, session: &SessionId) -> Result<Vec<PendingApproval>> {
        let summary = self.store.summary(scope, session).await?;
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

/// A turn that is ready to run.
struct PreparedTurn {
    context: Arc<TurnContext>,
    machine: Machine,
    step: TurnStep,
    inbox: Inbox,
}

/// The author of a turn's first entries, and their audit line.
struct FirstEntries {
    author: Author,
    audit: Option<AuditNote>,
}

impl PreparedTurn {
    /// Create a turn. Its first step is durable when this returns, so the input cannot be lost.
    async fn new(
        context: Arc<TurnContext>,
        machine: Machine,
        mut step: TurnStep,
        after: Seq,
        FirstEntries { author, audit }: FirstEntries,
    ) -> Result<Self> {
        let inbox =
            Inbox::open(&context.engine, &context.scope, &context.session, context.turn, after).await?;
        context.append_as(author, std::mem::take(&mut step.entries), audit).await?;
        Ok(Self { context, machine, step, inbox })
    }

    /// Run the turn, and then turns for queued input, in a separate task.
    fn spawn(self, mut hold: Hold, on_wait: OnWait) -> Running {
        let (report_sender, report) = oneshot::channel();
        let (session, notice) = (self.context.session.clone(), self.context.notice.clone());
        let running = Running { session, turn: self.context.turn, notice, report };
        tokio::spawn(async move {
            let (engine, backends) = (self.context.engine.clone(), self.context.backends.clone());
            let (scope, session) = (self.context.scope.clone(), self.context.session.clone());
            let mut report_sender = Some(report_sender);
            let mut next = Some(self);
            while let Some(prepared) = next.take() {
                let span = prepared.context.span.clone();
                let report = prepared.run(&mut hold, on_wait).instrument(span).await;
                let has_ended = matches!(&report, Ok(report) if report.ended.is_some());
                if has_ended {
                    next = engine.prepare_next(&scope, &session, &backends, hold.fence).await;
                }
                if next.is_none() {
                    // Release the session before reporting the end, so that the caller can continue
                    // immediately.
                    hold.release().await;
                    if let Some(report_sender) = report_sender.take() {
                        let _ = report_sender.send(report);
                    }
                    return;
                }
                if let Some(report_sender) = report_sender.take() {
                    let _ = report_sender.send(report);
                }
            }
        });
        running
    }

    async fn run(self, hold: &mut Hold, on_wait: OnWait) -> Result<TurnReport> {
        let Self { context, mut machine, step, mut inbox } = self;
        let ran = run_turn(&context, &mut machine, step, &mut inbox, hold, on_wait).await;
        if let Err(error) = &ran {
            record_failure(&context.span, error.code());
            context.notify_error(error.code(), &error.to_string()).await;
        }
        ran?;
        let ended = machine.state().ended.clone();
        if let Some(ended) = &ended {
            record_end(&context.span, ended);
            context.compact_after_turn().await;
            context.notify_end(ended).await;
        }
        let waiting = context.engine.approvals(&context.scope, &context.session).await?;
        let text = context.with_progress(|progress| progress.latest_text.clone());
        let notice = context.notice.clone();
        Ok(TurnReport { turn: context.turn, ended, waiting, text, notice })
    }
}

impl Engine {
    async fn prepare_next(
        &self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
        fence: u64,
    ) -> Option<PreparedTurn> {
        let summary = self.store.summary(scope, session).await.ok()?;
        match self.prepare_queued(scope, &summary, backends.clone(), fence).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%session, %error, "failed to start queued input; it stays queued");
                None
            }
        }
    }
}
