//! The tool that ends a role's work on a node. It only changes the role's session: the call and its result are the
//! handoff, which the flow's runner reads after the turn. The tool can therefore safely run again after a crash.

use sapwood_core::content::ToolCall;
use sapwood_core::flow::assignment::HandoffTarget;
use sapwood_core::flow::prompts::required_handoffs_text;
use sapwood_core::flow::{Assignment, HANDOFF_TOOL, Handoff, REPAIRS_MAX};
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::json;

use super::TurnContext;
use super::builtin_tools::{PutArtifact, spec};
use crate::Result;

/// The spec of the handoff tool, if the role has to use it.
pub(super) fn handoff_spec(assignment: &Assignment) -> Option<ToolSpec> {
    let text = json!({"type": "string"});
    let target = json!({
        "type": "object", "required": ["node", "artifact"], "additionalProperties": false,
        "properties": {"node": text, "artifact": text, "content": text},
    });
    let about = format!(
        "End your work on node {}. Give exactly one of targets, closed, prompt and wait. Here: {}.",
        assignment.node,
        assignment.targets_text()
    );
    let properties =
        json!({"targets": {"type": "array", "items": target}, "closed": text, "prompt": text, "wait": text});
    assignment.has_tool().then(|| spec(HANDOFF_TOOL, &about, Touch::Reads, Replay::Safe, properties, &[]))
}

impl TurnContext {
    /// Check a handoff without reading the session, before an approval is requested.
    pub(super) fn check_handoff(&self, call: &ToolCall) -> Result<Handoff, String> {
        let handoff = Handoff::of_call(call)?;
        match &self.assignment {
            Some(assignment) => assignment.check(&handoff).map(|()| handoff),
            None => Err("this session is not working on a flow node".to_owned()),
        }
    }

    pub(super) async fn hand_off(&self, call: &ToolCall) -> Result<ToolOutput> {
        let (handoff, assignment) = match (self.check_handoff(call), &self.assignment) {
            (Ok(handoff), Some(assignment)) => (handoff, assignment),
            (Err(why), _) => return Ok(ToolOutput::error(why)),
            (Ok(_), None) => return Ok(ToolOutput::error("this session is not working on a flow node")),
        };
        let mut visit = self.engine.flows().visit_of(&self.scope, &self.session, assignment).await?;
        if visit.faults >= REPAIRS_MAX {
            return Ok(ToolOutput::error(format!(
                "The node has failed after {REPAIRS_MAX} invalid handoffs."
            )));
        }
        for target in &handoff.targets {
            if let Some(fault) = self.settle_artifact(target).await? {
                return Ok(ToolOutput::error(fault));
            }
        }
        visit.handed.push(handoff);
        let what_next = match assignment.is_ended_by(&visit.handed) {
            true => "The node is handed off. Summarize your work in one sentence, then stop.".to_owned(),
            false => required_handoffs_text(assignment, &visit.handed),
        };
        Ok(ToolOutput::text(what_next))
    }

    /// Store the target's artifact. Returns an error text if the target has no content and the session has no such
    /// artifact.
    async fn settle_artifact(&self, target: &HandoffTarget) -> Result<Option<String>> {
        let HandoffTarget { artifact, content, node } = target;
        if let Some(content) = content.clone() {
            self.put_artifact(PutArtifact { name: artifact.clone(), content, mime: None }).await?;
            return Ok(None);
        }
        let artifacts = self.engine.views().artifacts(&self.scope, &self.session).await?;
        let exists = artifacts.named(artifact).is_some();
        Ok((!exists).then(|| {
            format!("No artifact `{artifact}` to hand to {node}: pass its text as content, or deliver it with put_artifact first.")
        }))
    }
}
