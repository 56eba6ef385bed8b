//! Write role files while a run is active: each role's `transcript.json` and `feed.json` are rewritten whenever
//! the role's session has new entries. The sink decides where the files are stored. The files are copies and are never
//! read back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sapwood_core::flow::{Assignment, NodeKind};
use sapwood_core::{Kind, Scope, Seq, SessionId};
use sapwood_formats::export::role_files::{RoleAt, role_transcript};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Flows;
use crate::Result;

/// How often the sessions are checked for new entries.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

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
        let nodes = state.flow.nodes.iter().chain(&state.improvers);
        let mut checked = HashSet::new();
        for node in nodes.filter(|node| node.kind == NodeKind::Agent) {
            let session: SessionId = state.session_of(node).parse()?;
            if !checked.insert(session.clone()) || !self.engine.directory().exists(scope, &session).await? {
                continue;
            }
            let summary = self.engine.directory().summary(scope, &session).await?;
            let head = summary.head.seq;
            if seen.insert(session.to_string(), head) == Some(head) {
                continue;
            }
            let path = self.engine.views().path(scope, &session, None).await?;
            let at = self.role_at(scope, &session, node.who()).await?;
            let transcript = format!("{:#}\n", role_transcript(&summary, &path, &at));
            let feed = self.engine.views().feed(scope, &session).await?;
            let feed = serde_json::to_string_pretty(&feed).unwrap_or_default();
            for (name, text) in [("transcript.json", transcript), ("feed.json", feed)] {
                if let Err(error) = sink.write(&state.flow.id, run.as_str(), node.who(), name, &text) {
                    seen.remove(session.as_str());
                    tracing::warn!(%run, %error, role = node.who(), name, "failed to write a role file");
                }
            }
        }
        Ok(())
    }

    async fn role_at(self, scope: &Scope, session: &SessionId, role: &str) -> Result<RoleAt> {
        let mut node = None;
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::FlowAssigned], |entry| {
                if let Some(assignment) = Assignment::of_body(&entry.body) {
                    node = Some((assignment.node, entry.meta.seq));
                }
            })
            .await?;
        let context_tokens = self.engine.views().context(scope, session, None).await?.tokens;
        Ok(RoleAt { role: role.to_owned(), node, context_tokens })
    }
}
