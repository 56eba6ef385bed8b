//! One tenant's sessions, blobs and audit. No code in this module can access another tenant's data
//! (I9).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use sapwood_core::entry::Kind;
use sapwood_core::port::store::{Append, Appended, AuditLine, AuditNote, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{BlobHash, Principal, Right, Scope, SessionId, StoreError, TimestampMs};

use crate::authorize::authorize;
use crate::lease::LeaseClock;
use crate::mem_log::{InMemoryLog, Needed, Plan, Planned, RowStore, Stored};
use crate::memories::MemoryShelf;
use crate::validate;

/// An entry body in memory.
#[derive(Debug, Clone)]
pub struct Bytes(Arc<[u8]>);

impl Stored for Bytes {
    fn load(&self, _kind: Kind) -> Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }
}

pub struct StoredSession {
    pub book: InMemoryLog<Bytes>,
    /// Usage counter at the last access; larger is later.
    pub used: u64,
}

struct Blob {
    bytes: Vec<u8>,
    put_by: HashSet<Principal>,
}

#[derive(Default)]
pub struct Tenant {
    held: BTreeMap<SessionId, StoredSession>,
    blobs: HashMap<BlobHash, Blob>,
    audit: Vec<AuditLine>,
    pub memories: MemoryShelf,
}

pub fn whole_shelf() -> Arc<RowStore<Bytes>> {
    Arc::new(RowStore::whole(0))
}

/// Commits a planned batch to a log whose bodies are in memory.
pub fn commit(book: &mut InMemoryLog<Bytes>, mut planned: Planned) -> Appended {
    let stored = std::mem::take(&mut planned.bodies).into_iter().map(|body| Bytes(body.into())).collect();
    book.commit(planned, stored)
}

impl Tenant {
    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn held(&mut self, session: &SessionId) -> Result<&mut StoredSession> {
        self.held.get_mut(session).ok_or_else(|| StoreError::NoSession { session: session.clone() })
    }

    pub fn book(&mut self, session: &SessionId) -> Result<&InMemoryLog<Bytes>> {
        self.held(session).map(|held| &held.book)
    }

    pub fn books(&self) -> impl Iterator<Item = &InMemoryLog<Bytes>> {
        self.held.values().map(|held| &held.book)
    }

    pub fn insert(&mut self, book: InMemoryLog<Bytes>, used: u64) {
        self.held.insert(book.summary.id.clone(), StoredSession { book, used });
    }

    pub fn least_recently_used(&self) -> Option<(u64, SessionId)> {
        self.held.iter().map(|(id, held)| (held.used, id)).min().map(|(used, id)| (used, id.clone()))
    }

    pub fn append(
        &mut self,
        scope: &Scope,
        append: Append,
        used: u64,
        clock: &dyn LeaseClock,
    ) -> Result<Appended> {
        let missing = || StoreError::NoSession { session: append.session.clone() };
        let book = &self.held.get(&append.session).ok_or_else(missing)?.book;
        let plan = book.plan(scope, &append, clock, |blob| self.may_use(scope, blob))?;
        let held = self.held(&append.session)?;
        held.used = used;
        let appended = match plan {
            Plan::Answered(first) => return Ok(first),
            Plan::Write(planned) => commit(&mut held.book, planned),
        };
        if let Some(note) = append.audit {
            self.write_audit(scope, note, append.now);
        }
        Ok(appended)
    }

    /// Removes a session, the blobs that only it referred to, and all of its entries that no fork
    /// needs.
    pub fn remove(&mut self, session: &SessionId) {
        let Some(gone) = self.held.remove(session) else { return };
        let mut needed = Needed::default();
        for book in self.books() {
            needed.add(book);
        }
        let mut candidates: BTreeSet<BlobHash> = BTreeSet::new();
        let mut next = Some(gone.book.shelf());
        while let Some(shelf) = next {
            let is_held = self.books().any(|book| Arc::ptr_eq(book.shelf(), shelf));
            if !is_held {
                candidates.extend(shelf.own_blobs());
                shelf.retain(&needed.of(shelf));
            }
            next = shelf.base().map(|base| &base.shelf);
        }
        for blob in candidates {
            if !self.books().any(|book| book.refers_to(&blob)) {
                self.blobs.remove(&blob);
            }
        }
    }

    /// Returns whether the caller put the blob, or may read a session that refers to it. Otherwise
    /// the blob is reported as unknown (I9).
    pub fn may_use(&self, scope: &Scope, hash: &BlobHash) -> bool {
        let Some(blob) = self.blobs.get(hash) else { return false };
        let shows = |book: &InMemoryLog<Bytes>| {
            authorize(scope, &book.summary, Right::Read).is_ok() && book.refers_to(hash)
        };
        scope.reach == Reach::Tenant || blob.put_by.contains(&scope.principal) || self.books().any(shows)
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
        let previous = self.audit.last().map_or("", |line| line.hash.as_str());
        let number = self.audit.len() as u64 + 1;
        let line = AuditLine::chained(number, now, scope.principal.clone(), note, previous);
        self.audit.push(line);
    }

    pub fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Vec<AuditLine> {
        let asked = |line: &&AuditLine| {
            line.number > after
                && session.is_none_or(|session| line.session.as_ref() == Some(session))
                && self.shows(scope, line)
        };
        self.audit.iter().filter(asked).take(validate::page_limit(limit)).cloned().collect()
    }

    pub fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Vec<AuditLine> {
        let recent = self.audit.iter().rev().take_while(|line| line.at >= since);
        let asked = recent.filter(|line| line.session.as_ref() == Some(session) && self.shows(scope, line));
        asked.take(validate::page_limit(limit)).cloned().collect()
    }

    fn shows(&self, scope: &Scope, line: &AuditLine) -> bool {
        let held = line.session.as_ref().and_then(|session| self.held.get(session));
        validate::may_see_line(scope, line, held.map(|held| &held.book.summary))
    }
}
