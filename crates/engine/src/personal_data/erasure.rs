//! Finds and erases the data of a user or of a whole tenant.

use std::collections::HashSet;

use sapwood_core::id::UserName;
use sapwood_core::port::keys::ApiKey;
use sapwood_core::port::memory::{Belongs, Memory, MemoryFilter, Standing, Whose};
use sapwood_core::port::store::{AuditAction, AuditNote, ListFilter, PAGE_ROWS_MAX, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Principal, Scope, SessionId};
use serde::Serialize;

use super::{PersonalData, check_operator};
use crate::{EngineError, Result};

/// Maximum number of levels of forks that are searched for shared entries.
const FORK_LEVELS_MAX: usize = 100;

/// Whose data is meant, within the tenant of the scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSubject {
    /// A user.
    User(UserName),
    /// Everything of the tenant.
    Tenant,
}

impl DataSubject {
    fn owner(&self) -> Option<Principal> {
        match self {
            DataSubject::User(user) => Some(Principal::User(user.clone())),
            DataSubject::Tenant => None,
        }
    }
}

impl std::fmt::Display for DataSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DataSubject::User(user) => write!(f, "user {user}"),
            DataSubject::Tenant => f.write_str("the tenant"),
        }
    }
}

/// What to do with forks of the subject's sessions that belong to other owners. They share the entries before the fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtherForks {
    /// Keep the forks and the entries that they share.
    #[default]
    Keep,
    /// Erase the forks, too.
    Erase,
}

/// The data of a subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataInventory {
    /// The subject's sessions, with their inputs and artifacts.
    pub sessions: Vec<SessionId>,
    /// Those of them that a legal hold protects.
    pub held: Vec<SessionId>,
    /// Forks of the sessions that belong to other owners.
    pub forks: Vec<SessionId>,
    /// The number of memories.
    pub memories: usize,
    /// The number of API keys that are not revoked.
    pub keys: usize,
}

/// What an erasure has done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ErasureReport {
    /// Erased sessions.
    pub erased: Vec<SessionId>,
    /// Sessions that a legal hold protects. They were kept.
    pub held: Vec<SessionId>,
    /// Forks of other owners that still have entries of erased sessions.
    pub forks: Vec<SessionId>,
    /// The number of deleted memories.
    pub memories: usize,
    /// The number of revoked API keys.
    pub keys: usize,
}

impl PersonalData<'_> {
    /// List the data of a subject.
    pub async fn inventory(self, scope: &Scope, subject: &DataSubject) -> Result<DataInventory> {
        check_operator(scope, "list a user's data")?;
        let sessions = self.sessions_of(scope, subject).await?;
        let holds = self.hold_list(scope).await?;
        let held = sessions.iter().filter(|summary| holds.of_session(summary).is_some());
        Ok(DataInventory {
            held: held.map(|summary| summary.id.clone()).collect(),
            forks: self.other_forks(scope, &sessions).await?,
            memories: self.memories_of(scope, subject).await?.len(),
            keys: self.keys_of(scope, subject).await?.len(),
            sessions: sessions.into_iter().map(|summary| summary.id).collect(),
        })
    }

    /// Erase the data of a subject. Data under a legal hold is kept and reported.
    pub async fn erase(
        self,
        scope: &Scope,
        subject: &DataSubject,
        other_forks: OtherForks,
    ) -> Result<ErasureReport> {
        check_operator(scope, "erase a user's data")?;
        let sessions = self.sessions_of(scope, subject).await?;
        let forks = self.other_forks(scope, &sessions).await?;
        let mut report = ErasureReport::default();
        let ids = sessions.into_iter().map(|summary| summary.id);
        match other_forks {
            OtherForks::Keep => {
                self.erase_sessions(scope, ids, &mut report).await?;
                report.forks = forks;
            }
            OtherForks::Erase => self.erase_sessions(scope, ids.chain(forks), &mut report).await?,
        }
        let holds = self.hold_list(scope).await?;
        for memory in self.memories_of(scope, subject).await? {
            let is_held =
                matches!(&memory.belongs, Belongs::To(owner) if holds.of_principal(owner).is_some());
            if !is_held && self.forget(scope, &memory).await? {
                report.memories += 1;
            }
        }
        for key in self.keys_of(scope, subject).await? {
            self.engine.store.revoke_key(scope, &key.id, self.engine.clock.now()).await?;
            report.keys += 1;
        }
        self.note_erasure(scope, subject, &report).await?;
        Ok(report)
    }

    async fn erase_sessions(
        self,
        scope: &Scope,
        sessions: impl Iterator<Item = SessionId>,
        report: &mut ErasureReport,
    ) -> Result<()> {
        for session in sessions {
            match self.engine.sessions().erase(scope, &session).await {
                Ok(()) => report.erased.push(session),
                Err(EngineError::Held { .. }) => report.held.push(session),
                // Another caller has erased it.
                Err(EngineError::Store(StoreError::NoSession { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Delete a memory. Returns whether it still existed.
    async fn forget(self, scope: &Scope, memory: &Memory) -> Result<bool> {
        match self.engine.store.forget_memory(scope, memory.id, self.engine.clock.now()).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoMemory { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn note_erasure(self, scope: &Scope, subject: &DataSubject, report: &ErasureReport) -> Result<()> {
        let detail = format!(
            "erased the data of {subject}: {} sessions, {} memories; {} sessions are held",
            report.erased.len(),
            report.memories,
            report.held.len()
        );
        let note = AuditNote { action: AuditAction::Erase, session: None, detail: Some(detail) };
        Ok(self.engine.store.write_audit(scope, note, self.engine.clock.now()).await?)
    }

    /// The summaries of a subject's sessions.
    pub async fn sessions_of(self, scope: &Scope, subject: &DataSubject) -> Result<Vec<Summary>> {
        check_operator(scope, "list a user's data")?;
        let mut filter = ListFilter { owner: subject.owner(), limit: PAGE_ROWS_MAX, ..ListFilter::default() };
        let mut sessions = Vec::new();
        loop {
            let page = self.engine.store.list(scope, &filter).await?;
            sessions.extend(page.items);
            match page.next {
                Some(next) => filter.cursor = Some(next),
                None => return Ok(sessions),
            }
        }
    }

    /// Forks of these sessions, and forks of the forks, that belong to other owners.
    async fn other_forks(self, scope: &Scope, sessions: &[Summary]) -> Result<Vec<SessionId>> {
        let known: HashSet<&SessionId> = sessions.iter().map(|summary| &summary.id).collect();
        let mut found: Vec<SessionId> = Vec::new();
        let mut level: Vec<SessionId> = sessions.iter().map(|summary| summary.id.clone()).collect();
        for _ in 0..FORK_LEVELS_MAX {
            let mut next = Vec::new();
            for session in &level {
                let children = self.engine.store.children(scope, session).await?;
                let new =
                    children.into_iter().filter(|child| !known.contains(child) && !found.contains(child));
                next.extend(new.collect::<Vec<_>>());
            }
            if next.is_empty() {
                break;
            }
            found.extend(next.iter().cloned());
            level = next;
        }
        Ok(found)
    }

    /// The memories of a subject.
    pub async fn memories_of(self, scope: &Scope, subject: &DataSubject) -> Result<Vec<Memory>> {
        check_operator(scope, "list a user's data")?;
        let whose = subject.owner().map_or(Whose::Any, |owner| Whose::Only(Belongs::To(owner)));
        let standing = Standing::Any;
        let mut filter = MemoryFilter { whose, standing, limit: PAGE_ROWS_MAX, ..MemoryFilter::default() };
        let mut memories = Vec::new();
        loop {
            let page = self.engine.store.list_memories(scope, &filter).await?;
            memories.extend(page.items);
            match page.next {
                Some(next) => filter.cursor = Some(next),
                None => return Ok(memories),
            }
        }
    }

    /// The API keys of a subject that are not revoked.
    pub async fn keys_of(self, scope: &Scope, subject: &DataSubject) -> Result<Vec<ApiKey>> {
        check_operator(scope, "list a user's data")?;
        let keys = self.engine.store.list_keys(scope).await?;
        let is_of = |key: &ApiKey| match subject {
            DataSubject::User(user) => key.user == *user,
            DataSubject::Tenant => true,
        };
        Ok(keys.into_iter().filter(|key| key.revoked_at.is_none() && is_of(key)).collect())
    }
}
