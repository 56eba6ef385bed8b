//! Start and resume turns: from sent or queued input, after a crash, or in an imported session. A turn runs as a
//! separate task and does not depend on its sender.

use std::sync::Arc;

use sapwood_core::entry::{Body, CustomInfo, Draft, Outcome, Queue, TurnEnded, UserMessage};
use sapwood_core::flow::Assignment;
use sapwood_core::flow::visit::FLOW_CHANNEL;
use sapwood_core::port::store::{Append, AuditNote, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::turn::{Input, Machine, Terms, TurnStep, continuation};
use sapwood_core::{Entry, EntryId, Kind, Part, Scope, Seq, SessionId, TurnId};
use sapwood_formats::import::role_files::RoleState;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::TurnContext;
use super::control::PendingApproval;
use super::run::{Author, OnWait, run_turn};
use super::turn_context::TurnParameters;
use crate::backends::Backends;
use crate::inbox::Inbox;
use crate::lease::Hold;
use crate::log::edit_by_other;
use crate::spans::{record_end, record_failure};
use crate::{EngineError, Result, service};

/// What to do with input that is sent while a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfRunning {
    /// Fail with [`TurnRunning`](crate::EngineError::TurnRunning).
    #[default]
    Refuse,
    /// Queue the input durably; it becomes the next turn.
    Queue,
}

/// Options for sending input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// What to do if a turn is already running.
    pub if_running: IfRunning,
    /// What the turn does while it waits for an answer.
    pub on_wait: OnWait,
}

/// The first entries and the options of a turn.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Messages, and results of the tool calls that the caller ran for an earlier turn.
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
        let infos = self.terms.to_body().into_iter().chain(self.mark.map(Body::from));
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
    /// A notice for the caller, set if the turn runs with a different agent or model than the caller may expect: an imported
    /// session gets the default agent, a fallback replaces the model, or no model was chosen.
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

service! {
    /// Starting and resuming turns.
    pub struct Turns;
    turns
}

impl Turns<'_> {
    /// Send input to a session and run the turn that it starts.
    pub async fn send(
        self,
        scope: &Scope,
        session: &SessionId,
        parts: Vec<Part>,
        options: SendOptions,
    ) -> Result<Sent> {
        if parts.is_empty() {
            return Err(EngineError::Invalid { what: "the input", why: "it is empty".to_owned() });
        }
        self.engine.backends()?;
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
        self,
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
        self,
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
    /// ended, or whose process died: wait until it is released or expires.
    pub(crate) async fn hold_to_send(self, scope: &Scope, session: &SessionId) -> Result<Hold> {
        match Hold::take(self.engine, scope, session).await {
            Err(EngineError::Store(StoreError::Leased { .. }))
                if self.engine.store.summary(scope, session).await?.open_turn.is_none() =>
            {
                Hold::wait(self.engine, scope, session).await
            }
            hold => hold,
        }
    }

    async fn queue_or_refuse(
        self,
        scope: &Scope,
        session: &SessionId,
        parts: Vec<Part>,
        if_running: IfRunning,
    ) -> Result<Sent> {
        if if_running == IfRunning::Refuse {
            return Err(EngineError::TurnRunning { session: session.clone() });
        }
        Ok(Sent::Queued(self.engine.turn_control().queue(scope, session, Queue::Next, parts).await?))
    }

    async fn prepare_send(
        self,
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
        let turn = TurnId::mint(self.engine.clock.now(), self.engine.clock.random());
        let (terms, assignment) = (opening.terms.clone(), opening.assignment.clone());
        let parameters = TurnParameters { fence: hold.fence, turn, terms: &terms, assignment };
        let context =
            TurnContext::build(self.engine, scope, &summary, self.engine.backends_for(scope)?, parameters)
                .await?;
        if let Err(error) = context.check_limits(&summary) {
            self.record_refused_turn(scope, &summary, &context, &error).await?;
            return Err(error);
        }
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

    /// Record a turn that a limit refused, so that followers see it. It has no start, so it does not count as a turn. No
    /// model is called, and the input is not stored: its sender gets the error.
    async fn record_refused_turn(
        self,
        scope: &Scope,
        summary: &Summary,
        context: &TurnContext,
        error: &EngineError,
    ) -> Result<()> {
        let (turn, now) = (context.turn, self.engine.clock.now());
        let (code, message) = (Some(error.code().to_owned()), Some(error.to_string()));
        let ended = TurnEnded { outcome: Outcome::Limited, code, message, usage: None, cost_nano_usd: None };
        let drafts = vec![Draft::new(now, ended).in_turn(turn)];
        let fence = Some(context.fence);
        let append = Append { fence, ..Append::new(summary.id.clone(), now, drafts) };
        self.engine.log().append(scope, append).await?;
        Ok(())
    }

    /// Resume a turn whose process died or stopped, or start a turn from queued input. Returns `None` if there is
    /// neither.
    pub async fn resume(
        self,
        scope: &Scope,
        session: &SessionId,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        self.engine.backends()?;
        let hold = Hold::wait(self.engine, scope, session).await?;
        let running = self.resume_held(scope, session, hold, on_wait).await?;
        if running.is_some() {
            let summary = self.engine.store.summary(scope, session).await?;
            if let Some(audit) = edit_by_other(scope, &summary, "resume") {
                self.engine.directory().write_audit(scope, audit).await?;
            }
        }
        Ok(running)
    }

    /// Continue an imported session whose latest turn was unfinished, with a new turn under the local configuration.
    /// Returns `None` if there is no such turn, or if a local turn followed.
    pub async fn continue_imported(
        self,
        scope: &Scope,
        session: &SessionId,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        let summary = self.settled_summary(scope, session).await?;
        if !self.is_interrupted_import(scope, &summary).await? {
            return Ok(None);
        }
        let opening = Opening { bodies: vec![continuation().into()], ..Opening::default() };
        self.send_opening(scope, session, opening, on_wait).await.map(Some)
    }

    /// Whether the latest turn of an imported session was unfinished, and no local turn followed.
    pub(crate) async fn is_interrupted_import(self, scope: &Scope, summary: &Summary) -> Result<bool> {
        let authority = self.engine.configuration().authority_of(scope, summary).await?;
        if !authority.has_imports() {
            return Ok(false);
        }
        let (mut turn, mut is_unfinished) = (None, false);
        let kinds = [Kind::TurnStarted, Kind::TurnEnded, Kind::CustomInfo];
        self.engine
            .log()
            .each_of_kinds(scope, &summary.id, &kinds, |entry| match &entry.body {
                Body::TurnStarted(_) => {
                    turn = entry.meta.turn;
                    is_unfinished = !authority.is_own(entry.meta.seq);
                }
                Body::TurnEnded(_) if entry.meta.turn == turn => is_unfinished = false,
                // Role files have no turns, but record whether the role was active.
                Body::CustomInfo(info) if !authority.is_own(entry.meta.seq) => {
                    is_unfinished = RoleState::of_info(info).map_or(is_unfinished, |state| state.is_active);
                }
                _ => {}
            })
            .await?;
        Ok(is_unfinished)
    }

    /// Return the summary. If an earlier version of the store left the authority unset, compute the authority first,
    /// because an imported turn must not count as open.
    pub(super) async fn settled_summary(self, scope: &Scope, session: &SessionId) -> Result<Summary> {
        let summary = self.engine.store.summary(scope, session).await?;
        if summary.authority.is_some() {
            return Ok(summary);
        }
        self.engine.store.settle_authority(scope, session).await?;
        Ok(self.engine.store.summary(scope, session).await?)
    }

    /// Like [`Turns::resume`], for a caller that already holds the session's lease.
    pub(crate) async fn resume_held(
        self,
        scope: &Scope,
        session: &SessionId,
        hold: Hold,
        on_wait: OnWait,
    ) -> Result<Option<Running>> {
        let prepared = match self.engine.backends() {
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

    /// Start a turn of a flow visit, for a caller that already holds the session's lease.
    pub(crate) async fn begin_held(
        self,
        scope: &Scope,
        session: &SessionId,
        hold: Hold,
        opening: Opening,
    ) -> Result<Running> {
        self.begin_turn(scope, session, hold, opening, OnWait::Leave).await
    }

    async fn prepare_resume(
        self,
        scope: &Scope,
        session: &SessionId,
        backends: Backends,
        hold: &Hold,
    ) -> Result<Option<PreparedTurn>> {
        // Questions may have expired while no process ran the turn.
        self.engine.approvals().settle(&scope.tenant, session).await?;
        let summary = self.settled_summary(scope, session).await?;
        let Some(turn) = summary.open_turn else {
            return self.prepare_queued(scope, &summary, backends, hold.fence).await;
        };
        let entries = self.engine.turn_control().turn_entries(scope, session, turn).await?;
        let last = entries.last().map_or(Seq::ZERO, |entry| entry.meta.seq);
        let before = self.engine.turn_control().entry_before(scope, session, &entries).await?;
        let bodies = entries.iter().map(|entry| &entry.body);
        let terms = Terms::of(bodies.clone());
        let assignment = match entries.iter().any(is_by_flow) {
            true => self.engine.flows().assignment_of(scope, session).await?,
            false => None,
        };
        let parameters = TurnParameters { fence: hold.fence, turn, terms: &terms, assignment };
        let context = TurnContext::build(self.engine, scope, &summary, backends, parameters).await?;
        context.restore_initial_input(&entries);
        let (mut machine, mut step) =
            Machine::recover(context.rules(), bodies, context.agent.on_interrupt, before);
        step.entries.splice(..0, context.changes.iter().cloned());
        let steered = self.engine.turn_control().queued(scope, session).await?.into_iter();
        for (input, queued) in steered.filter(|(_, queued)| queued.queue == Queue::Steer) {
            machine.advance(Input::Steered { input, parts: queued.parts });
        }
        let first_entries = FirstEntries { author: Author::Agent, audit: None };
        Ok(Some(PreparedTurn::new(context, machine, step, last, first_entries).await?))
    }

    /// Prepare the next queued input as a turn.
    async fn prepare_queued(
        self,
        scope: &Scope,
        summary: &Summary,
        backends: Backends,
        fence: u64,
    ) -> Result<Option<PreparedTurn>> {
        let Some((id, queued)) =
            self.engine.turn_control().queued(scope, &summary.id).await?.into_iter().next()
        else {
            return Ok(None);
        };
        let turn = TurnId::mint(self.engine.clock.now(), self.engine.clock.random());
        let parameters = TurnParameters { fence, turn, terms: &Terms::default(), assignment: None };
        let context = TurnContext::build(self.engine, scope, summary, backends, parameters).await?;
        context.check_limits(summary)?;
        context.set_initial_input(&queued.parts);
        let message = UserMessage { parts: queued.parts, origin: None };
        let bodies = context.changes.iter().cloned().chain([message.into()]).collect();
        let (machine, step) = Machine::begin_with(context.rules(), bodies, Some(id));
        // The sender's audit line was written when the input was queued.
        let first_entries = FirstEntries { author: Author::Caller, audit: None };
        Ok(Some(PreparedTurn::new(context, machine, step, summary.head.seq, first_entries).await?))
    }

    async fn prepare_next(
        self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
        fence: u64,
    ) -> Option<PreparedTurn> {
        let summary = self.engine.store.summary(scope, session).await.ok()?;
        match self.prepare_queued(scope, &summary, backends.clone(), fence).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%session, %error, "failed to start queued input; it stays queued");
                None
            }
        }
    }
}

/// Whether a flow sent this message, so that its turn is part of a visit.
fn is_by_flow(entry: &Entry) -> bool {
    let Body::UserMessage(message) = &entry.body else { return false };
    message.origin.as_ref().is_some_and(|origin| origin.channel == FLOW_CHANNEL)
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
                    next = engine.turns().prepare_next(&scope, &session, &backends, hold.fence).await;
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
        let waiting = context.engine.turn_control().approvals(&context.scope, &context.session).await?;
        let text = context.with_progress(|progress| progress.latest_text.clone());
        let notice = context.notice.clone();
        Ok(TurnReport { turn: context.turn, ended, waiting, text, notice })
    }
}
