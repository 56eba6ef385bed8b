//! Where a run stands: the fold of its events, in the order of its log.

use std::collections::BTreeMap;

use serde::Serialize;

use super::event::{Artifact, Handed, Received, RunEvent, RunOutcome};
use super::graph::{EdgeKind, Flow, HandoffBy, Join, Node, NodeKind};
use super::words;

/// What nodes of the improvement pass are called: no node of a flow's own begins so.
pub const IMPROVE: &str = "@improve.";
pub const FEEDBACK: &str = "@feedback";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Its turn has not come.
    #[default]
    Idle,
    Running,
    /// A person is asked.
    Waiting,
    /// It handed something back, or said that it waits: it goes on when something comes.
    Holding,
    Done,
    /// The role ended it without handing on.
    Closed,
    /// Whatever could have led here was closed.
    Skipped,
    Failed,
}

impl NodeStatus {
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
    /// How often it was entered, and how often the latest visit was tried.
    pub visits: u32,
    pub attempt: u32,
    /// What has arrived for the next visit, and what the latest one was given.
    pub inbox: Vec<Received>,
    pub received: Vec<Received>,
    pub approvals: Vec<String>,
    pub said: String,
    /// Why it failed, was closed, or waits.
    pub why: Option<String>,
    pub code: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeStatus {
    #[default]
    Open,
    Completed,
    /// Nothing will come over it.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    #[default]
    Forward,
    Improvement,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub outcome: RunOutcome,
    pub code: Option<String>,
    pub message: Option<String>,
}

/// The fold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunState {
    /// The run's session.
    pub run: String,
    pub is_started: bool,
    pub flow: Flow,
    pub input: String,
    pub improve: bool,
    pub cwd: Option<String>,
    pub mirror: Option<String>,
    pub nodes: BTreeMap<String, NodeState>,
    /// Beside [`Flow::edges`].
    pub edges: Vec<EdgeStatus>,
    pub phase: Phase,
    /// The nodes of the improvement pass, once it has begun.
    pub improvers: Vec<Node>,
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
                let node = self.at(node);
                node.status = NodeStatus::Waiting;
                node.approvals.clone_from(approvals);
            }
            RunEvent::Handed { node, handed, .. } => self.hand(node, handed),
            RunEvent::Failed { node, code, message, .. } => {
                let node = self.at(node);
                node.status = NodeStatus::Failed;
                node.approvals.clear();
                node.why = Some(message.clone());
                node.code = Some(code.clone());
            }
            RunEvent::Retried { node, attempt, .. } => {
                self.ended = None;
                let node = self.at(node);
                (node.status, node.attempt) = (NodeStatus::Running, *attempt);
                (node.why, node.code) = (None, None);
            }
            RunEvent::Improving => {
                self.improvers = self.improvement_nodes();
                self.phase = Phase::Improvement;
            }
            RunEvent::CancelAsked => self.is_cancel_asked = true,
            RunEvent::Ended { outcome, code, message } => {
                self.ended = Some(Ended { outcome: *outcome, code: code.clone(), message: message.clone() });
            }
        }
    }

    fn at(&mut self, node: &str) -> &mut NodeState {
        self.nodes.entry(node.to_owned()).or_default()
    }

    fn begin(&mut self, flow: &Flow, input: &str) {
        self.is_started = true;
        self.input = input.to_owned();
        self.edges = vec![EdgeStatus::Open; flow.edges.len()];
        self.nodes = flow.nodes.iter().map(|node| (node.id.clone(), NodeState::default())).collect();
        self.flow = flow.clone();
        let given = Received { from: "input".to_owned(), artifact: Artifact::of_text("input", input) };
        let entries: Vec<(String, NodeKind)> =
            flow.entries().iter().map(|node| (node.id.clone(), node.kind)).collect();
        for (id, kind) in entries {
            match kind {
                NodeKind::Input => self.hand_to_all(&id, &given.artifact),
                NodeKind::Agent | NodeKind::Output => self.at(&id).inbox.push(given.clone()),
            }
        }
        self.settle();
    }

    fn hand_to_all(&mut self, node: &str, artifact: &Artifact) {
        let targets: Vec<String> =
            self.flow.edges_from(node, EdgeKind::Forward).map(|edge| edge.to.clone()).collect();
        let to = targets.into_iter().map(|to| (to, artifact.clone())).collect();
        self.hand(node, &Handed { to, ..Handed::default() });
    }

    fn enter(&mut self, id: &str, visit: u32, attempt: u32, received: &[Received]) {
        let node = self.at(id);
        node.status = NodeStatus::Running;
        (node.visits, node.attempt) = (visit, attempt);
        node.received = received.to_vec();
        // What came while the event was written stays for the next visit.
        node.inbox.retain(|waiting| !received.contains(waiting));
        (node.why, node.code) = (None, None);
    }

    fn hand(&mut self, id: &str, handed: &Handed) {
        let is_back = |to: &str| self.flow.edges_from(id, EdgeKind::Backward).any(|edge| edge.to == to);
        let hands_back = handed.to.iter().any(|(to, _)| is_back(to));
        for (to, artifact) in &handed.to {
            if is_back_edge(&self.flow, id, to) {
                self.reopen(to, id);
            } else if let Some(at) = edge_at(&self.flow, id, to) {
                self.edges[at] = EdgeStatus::Completed;
            }
            let arrived = Received { from: id.to_owned(), artifact: artifact.clone() };
            self.at(to).inbox.push(arrived);
        }
        let status = match (&handed.closed, &handed.waits) {
            (Some(_), _) => NodeStatus::Closed,
            (None, Some(_)) => NodeStatus::Holding,
            (None, None) if hands_back => NodeStatus::Holding,
            (None, None) => NodeStatus::Done,
        };
        let node = self.at(id);
        node.status = status;
        node.approvals.clear();
        node.said.clone_from(&handed.said);
        node.why = handed.closed.clone().or_else(|| handed.waits.clone());
        if matches!(status, NodeStatus::Done | NodeStatus::Closed) {
            self.close_open_edges(id);
        }
        self.settle();
    }

    /// What a node that is done has not handed on will not come.
    fn close_open_edges(&mut self, id: &str) {
        for (at, edge) in self.flow.edges.iter().enumerate() {
            let is_left = edge.from == id && edge.kind == EdgeKind::Forward;
            if is_left && self.edges[at] == EdgeStatus::Open {
                self.edges[at] = EdgeStatus::Closed;
            }
        }
    }

    /// Work goes back: everything between the two has to be done again.
    fn reopen(&mut self, from: &str, to: &str) {
        for at in self.flow.edges_between(from, to) {
            self.edges[at] = EdgeStatus::Open;
            let between = self.flow.edges[at].to.clone();
            if between != to {
                let node = self.at(&between);
                if matches!(node.status, NodeStatus::Done | NodeStatus::Skipped | NodeStatus::Closed) {
                    node.status = NodeStatus::Idle;
                }
            }
        }
    }

    /// Outputs that have something are done; what nothing can reach any more is skipped.
    fn settle(&mut self) {
        for id in self.flow.in_order().iter().map(|node| node.id.clone()).collect::<Vec<_>>() {
            let Some(node) = self.flow.node(&id).cloned() else { continue };
            let status = self.nodes.get(&id).map(|node| node.status).unwrap_or_default();
            if status != NodeStatus::Idle {
                continue;
            }
            let ways: Vec<EdgeStatus> = self.ways_to(&id).collect();
            let is_cut_off = !ways.is_empty() && ways.iter().all(|way| *way == EdgeStatus::Closed);
            let has_input = self.nodes.get(&id).is_some_and(|node| !node.inbox.is_empty());
            if is_cut_off && !has_input {
                self.at(&id).status = NodeStatus::Skipped;
                self.close_open_edges(&id);
            } else if node.kind == NodeKind::Output && self.is_ready(&node) {
                let state = self.at(&id);
                state.received = std::mem::take(&mut state.inbox);
                state.status = NodeStatus::Done;
            }
        }
    }

    fn ways_to<'a>(&'a self, id: &'a str) -> impl Iterator<Item = EdgeStatus> + 'a {
        let leads_here = move |edge: &super::Edge| edge.to == id && edge.kind == EdgeKind::Forward;
        let ways = self.flow.edges.iter().zip(&self.edges).filter(move |(edge, _)| leads_here(edge));
        ways.map(|(_, status)| *status)
    }

    /// Whether a node has what it needs to be entered.
    pub fn is_ready(&self, node: &Node) -> bool {
        let Some(state) = self.nodes.get(&node.id) else { return false };
        let may_enter = !matches!(
            state.status,
            NodeStatus::Running | NodeStatus::Waiting | NodeStatus::Failed | NodeStatus::Skipped
        );
        let has_return = state.inbox.iter().any(|item| is_back_edge(&self.flow, &item.from, &node.id));
        let has_all = self.ways_to(&node.id).all(|way| way != EdgeStatus::Open);
        // An output gathers: it waits for all that can still come.
        let waits_for_all = node.join == Join::All || node.kind == NodeKind::Output;
        may_enter && !state.inbox.is_empty() && (has_return || !waits_for_all || has_all)
    }

    /// A node of the flow, or of the improvement pass.
    pub fn any_node(&self, id: &str) -> Option<&Node> {
        self.flow.node(id).or_else(|| self.improvers.iter().find(|node| node.id == id))
    }

    pub fn status_of(&self, id: &str) -> NodeStatus {
        self.nodes.get(id).map(|node| node.status).unwrap_or_default()
    }

    /// The session a node works in. Fresh eyes have a fresh one.
    pub fn session_of(&self, node: &Node) -> String {
        match node.id.as_str() {
            FEEDBACK => format!("{}__fresh.{}", self.run, node.who()),
            _ => node.session(&self.run),
        }
    }

    /// Where a role keeps its records.
    pub fn record_folder(&self, node: &Node) -> String {
        let base = self.flow.record_folder.as_deref().unwrap_or("records");
        format!("{base}/{}/{}", self.run, node.who())
    }

    /// Each role that took part looks back in its own session, then fresh eyes look at what they found.
    fn improvement_nodes(&self) -> Vec<Node> {
        let pass = self.flow.improvement.clone().unwrap_or_default();
        let mut sessions: Vec<String> = Vec::new();
        let mut nodes: Vec<Node> = Vec::new();
        for node in self.flow.in_order() {
            let took_part = self.nodes.get(&node.id).is_some_and(|state| state.visits > 0);
            let session = self.session_of(node);
            if node.kind != NodeKind::Agent || !took_part || sessions.contains(&session) {
                continue;
            }
            nodes.push(Node {
                id: format!("{IMPROVE}{}", node.who()),
                name: Some(format!("{} looks back", node.who())),
                prompt: Some(pass.prompt.clone().unwrap_or_else(|| words::REFLECT.to_owned())),
                session_id: Some(session.clone()),
                handoff: HandoffBy::Answer,
                ..node.clone()
            });
            sessions.push(session);
        }
        nodes.extend(pass.feedback.map(|feedback| Node {
            name: Some("feedback".to_owned()),
            role: Some(feedback.role),
            agent: feedback.agent,
            prompt: Some(feedback.prompt.unwrap_or_else(|| words::FEEDBACK_WORK.to_owned())),
            consent: super::graph::Consent::Person,
            ..Node::new(FEEDBACK, NodeKind::Agent)
        }));
        nodes
    }

    /// What each role found when it looked back.
    pub fn findings(&self) -> Vec<(&str, &str)> {
        let done = self.improvers.iter().filter(|node| self.status_of(&node.id) == NodeStatus::Done);
        done.map(|node| {
            (node.who(), self.nodes.get(&node.id).map(|state| state.said.as_str()).unwrap_or_default())
        })
        .collect()
    }

    /// What reached the outputs; of a flow without, what its last nodes said.
    pub fn results(&self) -> Vec<&Received> {
        let outputs = self.flow.nodes.iter().filter(|node| node.kind == NodeKind::Output);
        outputs.filter_map(|node| self.nodes.get(&node.id)).flat_map(|state| &state.received).collect()
    }
}

pub(super) fn edge_at(flow: &Flow, from: &str, to: &str) -> Option<usize> {
    let is_it = |edge: &super::Edge| edge.from == from && edge.to == to && edge.kind == EdgeKind::Forward;
    flow.edges.iter().position(is_it)
}

pub(super) fn is_back_edge(flow: &Flow, from: &str, to: &str) -> bool {
    flow.edges_from(from, EdgeKind::Backward).any(|edge| edge.to == to)
}
