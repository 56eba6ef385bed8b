//! The assignment of a role's session to a node, and which handoffs are valid there. It is stored in the session's log,
//! so any process can resume a turn of the role.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::event::{read_versioned, versioned};
use super::graph::{Consent, EdgeKind, HandoffBy, Node, Route};
use super::machine::VisitKey;
use super::state::{EdgeStatus, FEEDBACK, RunState};
use crate::content::ToolCall;
use crate::entry::{Body, FlowAssigned};
use crate::port::tool::FsScope;

pub const HANDOFF_TOOL: &str = "handoff";
/// Maximum size of an artifact inside a handoff, in bytes.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;
/// Maximum length of an artifact's name, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// The node that a session works on, with its possible targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub run: String,
    pub flow: String,
    pub role: String,
    pub node: String,
    pub visit: u32,
    pub attempt: u32,
    pub record_folder: String,
    pub handoff: HandoffBy,
    pub route: Route,
    /// Whether a person has to approve forward handoffs, or the whole visit.
    pub consent: Consent,
    pub forward: Vec<ForwardTarget>,
    pub backward: Vec<String>,
    pub received_from: Vec<String>,
    /// The only tools available during the visit, among those of the session. Empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The file access during the visit, at most that of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_scope: Option<FsScope>,
}

/// An outgoing forward edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardTarget {
    pub node: String,
    /// The required name of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// Whether an earlier visit already handed work to this target.
    #[serde(default)]
    pub done: bool,
}

/// The input of the handoff tool: exactly one of the four fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Handoff {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<HandoffTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffTarget {
    pub node: String,
    /// The artifact's name.
    pub artifact: String,
    /// The artifact's text. If absent, the session must already have put an artifact with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl Handoff {
    pub fn of_call(call: &ToolCall) -> Result<Self, String> {
        serde_json::from_str(call.input.get()).map_err(|error| error.to_string())
    }
}

impl Assignment {
    /// The assignment of a visit.
    pub fn of(state: &RunState, node: &Node, key: &VisitKey) -> Self {
        let target = |(at, edge): (usize, &super::Edge)| ForwardTarget {
            node: edge.to.clone(),
            artifact: edge.artifact.clone(),
            done: state.edge(at) == EdgeStatus::Completed,
        };
        let back = state.edges_from(&node.id, EdgeKind::Backward).map(|(_, edge)| edge.to.clone());
        let received = state.nodes.get(&node.id).map(|state| state.received.as_slice()).unwrap_or_default();
        Self {
            run: state.run.clone(),
            flow: state.flow.title().to_owned(),
            role: node.who().to_owned(),
            node: node.id.clone(),
            visit: key.visit,
            attempt: key.attempt,
            record_folder: state.record_folder(node),
            handoff: node.handoff,
            route: node.route,
            consent: node.consent,
            forward: state.edges_from(&node.id, EdgeKind::Forward).map(target).collect(),
            backward: back.collect(),
            received_from: received.iter().map(|received| received.from.clone()).collect(),
            tools: node.tools.clone(),
            fs_scope: node.fs_scope,
        }
    }

    pub fn to_body(&self) -> Body {
        versioned::<FlowAssigned>(self)
    }

    pub fn of_body(body: &Body) -> Option<Self> {
        read_versioned::<FlowAssigned, _>(body)
    }

    pub fn is_for_visit(&self, run: &str, key: &VisitKey) -> bool {
        self.run == run && self.node == key.node && self.visit == key.visit && self.attempt == key.attempt
    }

    /// Whether a person has to approve the visit before any model call.
    pub fn needs_consent_first(&self) -> bool {
        self.node == FEEDBACK && self.consent == Consent::Person
    }

    /// Whether the role has to call the handoff tool for this node.
    pub fn has_tool(&self) -> bool {
        self.handoff == HandoffBy::Tool
    }

    /// The targets that still require a handoff after these handoffs. If the role may choose its route, all targets
    /// are listed until one is chosen.
    pub fn required_targets(&self, handed: &[Handoff]) -> Vec<&ForwardTarget> {
        let targets = handed.iter().flat_map(|h| &h.targets);
        let named: BTreeSet<&str> = targets.map(|target| target.node.as_str()).collect();
        let is_over = |h: &Handoff| {
            h.closed.is_some() || h.wait.is_some() || h.targets.iter().any(|t| self.is_backward(&t.node))
        };
        let is_done = |target: &ForwardTarget| target.done || named.contains(target.node.as_str());
        if handed.iter().any(is_over) || (self.route == Route::Any && self.forward.iter().any(is_done)) {
            return Vec::new();
        }
        self.forward.iter().filter(|target| !is_done(target)).collect()
    }

    /// Whether the role has ended its visit.
    pub fn is_ended_by(&self, handed: &[Handoff]) -> bool {
        !handed.is_empty() && self.required_targets(handed).is_empty()
    }

    pub fn is_backward(&self, node: &str) -> bool {
        self.backward.iter().any(|known| known == node)
    }

    /// Check a handoff. The error message tells the role what to fix.
    pub fn check(&self, handoff: &Handoff) -> Result<(), String> {
        let texts = [&handoff.closed, &handoff.prompt, &handoff.wait];
        let kinds = usize::from(!handoff.targets.is_empty()) + texts.iter().filter(|s| s.is_some()).count();
        if kinds != 1 {
            return Err("give exactly one of targets, closed, prompt and wait".to_owned());
        }
        if texts.into_iter().flatten().any(|text| text.trim().is_empty()) {
            return Err("the text is empty: give a reason or a question".to_owned());
        }
        let backwards = handoff.targets.iter().filter(|target| self.is_backward(&target.node)).count();
        if backwards > 0 && handoff.targets.len() > 1 {
            return Err("hand back to one target at a time, without other targets".to_owned());
        }
        let forward: BTreeMap<&str, &ForwardTarget> =
            self.forward.iter().map(|known| (known.node.as_str(), known)).collect();
        let mut seen = BTreeSet::new();
        for target in &handoff.targets {
            self.check_target(target, forward.get(target.node.as_str()).copied())?;
            if !seen.insert(&target.node) {
                return Err(format!("{} is named twice", target.node));
            }
        }
        Ok(())
    }

    fn check_target(&self, target: &HandoffTarget, forward: Option<&ForwardTarget>) -> Result<(), String> {
        let HandoffTarget { node, artifact, content } = target;
        if forward.is_none() && !self.is_backward(node) {
            return Err(format!("{node} is not a target of this node; {}", self.targets_text()));
        }
        if let Some(done) = forward.filter(|known| known.done) {
            return Err(format!(
                "{} already has its artifact from an earlier visit; {}",
                done.node,
                self.targets_text()
            ));
        }
        if artifact.trim().is_empty() || artifact.len() > NAME_BYTES_MAX {
            return Err(format!("the artifact for {node} needs a name of 1 to {NAME_BYTES_MAX} bytes"));
        }
        if let Some(required) =
            forward.and_then(|known| known.artifact.as_ref()).filter(|name| *name != artifact)
        {
            return Err(format!("the artifact for {node} must be called {required}, not {artifact}"));
        }
        match content {
            Some(text) if text.trim().is_empty() => Err(format!("the artifact for {node} is empty")),
            Some(text) if text.len() > CONTENT_BYTES_MAX => {
                Err(format!("the artifact for {node} is over {CONTENT_BYTES_MAX} bytes"))
            }
            _ => Ok(()),
        }
    }

    /// List the targets, for an error message or a prompt.
    pub fn targets_text(&self) -> String {
        let forward = self.forward.iter().filter(|target| !target.done).map(|target| target.node.as_str());
        let forward: Vec<&str> = forward.collect();
        let mut text = match forward.as_slice() {
            [] => "there is no forward target here: end with closed".to_owned(),
            names => format!("forward targets: {}", names.join(", ")),
        };
        if !self.backward.is_empty() {
            text.push_str(&format!("; targets to hand back to: {}", self.backward.join(", ")));
        }
        text
    }

    /// The question that a person has to answer before this call of the handoff tool can run, if any.
    pub fn question(&self, call: &ToolCall) -> Option<Question> {
        if call.name != HANDOFF_TOOL {
            return None;
        }
        let handoff = Handoff::of_call(call).ok()?;
        if let Some(prompt) = handoff.prompt {
            return Some(Question::Prompt(prompt));
        }
        let is_forward = |target: &HandoffTarget| !self.is_backward(&target.node);
        let forward: Vec<&HandoffTarget> = handoff.targets.iter().filter(|t| is_forward(t)).collect();
        if self.consent != Consent::Person || forward.is_empty() {
            return None;
        }
        let line = |target: &&HandoffTarget| format!("{} to {}", target.artifact, target.node);
        let items: Vec<String> = forward.iter().map(line).collect();
        Some(Question::Agree(format!("May {} hand over {}?", self.role, items.join(", "))))
    }
}

/// A question to a person about a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// A question from the role. The answer becomes the call's result.
    Prompt(String),
    /// Whether the handoff is allowed.
    Agree(String),
}
