//! What a flow is: nodes, edges, roles, agents and readings, all of it frozen into the run that it begins. [`Flow::mistakes`]
//! says everything that is wrong with one before anything runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::graph_index::GraphIndex;
use super::prompts::template_names;
use crate::agent::Agent;

/// Most nodes of a flow: the export of a long session has one for each of its turns.
pub const NODES_MAX: usize = 100_000;
/// Most edges of a flow, and most of them that lead back.
pub const EDGES_MAX: usize = 200_000;
pub const BACK_EDGES_MAX: usize = 10_000;
/// Largest flow, in bytes of what a run writes down of it: one entry holds all of it, with room for the run's input.
pub const FLOW_BYTES_MAX: usize = 15 << 20;
/// Longest id of a flow, a node or a role, in bytes: a session's id is made of it.
pub const ID_BYTES_MAX: usize = 64;
/// All required readings together, in bytes.
pub const READINGS_BYTES_MAX: usize = 1 << 20;
/// The agent that plays where none is named.
pub const AGENT_DEFAULT: &str = "default";

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Flow {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where roles keep their records, below the working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_folder: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, FlowRole>,
    pub agents: BTreeMap<String, Agent>,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
    /// The text of each reading, by its name in the index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub readings: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub improvement: Option<Improvement>,
}

/// Who a role is. `curator_2` is another instance of `curator`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowRole {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: String,
    pub kind: NodeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role instance whose session the node works in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// A session by its own id, whichever run it is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// A role, a node or a session: the node works on a fork of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_from: Option<String>,
    #[serde(default)]
    pub join: Join,
    #[serde(default)]
    pub route: Route,
    #[serde(default)]
    pub handoff: HandoffBy,
    #[serde(default)]
    pub consent: Consent,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
}

impl Node {
    pub fn new(id: impl Into<String>, kind: NodeKind) -> Self {
        Self {
            id: id.into(),
            kind,
            name: None,
            role: None,
            agent: None,
            prompt: None,
            tools: Vec::new(),
            session_id: None,
            fork_from: None,
            join: Join::default(),
            route: Route::default(),
            handoff: HandoffBy::default(),
            consent: Consent::default(),
            readings: Vec::new(),
        }
    }

    /// Who works here, for people: the role, else the node itself.
    pub fn who(&self) -> &str {
        self.role.as_deref().unwrap_or(&self.id)
    }

    /// The session a run gives to this node: named, of its role, or its own.
    pub fn session(&self, run: &str) -> String {
        match (&self.session_id, &self.role, &self.fork_from) {
            (Some(named), ..) => named.clone(),
            (None, Some(role), None) => format!("{run}__{role}"),
            // A branch is the node's own, also if a role works on it.
            (None, ..) => format!("{run}__at.{}", self.id),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    Input,
    #[default]
    Agent,
    Output,
}

/// When a node with several inputs begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// With the first; each later one is another visit.
    #[default]
    Any,
    /// Once none is missing.
    All,
}

/// Which of its forward edges a node owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    #[default]
    All,
    /// One or more of its choice.
    Any,
}

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffBy {
    /// The role calls the handoff tool.
    Tool,
    /// What it answers goes to every forward edge.
    #[default]
    Answer,
}

/// Whether a person has to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    #[default]
    None,
    Person,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub kind: EdgeKind,
    /// What the artifact that goes over it has to be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    #[default]
    Forward,
    /// Work goes back to a node before this one: what lies between opens again, and the sender waits.
    Backward,
}

/// What happens after the forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Improvement {
    #[serde(default)]
    pub order: Order,
    /// What each role is asked; a question of our own if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<Feedback>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One role after the other, as the graph has them.
    #[default]
    Graph,
    SideBySide,
}

/// A role that looks at all findings with fresh eyes: its session has nothing of the run, and a person agrees first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    pub role: String,
    #[serde(default, rename = "agent_ref", skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// One thing that is wrong with a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// `node draft`, `edge draft → review`, `role owner`.
    pub place: String,
    pub why: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

impl Flow {
    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// The role's own description, or that of the role it is another instance of.
    pub fn role(&self, instance: &str) -> Option<&FlowRole> {
        self.roles.get(instance).or_else(|| self.roles.get(base_role(instance)))
    }

    /// The id of the agent that plays at a node.
    pub fn agent_of(&self, node: &Node) -> String {
        let role = node.role.as_deref().and_then(|role| self.role(role));
        let named = node.agent.clone().or_else(|| role.and_then(|role| role.agent.clone()));
        named.unwrap_or_else(|| AGENT_DEFAULT.to_owned())
    }

    /// The names of what has to be read at a node, the role's first.
    pub fn readings_of(&self, node: &Node) -> Vec<String> {
        let role = node.role.as_deref().and_then(|role| self.role(role));
        let of_role = role.map(|role| role.readings.clone()).unwrap_or_default();
        let own = node.readings.iter().filter(|name| !of_role.contains(name)).cloned();
        of_role.iter().cloned().chain(own).collect()
    }

    /// Where a run begins: the input nodes, or else every node that nothing leads to.
    pub fn entries(&self) -> Vec<&Node> {
        let inputs: Vec<&Node> = self.nodes.iter().filter(|node| node.kind == NodeKind::Input).collect();
        if !inputs.is_empty() {
            return inputs;
        }
        let forward = self.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward);
        let led_to: BTreeSet<&str> = forward.map(|edge| edge.to.as_str()).collect();
        self.nodes.iter().filter(|node| !led_to.contains(node.id.as_str())).collect()
    }

    /// The forward edges that lie on a way from one node to another.
    pub fn edges_between(&self, from: &str, to: &str) -> Vec<usize> {
        GraphIndex::of(self).edges_between(from, to)
    }

    /// Everything that is wrong, in the order of the file.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut found = CycleSearch::default();
        self.check_size(&mut found);
        if !found.0.is_empty() {
            // What is too large is not looked at any closer.
            return found.0;
        }
        let ways = GraphIndex::of(self);
        self.check_nodes(&ways, &mut found);
        self.check_edges(&ways, &mut found);
        if found.0.is_empty() {
            self.check_ways(&ways, &mut found);
        }
        self.check_readings(&mut found);
        found.0
    }

    fn check_size(&self, found: &mut CycleSearch) {
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            found.add("the flow", format!("has {} nodes; it may have 1 to {NODES_MAX}", self.nodes.len()));
        }
        if self.edges.len() > EDGES_MAX {
            found.add("the flow", format!("has {} edges; it may have {EDGES_MAX}", self.edges.len()));
        }
        let back = self.edges.iter().filter(|edge| edge.kind == EdgeKind::Backward).count();
        if back > BACK_EDGES_MAX {
            found.add("the flow", format!("has {back} backward edges; it may have {BACK_EDGES_MAX}"));
        }
        let bytes: usize = self.readings.values().map(String::len).sum();
        if bytes > READINGS_BYTES_MAX {
            found.add("the readings", format!("are {bytes} bytes; they may be {READINGS_BYTES_MAX}"));
        }
        let bytes = self.written_bytes();
        if bytes > FLOW_BYTES_MAX {
            found.add("the flow", format!("takes {bytes} bytes to write down; it may take {FLOW_BYTES_MAX}"));
        }
    }

    /// How many bytes a run writes down of it.
    fn written_bytes(&self) -> usize {
        serde_json::to_string(self).expect("a flow holds strings, numbers and lists only").len()
    }

    fn check_nodes(&self, ways: &GraphIndex, found: &mut CycleSearch) {
        let mut seen = BTreeSet::new();
        let mut agents: BTreeMap<String, String> = BTreeMap::new();
        for node in &self.nodes {
            let place = format!("node {}", node.id);
            if !is_plain(&node.id) {
                found.add(&place, "its id is not 1 to 64 letters, digits, - and _".to_owned());
            }
            if !seen.insert(node.id.as_str()) {
                found.add(&place, "its id is given twice".to_owned());
            }
            if node.kind == NodeKind::Agent {
                self.check_agent_node(node, ways, &mut agents, found);
            }
        }
    }

    fn check_agent_node(
        &self,
        node: &Node,
        ways: &GraphIndex,
        agents: &mut BTreeMap<String, String>,
        found: &mut CycleSearch,
    ) {
        let place = format!("node {}", node.id);
        if node.role.as_deref().is_some_and(|role| !is_plain(role)) {
            found.add(&place, "its role is not 1 to 64 letters, digits, - and _".to_owned());
        }
        if node.session_id.as_deref().is_some_and(|id| id.parse::<crate::SessionId>().is_err()) {
            found.add(&place, "its session_id is not the id of a session".to_owned());
        }
        let agent = self.agent_of(node);
        if !self.agents.contains_key(&agent) {
            found.add(&place, format!("there is no agent {agent}"));
        }
        let before = agents.entry(node.session("run")).or_insert_with(|| agent.clone());
        if *before != agent {
            let why = format!("it shares its session with a node of agent {before}, and names agent {agent}");
            found.add(&place, why);
        }
        let by_tool = node.handoff == HandoffBy::Tool;
        let needs_tool = node.consent == Consent::Person || node.route == Route::Any;
        let leads_back = || {
            let here = ways.node(&node.id);
            here.is_some_and(|here| ways.leaving(here, EdgeKind::Backward).next().is_some())
        };
        if !by_tool && (needs_tool || leads_back()) {
            let why = "a choice, a way back and a person's consent need `handoff: tool`".to_owned();
            found.add(&place, why);
        }
        for name in template_names(node.prompt.as_deref().unwrap_or_default()) {
            if name != "input" && ways.node(&name).is_none() {
                found.add(&place, format!("its prompt names {{{{{name}}}}}, and there is no such node"));
            }
        }
    }

    fn check_edges(&self, ways: &GraphIndex, found: &mut CycleSearch) {
        let mut seen = BTreeSet::new();
        for edge in &self.edges {
            let place = format!("edge {} → {}", edge.from, edge.to);
            for end in [&edge.from, &edge.to] {
                if ways.node(end).is_none() {
                    found.add(&place, format!("there is no node {end}"));
                }
            }
            if !seen.insert((&edge.from, &edge.to)) {
                found.add(&place, "it is given twice".to_owned());
            }
            let kind_of = |id: &str| ways.node(id).map(|at| self.nodes[at].kind);
            if kind_of(&edge.from) == Some(NodeKind::Output) {
                found.add(&place, "nothing leaves an output".to_owned());
            }
            if kind_of(&edge.to) == Some(NodeKind::Input) {
                found.add(&place, "nothing goes into an input".to_owned());
            }
        }
    }

    /// What can only be seen when every edge has its ends: cycles, ways back that go nowhere, nodes nobody gets to.
    fn check_ways(&self, ways: &GraphIndex, found: &mut CycleSearch) {
        if let Err(circle) = ways.sorted() {
            let names: Vec<&str> = circle.iter().map(|at| self.nodes[*at].id.as_str()).collect();
            let why = format!("{} go round in a circle; mark the edge that leads back", names.join(", "));
            return found.add("the flow", why);
        }
        for edge in ways.dead_ways_back().into_iter().map(|at| &self.edges[at]) {
            let place = format!("edge {} → {}", edge.from, edge.to);
            found.add(&place, format!("it leads back, and no way leads from {} here", edge.to));
        }
        let reached = ways.reached(self.entries().iter().filter_map(|node| ways.node(&node.id)));
        for (_, node) in self.nodes.iter().enumerate().filter(|(at, _)| !reached.contains(at)) {
            found.add(&format!("node {}", node.id), "nothing leads to it".to_owned());
        }
    }

    fn check_readings(&self, found: &mut CycleSearch) {
        let of_roles = self.roles.iter().map(|(id, role)| (format!("role {id}"), &role.readings));
        let of_nodes = self.nodes.iter().map(|node| (format!("node {}", node.id), &node.readings));
        for (place, names) in of_roles.chain(of_nodes) {
            for name in names.iter().filter(|name| !self.readings.contains_key(*name)) {
                found.add(&place, format!("the required reading {name} is missing"));
            }
        }
        if let Some(feedback) = self.improvement.as_ref().and_then(|pass| pass.feedback.as_ref()) {
            let agent = feedback.agent.as_deref().unwrap_or(AGENT_DEFAULT);
            if !is_plain(&feedback.role) {
                found.add("the feedback", "its role is not 1 to 64 letters, digits, - and _".to_owned());
            }
            if !self.agents.contains_key(agent) {
                found.add("the feedback", format!("there is no agent {agent}"));
            }
        }
    }
}

#[derive(Default)]
struct CycleSearch(Vec<Mistake>);

impl CycleSearch {
    fn add(&mut self, place: &str, why: String) {
        self.0.push(Mistake { place: place.to_owned(), why });
    }
}

/// `curator` for `curator_2`.
pub fn base_role(instance: &str) -> &str {
    match instance.rsplit_once('_') {
        Some((base, number)) if !base.is_empty() && number.parse::<u32>().is_ok() => base,
        _ => instance,
    }
}

/// Whether something can be the id of a node or a role: letters, digits, hyphens and underscores.
pub fn is_plain(id: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(is_fine)
}
