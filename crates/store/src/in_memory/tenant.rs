//! One tenant's sessions, blobs, memories and audit log. No code in this module can access another
//! tenant's data (I9).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use sapwood_core::entry::Kind;
use sapwood_core::port::store::{Append, Appended, AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Principal, Right, Scope, SessionId, StoreError, TimestampMs};

use crate::audit_chain::AuditChain;
use crate::authorize::authorize;
use crate::lease::LeaseClock;
use crate::mem_log::{AppendPlan, InMemoryLog, PlannedBatch, RowStore, SharedRows, StoredBody};
use crate::memories::MemoryTable;
use crate::records::RecordTable;
use crate::validate;

/// An entry body in memory.
#[derive(Debug, Clone)]
pub struct Bytes(Arc<[u8]>);

impl StoredBody for Bytes {
    fn load(&self, _kind: Kind) -> Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }
}

pub struct StoredSession {
    pub log: InMemoryLog<Bytes>,
    /// Value of the store's usage counter at the last access.
    pub used: u64,
}

struct Blob {
    bytes: Vec<u8>,
    put_by: HashSet<Principal>,
}

#[derive(Default)]
pub struct Tenant {
    sessions: BTreeMap<SessionId, StoredSession>,
    blobs: HashMap<BlobHash, Blob>,
    audit: Vec<AuditLine>,
    pub memories: MemoryTable,
    pub records: RecordTable,
}

pub fn empty_rows() -> Arc<RowStore<Bytes>> {
    Arc::new(RowStore::whole(0))
}

/// Commits a planned batch to a log whose bodies are in memory.
pub fn commit(log: &mut InMemoryLog<Bytes>, mut planned: PlannedBatch) -> Appended {
    let bodies = std::mem::take(&mut planned.bodies).into_iter().map(|body| Bytes(body.into())).collect();
    log.commit(planned, bodies)
}

impl Tenant {
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn session_mut(&mut self, session: &SessionId) -> Result<&mut StoredSession> {
        self.sessions.get_mut(session).ok_or_else(|| StoreError::NoSession { session: session.clone() })
    }

    pub fn log(&mut self, session: &SessionId) -> Result<&InMemoryLog<Bytes>> {
        self.session_mut(session).map(|stored| &stored.log)
    }

    pub fn logs(&self) -> impl Iterator<Item = &InMemoryLog<Bytes>> {
        self.sessions.values().map(|stored| &stored.log)
    }

    pub fn insert(&mut self, log: InMemoryLog<Bytes>, used: u64) {
        self.sessions.insert(log.summary.id.clone(), StoredSession { log, used });
    }

    pub fn least_recently_used(&self) -> Option<(u64, SessionId)> {
        self.sessions.iter().map(|(id, stored)| (stored.used, id)).min().map(|(used, id)| (used, id.clone()))
    }

    pub fn append(
        &mut self,
        scope: &Scope,
        append: Append,
        used: u64,
        clock: &dyn LeaseClock,
    ) -> Result<Appended> {
        let missing = || StoreError::NoSession { session: append.session.clone() };
        let log = &self.sessions.get(&append.session).ok_or_else(missing)?.log;
        let plan = log.plan(scope, &append, clock, |blob| self.may_use(scope, blob))?;
        let stored = self.session_mut(&append.session)?;
        stored.used = used;
        let appended = match plan {
            AppendPlan::Answered(first) => return Ok(first),
            AppendPlan::Write(planned) => commit(&mut stored.log, planned),
        };
        if let Some(note) = append.audit {
            self.write_audit(scope, note, append.now);
        }
        Ok(appended)
    }

    /// Removes a session, its entries that no fork needs, and the blobs that no other session
    /// refers to.
    pub fn remove(&mut self, session: &SessionId) {
        let Some(removed) = self.sessions.remove(session) else { return };
        let mut shared = SharedRows::default();
        for log in self.logs() {
            shared.add(log);
        }
        let mut candidates: BTreeSet<BlobHash> = BTreeSet::new();
        let mut next = Some(removed.log.rows());
        while let Some(rows) = next {
            let is_in_use = self.logs().any(|log| Arc::ptr_eq(log.rows(), rows));
            if !is_in_use {
                candidates.extend(rows.own_blobs());
                rows.retain(&shared.of(rows));
            }
            next = rows.base().map(|base| &base.rows);
        }
        for blob in candidates {
            if !self.logs().any(|log| log.refers_to(&blob)) {
                self.blobs.remove(&blob);
            }
        }
    }

    /// Returns whether the caller is an operator, uploaded the blob, or may read a session that refers
    /// to it. Otherwise the blob must be reported as unknown (I9).
    pub fn may_use(&self, scope: &Scope, hash: &BlobHash) -> bool {
        let Some(blob) = self.blobs.get(hash) else { return false };
        let shows = |log: &InMemoryLog<Bytes>| {
            authorize(scope, &log.summary, Right::Read).is_ok() && log.refers_to(hash)
        };
        scope.reach == Reach::Tenant || blob.put_by.contains(&scope.principal) || self.logs().any(shows)
    }

    pub fn put_blob(&mut self, scope: &Scope, hash: BlobHash, bytes: Vec<u8>) {
        let blob = self.blobs.entry(hash).or_insert_with(|| Blob { bytes, put_by: HashSet::new() });
        blob.put_by.insert(scope.principal.clone());
    }

    pub fn blob(&self, scope: &Scope, hash: &BlobHash) -> Result<&[u8]> {
        let missing = || StoreError::NoBlob { blob: *hash };
        let blob = self.blobs.get(hash).filter(|_| self.may_use(scope, hash)).ok_or_else(missing)?;
        Ok(&blob.bytes)
    }

    pub fn write_audit(&mut self, scope: &Scope, note: AuditNote, now: TimestampMs) {
        let mut chain = AuditChain::after(self.audit.last());
        self.audit.push(chain.add(scope.principal.clone(), note, now));
    }

    pub fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Vec<AuditLine> {
        let matching = |line: &&AuditLine| {
            line.number > after
                && session.is_none_or(|session| line.session.as_ref() == Some(session))
                && self.is_visible(scope, line)
        };
        self.audit.iter().filter(matching).take(validate::page_limit(limit)).cloned().collect()
    }

    pub fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Vec<AuditLine> {
        let recent = self.audit.iter().rev().take_while(|line| line.at >= since);
        let matching =
            recent.filter(|line| line.session.as_ref() == Some(session) && self.is_visible(scope, line));
        matching.take(validate::page_limit(limit)).cloned().collect()
    }

    fn is_visible(&self, scope: &Scope, line: &AuditLine) -> bool {
        let stored = line.session.as_ref().and_then(|session| self.sessions.get(session));
        validate::may_see_line(scope, line, stored.map(|stored| &stored.log.summary))
    }
}
