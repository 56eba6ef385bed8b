//! The validation of a flow before a run starts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::graph::{
    AGENT_DEFAULT, BACK_EDGES_MAX, Consent, EDGES_MAX, EdgeKind, FLOW_BYTES_MAX, Flow, HandoffBy, NODES_MAX,
    Node, NodeKind, READINGS_BYTES_MAX, Route, is_plain,
};
use super::graph_index::GraphIndex;
use super::template::{VARIABLE_PREFIX, template_names};
use crate::agent::Agent;
use crate::id::SessionId;
use crate::secret_shape::looks_like_key;
use crate::settings::variables_in;

/// A mistake in a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Where the mistake is, such as `node draft`, `edge draft → review` or `role owner`.
    pub place: String,
    /// What is wrong.
    pub why: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

#[derive(Default)]
struct MistakeList(Vec<Mistake>);

impl MistakeList {
    fn add(&mut self, place: &str, why: String) {
        self.0.push(Mistake { place: place.to_owned(), why });
    }
}

impl Flow {
    /// All mistakes. A flow that is empty or too large is not checked further, and paths are checked only if all
    /// nodes and edges are valid.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut found = MistakeList::default();
        self.check_size(&mut found);
        if !found.0.is_empty() {
            return found.0;
        }
        let index = GraphIndex::of(self);
        self.check_nodes(&index, &mut found);
        self.check_edges(&index, &mut found);
        if found.0.is_empty() {
            self.check_paths(&index, &mut found);
        }
        self.check_readings(&mut found);
        self.check_feedback(&mut found);
        self.check_variables(&mut found);
        found.0
    }

    /// The variables that an agent's prompt needs and that the flow does not set.
    pub fn unset_variables<'a>(&self, agent: &'a Agent) -> Vec<&'a str> {
        let mut names = agent.system_prompt.as_deref().map(variables_in).unwrap_or_default();
        names.retain(|name| !self.variables.contains_key(*name));
        names.sort_unstable();
        names.dedup();
        names
    }

    fn check_size(&self, found: &mut MistakeList) {
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            found.add("the flow", format!("has {} nodes; it must have 1 to {NODES_MAX}", self.nodes.len()));
        }
        if self.edges.len() > EDGES_MAX {
            found.add("the flow", format!("has {} edges; the limit is {EDGES_MAX}", self.edges.len()));
        }
        let back = self.edges.iter().filter(|edge| edge.kind == EdgeKind::Backward).count();
        if back > BACK_EDGES_MAX {
            found.add("the flow", format!("has {back} backward edges; the limit is {BACK_EDGES_MAX}"));
        }
        let bytes: usize = self.readings.values().map(String::len).sum();
        if bytes > READINGS_BYTES_MAX {
            found.add("the readings", format!("are {bytes} bytes; the limit is {READINGS_BYTES_MAX}"));
        }
        let bytes = self.written_bytes();
        if bytes > FLOW_BYTES_MAX {
            found.add("the flow", format!("takes {bytes} bytes when encoded; the limit is {FLOW_BYTES_MAX}"));
        }
    }

    /// The encoded size of the flow in a run's log.
    fn written_bytes(&self) -> usize {
        serde_json::to_string(self).expect("a flow contains only strings, numbers and lists").len()
    }

    fn check_nodes(&self, index: &GraphIndex, found: &mut MistakeList) {
        let mut seen = BTreeSet::new();
        let mut agents: BTreeMap<String, String> = BTreeMap::new();
        for node in &self.nodes {
            let place = format!("node {}", node.id);
            if !is_plain(&node.id) {
                found.add(&place, "its id must be 1 to 64 letters, digits, - and _".to_owned());
            }
            if !seen.insert(node.id.as_str()) {
                found.add(&place, "its id is not unique".to_owned());
            }
            if node.kind == NodeKind::Agent {
                self.check_agent_node(node, index, &mut agents, found);
            }
        }
    }

    fn check_agent_node(
        &self,
        node: &Node,
        index: &GraphIndex,
        agents: &mut BTreeMap<String, String>,
        found: &mut MistakeList,
    ) {
        let place = format!("node {}", node.id);
        if node.role.as_deref().is_some_and(|role| !is_plain(role)) {
            found.add(&place, "its role must be 1 to 64 letters, digits, - and _".to_owned());
        }
        if node.session_id.as_deref().is_some_and(|id| id.parse::<SessionId>().is_err()) {
            found.add(&place, "its session_id is not a valid session id".to_owned());
        }
        let agent = self.agent_of(node);
        if !self.agents.contains_key(&agent) {
            found.add(&place, format!("there is no agent {agent}"));
        }
        let before = agents.entry(node.session("run")).or_insert_with(|| agent.clone());
        if *before != agent {
            let why = format!("it shares its session with a node of agent {before}, but names agent {agent}");
            found.add(&place, why);
        }
        let by_tool = node.handoff == HandoffBy::Tool;
        let needs_tool = node.consent == Consent::Person || node.route == Route::Any;
        let leads_back = || {
            let here = index.node(&node.id);
            here.is_some_and(|here| index.outgoing(here, EdgeKind::Backward).next().is_some())
        };
        if !by_tool && (needs_tool || leads_back()) {
            let why =
                "a choice of route, a backward edge and a person's consent need `handoff: tool`".to_owned();
            found.add(&place, why);
        }
        let source = self.fork_source(node).map(|source| self.agent_of(source));
        if let Some(source) = source.filter(|source| *source != agent) {
            let why = format!("it forks a session of agent {source}, but names agent {agent}");
            found.add(&place, why);
        }
        self.check_placeholders(&place, node.prompt.as_deref(), found);
        for name in template_names(node.prompt.as_deref().unwrap_or_default()) {
            if name != "input" && !name.starts_with(VARIABLE_PREFIX) && index.node(&name).is_none() {
                found.add(&place, format!("its prompt names {{{{{name}}}}}, but there is no such node"));
            }
        }
    }

    fn check_edges(&self, index: &GraphIndex, found: &mut MistakeList) {
        let mut seen = BTreeSet::new();
        for edge in &self.edges {
            let place = format!("edge {} → {}", edge.from, edge.to);
            for end in [&edge.from, &edge.to] {
                if index.node(end).is_none() {
                    found.add(&place, format!("there is no node {end}"));
                }
            }
            if !seen.insert((&edge.from, &edge.to)) {
                found.add(&place, "it is a duplicate".to_owned());
            }
            let kind_of = |id: &str| index.node(id).map(|at| self.nodes[at].kind);
            if kind_of(&edge.from) == Some(NodeKind::Output) {
                found.add(&place, "an output has no outgoing edges".to_owned());
            }
            if kind_of(&edge.to) == Some(NodeKind::Input) {
                found.add(&place, "an input has no incoming edges".to_owned());
            }
        }
    }

    /// Check for cycles, backward edges without a forward path, and unreachable nodes. Requires valid edge ends.
    fn check_paths(&self, index: &GraphIndex, found: &mut MistakeList) {
        if let Err(cycle) = index.sorted() {
            let names: Vec<&str> = cycle.iter().map(|at| self.nodes[*at].id.as_str()).collect();
            let why = format!("{} form a cycle; mark the edge that closes it as backward", names.join(", "));
            return found.add("the flow", why);
        }
        for edge in index.invalid_back_edges().into_iter().map(|at| &self.edges[at]) {
            let place = format!("edge {} → {}", edge.from, edge.to);
            found.add(&place, format!("a backward edge needs a forward path from {} to its start", edge.to));
        }
        let reached = index.reachable_from(self.entries().iter().filter_map(|node| index.node(&node.id)));
        for (_, node) in self.nodes.iter().enumerate().filter(|(at, _)| !reached.contains(at)) {
            found.add(&format!("node {}", node.id), "it is unreachable".to_owned());
        }
    }

    fn check_readings(&self, found: &mut MistakeList) {
        let of_roles = self.roles.iter().map(|(id, role)| (format!("role {id}"), &role.readings));
        let of_nodes = self.nodes.iter().map(|node| (format!("node {}", node.id), &node.readings));
        for (place, names) in of_roles.chain(of_nodes) {
            for name in names.iter().filter(|name| !self.readings.contains_key(*name)) {
                found.add(&place, format!("the required reading {name} is missing"));
            }
        }
    }

    fn check_feedback(&self, found: &mut MistakeList) {
        let prompt = self.improvement.as_ref().and_then(|pass| pass.prompt.as_deref());
        self.check_placeholders("the improvement pass", prompt, found);
        if let Some(feedback) = self.improvement.as_ref().and_then(|pass| pass.feedback.as_ref()) {
            self.check_placeholders("the feedback", feedback.prompt.as_deref(), found);
            let agent = feedback.agent.as_deref().unwrap_or(AGENT_DEFAULT);
            if !is_plain(&feedback.role) {
                found.add("the feedback", "its role must be 1 to 64 letters, digits, - and _".to_owned());
            }
            if !self.agents.contains_key(agent) {
                found.add("the feedback", format!("there is no agent {agent}"));
            }
        }
    }

    /// Check that the flow sets every `{{ctx.NAME}}` in a prompt.
    fn check_placeholders(&self, place: &str, prompt: Option<&str>, found: &mut MistakeList) {
        let mut seen = BTreeSet::new();
        for name in template_names(prompt.unwrap_or_default()) {
            let Some(variable) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            if !self.variables.contains_key(variable) && seen.insert(name.clone()) {
                found.add(place, unset(variable));
            }
        }
    }

    /// Check the variables of the agents' prompts. An agent that is used only in named sessions is checked when the run
    /// starts: if the session exists, it has its own variables.
    fn check_variables(&self, found: &mut MistakeList) {
        let is_new = |node: &&Node| {
            let is_fork_of_other = node.fork_from.is_some() && self.fork_source(node).is_none();
            node.kind == NodeKind::Agent && node.session_id.is_none() && !is_fork_of_other
        };
        let mut used: BTreeSet<String> =
            self.nodes.iter().filter(is_new).map(|node| self.agent_of(node)).collect();
        let feedback = self.improvement.as_ref().and_then(|pass| pass.feedback.as_ref());
        used.extend(feedback.map(|feedback| feedback.agent.as_deref().unwrap_or(AGENT_DEFAULT).to_owned()));
        for (id, agent) in used.iter().filter_map(|id| self.agents.get_key_value(id)) {
            for variable in self.unset_variables(agent) {
                found.add(&format!("agent {id}"), unset(variable));
            }
        }
        for (name, _) in self.variables.iter().filter(|(_, value)| looks_like_key(value).is_some()) {
            let why = "its value looks like a key or a password; variables are stored as plain text, so store it as a \
                secret and refer to it as secret:NAME";
            found.add(&format!("variable {name}"), why.to_owned());
        }
    }
}

fn unset(variable: &str) -> String {
    format!(
        "its prompt needs {{{{ctx.{variable}}}}}, which is not set; set it with --var {variable}=VALUE, or under \
         `variables` in the flow"
    )
}
