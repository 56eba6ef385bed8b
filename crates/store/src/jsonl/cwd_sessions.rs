//! Shortcuts for tools that use one session per working directory.

use std::path::Path;

use sapwood_core::port::store::{Created, Fork, ListFilter, Log, NewSession, Result, Sessions};
use sapwood_core::{Scope, SessionId, StoreError, TimestampMs};

use super::layout::id_of_stem;
use super::{JsonlOptions, JsonlStore};
use crate::in_memory::MemoryStore;
use crate::validate::random_bits;

fn new_in(cwd: &str, now: TimestampMs) -> NewSession {
    let id = SessionId::mint(now, random_bits());
    NewSession { cwd: Some(cwd.to_owned()), ..NewSession::new(id, now) }
}

impl JsonlStore {
    /// Creates a session in this working directory.
    pub async fn create_in(&self, scope: &Scope, cwd: &str, now: TimestampMs) -> Result<SessionId> {
        let new = new_in(cwd, now);
        let id = new.id.clone();
        match self.create(scope, new).await? {
            Created::New => Ok(id),
            Created::Existed => Err(StoreError::Exists { session: id }),
        }
    }

    /// Opens the store that contains a session file. Returns the store and the session.
    pub async fn open_file(path: &Path, scope: &Scope, options: JsonlOptions) -> Result<(Self, SessionId)> {
        let invalid = |why: String| StoreError::Invalid { what: "the session's file", why };
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let is_log = path.extension().is_some_and(|ending| ending == "jsonl");
        let id = id_of_stem(stem).filter(|_| is_log);
        let id = id.ok_or_else(|| invalid(format!("{} is not named <time>_<id>.jsonl", path.display())))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let store = Self::open(dir, options)?;
        store.summary(scope, &id).await?;
        Ok((store, id))
    }

    /// Returns the most recently used session of exactly this working directory.
    pub async fn continue_recent(&self, scope: &Scope, cwd: &str) -> Result<Option<SessionId>> {
        let filter = ListFilter { cwd: Some(cwd.to_owned()), limit: 1, ..ListFilter::default() };
        let page = self.list(scope, &filter).await?;
        Ok(page.items.into_iter().next().map(|summary| summary.id))
    }

    /// Creates a session that is never written to disk.
    pub async fn in_memory(scope: &Scope, cwd: &str, now: TimestampMs) -> Result<(MemoryStore, SessionId)> {
        let store = MemoryStore::new();
        let new = new_in(cwd, now);
        let id = new.id.clone();
        store.create(scope, new).await?;
        Ok((store, id))
    }

    /// Forks a session at its leaf into this working directory, with the labels on its path.
    pub async fn fork_from(
        &self,
        scope: &Scope,
        source: &SessionId,
        cwd: &str,
        now: TimestampMs,
    ) -> Result<SessionId> {
        let new = new_in(cwd, now);
        let id = new.id.clone();
        let drafts = self.labels_of(scope, source, now).await?;
        self.fork(scope, Fork { source: source.clone(), at: None, new, drafts }).await?;
        Ok(id)
    }

    async fn labels_of(
        &self,
        scope: &Scope,
        source: &SessionId,
        now: TimestampMs,
    ) -> Result<Vec<sapwood_core::Draft>> {
        use sapwood_core::entry::{Kind, Label};
        let mut labels = sapwood_core::settings::Labels::default();
        let mut after = sapwood_core::Seq::ZERO;
        loop {
            let page = self.read_kinds(scope, source, &[Kind::Label], after, 1_000).await?;
            let Some(last) = page.last() else { break };
            after = last.meta.seq;
            for record in &page {
                let body = record.decode().map_err(|error| crate::validate::damaged(source, error))?;
                labels.apply(&body);
            }
        }
        let label = |(target, text): (_, &str)| Label { target, text: Some(text.to_owned()) };
        Ok(labels.iter().map(label).map(|label| sapwood_core::Draft::new(now, label)).collect())
    }
}
