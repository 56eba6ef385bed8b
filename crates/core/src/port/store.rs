//! The store port: small traits, one per kind of record. [`Store`] combines all of them.
//!
//! Every method requires the caller's [`Scope`]. A session of another tenant, or a session the caller may not see, is
//! indistinguishable from an id that was never used (I9). The conformance suite in `sapwood-store` is the executable
//! form of this contract.

use async_trait::async_trait;
use serde::Serialize;

use crate::authority::{Authority, Source};
use crate::entry::{Body, Draft, Entry, Kind, Outcome, Record, SessionState, codec};
use crate::id::{BlobHash, EntryId, MemoryId, Seq, SessionId, TenantId, TimestampMs, TurnId};
pub use crate::port::audit::{Audit, AuditAction, AuditLine, AuditNote};
pub use crate::port::blob::{BLOB_BYTES_MAX, BLOB_CHUNK_BYTES_MAX, BlobSink, Blobs, WHOLE_BLOB_BYTES_MAX};
use crate::port::keys::Keys;
use crate::port::memory::Memories;
use crate::project::summary::{Lineage, Origin, Summary};
use crate::scope::{Principal, Right, Scope};
use crate::settings::Settings;
use crate::tree::{Head, PlaceError};

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Maximum number of drafts in one append. Callers split larger batches.
pub const APPEND_ENTRIES_MAX: usize = 10_000;
/// Maximum size of one encoded entry body. Larger content belongs in a blob.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Number of hex digits (128 bits) of the request hash that are stored with the idempotency key.
const REQUEST_HEX: usize = 32;
/// Maximum number of rows in one page of any list.
pub const PAGE_ROWS_MAX: usize = 10_000;
/// Approximate number of body bytes in a page of a log. The page ends with the record that reaches this size, so a page
/// holds at most this many bytes plus one record.
pub const PAGE_BYTES: usize = 256 << 10;
/// Maximum TTL of a lease, in milliseconds. A stored lease with more time left was written with a wrong clock.
pub const LEASE_TTL_MS_MAX: i64 = 10_000;

/// Whether a page of a log, read with this limit, is full. Only then can more records follow.
pub fn is_full_page(page: &[Record], limit: usize) -> bool {
    page.len() >= limit.min(PAGE_ROWS_MAX) || bytes_of_page(page) >= PAGE_BYTES
}

/// Total size of a page's bodies.
pub fn bytes_of_page(page: &[Record]) -> usize {
    page.iter().map(|record| record.body.len()).sum()
}

/// A failed store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The session does not exist, or the caller may not see it.
    #[error("there is no session {session}")]
    NoSession { session: SessionId },
    /// The session has no such entry.
    #[error("session {session} has no entry {entry}")]
    NoEntry { session: SessionId, entry: String },
    /// The blob does not exist, or the caller may not read it.
    #[error("there is no blob {blob}")]
    NoBlob { blob: BlobHash },
    /// The API key does not exist, or belongs to another principal.
    #[error("there is no key {key}")]
    NoKey { key: String },
    /// The memory does not exist, or the caller may not see it.
    #[error("there is no memory {memory}")]
    NoMemory { memory: MemoryId },
    /// The memory has another version than expected.
    #[error("memory {memory} has changed: the caller expected version {expected}, but it is at {actual}")]
    MemoryConflict { memory: MemoryId, expected: u64, actual: u64 },
    /// The caller may not change the memory.
    #[error("{principal} may not change memory {memory}: only its owner or the principal that shared it may")]
    MemoryDenied { memory: MemoryId, principal: Principal },
    /// A session with this id exists.
    #[error("session {session} already exists")]
    Exists { session: SessionId },
    /// The log does not end where the caller expected.
    #[error("the session has changed: the caller expected head {expected}, but it is at {actual}")]
    Conflict { expected: Seq, actual: Seq },
    /// The idempotency key was used for another request.
    #[error("the idempotency key {key:?} was used for another request")]
    KeyReused { key: String },
    /// Another process has taken over the lease.
    #[error("fence {given} is stale: the session's lease is now at fence {current}")]
    StaleFence { given: u64, current: u64 },
    /// Another process holds the lease.
    #[error("the session is locked: {holder} holds its lease for another {remaining_ms} ms")]
    Leased { holder: String, remaining_ms: i64 },
    /// The caller's role does not allow the operation.
    #[error("{principal} may not do this with session {session}: only {} may", needed.required_role())]
    Denied { session: SessionId, principal: Principal, needed: Right },
    /// The session is archived.
    #[error("session {session} is archived and accepts no more entries")]
    Archived { session: SessionId },
    /// An entry cannot be attached to the tree.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A value exceeds its limit.
    #[error("{what} is over the limit of {limit}")]
    TooLarge { what: &'static str, limit: usize },
    /// A value is not valid.
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    /// Stored data is damaged.
    #[error("{place}: {what}")]
    Damaged { place: String, what: String },
    /// A newer version of Sapwood wrote the data.
    #[error("{place} was written by a newer Sapwood (format {found}; this version supports up to {known})")]
    TooNew { place: String, found: u32, known: u32 },
    /// The store is encrypted, and the key is missing or wrong.
    #[error("{place} is encrypted: {why}")]
    Locked { place: String, why: String },
    /// The store cannot be written.
    #[error("{place} cannot be written: {why}")]
    ReadOnly { place: String, why: String },
    /// No disk space is left.
    #[error("no disk space is left for {place}")]
    DiskFull { place: String },
    /// Other processes kept the store busy for too long.
    #[error("{place} was busy for {waited_ms} ms")]
    Busy { place: String, waited_ms: u64 },
    /// The database cannot be reached.
    #[error("{place} cannot be reached: {why}")]
    Unreachable { place: String, why: String },
    /// The server's certificate is not trusted.
    #[error("{place} is not trusted: {why}")]
    Untrusted { place: String, why: String },
    /// The operating system reported an error.
    #[error("{place}: {source}")]
    Io { place: String, source: std::io::Error },
    /// The database reported an error.
    #[error("{place}: {what}")]
    Backend { place: String, what: String },
}

impl StoreError {
    /// The stable error code, for programs. Each code has a page in docs/errors.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::NoSession { .. } => "session.not_found",
            StoreError::NoEntry { .. } => "entry.not_found",
            StoreError::NoBlob { .. } => "blob.not_found",
            StoreError::NoKey { .. } => "key.not_found",
            StoreError::NoMemory { .. } => "memory.not_found",
            StoreError::MemoryConflict { .. } => "memory.conflict",
            StoreError::MemoryDenied { .. } => "memory.denied",
            StoreError::Exists { .. } => "session.exists",
            StoreError::Conflict { .. } => "session.conflict",
            StoreError::KeyReused { .. } => "session.key_reused",
            StoreError::StaleFence { .. } => "session.stale_fence",
            StoreError::Leased { .. } => "session.leased",
            StoreError::Denied { .. } => "session.denied",
            StoreError::Archived { .. } => "session.archived",
            StoreError::Place(_) => "entry.misplaced",
            StoreError::TooLarge { .. } => "input.too_large",
            StoreError::Invalid { .. } => "input.invalid",
            StoreError::Damaged { .. } => "store.damaged",
            StoreError::TooNew { .. } => "store.too_new",
            StoreError::Locked { .. } => "store.locked",
            StoreError::ReadOnly { .. } => "store.read_only",
            StoreError::DiskFull { .. } => "store.disk_full",
            StoreError::Busy { .. } => "store.busy",
            StoreError::Unreachable { .. } => "store.unreachable",
            StoreError::Untrusted { .. } => "store.untrusted",
            StoreError::Io { .. } => "store.io",
            StoreError::Backend { .. } => "store.backend",
        }
    }
}

/// A session to create. The caller becomes its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The session's id.
    pub id: SessionId,
    /// When the session began. For an imported session this is the time at its origin.
    pub at: TimestampMs,
    /// When the session is created in this store, for the audit.
    pub now: TimestampMs,
    /// The title.
    pub title: Option<String>,
    /// The id of the session's agent.
    pub agent: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The session that an imported session was forked from, in any store. Forks created here get it from their source.
    pub parent: Option<Lineage>,
    /// Where an imported session came from.
    pub origin: Option<Origin>,
    /// Whether a caller or an import creates the session.
    pub source: Source,
}

impl NewSession {
    /// A session without a title, an agent or a directory, created by a caller.
    pub fn new(id: SessionId, at: TimestampMs) -> Self {
        Self {
            id,
            at,
            now: at,
            title: None,
            agent: None,
            cwd: None,
            parent: None,
            origin: None,
            source: Source::Own,
        }
    }
}

/// Whether a session was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The session is new.
    New,
    /// The session already existed and was left unchanged.
    Existed,
}

/// A session that starts with a path of another session, by reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    /// The session to fork.
    pub source: SessionId,
    /// The entry to fork at; defaults to the source's leaf. With seq zero, or a source without a leaf, the fork is
    /// empty.
    pub at: Option<Seq>,
    /// The new session.
    pub new: NewSession,
    /// Entries to append to the new fork. The store drops labels of entries that the fork does not share.
    pub drafts: Vec<Draft>,
}

/// The head that an append expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Append regardless of the current head.
    Any,
    /// Append only if the log ends here; otherwise [`StoreError::Conflict`], and nothing is written (I5).
    Head(Seq),
}

/// Entries to append in one transaction: all of them or none (I4).
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// The session to append to.
    pub session: SessionId,
    /// Where the log must end.
    pub expect: Expect,
    /// The fence of the caller's lease. While another caller holds a lease, an append without a fence may only contain
    /// entries outside the tree, because the lease guards the leaf.
    pub fence: Option<u64>,
    /// The idempotency key. A repeated key returns the first result and writes nothing (I5).
    pub idempotency_key: Option<String>,
    /// The request's hash, from [`hash_request`]. The same key with another hash is refused. Without a hash, a repeated
    /// key always returns the first result.
    pub request: Option<String>,
    /// The entries, in order.
    pub drafts: Vec<Draft>,
    /// An audit line to write in the same transaction.
    pub audit: Option<AuditNote>,
    /// The origin of the entries. Imported entries are recorded as imported in the same transaction.
    pub source: Source,
    /// The time for the audit. Lease expiry uses the store's clock instead.
    pub now: TimestampMs,
}

impl Append {
    /// An append without conditions.
    pub fn new(session: SessionId, now: TimestampMs, drafts: Vec<Draft>) -> Self {
        Self {
            session,
            expect: Expect::Any,
            fence: None,
            idempotency_key: None,
            request: None,
            drafts,
            audit: None,
            source: Source::Own,
            now,
        }
    }
}

/// Hash the bodies of an append, for [`Append::request`].
pub fn hash_request(bodies: &[Body]) -> String {
    let mut hasher = blake3::Hasher::new();
    for body in bodies {
        let bytes = codec::encode(body);
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
    }
    hasher.finalize().to_hex()[..REQUEST_HEX].to_owned()
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The end of the log after the append.
    pub head: Head,
    /// Seq and id of each entry, in the order of the drafts.
    pub entries: Vec<(Seq, EntryId)>,
}

/// How far back a path is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// To the start of the model's context, as set by the latest compaction on the path.
    ContextStart,
    /// To the root.
    Root,
    /// At most this many entries.
    Entries(u32),
}

/// A slice of a path, oldest first, with the state of the folds before its first entry. Unlike the records of a page,
/// the entries are decoded, because callers fold them. A store can decode entries while it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSlice {
    /// The end of the log.
    pub head: Head,
    /// The entries, oldest first.
    pub entries: Vec<Entry>,
    /// Entries up to this seq belong to the session that this session was forked from.
    pub inherited: u32,
    /// The settings before the first entry.
    pub settings_before: Settings,
    /// Outcomes of turns started in this session whose `turn_started` follows the parent of the first entry. The slice
    /// contains all their entries on this path.
    pub ended_turns: Vec<(TurnId, Outcome)>,
    /// The turn that is running, interrupted or waiting.
    pub open_turn: Option<TurnId>,
}

/// One page of a list, with the cursor of the next page.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows of the page.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// Whether a list starts with the newest or the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    /// The newest first.
    #[default]
    NewestFirst,
    /// The oldest first.
    OldestFirst,
}

/// The filter of a session list. [`crate::project::session_filter::SessionFilter`] defines its meaning for every store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListFilter {
    /// Only sessions with this working directory.
    pub cwd: Option<String>,
    /// Only sessions in this state.
    pub state: Option<SessionState>,
    /// Only sessions of this agent.
    pub agent: Option<String>,
    /// Only sessions of this owner.
    pub owner: Option<Principal>,
    /// Updated at this time or later.
    pub since: Option<TimestampMs>,
    /// Updated before this time.
    pub until: Option<TimestampMs>,
    /// Only sessions whose displayed title or id contains each of these words.
    pub title: Option<String>,
    /// Which session comes first.
    pub order: ListOrder,
    /// Only sessions whose id has this prefix.
    pub id_prefix: Option<String>,
    /// Maximum number of sessions in the page.
    pub limit: usize,
    /// The previous page's [`Page::next`].
    pub cursor: Option<String>,
}

/// A full-text search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchQuery {
    /// Words that must all occur. "Quoted words" must occur together; a trailing * matches the rest of a word.
    pub text: String,
    /// Only in this session.
    pub session: Option<SessionId>,
    /// Maximum number of hits in the page.
    pub limit: usize,
    /// The previous page's [`Page::next`].
    pub cursor: Option<String>,
}

/// One search hit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// The session.
    pub session: SessionId,
    /// The session's title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The position of the entry.
    pub seq: Seq,
    /// The entry's id.
    pub id: EntryId,
    /// The entry's kind.
    pub kind: &'static str,
    /// When the entry was written.
    pub at: TimestampMs,
    /// The text around the hit.
    pub snippet: String,
}

/// The exclusive right to write to a session until the lease expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session: SessionId,
    /// The process that holds the lease.
    pub holder: String,
    /// Increases each time another holder acquires the lease. Appends with a smaller fence are refused.
    pub fence: u64,
    /// TTL by the store's clock, starting when the lease was acquired or renewed.
    pub ttl_ms: i64,
}

/// A problem that `doctor` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The violated invariant, such as `I1`, or another kind of problem, such as `cache`.
    pub rule: &'static str,
    /// Where the problem is.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// Whether a check repairs what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Only report.
    No,
    /// Rebuild derived data. The log itself is never changed.
    Yes,
}

/// Operations on whole sessions.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Create a session. An existing session is left unchanged.
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created>;
    /// Create a session that shares the path of another one.
    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head>;
    /// The session's summary row.
    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary>;
    /// Read one page, newest first unless the filter sets another order. A store scans a limited number of sessions per
    /// call: a page of a filtered list can be short or empty and still have a `next`.
    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>>;
    /// The sessions that were forked from this one.
    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>>;
    /// Delete permanently: entries, blobs without other references, search index rows, and memories without other
    /// sources. Entries that forks need stay with the forks.
    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()>;
    /// The head of each session's log, in the order of `sessions`. `None` for a session the caller cannot see.
    async fn heads(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<Option<Seq>>> {
        let mut heads = Vec::with_capacity(sessions.len());
        for session in sessions {
            heads.push(match self.summary(scope, session).await {
                Ok(summary) => Some(summary.head.seq),
                Err(StoreError::NoSession { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(heads)
    }
    /// A number that changes after any write by any process. `None` if the store cannot determine it cheaply.
    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Wait until the change mark differs from `_mark`. Stores without change notifications wait forever.
    async fn changed(&self, _mark: u64) {
        std::future::pending().await
    }
}

/// The entries of one session.
#[async_trait]
pub trait Log: Send + Sync {
    /// Append entries in one transaction. Returns after they are durable.
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended>;
    /// Whether appends execute in the order in which they were first polled. If so, a caller may start an append before
    /// the previous one has returned, and expect the head that the previous append will produce.
    fn keeps_order(&self) -> bool {
        false
    }
    /// Read records in order, starting after `after`: at most `limit` and about [`PAGE_BYTES`], but at least one
    /// record if any is left.
    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>>;
    /// Read only entries of these kinds, in order. Used to fold labels, archiving, the ledger and members.
    async fn read_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>>;
    /// The path to `at`, or to the leaf.
    async fn read_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice>;
    /// The entry that contains the `count`-th message on the path to `leaf`.
    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>>;
    /// Read one entry.
    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record>;
    /// Find at most two entries whose id has the prefix: enough to decide whether the prefix is unique.
    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>>;
}

/// Write leases. Expiry uses the store's clock, never a caller's: local stores use the time since boot, PostgreSQL
/// uses the database's time.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Acquire a free or expired lease, or renew the holder's lease and keep its fence. The TTL is at most
    /// [`LEASE_TTL_MS_MAX`].
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease>;
    /// Release a lease before it expires.
    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()>;
}

/// Which parts of a session this store wrote and which were imported: [`Summary::authority`].
#[async_trait]
pub trait Authorities: Send + Sync {
    /// Reconstruct a missing record from the audit, for a session that an earlier version wrote. The record is stored
    /// if the store is writable.
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority>;
    /// Allow a file-backed model for the session at the request of the local command line. Imports and HTTP requests
    /// must never call this method.
    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()>;
}

/// Full-text search.
#[async_trait]
pub trait Search: Send + Sync {
    /// Search the sessions that the caller can see, newest first.
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>>;
}

/// Maintenance of the store itself.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Check the store's files and derived rows, which only the store can see. The caller checks the log's invariants.
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>>;
    /// Sessions of any tenant with an open turn and an expired lease, whose process has died. `None` if the store would
    /// have to scan all sessions.
    async fn abandoned_turns(&self, _limit: usize) -> Result<Option<Vec<(TenantId, SessionId)>>> {
        Ok(None)
    }
    /// Check whether a write would succeed now, as far as this is possible without a permanent change.
    async fn check_writable(&self) -> Result<()> {
        Ok(())
    }
    /// Finish pending work. Dropping the store does the same.
    async fn flush(&self) -> Result<()>;
    /// The kind and location of this store, for display.
    fn describe(&self) -> String;
}

/// All operations of a store. Every type that implements the port's traits is a store.
pub trait Store:
    Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Upkeep
{
}

impl<T: Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Upkeep> Store
    for T
{
}
