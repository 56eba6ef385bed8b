//! The definition of a flow: nodes, edges, roles, agents and readings. A run freezes its flow when it starts.
//! [`Flow::mistakes`] validates a flow before the run starts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::port::tool::FsScope;

/// Maximum number of nodes. A flow exported from a long session has one node per turn.
pub const NODES_MAX: usize = 100_000;
/// Maximum number of edges, and of backward edges among them.
pub const EDGES_MAX: usize = 200_000;
pub const BACK_EDGES_MAX: usize = 10_000;
/// Maximum size of an encoded flow, in bytes. One entry contains the flow and the run's input.
pub const FLOW_BYTES_MAX: usize = 15 << 20;
/// Maximum length of a node or role id, in bytes. Session ids are derived from these ids.
pub const ID_BYTES_MAX: usize = 64;
/// Maximum total size of all required readings, in bytes.
pub const READINGS_BYTES_MAX: usize = 1 << 20;
/// The agent of nodes that do not specify an agent.
pub const AGENT_DEFAULT: &str = "default";
/// Maximum length of a chain of forks within a flow. A longer chain, or a cycle, has the default agent.
const FORK_CHAIN_MAX: usize = 16;

/// A graph of roles that hand work to each other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Flow {
    /// The flow's id.
    pub id: String,
    /// A name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where roles store their records, relative to the working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_folder: Option<String>,
    /// The roles by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, FlowRole>,
    /// The agents that nodes may refer to, by id.
    pub agents: BTreeMap<String, Agent>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The edges between the nodes.
    pub edges: Vec<Edge>,
    /// The text of each reading, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub readings: BTreeMap<String, String>,
    /// The values of `{{ctx.NAME}}` in prompts, by name. Plain text, never secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The pass after the work in which roles reflect on it. With `None`, a run that requests the pass uses the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub improvement: Option<Improvement>,
}

/// A role. `curator_2` is another instance of `curator`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowRole {
    /// What the role does, for its system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The id of the role's agent. Defaults to [`AGENT_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The names of the role's required readings, from [`Flow::readings`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
}

/// A step of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's id: 1 to 64 letters, digits, hyphens and underscores, unique within the flow.
    pub id: String,
    /// What the node does.
    pub kind: NodeKind,
    /// A name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role instance whose session the node works in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The id of the node's agent. Defaults to the role's agent, then to that of the forked node, then to
    /// [`AGENT_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The task. `{{input}}` is replaced by the run's input, `{{NODE}}` by that node's artifact or last answer, and
    /// `{{ctx.NAME}}` by the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The only tools available at the node, among those of its session. Empty leaves the session's tools as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The file access at the node, at most that of its session. `None` leaves the session's as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_scope: Option<FsScope>,
    /// The id of the session to use, which may belong to another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The role, node or session to fork. The node works in the fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_from: Option<String>,
    /// When the node starts.
    #[serde(default)]
    pub join: Join,
    /// Which forward edges the node has to hand off to.
    #[serde(default)]
    pub route: Route,
    /// How the node ends.
    #[serde(default)]
    pub handoff: HandoffBy,
    /// Whether a person's approval is required.
    #[serde(default)]
    pub consent: Consent,
    /// The names of required readings, in addition to those of the role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
}

impl Node {
    /// A node without a role, agent or prompt, and with default settings.
    pub fn new(id: impl Into<String>, kind: NodeKind) -> Self {
        Self {
            id: id.into(),
            kind,
            name: None,
            role: None,
            agent: None,
            prompt: None,
            tools: Vec::new(),
            fs_scope: None,
            session_id: None,
            fork_from: None,
            join: Join::default(),
            route: Route::default(),
            handoff: HandoffBy::default(),
            consent: Consent::default(),
            readings: Vec::new(),
        }
    }

    /// The display name of the node's worker: its role, or else the node id.
    pub fn who(&self) -> &str {
        self.role.as_deref().unwrap_or(&self.id)
    }

    /// The id of the node's session within a run: the configured session, the role's session, or one for this node
    /// only.
    pub fn session(&self, run: &str) -> String {
        match (&self.session_id, &self.role, &self.fork_from) {
            (Some(named), ..) => named.clone(),
            (None, Some(role), None) => format!("{run}__{role}"),
            // A fork belongs to the node, even if the node has a role.
            (None, ..) => format!("{run}__at.{}", self.id),
        }
    }
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// It provides the run's input.
    Input,
    /// An agent works on the node's task in a session.
    #[default]
    Agent,
    /// It collects the run's results, once all its inputs have arrived.
    Output,
}

/// When a node with several inputs starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// On the first input. Each later input is another visit.
    #[default]
    Any,
    /// Once every incoming forward edge has delivered its artifact or was closed.
    All,
}

/// Which forward edges a node has to hand off to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// All forward edges.
    #[default]
    All,
    /// One or more edges, chosen by the node.
    Any,
}

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffBy {
    /// The role calls the handoff tool.
    Tool,
    /// The role's answer is sent over every forward edge that has no artifact yet.
    #[default]
    Answer,
}

/// Whether a person's approval is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    /// No approval is needed.
    #[default]
    None,
    /// A person must approve.
    Person,
}

/// A connection between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The id of the node where the edge starts.
    pub from: String,
    /// The id of the node where the edge ends.
    pub to: String,
    /// Whether the edge hands work over or returns it.
    #[serde(default)]
    pub kind: EdgeKind,
    /// The required name of the artifact that is sent over this edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
}

/// The direction of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Work is handed over to the next node.
    #[default]
    Forward,
    /// Work returns to an earlier node. The nodes in between reopen, and the sender waits.
    Backward,
}

/// The improvement pass, which follows the forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Improvement {
    /// The order in which roles reflect.
    #[serde(default)]
    pub order: Order,
    /// The prompt for each role; defaults to a built-in question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The role that reviews the reflections. `None`: there is no review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<Feedback>,
}

/// The order in which roles reflect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One role after the other, in graph order.
    #[default]
    Graph,
    /// All roles at the same time.
    SideBySide,
}

/// A role that reviews all findings in a fresh session without the run's history. A person has to approve
/// the review first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// The role that gives feedback.
    pub role: String,
    /// The id of its agent. Defaults to [`AGENT_DEFAULT`].
    #[serde(default, rename = "agent_ref", skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Its task. Defaults to a built-in prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

impl Flow {
    /// The node with this id.
    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The name, or the id if the flow has no name.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// The definition of a role instance, or else of its base role.
    pub fn role(&self, instance: &str) -> Option<&FlowRole> {
        self.roles.get(instance).or_else(|| self.roles.get(base_role(instance)))
    }

    /// The id of the agent that a node or its role names; `None` if neither does.
    pub fn named_agent(&self, node: &Node) -> Option<String> {
        let role = node.role.as_deref().and_then(|role| self.role(role));
        node.agent.clone().or_else(|| role.and_then(|role| role.agent.clone()))
    }

    /// The id of a node's agent. A fork has the agent of the session that it forks.
    pub fn agent_of(&self, node: &Node) -> String {
        let mut node = node;
        for _ in 0..FORK_CHAIN_MAX {
            if let Some(named) = self.named_agent(node) {
                return named;
            }
            let Some(source) = self.fork_source(node) else { break };
            node = source;
        }
        AGENT_DEFAULT.to_owned()
    }

    /// The node of this flow whose session a node forks. `None` if the node forks nothing or a session outside the flow.
    pub fn fork_source(&self, node: &Node) -> Option<&Node> {
        let named = node.fork_from.as_deref()?;
        let is_role = |node: &&Node| node.role.as_deref() == Some(named) && node.fork_from.is_none();
        let is_session = |node: &&Node| node.session_id.as_deref() == Some(named);
        let role_or_node = self.nodes.iter().find(is_role).or_else(|| self.node(named));
        role_or_node.or_else(|| self.nodes.iter().find(is_session))
    }

    /// The names of a node's required readings, starting with those of its role.
    pub fn readings_of(&self, node: &Node) -> Vec<String> {
        let role = node.role.as_deref().and_then(|role| self.role(role));
        let of_role = role.map(|role| role.readings.clone()).unwrap_or_default();
        let own = node.readings.iter().filter(|name| !of_role.contains(name)).cloned();
        of_role.iter().cloned().chain(own).collect()
    }

    /// The nodes where a run starts: the input nodes or, without any, every node that has no incoming forward edges.
    pub fn entries(&self) -> Vec<&Node> {
        let inputs: Vec<&Node> = self.nodes.iter().filter(|node| node.kind == NodeKind::Input).collect();
        if !inputs.is_empty() {
            return inputs;
        }
        let forward = self.edges.iter().filter(|edge| edge.kind == EdgeKind::Forward);
        let has_incoming: BTreeSet<&str> = forward.map(|edge| edge.to.as_str()).collect();
        self.nodes.iter().filter(|node| !has_incoming.contains(node.id.as_str())).collect()
    }
}

/// The base of a role instance: `curator` for `curator_2`.
pub fn base_role(instance: &str) -> &str {
    match instance.rsplit_once('_') {
        Some((base, number)) if !base.is_empty() && number.parse::<u32>().is_ok() => base,
        _ => instance,
    }
}

/// Whether `id` is a valid node or role id: letters, digits, hyphens and underscores.
pub fn is_plain(id: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(is_fine)
}
