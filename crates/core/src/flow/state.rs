//! The state of a run: the fold of its events, in log order.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde::Serialize;

use super::event::{Artifact, Handed, Received, RunEvent, RunOutcome};
use super::graph::{Edge, EdgeKind, Flow, HandoffBy, Join, Node, NodeKind};
use super::graph_index::GraphIndex;
use super::queue::ReadyQueue;
use super::template::{FEEDBACK_WORK, REFLECT, template_names};

/// The id prefix of improvement nodes. Ids in a flow's definition never have this prefix.
pub const IMPROVE: &str = "@improve.";
pub const FEEDBACK: &str = "@feedback";

/// The state of a node in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Not entered yet, or reopened because work was returned.
    #[default]
    Idle,
    /// The node is being visited.
    Running,
    /// The node waits for a person's answer.
    Waiting,
    /// The node returned work or reported that it waits. It continues when new input arrives.
    Holding,
    /// The latest visit succeeded.
    Done,
    /// The role ended the node without a handoff.
    Closed,
    /// Every path to the node was closed.
    Skipped,
    /// The latest visit failed.
    Failed,
}

impl NodeStatus {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeStatus::Idle => "idle",
            NodeStatus::Running => "running",
            NodeStatus::Waiting => "waiting",
            NodeStatus::Holding => "holding",
            NodeStatus::Done => "done",
            NodeStatus::Closed => "closed",
            NodeStatus::Skipped => "skipped",
            NodeStatus::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    pub status: NodeStatus,
    /// The number of visits, and of attempts of the latest visit.
    pub visits: u32,
    pub attempt: u32,
    /// The input for the next visit, and the input of the latest visit.
    pub inbox: Vec<Received>,
    pub received: Vec<Received>,
    pub approvals: Vec<String>,
    pub said: String,
    /// Why the node failed, was closed, or waits.
    pub why: Option<String>,
    pub code: Option<String>,
    /// Whether the inbox contains returned work.
    has_return: bool,
}

/// Counts of a node's incoming edges by status, so that a large join does not have to scan the edges each time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct IncomingCounts {
    open: usize,
    completed: usize,
    closed: usize,
}

impl IncomingCounts {
    fn of(&mut self, status: EdgeStatus) -> &mut usize {
        match status {
            EdgeStatus::Open => &mut self.open,
            EdgeStatus::Completed => &mut self.completed,
            EdgeStatus::Closed => &mut self.closed,
        }
    }

    fn is_unreachable(&self) -> bool {
        self.closed > 0 && self.open == 0 && self.completed == 0
    }
}

/// The state of an edge in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeStatus {
    /// An artifact may still be sent over this edge.
    #[default]
    Open,
    /// An artifact was sent over this edge.
    Completed,
    /// No artifact will be sent over this edge.
    Closed,
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The roles do their work.
    #[default]
    Forward,
    /// The roles reflect on their work.
    Improvement,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How the run ended.
    pub outcome: RunOutcome,
    /// The error code of a failed run.
    pub code: Option<String>,
    /// A description of the failure, for people.
    pub message: Option<String>,
}

/// The fold of a run's events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunState {
    /// The id of the run's session.
    pub run: String,
    pub is_started: bool,
    pub flow: Arc<Flow>,
    index: Arc<GraphIndex>,
    pub input: String,
    pub improve: bool,
    pub cwd: Option<String>,
    pub mirror: Option<String>,
    pub nodes: BTreeMap<String, NodeState>,
    /// The number of running visits.
    pub running: usize,
    queue: ReadyQueue,
    /// The edges that are not open, by index into [`Flow::edges`].
    edges: BTreeMap<usize, EdgeStatus>,
    /// Parallel to [`Flow::nodes`].
    incoming: Vec<IncomingCounts>,
    pub phase: Phase,
    /// The nodes of the improvement pass, once it has started.
    pub improvers: Vec<Node>,
    improver_index: BTreeMap<String, usize>,
    /// The improvers that are not done or closed.
    pending_improvers: BTreeSet<usize>,
    pub is_cancel_asked: bool,
    pub ended: Option<Ended>,
}

impl RunState {
    pub fn new(run: impl Into<String>) -> Self {
        Self { run: run.into(), ..Self::default() }
    }

    pub fn fold<'a>(run: &str, events: impl IntoIterator<Item = &'a RunEvent>) -> Self {
        let mut state = Self::new(run);
        for event in events {
            state.apply(event);
        }
        state
    }

    pub fn apply(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started { flow, input, improve, cwd, mirror } => {
                (self.improve, self.cwd, self.mirror) = (*improve, cwd.clone(), mirror.clone());
                self.begin(flow, input);
            }
            RunEvent::Entered { node, visit, attempt, received, .. } => {
                self.enter(node, *visit, *attempt, received);
            }
            RunEvent::Waits { node, approvals, .. } => {
                self.set_status(node, NodeStatus::Waiting).approvals.clone_from(approvals);
            }
            RunEvent::Handed { node, handed, .. } => self.apply_handoff(node, handed),
            RunEvent::Failed { node, code, message, .. } => {
                let node = self.set_status(node, NodeStatus::Failed);
                node.approvals.clear();
                node.why = Some(message.clone());
                node.code = Some(code.clone());
            }
            RunEvent::Retried { node, attempt, .. } => {
                self.ended = None;
                let node = self.set_status(node, NodeStatus::Running);
                node.attempt = *attempt;
                (node.why, node.code) = (None, None);
            }
            RunEvent::Improving => {
                self.begin_improvement();
                self.phase = Phase::Improvement;
            }
            RunEvent::CancelAsked => self.is_cancel_asked = true,
            RunEvent::Ended { outcome, code, message } => {
                self.ended = Some(Ended { outcome: *outcome, code: code.clone(), message: message.clone() });
            }
        }
    }

    fn node_mut(&mut self, node: &str) -> &mut NodeState {
        self.nodes.entry(node.to_owned()).or_default()
    }

    fn set_status(&mut self, id: &str, status: NodeStatus) -> &mut NodeState {
        let before = std::mem::replace(&mut self.node_mut(id).status, status);
        self.running += usize::from(status == NodeStatus::Running);
        self.running -= usize::from(before == NodeStatus::Running);
        if is_open(before) != is_open(status)
            && let Some(session) = self.any_node(id).map(|node| self.session_of(node))
        {
            match is_open(status) {
                true => self.queue.begin(&session),
                false => self.queue.end(&session),
            }
        }
        if let Some(at) = self.improver_index.get(id) {
            match status {
                NodeStatus::Done | NodeStatus::Closed => self.pending_improvers.remove(at),
                _ => self.pending_improvers.insert(*at),
            };
        }
        self.update_queue(id);
        self.node_mut(id)
    }

    /// Update the queue for a node whose readiness may have changed.
    fn update_queue(&mut self, id: &str) {
        let Some(at) = self.index.node(id) else { return };
        let node = &self.flow.nodes[at];
        if node.kind == NodeKind::Agent {
            let (session, is_ready) = (self.session_of(node), self.is_ready(node));
            self.queue.set_ready(&session, self.index.rank(at), is_ready);
        }
    }

    fn begin(&mut self, flow: &Flow, input: &str) {
        self.is_started = true;
        (self.running, self.queue, self.edges) = Default::default();
        self.input = input.to_owned();
        self.nodes = flow.nodes.iter().map(|node| (node.id.clone(), NodeState::default())).collect();
        (self.flow, self.index) = (Arc::new(flow.clone()), Arc::new(GraphIndex::of(flow)));
        let open = |at| IncomingCounts { open: self.index.incoming(at).count(), ..IncomingCounts::default() };
        self.incoming = (0..flow.nodes.len()).map(open).collect();
        let given = Received { from: "input".to_owned(), artifact: Artifact::of_text("input", input) };
        for node in flow.entries() {
            match node.kind {
                NodeKind::Input => self.hand_off_to_all(&node.id, &given.artifact),
                NodeKind::Agent | NodeKind::Output => self.deliver(&node.id, given.clone()),
            }
        }
        let all = (0..flow.nodes.len()).collect();
        self.settle(all);
    }

    fn hand_off_to_all(&mut self, node: &str, artifact: &Artifact) {
        let forward = self.edges_from(node, EdgeKind::Forward);
        let to = forward.map(|(_, edge)| (edge.to.clone(), artifact.clone())).collect();
        self.apply_handoff(node, &Handed { to, ..Handed::default() });
    }

    fn deliver(&mut self, id: &str, received: Received) {
        let is_return = self.is_back_edge(&received.from, id);
        let node = self.node_mut(id);
        node.has_return |= is_return;
        node.inbox.push(received);
        self.update_queue(id);
    }

    fn enter(&mut self, id: &str, visit: u32, attempt: u32, received: &[Received]) {
        let taken: HashSet<&Received> = received.iter().collect();
        let mut inbox = std::mem::take(&mut self.node_mut(id).inbox);
        // Input that arrived while the event was being written stays in the inbox for the next visit.
        inbox.retain(|waiting| !taken.contains(waiting));
        let has_return = inbox.iter().any(|item| self.is_back_edge(&item.from, id));
        let node = self.node_mut(id);
        (node.inbox, node.has_return) = (inbox, has_return);
        (node.visits, node.attempt) = (visit, attempt);
        node.received = received.to_vec();
        (node.why, node.code) = (None, None);
        self.set_status(id, NodeStatus::Running);
    }

    /// The status of an edge.
    pub fn edge(&self, at: usize) -> EdgeStatus {
        self.edges.get(&at).copied().unwrap_or_default()
    }

    fn set_edge(&mut self, at: usize, status: EdgeStatus) {
        let before = self.edge(at);
        match status {
            EdgeStatus::Open => self.edges.remove(&at),
            EdgeStatus::Completed | EdgeStatus::Closed => self.edges.insert(at, status),
        };
        let Some(to) = self.index.end(at) else { return };
        *self.incoming[to].of(before) -= 1;
        *self.incoming[to].of(status) += 1;
        let flow = self.flow.clone();
        self.update_queue(&flow.nodes[to].id);
    }

    fn apply_handoff(&mut self, id: &str, handed: &Handed) {
        let hands_back = handed.to.iter().any(|(to, _)| self.is_back_edge(id, to));
        for (to, artifact) in &handed.to {
            if self.is_back_edge(id, to) {
                self.reopen(to, id);
            } else if let Some(at) = self.index.edge(id, to, EdgeKind::Forward) {
                self.set_edge(at, EdgeStatus::Completed);
            }
            self.deliver(to, Received { from: id.to_owned(), artifact: artifact.clone() });
        }
        let status = match (&handed.closed, &handed.waits) {
            (Some(_), _) => NodeStatus::Closed,
            (None, Some(_)) => NodeStatus::Holding,
            (None, None) if hands_back => NodeStatus::Holding,
            (None, None) => NodeStatus::Done,
        };
        let node = self.set_status(id, status);
        node.approvals.clear();
        node.said.clone_from(&handed.said);
        node.why = handed.closed.clone().or_else(|| handed.waits.clone());
        if matches!(status, NodeStatus::Done | NodeStatus::Closed) {
            self.close_open_edges(id);
        }
        let touched = handed.to.iter().filter_map(|(to, _)| self.index.node(to));
        let touched = touched.chain(self.successors_of(id)).collect();
        self.settle(touched);
    }

    /// The outgoing edges of the given kind, with their indexes.
    pub fn edges_from(&self, id: &str, kind: EdgeKind) -> impl Iterator<Item = (usize, &Edge)> {
        let node = self.index.node(id).into_iter();
        node.flat_map(move |node| self.index.outgoing(node, kind)).map(|(at, _)| (at, &self.flow.edges[at]))
    }

    fn successors_of(&self, id: &str) -> impl Iterator<Item = usize> {
        let node = self.index.node(id).into_iter();
        node.flat_map(|node| self.index.outgoing(node, EdgeKind::Forward)).map(|(_, to)| to)
    }

    fn is_back_edge(&self, from: &str, to: &str) -> bool {
        self.index.edge(from, to, EdgeKind::Backward).is_some()
    }

    /// Close the edges that a finished node did not hand off to.
    fn close_open_edges(&mut self, id: &str) {
        let edges: Vec<usize> = self.edges_from(id, EdgeKind::Forward).map(|(at, _)| at).collect();
        for at in edges {
            if self.edge(at) == EdgeStatus::Open {
                self.set_edge(at, EdgeStatus::Closed);
            }
        }
    }

    /// Reopen all edges and nodes on the paths between two nodes, because work was returned.
    fn reopen(&mut self, from: &str, to: &str) {
        for at in self.index.edges_between(from, to) {
            self.set_edge(at, EdgeStatus::Open);
            let between = self.flow.edges[at].to.clone();
            let is_over = matches!(
                self.status_of(&between),
                NodeStatus::Done | NodeStatus::Skipped | NodeStatus::Closed
            );
            if between != to && is_over {
                self.set_status(&between, NodeStatus::Idle);
            }
        }
    }

    /// Complete outputs that have all their input, and skip nodes that have become unreachable. Only touched
    /// nodes can change: nodes that received input or lost an incoming edge. Skipping a node closes its
    /// outgoing edges.
    fn settle(&mut self, mut touched: Vec<usize>) {
        let flow = self.flow.clone();
        while let Some(at) = touched.pop() {
            let node = &flow.nodes[at];
            if self.status_of(&node.id) != NodeStatus::Idle {
                continue;
            }
            let has_input = self.nodes.get(&node.id).is_some_and(|node| !node.inbox.is_empty());
            if !has_input && self.incoming[at].is_unreachable() {
                self.set_status(&node.id, NodeStatus::Skipped);
                self.close_open_edges(&node.id);
                touched.extend(self.successors_of(&node.id));
            } else if node.kind == NodeKind::Output && self.is_ready(node) {
                let state = self.set_status(&node.id, NodeStatus::Done);
                state.received = std::mem::take(&mut state.inbox);
            }
        }
    }

    /// The next node to enter, if any is ready.
    pub(super) fn next_node(&self) -> Option<usize> {
        self.queue.first().and_then(|rank| self.index.order().get(rank).copied())
    }

    /// Whether no visit is in progress in the node's session.
    pub(super) fn is_free(&self, node: &Node) -> bool {
        self.queue.is_free(&self.session_of(node))
    }

    /// The improvers that are not done or closed, in order.
    pub(super) fn pending_improvers(&self) -> impl Iterator<Item = &Node> {
        self.pending_improvers.iter().map(|at| &self.improvers[*at])
    }

    /// The nodes with a visit in progress.
    pub fn open_nodes(&self) -> impl Iterator<Item = &Node> {
        let open = self.nodes.iter().filter(|(_, node)| is_open(node.status));
        open.filter_map(|(id, _)| self.any_node(id))
    }

    /// Whether a node has the input it needs to start.
    pub fn is_ready(&self, node: &Node) -> bool {
        let Some(state) = self.nodes.get(&node.id) else { return false };
        let may_enter = !matches!(
            state.status,
            NodeStatus::Running | NodeStatus::Waiting | NodeStatus::Failed | NodeStatus::Skipped
        );
        let incoming = self.index.node(&node.id).and_then(|at| self.incoming.get(at));
        let has_all = incoming.is_none_or(|incoming| incoming.open == 0);
        // An output collects all inputs that can still arrive.
        let waits_for_all = node.join == Join::All || node.kind == NodeKind::Output;
        may_enter && !state.inbox.is_empty() && (state.has_return || !waits_for_all || has_all)
    }

    /// Find a node of the flow or of the improvement pass.
    pub fn any_node(&self, id: &str) -> Option<&Node> {
        let own = self.index.node(id).map(|at| &self.flow.nodes[at]);
        own.or_else(|| self.improver_index.get(id).map(|at| &self.improvers[*at]))
    }

    pub fn status_of(&self, id: &str) -> NodeStatus {
        self.nodes.get(id).map(|node| node.status).unwrap_or_default()
    }

    /// The session that a node works in. The feedback role gets a fresh session.
    pub fn session_of(&self, node: &Node) -> String {
        match node.id.as_str() {
            FEEDBACK => format!("{}__fresh.{}", self.run, node.who()),
            _ => node.session(&self.run),
        }
    }

    /// The folder for a role's records.
    pub fn record_folder(&self, node: &Node) -> String {
        let base = self.flow.record_folder.as_deref().unwrap_or("records");
        format!("{base}/{}/{}", self.run, node.who())
    }

    fn begin_improvement(&mut self) {
        self.improvers = self.improvement_nodes();
        self.improver_index = index_by_id(&self.improvers);
        self.pending_improvers = self.improver_index.values().copied().collect();
    }

    /// Build the improvement nodes: each participating role reviews in its own session, then the feedback role reviews
    /// their findings.
    fn improvement_nodes(&self) -> Vec<Node> {
        let pass = self.flow.improvement.clone().unwrap_or_default();
        let mut sessions: BTreeSet<String> = BTreeSet::new();
        let mut nodes: Vec<Node> = Vec::new();
        for node in self.index.order().iter().map(|at| &self.flow.nodes[*at]) {
            let took_part = self.nodes.get(&node.id).is_some_and(|state| state.visits > 0);
            let session = self.session_of(node);
            if node.kind != NodeKind::Agent || !took_part || sessions.contains(&session) {
                continue;
            }
            nodes.push(Node {
                id: format!("{IMPROVE}{}", node.who()),
                name: Some(format!("{} reviews the run", node.who())),
                prompt: Some(pass.prompt.clone().unwrap_or_else(|| REFLECT.to_owned())),
                session_id: Some(session.clone()),
                handoff: HandoffBy::Answer,
                ..node.clone()
            });
            sessions.insert(session);
        }
        nodes.extend(pass.feedback.map(|feedback| Node {
            name: Some("feedback".to_owned()),
            role: Some(feedback.role),
            agent: feedback.agent,
            prompt: Some(feedback.prompt.unwrap_or_else(|| FEEDBACK_WORK.to_owned())),
            consent: super::graph::Consent::Person,
            ..Node::new(FEEDBACK, NodeKind::Agent)
        }));
        nodes
    }

    /// Reduce the run to the data that one visit needs: the node itself and the nodes that its prompt may mention. The
    /// cost of a visit is then independent of the flow's size.
    pub fn for_visit(&self, id: &str) -> Self {
        let prompt = self.any_node(id).and_then(|node| node.prompt.as_deref()).unwrap_or_default();
        let mut named: BTreeSet<String> = template_names(prompt).into_iter().collect();
        named.insert(id.to_owned());
        named.extend(self.improvers.iter().map(|node| node.id.clone()).filter(|_| id == FEEDBACK));
        let improvers = match id {
            FEEDBACK => self.improvers.clone(),
            _ => self.any_node(id).filter(|_| is_improver(id)).cloned().into_iter().collect(),
        };
        let outgoing = self.edges_from(id, EdgeKind::Forward);
        let nodes = named.into_iter().filter_map(|id| self.nodes.get(&id).cloned().map(|node| (id, node)));
        Self {
            run: self.run.clone(),
            is_started: self.is_started,
            flow: self.flow.clone(),
            index: self.index.clone(),
            input: self.input.clone(),
            improve: self.improve,
            cwd: self.cwd.clone(),
            mirror: self.mirror.clone(),
            nodes: nodes.collect(),
            edges: outgoing.filter_map(|(at, _)| Some((at, *self.edges.get(&at)?))).collect(),
            phase: self.phase,
            improver_index: index_by_id(&improvers),
            improvers,
            is_cancel_asked: self.is_cancel_asked,
            ended: self.ended.clone(),
            ..Self::default()
        }
    }

    /// Each role's findings from the improvement pass.
    pub fn findings(&self) -> Vec<(&str, &str)> {
        let done = self.improvers.iter().filter(|node| self.status_of(&node.id) == NodeStatus::Done);
        done.map(|node| {
            (node.who(), self.nodes.get(&node.id).map(|state| state.said.as_str()).unwrap_or_default())
        })
        .collect()
    }

    /// The artifacts that the output nodes received.
    pub fn results(&self) -> Vec<&Received> {
        let outputs = self.flow.nodes.iter().filter(|node| node.kind == NodeKind::Output);
        outputs.filter_map(|node| self.nodes.get(&node.id)).flat_map(|state| &state.received).collect()
    }
}

fn is_open(status: NodeStatus) -> bool {
    matches!(status, NodeStatus::Running | NodeStatus::Waiting)
}

/// Whether the id belongs to an improvement node.
pub fn is_improver(id: &str) -> bool {
    id.starts_with(IMPROVE) || id == FEEDBACK
}

/// Map node ids to indexes. If several nodes have the same id, the first is used.
fn index_by_id(nodes: &[Node]) -> BTreeMap<String, usize> {
    nodes.iter().enumerate().rev().map(|(at, node)| (node.id.clone(), at)).collect()
}
