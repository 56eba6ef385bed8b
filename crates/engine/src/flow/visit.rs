//! Perform one visit: open the role's session, start or continue its turn, have the role repair an invalid handoff,
//! and read the result. Every decision is based on the role's log and made under its lease, so a visit can safely
//! be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sapwood_core::content::BlobRef;
use sapwood_core::entry::{
    ArtifactPut, ArtifactUse, Draft, Origin, SystemNote, TITLE_CHARS_MAX, UserMessage, fit_title,
};
use sapwood_core::flow::event::ARTIFACT_TEXT_BYTES_MAX;
use sapwood_core::flow::graph::Node;
use sapwood_core::flow::state::{FEEDBACK, is_improver};
use sapwood_core::flow::visit::{ENTRY_REASON, FLOW_CHANNEL, REPAIR_REASON};
use sapwood_core::flow::{
    Artifact, Assignment, Flow, HANDOFF_TOOL, Handed, HandoffBy, NextAction, REPAIRS_MAX, RunState,
    VISITS_MAX, Visit, VisitKey, VisitResult, prompts,
};
use sapwood_core::port::store::{Append, StoreError};
use sapwood_core::{Agent, Part, Scope, SessionId};

use crate::config_changes::ForkChanges;
use crate::flow::ROLE_SEPARATOR;
use crate::lease::Hold;
use crate::sessions::{ForkAt, OpenOptions};
use crate::turn::{OnWait, Opening, Running};
use crate::{Engine, EngineError, Result};

/// Maximum number of turns of one visit: the first turn, its repairs, and interrupted turns.
const TURNS_MAX: u32 = 4 * (REPAIRS_MAX + 1);
/// Maximum number of attempts to take the lease of a session that is running another turn.
const BUSY_TRIES_MAX: u32 = 720;
/// Poll interval for a session that is running another turn.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Performs one visit, based on the run's state when the visit was scheduled.
pub(super) struct Visitor {
    pub engine: Engine,
    pub scope: Scope,
    pub state: RunState,
    pub is_cancelled: Arc<AtomicBool>,
}

impl Visitor {
    /// Start or continue the visit. Failures caused by the node become a result. Failures that may be temporary, or
    /// that another process can recover from, are returned as errors and leave the run unchanged.
    pub(super) async fn visit(&self, key: &VisitKey) -> Result<VisitResult> {
        match self.try_visit(key).await {
            Err(error) if is_node_error(&error) => {
                Ok(VisitResult::Failed { code: error.code().to_owned(), message: error.to_string() })
            }
            result => result,
        }
    }

    async fn try_visit(&self, key: &VisitKey) -> Result<VisitResult> {
        let unknown = || EngineError::Invalid { what: "the node", why: format!("no node `{}`", key.node) };
        let node = self.state.any_node(&key.node).ok_or_else(unknown)?.clone();
        let session: SessionId = self.state.session_of(&node).parse()?;
        self.open_session(&node, &session).await?;
        for _ in 0..TURNS_MAX {
            let hold = self.await_lease(&session).await?;
            match self.take_step(&node, &session, key, hold).await? {
                VisitStep::Finished(result) => return Ok(result),
                VisitStep::Running(running) => {
                    self.cancel_if_requested(&session).await;
                    let report = running.ended().await?;
                    if report.ended.is_none() {
                        let approvals = report.waiting.into_iter().map(|pending| pending.approval).collect();
                        return Ok(VisitResult::Waits { approvals });
                    }
                }
            }
        }
        let message = format!("the visit took more than {TURNS_MAX} turns");
        Ok(VisitResult::Failed { code: "flow.visit_limit".to_owned(), message })
    }

    /// Cancel the turn if the run was cancelled while the turn was starting.
    async fn cancel_if_requested(&self, session: &SessionId) {
        if self.is_cancelled.load(Ordering::SeqCst) {
            // The turn may have ended by now, so ignore errors.
            let _ = self.engine.turn_control().cancel(&self.scope, session).await;
        }
    }

    /// Acquire the session's lease. Waits for its current holder, up to a limit or until the run is cancelled.
    async fn await_lease(&self, session: &SessionId) -> Result<Hold> {
        let mut tries = 0;
        loop {
            match Hold::wait(&self.engine, &self.scope, session).await {
                Err(EngineError::Store(StoreError::Leased { .. }))
                    if tries < BUSY_TRIES_MAX && !self.is_cancelled.load(Ordering::SeqCst) =>
                {
                    tries += 1;
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Read the progress of the visit, and take the next step.
    async fn take_step(
        &self,
        node: &Node,
        session: &SessionId,
        key: &VisitKey,
        hold: Hold,
    ) -> Result<VisitStep> {
        let run = &self.state.run;
        let found = match self.engine.flows().visit_entries(&self.scope, session, run, key).await {
            Ok(found) => found,
            Err(error) => {
                hold.release().await;
                return Err(error);
            }
        };
        let Some((assignment, entries)) = found else {
            if self.is_cancelled.load(Ordering::SeqCst) {
                hold.release().await;
                return Ok(VisitStep::Finished(cancelled()));
            }
            return self.begin(node, session, key, hold).await.map(VisitStep::Running);
        };
        let visit = Visit::fold(&entries);
        match visit.next_action(&assignment) {
            NextAction::Continue => self.resume_turn(session, hold).await,
            NextAction::Repair { .. } if self.is_cancelled.load(Ordering::SeqCst) => {
                hold.release().await;
                Ok(VisitStep::Finished(cancelled()))
            }
            NextAction::Repair { why } => {
                let opening = repair(assignment, &visit, why);
                self.engine
                    .turns()
                    .begin_held(&self.scope, session, hold, opening)
                    .await
                    .map(VisitStep::Running)
            }
            over => {
                hold.release().await;
                self.conclude(node, session, &assignment, &visit, over).await.map(VisitStep::Finished)
            }
        }
    }

    async fn resume_turn(&self, session: &SessionId, hold: Hold) -> Result<VisitStep> {
        let resumed = self.engine.turns().resume_held(&self.scope, session, hold, OnWait::Leave).await?;
        resumed.map(VisitStep::Running).ok_or_else(|| EngineError::TurnLost { session: session.clone() })
    }

    /// Open the session, or the fork, that the node works in.
    async fn open_session(&self, node: &Node, session: &SessionId) -> Result<()> {
        if self.engine.directory().exists(&self.scope, session).await? {
            return Ok(());
        }
        let title = role_title(self.state.flow.title(), node.who());
        if !session.as_str().starts_with(&format!("{}{ROLE_SEPARATOR}", self.state.run)) {
            self.engine.sessions().check_id(&self.scope, Some(session)).await?;
        }
        let id = Some(session.clone());
        let Some(source) = &node.fork_from else {
            let (agent, cwd) = (Some(self.state.flow.agent_of(node)), self.state.cwd.clone());
            self.engine
                .sessions()
                .open_any(&self.scope, OpenOptions { id, title, agent, cwd, parent: None })
                .await?;
            return Ok(());
        };
        let source: SessionId = match self.state.flow.fork_source(node) {
            Some(source) => self.state.session_of(source).parse()?,
            None => source.parse()?,
        };
        // A fork has the agent and the directory of its source.
        let options = OpenOptions { id, title, ..OpenOptions::default() };
        match self
            .engine
            .sessions()
            .fork_any(&self.scope, &source, ForkAt::Leaf, options, ForkChanges::default())
            .await
        {
            // Created by another process, or by this one before a crash.
            Err(EngineError::Store(StoreError::Exists { .. })) => Ok(()),
            forked => forked.map(drop),
        }
    }

    /// Start the visit's turn with a note about the node.
    async fn begin(&self, node: &Node, session: &SessionId, key: &VisitKey, hold: Hold) -> Result<Running> {
        let briefing = match self.configure(node, session, &hold).await {
            Ok(briefing) => briefing,
            Err(error) => {
                hold.release().await;
                return Err(error);
            }
        };
        let assignment = Assignment::of(&self.state, node, key);
        let mut text = prompts::entry_note(&self.state, node, &assignment);
        if briefing == Briefing::InNote {
            text = format!("{}\n\n{text}", prompts::briefing(&self.state, node));
        }
        let note = SystemNote { text, reason: Some(ENTRY_REASON.to_owned()) };
        let prompt = match node.id.as_str() {
            FEEDBACK => prompts::feedback_prompt(&self.state, node),
            _ => prompts::render_prompt(&self.state, node),
        };
        let bodies = vec![assignment.to_body(), note.into(), flow_message(prompt).into()];
        let opening = Opening { bodies, assignment: Some(assignment), ..Opening::default() };
        self.engine.turns().begin_held(&self.scope, session, hold, opening).await
    }

    /// If the session has no configuration, write the role's. A session that has a configuration keeps it: its agent,
    /// tools, scope, directory and system prompt. The node can only narrow it, for its visit.
    async fn configure(&self, node: &Node, session: &SessionId, hold: &Hold) -> Result<Briefing> {
        let summary = self.engine.directory().summary(&self.scope, session).await?;
        let configuration = self.engine.configuration();
        let named = self.state.flow.named_agent(node);
        let Some(agent) = configuration.agent_in_force(&self.scope, &summary).await? else {
            let is_imported = configuration.authority_of(&self.scope, &summary).await?.has_imports();
            if is_imported && named.is_none() {
                // The session's first local turn assigns the default agent.
                return Ok(Briefing::InNote);
            }
            self.write_role_settings(node, session, hold).await?;
            return Ok(Briefing::InSystemPrompt);
        };
        check_agent(&self.state.flow, node, session, agent)?;
        let system = configuration.settings(&self.scope, session).await?.system.unwrap_or_default();
        let is_introduced = system.contains(&prompts::introduction(&self.state.flow, node))
            || self.engine.flows().has_visited(&self.scope, session, &self.state.run).await?;
        Ok(if is_introduced { Briefing::InSystemPrompt } else { Briefing::InNote })
    }

    /// Write the role's settings once per run and session; the idempotency key makes repetitions harmless.
    async fn write_role_settings(&self, node: &Node, session: &SessionId, hold: &Hold) -> Result<()> {
        let turns_before = self.engine.directory().summary(&self.scope, session).await?.turns;
        let (agent, prompt) = self.role_agent(node, turns_before)?;
        let run: SessionId = self.state.run.parse()?;
        self.engine.configuration().share_models(&self.scope, &run, session, &agent).await?;
        let (cwd, variables) = (self.state.cwd.clone(), self.state.flow.variables.clone());
        let bodies = self.engine.configuration().role_bodies(&agent, prompt, cwd, variables).await?;
        let now = self.engine.clock.now();
        let drafts = bodies.into_iter().map(|body| Draft::new(now, body)).collect();
        let mut append = Append::new(session.clone(), now, drafts);
        append.fence = Some(hold.fence);
        append.idempotency_key = Some(format!("flow:{}:prompt", self.state.run));
        self.engine.log().append(&self.scope, append).await?;
        Ok(())
    }

    /// The role's agent, with the handoff tool and enough turns for all nodes, and its system prompt.
    fn role_agent(&self, node: &Node, turns_before: u32) -> Result<(Agent, String)> {
        let id = self.state.flow.agent_of(node);
        let unknown = || EngineError::Invalid { what: "the agent", why: format!("no agent `{id}`") };
        let mut agent = self.state.flow.agents.get(&id).cloned().ok_or_else(unknown)?;
        let prompt = prompts::system_prompt(&self.state, node, agent.system_prompt.as_deref());
        if !agent.tools.iter().any(|tool| tool == HANDOFF_TOOL) {
            agent.tools.push(HANDOFF_TOOL.to_owned());
        }
        agent.on_interrupt = sapwood_core::agent::OnInterrupt::Continue;
        agent.limits.corrections_max = agent.limits.corrections_max.max(REPAIRS_MAX);
        agent.limits.turns_max.get_or_insert_with(|| turns_before.saturating_add(turns_of(&self.state.flow)));
        Ok((agent, prompt))
    }

    async fn conclude(
        &self,
        node: &Node,
        session: &SessionId,
        assignment: &Assignment,
        visit: &Visit,
        over: NextAction,
    ) -> Result<VisitResult> {
        Ok(match over {
            NextAction::Fail { code, message } => VisitResult::Failed { code, message },
            NextAction::Declined { why } => {
                VisitResult::Handed(Handed { closed: Some(why), ..Handed::default() })
            }
            NextAction::Done { said } => {
                if is_improver(&node.id) {
                    self.store_findings(node, assignment, &said).await?;
                }
                VisitResult::Handed(self.handed(session, assignment, visit, said).await?)
            }
            NextAction::Continue | NextAction::Repair { .. } => cancelled(),
        })
    }

    async fn handed(
        &self,
        session: &SessionId,
        assignment: &Assignment,
        visit: &Visit,
        said: String,
    ) -> Result<Handed> {
        let mut handed = Handed { said: said.clone(), ..Handed::default() };
        if assignment.handoff == HandoffBy::Answer {
            let artifact = self.store_answer(session, "answer", &said).await?;
            let targets = assignment.forward.iter().filter(|target| !target.done);
            handed.to = targets.map(|target| (target.node.clone(), artifact.clone())).collect();
            return Ok(handed);
        }
        for handoff in &visit.handed {
            for target in &handoff.targets {
                let artifact = self.artifact(session, &target.artifact, target.content.as_deref()).await?;
                // If a target was handed over twice, the last handoff counts.
                handed.to.retain(|(node, _)| *node != target.node);
                handed.to.push((target.node.clone(), artifact));
            }
            handed.closed = handoff.closed.clone().or(handed.closed);
            handed.waits = handoff.wait.clone().or(handed.waits);
        }
        Ok(handed)
    }

    /// An artifact as shown to the next role: its beginning, and a reference to the rest.
    async fn artifact(&self, session: &SessionId, name: &str, content: Option<&str>) -> Result<Artifact> {
        let artifacts = self.engine.views().artifacts(&self.scope, session).await?;
        let blob = artifacts.named(name).map(|artifact| artifact.content.blob);
        let (text, bytes) = match (content, blob) {
            (Some(content), _) => (content.to_owned(), content.len() as u64),
            (None, Some(blob)) => {
                let mut reader = self.engine.views().open_blob(&self.scope, blob).await?;
                let bytes = reader.remaining();
                let beginning = reader.next_up_to(ARTIFACT_TEXT_BYTES_MAX + 1).await?;
                (String::from_utf8_lossy(&beginning).into_owned(), bytes)
            }
            (None, None) => (String::new(), 0),
        };
        Ok(Artifact { blob, bytes, ..Artifact::of_text(name, &text) })
    }

    /// Store an answer that is too long for an event as an artifact of the role.
    async fn store_answer(&self, session: &SessionId, name: &str, text: &str) -> Result<Artifact> {
        let artifact = Artifact::of_text(name, text);
        if !artifact.is_cut() {
            return Ok(artifact);
        }
        let blob = self.engine.store.put_blob(&self.scope, text.as_bytes().to_vec()).await?;
        let key = format!("flow:{}:{name}:{blob}", self.state.run);
        self.put_artifact(session, name, text, key).await?;
        Ok(Artifact { blob: Some(blob), ..artifact })
    }

    /// Store a role's findings as an artifact of the run.
    async fn store_findings(&self, node: &Node, assignment: &Assignment, text: &str) -> Result<()> {
        let name = match node.id.as_str() {
            FEEDBACK => "feedback.md".to_owned(),
            _ => format!("findings/{}.md", node.who()),
        };
        let run: SessionId = self.state.run.parse()?;
        let key = format!(
            "flow:{}:{}:{}:{}",
            assignment.run, assignment.node, assignment.visit, assignment.attempt
        );
        self.put_artifact(&run, &name, text, key).await
    }

    async fn put_artifact(&self, session: &SessionId, name: &str, text: &str, key: String) -> Result<()> {
        let bytes = text.len() as u64;
        let blob = self.engine.store.put_blob(&self.scope, text.as_bytes().to_vec()).await?;
        let (mime, given) = ("text/markdown".to_owned(), Some(name.to_owned()));
        let content = BlobRef { blob, mime, name: given, bytes, duration_ms: None };
        let put = ArtifactPut::new(name, ArtifactUse::Artifact, content);
        let now = self.engine.clock.now();
        let mut append = Append::new(session.clone(), now, vec![Draft::new(now, put)]);
        append.idempotency_key = Some(key);
        self.engine.log().append(&self.scope, append).await?;
        Ok(())
    }
}

/// Maximum number of turns that a flow can start in one session, assuming that every node and the reflection use
/// the same session.
fn turns_of(flow: &Flow) -> u32 {
    let nodes = u32::try_from(flow.nodes.len()).unwrap_or(u32::MAX).saturating_add(1);
    nodes.saturating_mul(VISITS_MAX * TURNS_MAX)
}

/// The title of a role's session: flow and role. If it is too long, the flow's name is shortened.
fn role_title(flow: &str, who: &str) -> Option<String> {
    let separator = " · ";
    let flow_chars_max = TITLE_CHARS_MAX.saturating_sub(who.chars().count() + separator.chars().count());
    let flow: String = fit_title(flow).unwrap_or_default().chars().take(flow_chars_max).collect();
    fit_title(&format!("{flow}{separator}{who}"))
}

/// Where the session contains the description of the role's task in the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Briefing {
    InSystemPrompt,
    /// The session has its own system prompt, so the note for entering the node begins with the briefing.
    InNote,
}

/// Refuse a node that names a different agent than the one that its session runs with.
pub(super) fn check_agent(flow: &Flow, node: &Node, session: &SessionId, agent: String) -> Result<()> {
    let Some(named) = flow.named_agent(node) else { return Ok(()) };
    // An export names its agent as the source did; the agent found for that name may have another id.
    let is_same = named == agent || flow.agents.get(&named).is_some_and(|found| found.id == agent);
    if is_same {
        return Ok(());
    }
    Err(EngineError::AgentMismatch { node: node.id.clone(), session: session.clone(), agent, named })
}

/// The result of one step of a visit.
enum VisitStep {
    Running(Running),
    Finished(VisitResult),
}

fn cancelled() -> VisitResult {
    VisitResult::Failed { code: "turn.cancelled".to_owned(), message: "the run was cancelled".to_owned() }
}

fn repair(assignment: Assignment, visit: &Visit, why: String) -> Opening {
    let note = SystemNote { text: why, reason: Some(REPAIR_REASON.to_owned()) };
    let prompt = prompts::repair_prompt(&assignment, &visit.handed);
    let bodies = vec![note.into(), flow_message(prompt).into()];
    Opening { bodies, assignment: Some(assignment), ..Opening::default() }
}

/// A user message written by the flow.
fn flow_message(text: String) -> UserMessage {
    let origin = Origin { channel: FLOW_CHANNEL.to_owned(), reply_to: None, attachments: Vec::new() };
    UserMessage { parts: vec![Part::text(text)], origin: Some(origin) }
}

/// Whether an error is caused by the node, not by the store or the process.
fn is_node_error(error: &EngineError) -> bool {
    let code = error.code();
    let is_store_error = code.starts_with("store.") || matches!(code, "session.stale_fence" | "turn.lost");
    !is_store_error && !matches!(error, EngineError::NoBackends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_session_titles_are_valid_for_any_flow_title() {
        assert_eq!(role_title("Shop\nand more", "writer").as_deref(), Some("Shop and more · writer"));
        for title in ["x".repeat(500), "\n".repeat(500), "ä b\u{7}".repeat(300)] {
            let fit = role_title(&title, "writer").unwrap();
            assert!(fit.ends_with("· writer"), "{fit}");
            assert_eq!(crate::sessions::checked_title(&fit).unwrap(), fit);
        }
    }
}
