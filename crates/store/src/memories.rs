//! The rules for memories that every store follows, as pure functions of the data that the store
//! has read, and an in-memory collection. (The in-memory session store is [`crate::in_memory`].)

use std::collections::BTreeMap;

use sapwood_core::id::MemoryId;
use sapwood_core::port::memory::{
    Belongs, EMBEDDING_NUMBERS_MAX, MEMORIES_MAX, MEMORY_BYTES_MAX, MEMORY_SOURCES_MAX, Memory, MemoryFilter,
    Whose,
};
use sapwood_core::port::store::{AuditAction, AuditNote, Page, Result};
use sapwood_core::scope::Reach;
use sapwood_core::{Principal, Scope, SessionId, StoreError, TimestampMs};

use crate::match_text::TextQuery;
use crate::validate::{QUERY_BYTES_MAX, bad_cursor, page_limit};

/// Returns the memory to store when `memory` is new or replaces `current`, and its audit note.
/// Fails if the version is not the expected one, or if the caller may not change the memory.
pub fn plan_put(
    scope: &Scope,
    current: Option<&Memory>,
    memory: Memory,
    expected: u64,
    now: TimestampMs,
) -> Result<(Memory, AuditNote)> {
    check_memory(&memory)?;
    let actual = current.map_or(0, |current| current.version);
    if let Some(current) = current {
        check_change(scope, current)?;
    } else if expected > 0 {
        return Err(StoreError::NoMemory { memory: memory.id });
    }
    if actual != expected {
        return Err(StoreError::MemoryConflict { memory: memory.id, expected, actual });
    }
    let is_own = match &memory.belongs {
        Belongs::To(owner) => *owner == scope.principal,
        Belongs::Tenant => true,
    };
    if scope.reach != Reach::Tenant && !is_own {
        return Err(denied(scope, memory.id));
    }
    let by = current.map_or_else(|| scope.principal.clone(), |current| current.by.clone());
    let created_at = current.map_or(now, |current| current.created_at);
    let stored = Memory { by, created_at, updated_at: now, version: expected + 1, ..memory };
    let what = if current.is_some() { "changed" } else { "learned" };
    let note = note(what, &stored);
    Ok((stored, note))
}

fn check_memory(memory: &Memory) -> Result<()> {
    if memory.text.trim().is_empty() {
        return Err(StoreError::Invalid { what: "a memory", why: "its text is empty".to_owned() });
    }
    let sources = &memory.sources;
    let limits = [
        ("the size of a memory, in bytes,", memory.text.len(), MEMORY_BYTES_MAX),
        ("the number of a memory's sources", sources.len(), MEMORY_SOURCES_MAX),
        (
            "the number of a source's entries",
            sources.iter().map(|source| source.entries.len()).max().unwrap_or(0),
            MEMORY_SOURCES_MAX,
        ),
        (
            "the number of values in an embedding",
            memory.embedding.as_ref().map_or(0, |embedding| embedding.numbers.len()),
            EMBEDDING_NUMBERS_MAX,
        ),
    ];
    match limits.into_iter().find(|(_, found, limit)| found > limit) {
        Some((what, _, limit)) => Err(StoreError::TooLarge { what, limit }),
        None => Ok(()),
    }
}

/// Checks that an owner with `count` memories may have one more.
pub fn check_count(count: usize) -> Result<()> {
    match count < MEMORIES_MAX {
        true => Ok(()),
        false => {
            Err(StoreError::TooLarge { what: "the number of memories of one owner", limit: MEMORIES_MAX })
        }
    }
}

/// Checks that the caller may change or delete the memory. A memory that is not visible is reported
/// as missing (I9).
pub fn check_change(scope: &Scope, memory: &Memory) -> Result<()> {
    if !memory.is_visible_to(scope) {
        return Err(StoreError::NoMemory { memory: memory.id });
    }
    match memory.may_be_changed_by(scope) {
        true => Ok(()),
        false => Err(denied(scope, memory.id)),
    }
}

fn denied(scope: &Scope, memory: MemoryId) -> StoreError {
    StoreError::MemoryDenied { memory, principal: scope.principal.clone() }
}

/// Returns the audit note about a memory. It does not contain the memory's text, which is private.
pub fn note(what: &str, memory: &Memory) -> AuditNote {
    let detail = Some(format!("{what} memory {} of {}", memory.id, memory.belongs));
    AuditNote { action: AuditAction::MemoryChange, session: None, detail }
}

/// Returns a memory without its sources in an erased session, or `None` if it has no other source.
pub fn without_session(mut memory: Memory, session: &SessionId) -> Option<Memory> {
    memory.sources.retain(|source| source.session != *session);
    (!memory.sources.is_empty()).then_some(memory)
}

/// Returns the owners whose memories can be in a list, or `None` for all owners.
pub fn owners(scope: &Scope, filter: &MemoryFilter) -> Option<Vec<String>> {
    let mine = |principal: &Principal| {
        Some(vec![Belongs::To(principal.clone()).to_string(), Belongs::Tenant.to_string()])
    };
    match &filter.whose {
        Whose::Only(belongs) => Some(vec![belongs.to_string()]),
        Whose::For(principal) => mine(principal),
        Whose::Any if scope.reach == Reach::Own => mine(&scope.principal),
        Whose::Any => None,
    }
}

/// A filter with its query and cursor parsed.
pub struct MemoryQuery<'a> {
    filter: &'a MemoryFilter,
    words: Option<TextQuery>,
    pub before: Option<MemoryId>,
    pub limit: usize,
}

impl<'a> MemoryQuery<'a> {
    pub fn read(filter: &'a MemoryFilter) -> Result<Self> {
        if filter.text.len() > QUERY_BYTES_MAX {
            return Err(StoreError::TooLarge {
                what: "the length of a query, in bytes,",
                limit: QUERY_BYTES_MAX,
            });
        }
        let words = (!filter.text.is_empty()).then(|| TextQuery::parse(&filter.text));
        let cursor = filter.cursor.as_deref().map(|cursor| cursor.parse().map_err(|_| bad_cursor(cursor)));
        Ok(Self { filter, words, before: cursor.transpose()?, limit: page_limit(filter.limit) })
    }

    fn matches(&self, scope: &Scope, memory: &Memory) -> bool {
        self.before.is_none_or(|before| memory.id < before)
            && self.filter.matches(scope, memory)
            && self.words.as_ref().is_none_or(|words| words.matches(&memory.text))
    }

    /// Returns one page of memories; `memories` is ordered newest first.
    pub fn page(
        &self,
        scope: &Scope,
        memories: impl Iterator<Item = Result<Memory>>,
    ) -> Result<Page<Memory>> {
        let mut page = Page { items: Vec::new(), next: None };
        for memory in memories {
            let memory = memory?;
            if !self.matches(scope, &memory) {
                continue;
            }
            if page.items.len() == self.limit {
                page.next = page.items.last().map(|last: &Memory| last.id.to_string());
                break;
            }
            page.items.push(memory);
        }
        Ok(page)
    }
}

/// All memories of a tenant, for stores that keep them in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryTable(BTreeMap<MemoryId, Memory>);

impl MemoryTable {
    pub fn put(
        &mut self,
        scope: &Scope,
        memory: Memory,
        expected: u64,
        now: TimestampMs,
    ) -> Result<(Memory, AuditNote)> {
        let (stored, note) = plan_put(scope, self.0.get(&memory.id), memory, expected, now)?;
        let others = self.0.values().filter(|other| other.belongs == stored.belongs && other.id != stored.id);
        check_count(others.count())?;
        self.0.insert(stored.id, stored.clone());
        Ok((stored, note))
    }

    pub fn get(&self, scope: &Scope, id: MemoryId) -> Result<Memory> {
        let found = self.0.get(&id).filter(|memory| memory.is_visible_to(scope));
        found.cloned().ok_or(StoreError::NoMemory { memory: id })
    }

    pub fn list(&self, scope: &Scope, filter: &MemoryFilter) -> Result<Page<Memory>> {
        MemoryQuery::read(filter)?.page(scope, self.0.values().rev().cloned().map(Ok))
    }

    pub fn forget(&mut self, scope: &Scope, id: MemoryId) -> Result<AuditNote> {
        let memory = self.0.get(&id).ok_or(StoreError::NoMemory { memory: id })?;
        check_change(scope, memory)?;
        let note = note("forgot", memory);
        self.remove(id);
        Ok(note)
    }

    /// Removes the session from the sources of all memories, and deletes the memories that have no
    /// other source. Returns whether any memory changed.
    pub fn erase_session(&mut self, session: &SessionId) -> bool {
        let affected: Vec<Memory> =
            self.0.values().filter(|memory| memory.is_from(session)).cloned().collect();
        let is_changed = !affected.is_empty();
        for memory in affected {
            let id = memory.id;
            match without_session(memory, session) {
                Some(remaining) => drop(self.0.insert(id, remaining)),
                None => self.remove(id),
            }
        }
        is_changed
    }

    fn remove(&mut self, id: MemoryId) {
        self.0.remove(&id);
        for memory in self.0.values_mut().filter(|memory| memory.superseded_by == Some(id)) {
            memory.superseded_by = None;
        }
    }

    pub fn add(&mut self, memory: Memory) {
        self.0.insert(memory.id, memory);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.0.values()
    }
}
