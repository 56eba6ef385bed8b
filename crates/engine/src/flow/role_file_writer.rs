//! Write role files: a role's `transcript.json` and `feed.json`. An export writes them once. The mirror of a run
//! rewrites them whenever the role's session has new entries. Both use the same code, so their files are the same. The
//! sink decides where the mirror stores the files. The files are copies and are never read back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sapwood_core::entry::Body;
use sapwood_core::flow::{Assignment, Node, NodeKind, RunState};
use sapwood_core::port::store::{PathSlice, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::project::turn_outcomes::TurnOutcomes;
use sapwood_core::{Kind, Scope, Seq, SessionId};
use sapwood_formats::export::role_files::{NodeEntered, RoleFacts, transcript};
use sapwood_formats::import::role_files::RoleState;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Flows;
use crate::Result;

/// How often the sessions are checked for new entries.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The role name of a session without an agent.
const ROLE_DEFAULT: &str = "agent";

/// Stores role files. Implementations replace a file atomically, so a reader sees the old or the new version.
pub trait RoleFileSink: Send + Sync {
    /// Write one file of a role. An existing file is replaced.
    fn write(&self, flow: &str, run: &str, role: &str, name: &str, text: &str) -> std::io::Result<()>;
}

/// A background task that keeps a run's role files up to date.
pub struct Mirror {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Mirror {
    /// Write the files of sessions with new entries once more, then stop.
    pub async fn finish(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Flows<'_> {
    /// Keep the role files of a run up to date until [`Mirror::finish`] is called. Write failures are logged and have
    /// no other effect.
    pub fn mirror(self, scope: &Scope, run: &SessionId, sink: Arc<dyn RoleFileSink>) -> Mirror {
        let (engine, scope, run) = (self.engine.clone(), scope.clone(), run.clone());
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut seen: HashMap<String, Seq> = HashMap::new();
            let mut is_last = false;
            loop {
                if let Err(error) = engine.flows().write_role_files(&scope, &run, &*sink, &mut seen).await {
                    tracing::warn!(%run, %error, "failed to write role files");
                }
                if is_last {
                    return;
                }
                is_last = tokio::time::timeout(CHECK_INTERVAL, &mut stopped).await.is_ok();
            }
        });
        Mirror { stop, task }
    }

    async fn write_role_files(
        self,
        scope: &Scope,
        run: &SessionId,
        sink: &dyn RoleFileSink,
        seen: &mut HashMap<String, Seq>,
    ) -> Result<()> {
        let state = self.run_state(scope, run).await?;
        for (session, instance) in instances_of(&state) {
            let session: SessionId = session.parse()?;
            if !self.engine.directory().exists(scope, &session).await? {
                continue;
            }
            let summary = self.engine.directory().summary(scope, &session).await?;
            let head = summary.head.seq;
            if seen.insert(session.to_string(), head) == Some(head) {
                continue;
            }
            let transcript = self.role_transcript(scope, &summary, Some(&instance)).await?;
            let feed = self.role_feed(scope, &session).await?;
            for (name, text) in [("transcript.json", transcript), ("feed.json", feed)] {
                if let Err(error) = sink.write(&state.flow.id, run.as_str(), &instance, name, &text) {
                    seen.remove(session.as_str());
                    tracing::warn!(%run, %error, role = instance, name, "failed to write a role file");
                }
            }
        }
        Ok(())
    }

    /// The `transcript.json` of a session. `instance` is its role instance, if the caller knows it.
    pub(crate) async fn role_transcript(
        self,
        scope: &Scope,
        summary: &Summary,
        instance: Option<&str>,
    ) -> Result<String> {
        let slice = self.engine.configuration().read_path(scope, &summary.id, None, Until::Root).await?;
        let facts = self.role_facts(scope, summary, &slice, instance).await?;
        Ok(format!("{:#}\n", transcript(&slice.entries, &facts)))
    }

    /// The `feed.json` of a session.
    pub(crate) async fn role_feed(self, scope: &Scope, session: &SessionId) -> Result<String> {
        let feed = self.engine.views().feed(scope, session).await?;
        let text = serde_json::to_string_pretty(&feed).unwrap_or_default();
        Ok(format!("{text}\n"))
    }

    async fn role_facts(
        self,
        scope: &Scope,
        summary: &Summary,
        slice: &PathSlice,
        instance: Option<&str>,
    ) -> Result<RoleFacts> {
        let (mut assignment, mut nodes, mut state) = (None, Vec::new(), None);
        self.engine
            .log()
            .each_of_kinds(scope, &summary.id, &[Kind::FlowAssigned, Kind::CustomInfo], |entry| {
                if let Some(entered) = Assignment::of_body(&entry.body) {
                    nodes.push(NodeEntered { node: entered.node.clone(), after: entry.meta.seq });
                    assignment = Some(entered);
                } else if let Body::CustomInfo(info) = &entry.body
                    && let Some(imported) = RoleState::of_info(info)
                {
                    nodes.extend(NodeEntered::of_state(&imported, entry.meta.seq, &slice.entries));
                    state = Some(imported);
                }
            })
            .await?;
        let named = instance.map(str::to_owned).or_else(|| assignment.as_ref().map(|at| at.role.clone()));
        let role = named.or_else(|| summary.agent.clone()).unwrap_or_else(|| ROLE_DEFAULT.to_owned());
        let run = assignment.map(|assignment| assignment.run);
        let logical_id = run.map_or_else(|| summary.id.to_string(), |run| format!("{run}__{role}"));
        let outcomes = self.engine.views().turn_outcomes(scope, summary, slice).await?;
        let is_active = summary.open_turn.is_some() || outcomes.ends_interrupted();
        let imported_usage = state.as_ref().and_then(|state| state.latest_context_usage);
        let mut context_tokens =
            reported_tokens(slice, &outcomes).or_else(|| imported_usage.map(|tokens| tokens as u64));
        if context_tokens.is_none() {
            context_tokens = Some(self.engine.views().context(scope, &summary.id, None).await?.tokens);
        }
        let archives = state.map(|state| state.archives).unwrap_or_default();
        let configured_system = slice.config.as_ref().map(|config| config.system.clone().unwrap_or_default());
        Ok(RoleFacts { role, logical_id, is_active, nodes, archives, context_tokens, configured_system })
    }
}

/// The context's tokens in the most recent completed turn, as its model reported them.
fn reported_tokens(slice: &PathSlice, outcomes: &TurnOutcomes) -> Option<u64> {
    slice.entries.iter().rev().find_map(|entry| match &entry.body {
        Body::AssistantMessage(answer) if outcomes.is_completed(&entry.meta).unwrap_or(true) => {
            answer.usage.map(|usage| usage.total())
        }
        _ => None,
    })
}

/// The sessions of a run with the names of their role instances, without duplicates. An instance has the name of the
/// role, or of the node if it has no role. If that name is taken, the instance is named `at.NODE`.
fn instances_of(state: &RunState) -> Vec<(String, String)> {
    let nodes = state.flow.nodes.iter().chain(&state.improvers).filter(|node| node.kind == NodeKind::Agent);
    // The role's own session gets the role's name, even if a fork comes first in the file.
    let (own, other): (Vec<&Node>, Vec<&Node>) = nodes.partition(|node| node.fork_from.is_none());
    let (mut sessions, mut names) = (HashSet::new(), HashSet::new());
    let mut instances = Vec::new();
    for node in own.into_iter().chain(other) {
        let session = state.session_of(node);
        if !sessions.insert(session.clone()) {
            continue;
        }
        let mut name = node.who().to_owned();
        if !names.insert(name.clone()) {
            name = format!("at.{}", node.id);
            names.insert(name.clone());
        }
        instances.push((session, name));
    }
    instances
}
