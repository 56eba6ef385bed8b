//! Views of a run: its graph with the state of each node and edge, the sessions of its roles, its pending
//! approvals and its results.

use sapwood_core::flow::{EdgeKind, EdgeStatus, NodeKind, NodeStatus, Phase, RunOutcome, RunState};
use sapwood_core::port::store::ListFilter;
use sapwood_core::{Scope, SessionId, TimestampMs};
use serde::Serialize;

use super::{Flows, ROLE_SEPARATOR, RUN_PREFIX, run_blocking};
use crate::turn::PendingApproval;
use crate::{EngineError, Result};

/// Maximum number of sessions checked to fill one page of runs.
const SESSIONS_CHECKED_MAX: usize = 5_000;
/// Sessions per page.
const PAGE_ROWS: usize = 200;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// The run has not ended. If no process is running it, it can be resumed.
    Open,
    /// The run can only continue after an answer.
    Waiting,
    /// The run ended, and no node failed.
    Completed,
    /// A node failed, or waits for input that no node will send.
    Failed,
    /// A caller cancelled the run.
    Cancelled,
}

impl RunStatus {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RunStatus::Open => "open",
            RunStatus::Waiting => "waiting",
            RunStatus::Completed => "completed",
            RunStatus::Failed => "failed",
            RunStatus::Cancelled => "cancelled",
        }
    }

    fn of(state: &RunState) -> Self {
        let has = |wanted| state.nodes.values().any(|node| node.status == wanted);
        match &state.ended {
            Some(ended) => match ended.outcome {
                RunOutcome::Completed => RunStatus::Completed,
                RunOutcome::Failed => RunStatus::Failed,
                RunOutcome::Cancelled => RunStatus::Cancelled,
            },
            None if has(NodeStatus::Waiting) && !has(NodeStatus::Running) => RunStatus::Waiting,
            None => RunStatus::Open,
        }
    }
}

/// A run with its graph.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunView {
    /// The run, which is a session.
    pub run: SessionId,
    /// The flow's id.
    pub flow: String,
    /// The flow's name.
    pub name: String,
    /// The state.
    pub status: RunStatus,
    /// Whether the run is in the forward pass or the improvement pass.
    pub phase: Phase,
    /// The run's input.
    pub input: String,
    /// The error code of a failed run.
    pub code: Option<String>,
    /// Why the run failed, for people.
    pub message: Option<String>,
    /// When the run started.
    pub created_at: TimestampMs,
    /// When the run last changed.
    pub updated_at: TimestampMs,
    /// The nodes with their state.
    pub nodes: Vec<NodeView>,
    /// The edges with their state.
    pub edges: Vec<EdgeView>,
    /// The pending approvals.
    pub approvals: Vec<PendingApproval>,
    /// The results of the run.
    pub results: Vec<ResultView>,
    /// Where role files are written, if enabled.
    pub mirror: Option<String>,
}

/// A node with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// The node's id.
    pub id: String,
    /// What the node does.
    #[serde(rename = "type")]
    pub kind: NodeKind,
    /// A name for display.
    pub name: Option<String>,
    /// The role of an agent node.
    pub role: Option<String>,
    /// The id of an agent node's agent.
    pub agent: Option<String>,
    /// The state.
    pub status: NodeStatus,
    /// Number of visits.
    pub visits: u32,
    /// Number of attempts of the latest visit.
    pub attempt: u32,
    /// The role's session. If it does not exist, it is created when the node is first entered.
    pub session: Option<String>,
    /// The role's latest text.
    pub said: Option<String>,
    /// Why the node failed, was closed, or waits.
    pub why: Option<String>,
    /// The error code of a failed node.
    pub code: Option<String>,
}

/// An edge with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EdgeView {
    /// The id of the node where the edge starts.
    pub from: String,
    /// The id of the node where the edge ends.
    pub to: String,
    /// Whether the edge hands work over or returns it.
    #[serde(rename = "type")]
    pub kind: EdgeKind,
    /// The state.
    pub status: EdgeStatus,
}

/// A result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResultView {
    /// The node that produced it.
    pub from: String,
    /// The name.
    pub name: String,
    /// The beginning of the text, or all of it if it is short.
    pub text: String,
    /// The size of the whole text in bytes.
    pub bytes: u64,
}

/// One run in a list of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunRow {
    /// The run, which is a session.
    pub run: SessionId,
    /// The flow's id.
    pub flow: String,
    /// The flow's name.
    pub name: String,
    /// The state.
    pub status: RunStatus,
    /// Number of agent nodes.
    pub nodes: usize,
    /// Number of agent nodes that are done, closed or skipped.
    pub done: usize,
    /// When the run started.
    pub created_at: TimestampMs,
    /// When the run last changed.
    pub updated_at: TimestampMs,
}

/// One page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunList {
    /// The runs, newest first.
    pub items: Vec<RunRow>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl Flows<'_> {
    /// A run with its graph and the state of each node.
    pub async fn show(self, scope: &Scope, run: &SessionId) -> Result<RunView> {
        let summary = self.engine.directory().summary(scope, run).await?;
        let state = self.run_state(scope, run).await?;
        let approvals = self.run_approvals(scope, &state).await?;
        let status = RunStatus::of(&state);
        let ended = state.ended.clone();
        let results = state.results().into_iter().map(|received| ResultView {
            from: received.from.clone(),
            name: received.artifact.name.clone(),
            text: received.artifact.text.clone(),
            bytes: received.artifact.bytes,
        });
        Ok(RunView {
            run: run.clone(),
            flow: state.flow.id.clone(),
            name: state.flow.title().to_owned(),
            status,
            phase: state.phase,
            input: state.input.clone(),
            code: ended.as_ref().and_then(|ended| ended.code.clone()),
            message: ended.and_then(|ended| ended.message),
            created_at: summary.created_at,
            updated_at: summary.updated_at,
            nodes: run_blocking(|| nodes_of(&state)),
            edges: run_blocking(|| edges_of(&state)),
            approvals,
            results: results.collect(),
            mirror: state.mirror.clone(),
        })
    }

    pub(crate) async fn run_status(self, scope: &Scope, run: &SessionId) -> Result<RunStatus> {
        Ok(RunStatus::of(&self.run_state(scope, run).await?))
    }

    /// The runs that the caller can see, newest first.
    pub async fn list(self, scope: &Scope, limit: usize, cursor: Option<String>) -> Result<RunList> {
        let mut items = Vec::new();
        let mut filter = ListFilter {
            id_prefix: Some(RUN_PREFIX.to_owned()),
            limit: PAGE_ROWS.min(limit.max(1)),
            cursor,
            ..ListFilter::default()
        };
        let mut checked = 0;
        loop {
            let page = self.engine.store.list(scope, &filter).await?;
            checked += page.items.len();
            for summary in page.items.iter().filter(|summary| !summary.id.as_str().contains(ROLE_SEPARATOR)) {
                items.extend(self.run_row(scope, &summary.id).await?);
            }
            filter.cursor = page.next;
            if filter.cursor.is_none() || items.len() >= limit || checked >= SESSIONS_CHECKED_MAX {
                return Ok(RunList { items, next: filter.cursor });
            }
        }
    }

    /// Resolve a run by its id, with or without the common prefix, by a unique id prefix, or by `@last`.
    pub async fn find(self, scope: &Scope, given: &str) -> Result<SessionId> {
        if given == "@last" {
            let newest = self.list(scope, 1, None).await?.items.into_iter().next();
            return newest.map(|row| row.run).ok_or(EngineError::NoSessions);
        }
        let full_id =
            if given.starts_with(RUN_PREFIX) { given.to_owned() } else { format!("{RUN_PREFIX}{given}") };
        let id: SessionId = full_id.parse()?;
        if self.engine.directory().exists(scope, &id).await? {
            return Ok(id);
        }
        let filter = ListFilter { id_prefix: Some(full_id), limit: PAGE_ROWS, ..ListFilter::default() };
        let listed = self.engine.directory().first_listed(scope, filter).await?;
        let mut found =
            listed.into_iter().map(|row| row.id).filter(|id| !id.as_str().contains(ROLE_SEPARATOR));
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            (Some(first), Some(second)) => Err(EngineError::Ambiguous {
                what: "run",
                given: given.to_owned(),
                first: first.to_string(),
                second: second.to_string(),
            }),
            (None, _) => Err(EngineError::NoFlow { session: given.parse()? }),
        }
    }

    async fn run_row(self, scope: &Scope, run: &SessionId) -> Result<Option<RunRow>> {
        let state = match self.run_state(scope, run).await {
            Err(EngineError::NoFlow { .. }) => return Ok(None),
            state => state?,
        };
        let summary = self.engine.directory().summary(scope, run).await?;
        let work = state.flow.nodes.iter().filter(|node| node.kind == NodeKind::Agent);
        let is_done = |status| matches!(status, NodeStatus::Done | NodeStatus::Closed | NodeStatus::Skipped);
        Ok(Some(RunRow {
            run: run.clone(),
            flow: state.flow.id.clone(),
            name: state.flow.title().to_owned(),
            status: RunStatus::of(&state),
            nodes: work.clone().count(),
            done: work.filter(|node| is_done(state.status_of(&node.id))).count(),
            created_at: summary.created_at,
            updated_at: summary.updated_at,
        }))
    }

    /// The pending approvals of a run's roles.
    pub(crate) async fn run_approvals(self, scope: &Scope, state: &RunState) -> Result<Vec<PendingApproval>> {
        let mut waiting = Vec::new();
        for node in state.open_nodes() {
            let session: SessionId = state.session_of(node).parse()?;
            if self.engine.directory().exists(scope, &session).await? {
                waiting.extend(self.engine.turn_control().approvals(scope, &session).await?);
            }
        }
        Ok(waiting)
    }
}

fn nodes_of(state: &RunState) -> Vec<NodeView> {
    let nodes = state.flow.nodes.iter().chain(&state.improvers);
    nodes
        .map(|node| {
            let now = state.nodes.get(&node.id).cloned().unwrap_or_default();
            let is_work = node.kind == NodeKind::Agent;
            NodeView {
                id: node.id.clone(),
                kind: node.kind,
                name: node.name.clone(),
                role: node.role.clone().filter(|_| is_work),
                agent: is_work.then(|| state.flow.agent_of(node)),
                status: now.status,
                visits: now.visits,
                attempt: now.attempt,
                session: is_work.then(|| state.session_of(node)),
                said: Some(now.said).filter(|said| !said.is_empty()),
                why: now.why,
                code: now.code,
            }
        })
        .collect()
}

fn edges_of(state: &RunState) -> Vec<EdgeView> {
    let edges = state.flow.edges.iter().enumerate();
    edges
        .map(|(at, edge)| EdgeView {
            from: edge.from.clone(),
            to: edge.to.clone(),
            kind: edge.kind,
            status: state.edge(at),
        })
        .collect()
}
