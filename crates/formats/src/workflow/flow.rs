//! Conversion of a document to a runnable flow. Agents are defined by the document, or else by the caller. The caller
//! passes the texts of the readings. This module does not validate the flow: [`Flow::mistakes`] does.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_core::Agent;
use sapwood_core::flow::graph::{self, Consent, Flow, FlowRole, HandoffBy, Join, base_role, is_plain};

use super::readings::Readings;
use super::session::EXPORT_KEY;
use super::{Document, EdgeKind, NodeKind, Route, WorkflowError, WorkflowNode, WorkflowRole};

/// The agent name that an export uses for a session without an agent.
const NAMELESS: &str = "assistant";

/// Whether a flow may use the agents defined in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnAgents {
    /// Use them: the caller has the file and chose to run it.
    Use,
    /// Ignore them: another party wrote the document and must not choose the programs that run on this machine.
    Ignore,
}

/// Build the flow of a document. `find_agent` returns agents that the document does not define.
pub fn flow_of(
    document: &Document,
    readings: &Readings,
    own_agents: OwnAgents,
    find_agent: impl Fn(&str) -> Option<Agent>,
) -> Result<Flow, WorkflowError> {
    let workflow = &document.workflow;
    // The turns of an exported session form one conversation.
    let is_export = workflow.metadata.contains_key(EXPORT_KEY);
    let backward_edges = workflow.edges.iter().filter(|edge| edge.kind == EdgeKind::Backward);
    let backward_senders: BTreeSet<&str> = backward_edges.map(|edge| edge.from.as_str()).collect();
    let has_backward_edge = |node: &WorkflowNode| backward_senders.contains(node.id.as_str());
    let mut nodes: Vec<graph::Node> =
        workflow.nodes.iter().map(|node| node_of(node, has_backward_edge(node))).collect();
    for node in nodes.iter_mut().filter(|node| is_export && node.kind == graph::NodeKind::Agent) {
        let agent = node.agent.clone().filter(|agent| is_plain(agent));
        node.role = node.role.clone().or(agent).or_else(|| Some(NAMELESS.to_owned()));
    }
    let mut flow = Flow {
        id: workflow.id.clone(),
        name: workflow.name.clone(),
        record_folder: workflow.record_folder.clone(),
        roles: workflow.roles.iter().map(|role| (role.id.clone(), role_of(role))).collect(),
        agents: BTreeMap::new(),
        nodes,
        edges: workflow.edges.iter().map(edge_of).collect(),
        readings: readings.texts.clone(),
        improvement: workflow.improvement.clone(),
    };
    add_required_readings(&mut flow, readings);
    // The agent of an exported session may be unknown to the caller. Use the default agent instead.
    let find_agent = |name: &str| find_agent(name).or_else(|| is_export.then(Agent::default));
    let own = match own_agents {
        OwnAgents::Use => own_agents_of(document)?,
        OwnAgents::Ignore => BTreeMap::new(),
    };
    flow.agents = agents_of(&own, &flow, find_agent);
    Ok(flow)
}

/// Return why an export cannot be run, if it exceeds the size limit of a document or of a flow. Missing
/// agents and readings are not checked.
pub fn obstacle(text: &str) -> Option<String> {
    if text.len() <= graph::FLOW_BYTES_MAX {
        // A flow is never larger than its document, which also includes the conversation.
        return None;
    }
    let flow = super::parse(text).and_then(|document| {
        flow_of(&document, &Readings::default(), OwnAgents::Use, |_| Some(Agent::default()))
    });
    match flow {
        Ok(flow) => flow.mistakes().first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    }
}

fn node_of(node: &WorkflowNode, has_backward_edge: bool) -> graph::Node {
    let chooses = node.route == Some(Route::Any);
    // A node with a role, a person's approval, a backward edge or a choice of route uses the handoff tool.
    let by_tool = node.role.is_some() || node.human_colab || has_backward_edge || chooses;
    let handoff = if by_tool { HandoffBy::Tool } else { HandoffBy::Answer };
    graph::Node {
        name: node.name.clone(),
        role: node.role.clone(),
        agent: node.agent_ref.clone(),
        prompt: node.prompt_template.clone(),
        tools: node.tools.clone(),
        session_id: node.session_id.clone(),
        fork_from: node.fork_from.clone(),
        join: if node.await_all_inputs { Join::All } else { Join::Any },
        route: node.route.unwrap_or_default(),
        handoff: node.handoff.unwrap_or(handoff),
        consent: if node.human_colab { Consent::Person } else { Consent::None },
        readings: node.required_readings.clone(),
        ..graph::Node::new(node.id.clone(), kind_of(node.kind))
    }
}

fn kind_of(kind: NodeKind) -> graph::NodeKind {
    match kind {
        NodeKind::Input => graph::NodeKind::Input,
        NodeKind::Agent => graph::NodeKind::Agent,
        NodeKind::Output => graph::NodeKind::Output,
    }
}

fn edge_of(edge: &super::WorkflowEdge) -> graph::Edge {
    let super::WorkflowEdge { from, to, kind, artifact } = edge.clone();
    graph::Edge { from, to, kind, artifact }
}

fn role_of(role: &WorkflowRole) -> FlowRole {
    FlowRole {
        description: role.description.clone(),
        agent: role.agent_ref.clone(),
        readings: role.required_readings.clone(),
    }
}

/// Add the required readings to the flow's roles and nodes.
fn add_required_readings(flow: &mut Flow, readings: &Readings) {
    let required = &readings.required;
    let mut seen = BTreeSet::new();
    let named = flow.nodes.iter().filter_map(|node| node.role.as_ref()).filter(|role| seen.insert(*role));
    let instances: Vec<String> = named.cloned().collect();
    for instance in instances {
        let base = base_role(&instance).to_owned();
        let own = [&instance, &base].into_iter().find_map(|name| required.roles.get(name));
        let described = if flow.roles.contains_key(&instance) { instance.clone() } else { base };
        let role = flow.roles.entry(described).or_default();
        add_all(&mut role.readings, required.all.iter().chain(own.into_iter().flatten()));
    }
    for node in flow.nodes.iter_mut().filter(|node| node.kind == graph::NodeKind::Agent) {
        // A node without a role cannot inherit the common readings from a role.
        let common = required.all.iter().filter(|_| node.role.is_none());
        let own = required.nodes.get(&node.id).into_iter().flatten();
        add_all(&mut node.readings, common.chain(own));
    }
}

fn add_all<'a>(list: &mut Vec<String>, names: impl Iterator<Item = &'a String>) {
    for name in names {
        if !list.contains(name) {
            list.push(name.clone());
        }
    }
}

fn own_agents_of(document: &Document) -> Result<BTreeMap<String, Agent>, WorkflowError> {
    let mut own = BTreeMap::new();
    for value in &document.workflow.agents {
        let read: Result<Agent, _> = serde_json::from_value(value.clone());
        let invalid = |error: serde_json::Error| WorkflowError::Invalid { why: format!("an agent: {error}") };
        let agent = read.map_err(invalid)?;
        if let Some(mistake) = agent.mistakes().into_iter().next() {
            return Err(WorkflowError::Invalid { why: mistake.to_string() });
        }
        own.insert(agent.id.clone(), agent);
    }
    Ok(own)
}

/// Collect the agents that the flow names. Agents that cannot be found are omitted.
fn agents_of(
    own: &BTreeMap<String, Agent>,
    flow: &Flow,
    find_agent: impl Fn(&str) -> Option<Agent>,
) -> BTreeMap<String, Agent> {
    let work = flow.nodes.iter().filter(|node| node.kind == graph::NodeKind::Agent);
    let mut named: BTreeSet<String> = work.map(|node| flow.agent_of(node)).collect();
    let feedback = flow.improvement.as_ref().and_then(|pass| pass.feedback.as_ref());
    named.extend(
        feedback.map(|feedback| feedback.agent.clone().unwrap_or_else(|| graph::AGENT_DEFAULT.to_owned())),
    );
    let find = |name: &String| {
        let agent = own.get(name).cloned().or_else(|| find_agent(name));
        let fallback = || (name == NAMELESS || name == graph::AGENT_DEFAULT).then(Agent::default);
        agent.or_else(fallback).map(|agent| (name.clone(), agent))
    };
    named.iter().filter_map(find).collect()
}
