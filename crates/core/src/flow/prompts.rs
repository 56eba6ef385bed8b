//! Prompts for roles: the system prompt, the note on entering a node, the text that survives a compaction, and prompt
//! templates.

use std::collections::BTreeMap;

use super::assignment::{Assignment, Handoff};
use super::event::{Artifact, Received};
use super::graph::{Consent, Flow, HandoffBy, Node};
use super::state::RunState;
use super::template::VARIABLE_PREFIX;

/// Maximum length of the one-line description of the work, in characters.
const WORK_CHARS_MAX: usize = 200;

/// The prompt of a node, with its placeholders replaced.
pub fn render_prompt(state: &RunState, node: &Node) -> String {
    let Some(template) = node.prompt.as_deref() else {
        return format!("Do the work of node {}.", node.id);
    };
    let received = state.nodes.get(&node.id).map(|state| state.received.as_slice()).unwrap_or_default();
    // If a node sent several artifacts, the last one is used.
    let artifacts: BTreeMap<&str, &str> =
        received.iter().map(|item| (item.from.as_str(), item.artifact.text.as_str())).collect();
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, tail)) = after.split_once("}}") else { break };
        text.push_str(before);
        text.push_str(value_of(state, &artifacts, name.trim()));
        rest = tail;
    }
    text.push_str(rest);
    text
}

/// The value of a placeholder: the run's input for `input`, a variable for `ctx.NAME`, otherwise the artifact or last
/// answer of the node.
fn value_of<'t>(state: &'t RunState, artifacts: &BTreeMap<&str, &'t str>, name: &str) -> &'t str {
    if name == "input" {
        return &state.input;
    }
    if let Some(variable) = name.strip_prefix(VARIABLE_PREFIX) {
        return state.flow.variables.get(variable).map(String::as_str).unwrap_or_default();
    }
    let last_answer = || state.nodes.get(name).map(|node| node.said.as_str());
    artifacts.get(name).copied().or_else(last_answer).unwrap_or_default()
}

/// The system prompt: the role, its record folder, how to hand over, and the required readings. It is built once per
/// session and stored in its log.
pub fn system_prompt(state: &RunState, node: &Node, agent_prompt: Option<&str>) -> String {
    let mut parts: Vec<String> = vec![introduction(&state.flow, node)];
    parts.extend(agent_prompt.map(str::to_owned));
    parts.extend(contract_parts(state, node));
    parts.join("\n\n")
}

/// The text for a role whose session keeps another system prompt: the same as [`system_prompt`] without the agent's
/// prompt. The engine puts it at the beginning of the note for entering a node.
pub fn briefing(state: &RunState, node: &Node) -> String {
    let mut parts: Vec<String> = vec![introduction(&state.flow, node)];
    parts.extend(contract_parts(state, node));
    parts.join("\n\n")
}

/// The record folder, how to hand over, and the required readings of the role.
fn contract_parts(state: &RunState, node: &Node) -> Vec<String> {
    let flow = &state.flow;
    let mut parts = vec![format!(
        "Your record folder is {}, relative to the working directory. Keep notes for later there.",
        state.record_folder(node)
    )];
    if node.handoff == HandoffBy::Tool {
        parts.push(CONTRACT.to_owned());
    }
    let role = node.role.as_deref().and_then(|role| flow.role(role));
    let of_role: &[String] = role.map(|role| role.readings.as_slice()).unwrap_or_default();
    parts.extend(readings_text(flow, of_role));
    parts
}

/// The first paragraph of a role's system prompt. The engine searches for it to find out whether a session already has
/// that prompt.
pub fn introduction(flow: &Flow, node: &Node) -> String {
    let who = node.who();
    let mut text = format!("You are {who} in the flow {:?}.", flow.title());
    if let Some(about) = node.role.as_deref().and_then(|role| flow.role(role)?.description.as_deref()) {
        text.push(' ');
        text.push_str(about);
    }
    text.push_str(
        " You work on one node of the flow at a time. When you enter a node, a note tells you what you received and what \
         you have to deliver. This conversation continues from node to node.",
    );
    text
}

const CONTRACT: &str = "\
You end your work on a node with the tool `handoff`, and with nothing else. Its input is exactly one of:
- `targets`: a list of {node, artifact, content}: the artifact's name and text for each node you hand over to. Without \
`content`, `artifact` names one that you have already put.
- `closed`: why the work ends here without a handoff.
- `prompt`: a question to a person. You receive the answer and continue.
- `wait`: what you wait for. You are called again when something is handed to you.
Every required forward target needs its artifact. An invalid handoff returns an error that says what to fix.";

fn readings_text(flow: &Flow, names: &[String]) -> Option<String> {
    let texts: Vec<String> = names
        .iter()
        .filter_map(|name| flow.readings.get(name).map(|text| format!("## {name}\n\n{}", text.trim_end())))
        .collect();
    (!texts.is_empty()).then(|| format!("# Required readings\n\n{}", texts.join("\n\n")))
}

/// The note for entering a node.
pub fn entry_note(state: &RunState, node: &Node, assignment: &Assignment) -> String {
    let visit = match (assignment.visit, assignment.attempt) {
        (1, 1) => "This is your first visit.".to_owned(),
        (visit, 1) => format!("You are returning to this node: this is visit {visit}."),
        (visit, attempt) => format!("Visit {visit} failed before; this is attempt {attempt}."),
    };
    let mut parts =
        vec![format!("You enter node {} of the flow {:?}. {visit}", assignment.node, assignment.flow)];
    parts.push(format!("The work: {}", work_line(state, node)));
    if !node.tools.is_empty() {
        parts.push(format!("This node is limited to these tools: {}.", node.tools.join(", ")));
    }
    parts.extend(readings_text(&state.flow, &node.readings));
    let received = state.nodes.get(&node.id).map(|state| state.received.as_slice()).unwrap_or_default();
    parts.extend(received.iter().filter(|item| item.artifact.bytes > 0).map(received_text));
    if assignment.has_tool() {
        parts.push(required_handoffs_text(assignment, &[]));
    }
    parts.join("\n\n")
}

fn work_line(state: &RunState, node: &Node) -> String {
    let prompt = render_prompt(state, node);
    let about = node.name.clone().unwrap_or(prompt);
    about.lines().next().unwrap_or_default().chars().take(WORK_CHARS_MAX).collect()
}

fn received_text(item: &Received) -> String {
    let Artifact { name, text, bytes, blob } = &item.artifact;
    let mut text_block = format!("Received from {}: {name} ({bytes} bytes)\n{text}", item.from);
    if let Some(blob) = blob.filter(|_| item.artifact.is_cut()) {
        text_block.push_str(&format!("\n[read the rest with read_output, output {blob}]"));
    }
    text_block
}

/// Describe the handoffs that the node still has to make.
pub fn required_handoffs_text(assignment: &Assignment, handed: &[Handoff]) -> String {
    let required = assignment.required_targets(handed);
    let line = |target: &&super::assignment::ForwardTarget| match &target.artifact {
        Some(name) => format!("{} (an artifact called {name})", target.node),
        None => target.node.clone(),
    };
    let names: Vec<String> = required.iter().map(line).collect();
    let mut text = match names.as_slice() {
        [] if assignment.forward.iter().all(|target| target.done) => {
            "No handoff to a later node is required: end with closed when you are done.".to_owned()
        }
        [] => "No further handoff is required.".to_owned(),
        names if assignment.route == super::Route::Any => {
            format!("Required: a handoff to one of {}.", names.join(", "))
        }
        names => format!("Required: a handoff to {}.", names.join(", ")),
    };
    let done: Vec<&str> = assignment.forward.iter().filter(|t| t.done).map(|t| t.node.as_str()).collect();
    if !done.is_empty() {
        text.push_str(&format!(" Handed over before: {}.", done.join(", ")));
    }
    if !assignment.backward.is_empty() {
        text.push_str(&format!(" You may hand back to {}, and then wait.", assignment.backward.join(", ")));
    }
    if assignment.consent == Consent::Person {
        text.push_str(" A person has to agree to your forward handoffs.");
    }
    text
}

/// The prompt for a role that has to repair its handoff.
pub fn repair_prompt(assignment: &Assignment, handed: &[Handoff]) -> String {
    format!("End the node with the tool handoff. {}", required_handoffs_text(assignment, handed))
}

/// The facts about the current visit that every compaction includes verbatim.
pub fn standing_facts(assignment: &Assignment, handed: &[Handoff], last_user_text: &str) -> String {
    let done = assignment.forward.iter().filter(|target| target.done).map(|target| target.node.as_str());
    let now = handed.iter().flat_map(|handoff| &handoff.targets).map(|target| target.node.as_str());
    let edges: Vec<String> = done.chain(now).map(|to| format!("{} → {to}", assignment.node)).collect();
    let incoming: Vec<String> =
        assignment.received_from.iter().map(|from| format!("{from} → {}", assignment.node)).collect();
    let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    let mut text = format!(
        "Flow: {}\nRun: {}\nRole: {}\nNode: {} (visit {})\nRecord folder: {}\nReceived over: {}\nCompleted edges here: {}",
        assignment.flow,
        assignment.run,
        assignment.role,
        assignment.node,
        assignment.visit,
        assignment.record_folder,
        list(incoming),
        list(edges),
    );
    if assignment.has_tool() {
        text.push('\n');
        text.push_str(&required_handoffs_text(assignment, handed));
    }
    if !last_user_text.is_empty() {
        text.push_str("\nThe last user text, word for word:\n");
        text.push_str(last_user_text);
    }
    text
}

/// The prompt for the feedback role, with all findings.
pub fn feedback_prompt(state: &RunState, node: &Node) -> String {
    let findings = state.findings();
    let texts: Vec<String> = findings.iter().map(|(role, text)| format!("## {role}\n\n{text}")).collect();
    format!("{}\n\n{}", render_prompt(state, node), texts.join("\n\n"))
}
