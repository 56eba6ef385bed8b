//! The run state machine. Each transition folds its events into the state, and returns them with the visits to start
//! once the events are durable. The machine performs no I/O. Recovery folds the same events, so a logged decision is
//! never repeated.

use std::collections::BTreeSet;

use super::event::{Handed, RunEvent, RunOutcome};
use super::graph::{Node, Order};
use super::state::{FEEDBACK, NodeStatus, Phase, RunState};
use super::{PARALLEL_MAX, VISITS_MAX};

/// One attempt at one visit of one node. Keys are unique within a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitKey {
    pub node: String,
    pub visit: u32,
    pub attempt: u32,
}

/// The result of a visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VisitResult {
    Handed(Handed),
    /// A person has to answer before the visit continues.
    Waits {
        approvals: Vec<String>,
    },
    Failed {
        code: String,
        message: String,
    },
}

/// An input to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Visited {
        key: VisitKey,
        result: VisitResult,
    },
    /// A client requested cancellation; its event is already in the log.
    CancelAsked,
}

/// An effect to run after the events are durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start or continue this visit. The role's session records whether it was started.
    Visit(VisitKey),
    /// Cancel all running visits.
    CancelVisits,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct FlowStep {
    pub events: Vec<RunEvent>,
    pub effects: Vec<Effect>,
}

/// One run. Its state is the fold of its events, plus the visits that this process is executing.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    state: RunState,
    active: BTreeSet<VisitKey>,
    /// Whether the waiting visits have been checked again since the last handoff.
    has_rechecked_waiting: bool,
    is_cancelling: bool,
}

impl Machine {
    /// Begin a run with its first event.
    pub fn begin(run: &str, started: RunEvent) -> (Self, FlowStep) {
        let mut machine = Self::of(RunState::new(run));
        let mut step = FlowStep::default();
        machine.add(&mut step, started);
        machine.proceed(&mut step);
        (machine, step)
    }

    /// Recover a run from its events, with the step that resumes it.
    pub fn recover<'a>(run: &str, events: impl IntoIterator<Item = &'a RunEvent>) -> (Self, FlowStep) {
        let mut machine = Self::of(RunState::fold(run, events));
        let mut step = FlowStep::default();
        if machine.state.is_started && machine.state.ended.is_none() {
            machine.resume_open_visits(&mut step);
            if machine.state.is_cancel_asked {
                machine.cancel(&mut step);
            } else {
                machine.proceed(&mut step);
            }
        }
        (machine, step)
    }

    /// Resume a failed run: retry the nodes that failed, or that waited for input that cannot arrive.
    pub fn retry(&mut self) -> FlowStep {
        let mut step = FlowStep::default();
        let has_failed = |ended: &super::state::Ended| ended.outcome == RunOutcome::Failed;
        if !self.state.ended.as_ref().is_some_and(has_failed) {
            return step;
        }
        let is_stuck = |status| matches!(status, NodeStatus::Failed | NodeStatus::Holding);
        let stuck = self.state.nodes.iter().filter(|(_, node)| is_stuck(node.status));
        let stuck: Vec<VisitKey> = stuck
            .map(|(id, node)| VisitKey {
                node: id.clone(),
                visit: node.visits.max(1),
                attempt: node.attempt + 1,
            })
            .collect();
        for VisitKey { node, visit, attempt } in stuck.clone() {
            self.add(&mut step, RunEvent::Retried { node, visit, attempt });
        }
        stuck.into_iter().for_each(|key| self.start_visit(&mut step, key));
        step
    }

    fn of(state: RunState) -> Self {
        Self { state, active: BTreeSet::new(), has_rechecked_waiting: false, is_cancelling: false }
    }

    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Whether this process has nothing left to do: the run has ended or waits for a person.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Process an input. A run that has ended ignores all input.
    pub fn advance(&mut self, input: Input) -> FlowStep {
        let mut step = FlowStep::default();
        if self.state.ended.is_some() {
            return step;
        }
        match input {
            Input::CancelAsked => {
                self.state.is_cancel_asked = true;
                self.cancel(&mut step);
            }
            Input::Visited { key, result } => {
                // A visit that is not active belongs to another process, or has ended.
                if self.active.remove(&key) {
                    self.take_result(&mut step, key, result);
                }
            }
        }
        step
    }

    fn take_result(&mut self, step: &mut FlowStep, key: VisitKey, result: VisitResult) {
        let VisitKey { node, visit, attempt } = key;
        match result {
            VisitResult::Handed(handed) => {
                self.has_rechecked_waiting = false;
                self.add(step, RunEvent::Handed { node, visit, attempt, handed });
            }
            VisitResult::Failed { code, message } => {
                self.add(step, RunEvent::Failed { node, visit, attempt, code, message });
            }
            VisitResult::Waits { approvals } => {
                let state = self.state.nodes.get(&node);
                let has_changed = state
                    .is_none_or(|state| state.status != NodeStatus::Waiting || state.approvals != approvals);
                if has_changed {
                    self.add(step, RunEvent::Waits { node, visit, attempt, approvals });
                }
            }
        }
        if self.state.is_cancel_asked { self.cancel(step) } else { self.proceed(step) }
    }

    fn add(&mut self, step: &mut FlowStep, event: RunEvent) {
        self.state.apply(&event);
        step.events.push(event);
    }

    fn start_visit(&mut self, step: &mut FlowStep, key: VisitKey) {
        self.active.insert(key.clone());
        step.effects.push(Effect::Visit(key));
    }

    /// Resume the visits that were started but have not ended.
    fn resume_open_visits(&mut self, step: &mut FlowStep) {
        let is_open = |status| matches!(status, NodeStatus::Running | NodeStatus::Waiting);
        for key in self.visits_where(is_open) {
            self.start_visit(step, key);
        }
    }

    fn visits_where(&self, has_status: impl Fn(NodeStatus) -> bool) -> Vec<VisitKey> {
        let nodes = self.state.nodes.iter().filter(|(_, node)| has_status(node.status));
        nodes
            .map(|(id, node)| VisitKey { node: id.clone(), visit: node.visits, attempt: node.attempt })
            .collect()
    }

    /// Enter all ready nodes. If no node is ready and none runs, the run ends or pauses.
    fn proceed(&mut self, step: &mut FlowStep) {
        match self.state.phase {
            Phase::Forward => self.enter_ready(step),
            Phase::Improvement => self.enter_improvers(step),
        }
        if !self.active.is_empty() {
            return;
        }
        let waiting = self.visits_where(|status| status == NodeStatus::Waiting);
        if waiting.is_empty() {
            return self.finish(step);
        }
        if !self.has_rechecked_waiting {
            // A person may have answered while this process held the run.
            self.has_rechecked_waiting = true;
            waiting.into_iter().for_each(|key| self.start_visit(step, key));
        }
    }

    fn enter_ready(&mut self, step: &mut FlowStep) {
        let flow = self.state.flow.clone();
        // Terminates: entering a node removes it from the queue, even if it fails.
        while self.has_capacity()
            && let Some(at) = self.state.next_node()
        {
            self.enter(step, &flow.nodes[at]);
        }
    }

    fn has_capacity(&self) -> bool {
        self.state.running < PARALLEL_MAX
    }

    fn enter(&mut self, step: &mut FlowStep, node: &Node) {
        let state = self.state.nodes.get(&node.id).cloned().unwrap_or_default();
        let key = VisitKey { node: node.id.clone(), visit: state.visits + 1, attempt: 1 };
        let VisitKey { node: id, visit, attempt } = key.clone();
        if visit > VISITS_MAX {
            let message = format!("the node was entered {VISITS_MAX} times");
            let code = "flow.visit_limit".to_owned();
            return self.add(step, RunEvent::Failed { node: id, visit, attempt, code, message });
        }
        let session = self.state.session_of(node);
        let received = state.inbox;
        self.add(step, RunEvent::Entered { node: id, visit, attempt, session, received });
        self.start_visit(step, key);
    }

    fn enter_improvers(&mut self, step: &mut FlowStep) {
        let order = self.state.flow.improvement.as_ref().map(|pass| pass.order).unwrap_or_default();
        let has_not_started = |node: &&Node| self.state.status_of(&node.id) == NodeStatus::Idle;
        let own = || self.state.pending_improvers().filter(|node| node.id != FEEDBACK);
        let next: Vec<Node> = match order {
            _ if own().next().is_none() => {
                self.state.pending_improvers().filter(has_not_started).cloned().collect()
            }
            Order::Graph => own().take(1).filter(has_not_started).cloned().collect(),
            // No more nodes than this can run in parallel.
            Order::SideBySide => own().filter(has_not_started).take(PARALLEL_MAX).cloned().collect(),
        };
        for node in &next {
            if self.has_capacity() && self.state.is_free(node) {
                self.enter(step, node);
            }
        }
    }

    /// End the run, or start its improvement pass. Called when no node runs or is ready and no answer is pending.
    fn finish(&mut self, step: &mut FlowStep) {
        let failed = self.state.nodes.iter().find(|(_, node)| node.status == NodeStatus::Failed);
        if let Some((id, node)) = failed {
            let message = format!("node {id}: {}", node.why.clone().unwrap_or_default());
            let code = node.code.clone();
            return self.end(step, RunOutcome::Failed, code, Some(message));
        }
        let holding = self.visits_where(|status| status == NodeStatus::Holding);
        if !holding.is_empty() {
            let names: Vec<&str> = holding.iter().map(|key| key.node.as_str()).collect();
            let message = format!("{} waits for input that no node will send", names.join(", "));
            return self.end(step, RunOutcome::Failed, Some("flow.stalled".to_owned()), Some(message));
        }
        if self.state.improve && self.state.phase == Phase::Forward {
            self.add(step, RunEvent::Improving);
            return self.proceed(step);
        }
        self.end(step, RunOutcome::Completed, None, None);
    }

    fn end(
        &mut self,
        step: &mut FlowStep,
        outcome: RunOutcome,
        code: Option<String>,
        message: Option<String>,
    ) {
        self.add(step, RunEvent::Ended { outcome, code, message });
    }

    /// Cancel the running visits. The run ends after the last of them has ended.
    fn cancel(&mut self, step: &mut FlowStep) {
        if !self.is_cancelling {
            self.is_cancelling = true;
            step.effects.push(Effect::CancelVisits);
            // A visit that waits for a person runs in no process: resume it so that it can end.
            for key in self.visits_where(|status| status == NodeStatus::Waiting) {
                if !self.active.contains(&key) {
                    self.start_visit(step, key);
                }
            }
        }
        if self.active.is_empty() {
            step.effects.clear();
            self.end(step, RunOutcome::Cancelled, None, None);
        }
    }
}
