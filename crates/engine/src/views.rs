//! The read-only operations: projections of a session's log.

use std::collections::HashSet;

use sapwood_core::delegation::Delegation;
use sapwood_core::entry::{Body, Compaction, Entry};
use sapwood_core::port::hook::HookName;
use sapwood_core::port::store::{AuditAction, StoreError, Until};
use sapwood_core::project::artifacts::Artifacts;
use sapwood_core::project::context::Context;
use sapwood_core::project::feed::{Feed, FeedItem};
use sapwood_core::project::ledger::{Ledger, LedgerLine};
use sapwood_core::project::outline::Outline;
use sapwood_core::project::summary::Summary;
use sapwood_core::project::timeline::{Timeline, TimelinePoint};
use sapwood_core::project::usage::{Spend, Total};
use sapwood_core::{EntryId, Kind, Scope, Seq, SessionId, TimestampMs};
use serde::Serialize;
use serde_json::json;

use crate::hook::EventLocation;
use crate::log::note;
use crate::path_reader::{PathStart, walk};
use crate::{EngineError, Result, service};

/// Maximum length of a fork chain. A longer chain is cut off, like a cycle.
const ANCESTRY_MAX: usize = 1_000;

/// A session's ancestors and children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ancestry {
    /// The session.
    pub id: SessionId,
    /// The session that this one was forked from, or that started it.
    pub parent: Option<SessionId>,
    /// The sessions that were forked from this one or started by it.
    pub children: Vec<SessionId>,
    /// The oldest ancestor, or the session itself.
    pub root: SessionId,
    /// From the session to its root.
    pub chain: Vec<SessionId>,
}

/// A compaction, and whether it is on the active path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Archive {
    pub seq: Seq,
    pub id: EntryId,
    pub at: TimestampMs,
    #[serde(flatten)]
    pub compaction: Compaction,
    pub on_path: bool,
}

/// A session's spend, in total and per model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageReport {
    pub total: Total,
    pub models: Spend,
}

/// A read-only copy of a session's current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// The session's summary.
    pub summary: Summary,
    /// What a model would receive.
    pub context: Context,
}

service! {
    /// Projections of a session: context, tree, feed, ledger, usage, exports.
    pub struct Views;
    views
}

impl Views<'_> {
    /// Ask the hooks whether the session may be exported, and write an audit line.
    pub async fn record_export(self, scope: &Scope, session: &SessionId, format: &str) -> Result<()> {
        let about = || json!({"format": format});
        self.engine.hooks().ask(HookName::BeforeExport, EventLocation::new(scope, session), about).await?;
        let export = note(AuditAction::Export, session, Some(format.to_owned()));
        Ok(self.engine.store.write_audit(scope, export, self.engine.clock.now()).await?)
    }

    /// Number of messages in the session's context.
    pub async fn length(self, scope: &Scope, session: &SessionId) -> Result<usize> {
        Ok(self.context(scope, session, None).await?.messages.len())
    }

    /// A snapshot of the session; `None` for an unknown id.
    pub async fn snapshot(self, scope: &Scope, session: &SessionId) -> Result<Option<Snapshot>> {
        if !self.engine.directory().exists(scope, session).await? {
            return Ok(None);
        }
        let summary = self.engine.directory().summary(scope, session).await?;
        let context = self.context(scope, session, None).await?;
        Ok(Some(Snapshot { summary, context }))
    }

    /// The context that a model would receive at the leaf, or at another entry.
    pub async fn context(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Context> {
        let slice = self.engine.configuration().read_path(scope, session, at, Until::ContextStart).await?;
        self.engine.grafts().context_with_grafts(scope, slice).await
    }

    /// The entries on the path to the leaf or to another entry, oldest first.
    pub async fn path(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Vec<Entry>> {
        Ok(self.engine.store.read_path(scope, session, at, Until::Root).await?.entries)
    }

    /// The path to the leaf, preceded by the entry that fixed the session's configuration.
    pub(crate) async fn configured_path(self, scope: &Scope, summary: &Summary) -> Result<Vec<Entry>> {
        let mut path = self.path(scope, &summary.id, None).await?;
        if let Some(seq) = summary.config.configured {
            let record = self.engine.store.read_entry(scope, &summary.id, seq).await?;
            let unreadable = |source| EngineError::Unreadable { session: summary.id.clone(), source };
            path.insert(0, record.into_entry().map_err(unreadable)?);
        }
        Ok(path)
    }

    pub async fn tree(self, scope: &Scope, session: &SessionId) -> Result<Outline> {
        let leaf = self.engine.store.summary(scope, session).await?.head.leaf;
        let mut entries = Vec::new();
        self.engine.log().each_entry(scope, session, Seq::ZERO, |entry| entries.push(entry)).await?;
        Ok(Outline::fold(&entries, leaf))
    }

    pub async fn feed(self, scope: &Scope, session: &SessionId) -> Result<Vec<FeedItem>> {
        let mut feed = Feed::default();
        self.engine.log().each_entry(scope, session, Seq::ZERO, |entry| feed.apply(&entry)).await?;
        Ok(feed.items)
    }

    pub async fn ledger(self, scope: &Scope, session: &SessionId) -> Result<Vec<LedgerLine>> {
        let mut ledger = Ledger::default();
        self.engine.log().each_of_kinds(scope, session, &[Kind::Round], |entry| ledger.apply(&entry)).await?;
        Ok(ledger.lines)
    }

    pub async fn timeline(self, scope: &Scope, session: &SessionId) -> Result<Vec<TimelinePoint>> {
        let mut timeline = Timeline::default();
        let kinds = [Kind::AssistantMessage, Kind::Compaction];
        self.engine.log().each_of_kinds(scope, session, &kinds, |entry| timeline.apply(&entry)).await?;
        Ok(timeline.points)
    }

    pub async fn artifacts(self, scope: &Scope, session: &SessionId) -> Result<Artifacts> {
        let mut artifacts = Artifacts::default();
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::ArtifactPut], |entry| artifacts.apply(&entry))
            .await?;
        Ok(artifacts)
    }

    /// The session and turn that delegated this session's task; `None` for other sessions.
    pub async fn delegation(self, scope: &Scope, summary: &Summary) -> Result<Option<Delegation>> {
        if summary.parent.is_none() {
            return Ok(None);
        }
        let mut found = None;
        let visit = |entry: Entry| {
            if let Body::CustomInfo(info) = &entry.body {
                found = Delegation::from_info(info).or(found.take());
            }
        };
        let configuration = self.engine.configuration();
        configuration.each_own_of_kinds(scope, &summary.id, &[Kind::CustomInfo], Seq::ZERO, visit).await?;
        Ok(found)
    }

    pub async fn usage(self, scope: &Scope, session: &SessionId) -> Result<UsageReport> {
        let models = self.engine.store.summary(scope, session).await?.spend;
        Ok(UsageReport { total: models.total(), models })
    }

    pub async fn archives(self, scope: &Scope, session: &SessionId) -> Result<Vec<Archive>> {
        let mut archives = Vec::new();
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::Compaction], |entry| {
                let Body::Compaction(compaction) = entry.body else { return };
                let meta = entry.meta;
                archives.push(Archive {
                    seq: meta.seq,
                    id: meta.id,
                    at: meta.at,
                    compaction,
                    on_path: false,
                });
            })
            .await?;
        if !archives.is_empty() {
            let path = walk(self.engine, scope, session, None, PathStart::Root, usize::MAX).await?;
            let on_path: HashSet<Seq> = path.into_iter().collect();
            archives.iter_mut().for_each(|archive| archive.on_path = on_path.contains(&archive.seq));
        }
        Ok(archives)
    }

    /// The session's ancestors and children; `None` for an unknown id. Tolerates missing parents and cycles from a
    /// damaged import.
    pub async fn ancestry(self, scope: &Scope, session: &SessionId) -> Result<Option<Ancestry>> {
        let mut chain = vec![session.clone()];
        let mut parent = match self.engine.store.summary(scope, session).await {
            Ok(summary) => summary.parent.map(|lineage| lineage.session),
            Err(StoreError::NoSession { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let direct_parent = parent.clone();
        while let Some(next) =
            parent.take().filter(|next| !chain.contains(next) && chain.len() < ANCESTRY_MAX)
        {
            let next_summary = self.engine.store.summary(scope, &next).await;
            chain.push(next);
            parent = match next_summary {
                Ok(summary) => summary.parent.map(|lineage| lineage.session),
                Err(StoreError::NoSession { .. }) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Some(Ancestry {
            id: session.clone(),
            parent: direct_parent,
            children: self.engine.store.children(scope, session).await?,
            root: chain.last().unwrap_or(session).clone(),
            chain,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    fn is_send(_: impl Send) {}

    /// Projections must be `Send`, because a server runs them on any thread. This test only needs to compile.
    #[test]
    fn projections_can_move_between_threads() {
        let _ = |engine: Engine, scope: Scope, session: SessionId| {
            is_send(engine.views().feed(&scope, &session));
            is_send(engine.views().tree(&scope, &session));
            is_send(engine.views().context(&scope, &session, None));
        };
    }
}
