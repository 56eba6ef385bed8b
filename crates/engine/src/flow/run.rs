//! The loop of a run, and the operations that start, resume and cancel runs. The loop appends the state machine's
//! events to the run's session, performs the effects, and feeds the results back. The loop stops when the run has
//! ended or is waiting for answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sapwood_core::entry::{Draft, fit_title};
use sapwood_core::flow::state::Ended;
use sapwood_core::flow::{Effect, Flow, FlowStep, Input, Machine, RunEvent, VisitKey, VisitResult};
use sapwood_core::port::store::{Append, Created, StoreError};
use sapwood_core::{Agent, Kind, Record, Scope, SessionId};
use tokio::sync::oneshot;

use super::visit::Visitor;
use super::{Flows, ROLE_SEPARATOR, RUN_PREFIX, run_blocking};
use crate::follow::Follower;
use crate::lease::Hold;
use crate::log::edit;
use crate::sessions::OpenOptions;
use crate::turn::PendingApproval;
use crate::{Engine, EngineError, Result};

/// Options for starting a run.
#[derive(Debug, Clone, Default)]
pub struct StartFlow {
    /// The flow.
    pub flow: Flow,
    /// The run's input.
    pub input: String,
    /// The run's id; generated if `None`.
    pub run: Option<SessionId>,
    /// Whether roles reflect after the forward pass.
    pub improve: bool,
    /// The working directory of the roles.
    pub cwd: Option<String>,
    /// Where role files are written. Stored in the log for processes that resume the run.
    pub mirror: Option<String>,
}

/// The state of a run when its runner stops.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowReport {
    /// The run, which is a session.
    pub run: SessionId,
    /// `None` if the run is waiting for answers.
    pub ended: Option<Ended>,
    /// The pending approvals.
    pub waiting: Vec<PendingApproval>,
}

/// Handle of a run in this process. Dropping the handle does not stop the run.
#[derive(Debug)]
pub struct RunningFlow {
    /// The run, which is a session.
    pub run: SessionId,
    report: oneshot::Receiver<Result<FlowReport>>,
}

impl RunningFlow {
    /// Wait until the run ends or waits for answers.
    pub async fn ended(self) -> Result<FlowReport> {
        let lost = EngineError::TurnLost { session: self.run };
        self.report.await.unwrap_or(Err(lost))
    }
}

impl Flows<'_> {
    /// Start a run. All errors in the flow are reported before anything is written.
    pub async fn start(self, scope: &Scope, start: StartFlow) -> Result<RunningFlow> {
        self.engine.backends()?;
        let mistakes = run_blocking(|| start.flow.mistakes());
        if !mistakes.is_empty() {
            return Err(EngineError::Flow { flow: start.flow.id, mistakes });
        }
        for model in start.flow.agents.values().flat_map(Agent::models) {
            self.engine.configuration().check_model(model)?;
        }
        let now = self.engine.clock.now();
        let mint = || format!("{RUN_PREFIX}{}", SessionId::mint(now, self.engine.clock.random()));
        let run: SessionId = start.run.map_or_else(|| mint().parse(), Ok)?;
        if !run.as_str().starts_with(RUN_PREFIX) || run.as_str().contains(ROLE_SEPARATOR) {
            let why = format!("it must begin with {RUN_PREFIX} and must not contain {ROLE_SEPARATOR}");
            return Err(EngineError::Invalid { what: "the run's id", why });
        }
        let title = fit_title(start.flow.title());
        let open = OpenOptions { id: Some(run.clone()), title, agent: None, cwd: start.cwd.clone() };
        if self.engine.sessions().open_any(scope, open).await?.1 == Created::Existed {
            return Err(StoreError::Exists { session: run }.into());
        }
        for agent in start.flow.agents.values() {
            self.engine.configuration().record_models(scope, &run, agent).await?;
        }
        let hold = Hold::take(self.engine, scope, &run).await?;
        let started = RunEvent::Started {
            flow: Box::new(start.flow),
            input: start.input,
            improve: start.improve,
            cwd: start.cwd,
            mirror: start.mirror,
        };
        let (machine, step) = run_blocking(|| Machine::begin(run.as_str(), started));
        self.spawn_run(scope, run, hold, machine, step).await
    }

    /// Resume a run whose process died, that is waiting, or that failed. Returns `None` if the run has ended and
    /// cannot be resumed.
    pub async fn resume(self, scope: &Scope, run: &SessionId) -> Result<Option<RunningFlow>> {
        self.engine.backends()?;
        // Read the events first, so that a session that is not a run is not leased.
        self.run_events(scope, run).await?;
        self.check_run_is_own(scope, run).await?;
        let hold = Hold::wait(self.engine, scope, run).await?;
        self.resume_held(scope, run, hold).await
    }

    /// Like [`Flows::resume`], for a caller that already holds the run's lease.
    pub(crate) async fn resume_held(
        self,
        scope: &Scope,
        run: &SessionId,
        hold: Hold,
    ) -> Result<Option<RunningFlow>> {
        let events = match self.own_run_events(scope, run).await {
            Ok(events) => events,
            Err(error) => {
                hold.release().await;
                return Err(error);
            }
        };
        let (mut machine, mut step) = run_blocking(|| Machine::recover(run.as_str(), &events));
        if machine.state().ended.is_some() {
            step = machine.retry();
        }
        if machine.state().ended.is_some() && step.events.is_empty() {
            hold.release().await;
            return Ok(None);
        }
        self.spawn_run(scope, run.clone(), hold, machine, step).await.map(Some)
    }

    /// Refuse a run that contains imported entries.
    async fn check_run_is_own(self, scope: &Scope, run: &SessionId) -> Result<()> {
        let summary = self.engine.store.summary(scope, run).await?;
        match self.engine.configuration().authority_of(scope, &summary).await?.has_imports() {
            true => Err(EngineError::FlowImported { run: run.clone() }),
            false => Ok(()),
        }
    }

    async fn own_run_events(self, scope: &Scope, run: &SessionId) -> Result<Vec<RunEvent>> {
        self.check_run_is_own(scope, run).await?;
        self.run_events(scope, run).await
    }

    /// Request cancellation of a run. Its runner, in any process, ends the run; a run without a runner is ended by this
    /// call.
    pub async fn cancel(self, scope: &Scope, run: &SessionId) -> Result<Option<RunningFlow>> {
        let state = self.run_state(scope, run).await?;
        self.check_run_is_own(scope, run).await?;
        if state.ended.is_some() {
            return Err(EngineError::FlowEnded { run: run.clone() });
        }
        let audit = Some(edit(run, "cancel"));
        self.engine.log().append_one(scope, run, RunEvent::CancelAsked.to_body(), audit).await?;
        match self.resume(scope, run).await {
            Err(EngineError::Store(StoreError::Leased { .. })) => Ok(None),
            resumed => resumed,
        }
    }

    /// Run the loop as a separate task. The first events are durable when this returns.
    async fn spawn_run(
        self,
        scope: &Scope,
        run: SessionId,
        hold: Hold,
        machine: Machine,
        mut step: FlowStep,
    ) -> Result<RunningFlow> {
        let head = self.engine.store.summary(scope, &run).await?.head.seq;
        let inbox = self.engine.events().follow(scope, &run, head).await?;
        let mut runner = FlowRunner {
            engine: self.engine.clone(),
            scope: scope.clone(),
            run: run.clone(),
            hold,
            machine,
            inbox,
            is_cancelled: Arc::default(),
        };
        runner.append(std::mem::take(&mut step.events)).await?;
        let (report_sender, report) = oneshot::channel();
        tokio::spawn(async move {
            let ran = runner.run(step).await;
            let reported = match ran {
                Ok(()) => runner.report().await,
                Err(error) => Err(error),
            };
            // Release the lease before reporting the end of the run, so that the caller can continue immediately.
            runner.hold.release().await;
            let _ = report_sender.send(reported);
        });
        Ok(RunningFlow { run, report })
    }
}

type VisitTasks = FuturesUnordered<BoxFuture<'static, Result<(VisitKey, VisitResult)>>>;

struct FlowRunner {
    engine: Engine,
    scope: Scope,
    run: SessionId,
    hold: Hold,
    machine: Machine,
    inbox: Follower,
    is_cancelled: Arc<AtomicBool>,
}

impl FlowRunner {
    async fn run(&mut self, first: FlowStep) -> Result<()> {
        let mut work = VisitTasks::new();
        let mut step = first;
        loop {
            self.append(step.events).await?;
            for effect in step.effects {
                self.perform(effect, &mut work).await?;
            }
            if self.machine.state().ended.is_some() || work.is_empty() {
                return Ok(());
            }
            let input = tokio::select! {
                Some(visited) = work.next() => {
                    let (key, result) = visited?;
                    Input::Visited { key, result }
                }
                requested = next_cancel(&mut self.inbox) => {
                    requested?;
                    Input::CancelAsked
                }
                () = self.hold.lost() => return Err(EngineError::LeaseLost { session: self.run.clone() }),
            };
            step = self.machine.advance(input);
        }
    }

    async fn perform(&self, effect: Effect, work: &mut VisitTasks) -> Result<()> {
        match effect {
            Effect::CancelVisits => self.cancel_visits().await,
            Effect::Visit(key) => {
                let visitor = Visitor {
                    engine: self.engine.clone(),
                    scope: self.scope.clone(),
                    state: self.machine.state().for_visit(&key.node),
                    is_cancelled: self.is_cancelled.clone(),
                };
                work.push(Box::pin(async move {
                    let result = visitor.visit(&key).await?;
                    Ok((key, result))
                }));
                Ok(())
            }
        }
    }

    /// Request cancellation of every open turn of the run. A turn that is about to start checks the cancellation flag.
    async fn cancel_visits(&self) -> Result<()> {
        self.is_cancelled.store(true, Ordering::SeqCst);
        let state = self.machine.state();
        for node in state.open_nodes() {
            let session: SessionId = state.session_of(node).parse()?;
            match self.engine.turn_control().cancel(&self.scope, &session).await {
                Ok(_) | Err(EngineError::NoTurn { .. }) => {}
                Err(EngineError::Store(StoreError::NoSession { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn append(&self, events: Vec<RunEvent>) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let now = self.engine.clock.now();
        let drafts = run_blocking(|| events.iter().map(|event| Draft::new(now, event.to_body())).collect());
        let mut append = Append::new(self.run.clone(), now, drafts);
        append.fence = Some(self.hold.fence);
        self.engine.log().append(&self.scope, append).await?;
        Ok(())
    }

    async fn report(&self) -> Result<FlowReport> {
        let state = self.machine.state();
        let waiting = self.engine.flows().run_approvals(&self.scope, state).await?;
        Ok(FlowReport { run: self.run.clone(), ended: state.ended.clone(), waiting })
    }
}

/// Resolves when the run's cancellation is requested.
async fn next_cancel(inbox: &mut Follower) -> Result<()> {
    loop {
        let record: Record = inbox.next().await?;
        if record.meta.kind != Kind::FlowEvent {
            continue;
        }
        if RunEvent::of_body(&inbox.decode(&record)?) == Some(RunEvent::CancelAsked) {
            return Ok(());
        }
    }
}
