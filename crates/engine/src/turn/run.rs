//! The turn loop: append the entries of a step, perform its effects, and feed the results back into the state
//! machine until the turn ends. Entries are durable before their effects start.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sapwood_core::entry::{Body, Stop};
use sapwood_core::port::store::{Append, Appended, AuditNote};
use sapwood_core::turn::{Effect, Input, Machine, TurnStep};
use sapwood_core::{Draft, Kind, Principal, TimestampMs};

use super::TurnContext;
use crate::fragments::FragmentKind;
use crate::inbox::Inbox;
use crate::lease::Hold;
use crate::{EngineError, Result};

/// Minimum pause before a deadline is checked again, so that a clock that was set back causes no busy loop.
const DEADLINE_PAUSE_MS: u64 = 50;

/// What a turn does while it waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnWait {
    /// Keep running and keep the session's lease.
    #[default]
    Stay,
    /// Stop. After the answer, any process can resume the turn.
    Leave,
}

/// The recorded author of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// The turn's caller, for the first entries of the turn. Rounds are still attributed to the agent.
    Caller,
    /// The agent, except for user input and the start of a turn.
    Agent,
}

type EffectTasks = FuturesUnordered<BoxFuture<'static, Result<Input>>>;

/// Run a turn until it ends, or until it waits for an answer and `on_wait` is [`OnWait::Leave`].
pub(super) async fn run_turn(
    context: &Arc<TurnContext>,
    machine: &mut Machine,
    first: TurnStep,
    inbox: &mut Inbox,
    hold: &mut Hold,
    on_wait: OnWait,
) -> Result<()> {
    let mut work = EffectTasks::new();
    let mut step = first;
    let limit = tokio::time::sleep(Duration::from_secs(u64::from(context.agent.limits.wall_time_s)));
    tokio::pin!(limit);
    loop {
        context.append(step.entries).await?;
        for effect in step.effects {
            context.perform(effect, &work, machine);
        }
        let waits = work.is_empty() && !machine.state().waiting_for().is_empty();
        if machine.state().ended.is_some() || (waits && on_wait == OnWait::Leave) {
            return Ok(());
        }
        let mut deadline = context.settle_deadlines(machine).await?;
        // Biased, so that simulations are reproducible. A lost lease is checked first.
        let input = loop {
            break tokio::select! {
                biased;
                () = hold.lost() => return Err(EngineError::LeaseLost { session: context.session.clone() }),
                input = inbox.next() => input?,
                () = &mut limit => Input::TimeOver { partial: None },
                Some(input) = work.next() => input?,
                () = context.wait_until(deadline) => {
                    deadline = context.settle_deadlines(machine).await?;
                    continue;
                }
            };
        };
        step = machine.advance(context.complete(input, &mut work));
    }
}

impl TurnContext {
    /// Start an effect; its result is delivered through `work`.
    fn perform(self: &Arc<Self>, effect: Effect, work: &EffectTasks, machine: &Machine) {
        self.with_progress(|progress| progress.is_budget_waived = machine.state().is_budget_waived);
        let context = self.clone();
        match effect {
            Effect::CallModel => work.push(Box::pin(async move { context.call_model().await })),
            Effect::RunTool(call) => work.push(Box::pin(async move { context.run_tool(&call).await })),
            Effect::Compact(trigger) => work.push(Box::pin(async move { context.compact(trigger).await })),
            Effect::AwaitPerson => {
                let waiting = machine.state().waiting_for();
                self.send_fragment(FragmentKind::Waiting {
                    approvals: waiting.into_iter().map(str::to_owned).collect(),
                });
            }
        }
    }

    /// Escalate and expire the turn's questions whose deadlines have passed. Returns the next deadline.
    async fn settle_deadlines(&self, machine: &Machine) -> Result<Option<TimestampMs>> {
        if self.agent.approval_wait.is_none() || machine.state().waiting_for().is_empty() {
            return Ok(None);
        }
        self.engine.approvals().settle(&self.scope.tenant, &self.session).await
    }

    /// Wait until a deadline; forever if there is none.
    async fn wait_until(&self, deadline: Option<TimestampMs>) {
        let Some(deadline) = deadline else { return std::future::pending().await };
        let left_ms = u64::try_from(deadline.0.saturating_sub(self.engine.clock.now().0)).unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(left_ms.max(DEADLINE_PAUSE_MS))).await;
    }

    /// Set the deadlines of new questions, as the agent requires.
    fn set_deadlines(&self, bodies: &mut [Body], now: TimestampMs) {
        let Some(wait) = &self.agent.approval_wait else { return };
        for body in bodies {
            if let Body::ApprovalAsked(asked) = body {
                asked.deadlines = wait.deadlines(now);
            }
        }
    }

    /// On a cancel or timeout, stop running effects and add the partial answer to the input.
    fn complete(&self, input: Input, work: &mut EffectTasks) -> Input {
        match input {
            Input::Cancelled { .. } => {
                work.clear();
                Input::Cancelled { partial: self.partial_answer(Stop::Aborted) }
            }
            Input::TimeOver { .. } => {
                work.clear();
                Input::TimeOver { partial: self.partial_answer(Stop::Aborted) }
            }
            other => other,
        }
    }

    /// Append the entries of a step under the lease's fence.
    pub(super) async fn append(&self, bodies: Vec<Body>) -> Result<()> {
        self.append_as(Author::Agent, bodies, None).await
    }

    pub(super) async fn append_as(
        &self,
        author: Author,
        mut bodies: Vec<Body>,
        audit: Option<AuditNote>,
    ) -> Result<()> {
        if bodies.is_empty() {
            return Ok(());
        }
        let now = self.engine.clock.now();
        self.set_deadlines(&mut bodies, now);
        let answer_at = bodies.iter().position(|body| body.kind() == Kind::AssistantMessage);
        if let Some(answer) = answer_at.map(|at| bodies[at].text()) {
            self.with_progress(|progress| progress.latest_text = answer);
        }
        let events = self.hook_events_of(&bodies);
        let senders = self.senders_of(&bodies).await?;
        let draft = |(body, sender): (Body, Option<Principal>)| {
            let draft = self.draft(author, now, body);
            Draft { by: sender.or(draft.by), ..draft }
        };
        let drafts = bodies.into_iter().zip(senders).map(draft).collect();
        let mut append = Append::new(self.session.clone(), now, drafts);
        (append.fence, append.audit) = (Some(self.fence), audit);
        let appended = self.engine.log().append(&self.scope, append).await?;
        self.record_append(&appended, answer_at);
        self.notify_events(events).await;
        Ok(())
    }

    /// Queued input keeps its original sender, not the principal of the turn that consumes it.
    async fn senders_of(&self, bodies: &[Body]) -> Result<Vec<Option<Principal>>> {
        let mut senders = Vec::with_capacity(bodies.len());
        let mut sender = None;
        for body in bodies {
            if let Body::InputTaken(taken) = body {
                let id = taken.input.to_string();
                let sent = self.engine.store.find_entries(&self.scope, &self.session, &id).await?;
                sender = sent.into_iter().next().map(|record| record.meta.by);
            }
            senders.push(if body.kind() == Kind::UserMessage { sender.take() } else { None });
        }
        Ok(senders)
    }

    fn draft(&self, author: Author, now: TimestampMs, body: Body) -> Draft {
        let by = match (author, body.kind()) {
            (_, Kind::UserMessage | Kind::TurnStarted | Kind::InputTaken) => None,
            (Author::Agent, _) | (Author::Caller, Kind::Round) => {
                self.agent.id.parse().ok().map(Principal::Agent)
            }
            (Author::Caller, _) => None,
        };
        Draft { by, ..Draft::new(now, body).in_turn(self.turn) }
    }

    /// Record the head for fragments, and an answer's signatures for the rest of the turn.
    fn record_append(&self, appended: &Appended, answer_at: Option<usize>) {
        self.with_progress(|progress| {
            progress.head = appended.head.seq;
            let Some((_, id)) = answer_at.and_then(|at| appended.entries.get(at)) else { return };
            progress.has_tried_compaction = false;
            let reply = std::mem::take(&mut progress.reply);
            let signatures = reply.signatures();
            if !signatures.is_empty() {
                progress.signatures.insert(*id, signatures);
            }
        });
    }
}
