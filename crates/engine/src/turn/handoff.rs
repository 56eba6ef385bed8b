//! The tool that ends a role's work on a node. It changes nothing but the role's own session: the call and its result are
//! the handoff, and whoever runs the flow reads them there when the turn has ended. So it may be run again after a crash.

use sapwood_core::content::ToolCall;
use sapwood_core::flow::assignment::HandoffTarget;
use sapwood_core::flow::prompts::owed_text;
use sapwood_core::flow::{Assignment, HANDOFF_TOOL, Handoff, REPAIRS_MAX};
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::json;

use super::TurnContext;
use super::builtin_tools::{PutArtifact, spec};
use crate::Result;

/// The tool, where the role has to use it.
pub(super) fn handoff_spec(post: &Assignment) -> Option<ToolSpec> {
    let text = json!({"type": "string"});
    let target = json!({
        "type": "object", "required": ["node", "artifact"], "additionalProperties": false,
        "properties": {"node": text, "artifact": text, "content": text},
    });
    let about = format!(
        "Ends your work on node {}: give exactly one of targets, closed, prompt and wait. Here: {}.",
        post.node,
        post.targets_text()
    );
    let properties =
        json!({"targets": {"type": "array", "items": target}, "closed": text, "prompt": text, "wait": text});
    post.has_tool().then(|| spec(HANDOFF_TOOL, &about, Touch::Reads, Replay::Safe, properties, &[]))
}

impl TurnContext {
    /// What can be said about a handoff without looking at the session; said before a person is asked.
    pub(super) fn check_handoff(&self, call: &ToolCall) -> Result<Handoff, String> {
        let handoff = Handoff::of_call(call)?;
        match &self.post {
            Some(post) => post.check(&handoff).map(|()| handoff),
            None => Err("this session is at no node of a flow".to_owned()),
        }
    }

    pub(super) async fn hand_off(&self, call: &ToolCall) -> Result<ToolOutput> {
        let (handoff, post) = match (self.check_handoff(call), &self.post) {
            (Ok(handoff), Some(post)) => (handoff, post),
            (Err(why), _) => return Ok(ToolOutput::error(why)),
            (Ok(_), None) => return Ok(ToolOutput::error("this session is at no node of a flow")),
        };
        let mut visit = self.engine.visit_of(&self.scope, &self.session, post).await?;
        if visit.faults >= REPAIRS_MAX {
            return Ok(ToolOutput::error(format!(
                "There were {REPAIRS_MAX} wrong handoffs: the node has failed."
            )));
        }
        for target in &handoff.targets {
            if let Some(fault) = self.settle_artifact(target).await? {
                return Ok(ToolOutput::error(fault));
            }
        }
        visit.handed.push(handoff);
        let what_next = match post.is_ended_by(&visit.handed) {
            true => "The node is handed off. Say in a sentence what you did, and end here.".to_owned(),
            false => owed_text(post, &visit.handed),
        };
        Ok(ToolOutput::text(what_next))
    }

    /// Puts the artifact, or says that there is none of its name.
    async fn settle_artifact(&self, target: &HandoffTarget) -> Result<Option<String>> {
        let HandoffTarget { artifact, content, node } = target;
        if let Some(content) = content.clone() {
            self.put_artifact(PutArtifact { name: artifact.clone(), content, mime: None }).await?;
            return Ok(None);
        }
        let artifacts = self.engine.artifacts(&self.scope, &self.session).await?;
        let is_there = artifacts.named(artifact).is_some();
        Ok((!is_there).then(|| {
            format!("There is no artifact {artifact} to hand to {node}: give its text as content, or put it first.")
        }))
    }
}
