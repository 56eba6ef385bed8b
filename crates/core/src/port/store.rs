//! The store port: small traits, one per kind of record. [`Store`] combines all of them.
//!
//! Every method that acts for a caller requires the caller's [`Scope`]. A session of another tenant, or a
//! session the caller may not see, is indistinguishable from an id that was never used (I9). The conformance
//! suite in `sapwood-store` is the executable form of this contract.

use async_trait::async_trait;
use serde::Serialize;

use crate::authority::{Authority, Source};
use crate::entry::proof::{Salt, StoredEntry};
use crate::entry::{Body, Draft, Entry, Kind, LOG_VERSION, Meta, Outcome, Record, SessionState, codec};
use crate::id::{EntryId, Seq, SessionId, TenantId, TimestampMs, TurnId};
pub use crate::port::audit::{AuditAction, AuditLine, AuditNote};
pub use crate::port::blob::{BLOB_BYTES_MAX, BLOB_CHUNK_BYTES_MAX, BlobSink, Blobs, WHOLE_BLOB_BYTES_MAX};
use crate::port::keys::Keys;
use crate::port::memory::Memories;
pub use crate::port::new_session::NewSession;
pub use crate::port::page::{PAGE_BYTES, PAGE_ROWS_MAX, Page, bytes_of_page, is_full_page};
use crate::port::records::Records;
pub use crate::port::store_error::{Result, StoreError};
pub use crate::port::store_health::{Checksums, Finding, Repair, SealReport, StoreStatus};
use crate::project::context_state::ContextState;
use crate::project::summary::{Summary, TurnPositions};
use crate::scope::{Principal, Scope};
use crate::session_config::{ConfigEntries, SessionConfig};
use crate::settings::Settings;
use crate::tree::Head;

/// Maximum number of drafts in one append. Callers split larger batches.
pub const APPEND_ENTRIES_MAX: usize = 10_000;
/// Maximum size of one encoded entry body. Larger content belongs in a blob.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Number of hex digits (128 bits) of the request hash that are stored with the idempotency key.
const REQUEST_HEX: usize = 32;
/// Maximum TTL of a lease, in milliseconds. A stored lease with more time left was written with a wrong clock.
pub const LEASE_TTL_MS_MAX: i64 = 10_000;

/// Whether [`Sessions::create`] created the session.
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
    /// Where the log must end for the append to succeed.
    pub expect: Expect,
    /// The fence of the caller's lease. While another caller holds a lease, an append without a fence must
    /// not move the leaf: it may contain only entries outside the tree other than `leaf_moved`.
    pub fence: Option<u64>,
    /// The idempotency key. A repeated key returns the first result and writes nothing (I5).
    pub idempotency_key: Option<String>,
    /// The request's hash, from [`hash_request`]. The same key with another hash is refused. Without a hash, a repeated
    /// key always returns the first result.
    pub request: Option<String>,
    /// The entries, in order: at most [`APPEND_ENTRIES_MAX`].
    pub drafts: Vec<Draft>,
    /// An audit line to write in the same transaction.
    pub audit: Option<AuditNote>,
    /// The origin of the entries. Imported entries are recorded as imported in the same transaction.
    pub source: Source,
    /// The salts of the drafts, in order. A migration sets them, so that entries keep their hashes. The store draws the
    /// missing ones.
    pub salts: Vec<Option<Salt>>,
    /// The time for the audit log. Lease expiry uses the store's clock instead.
    pub now: TimestampMs,
}

impl Append {
    /// An append at any head, without a fence, an idempotency key or an audit line.
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
            salts: Vec::new(),
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
    /// The last seq and the leaf after the append.
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
    /// The session's turn that has not ended: it runs, waits for a person, or was interrupted.
    pub open_turn: Option<TurnId>,
    /// The entries with the session's configuration.
    pub config_entries: ConfigEntries,
    /// The session's configuration. Stores leave it out; the engine reads it before it builds a context.
    pub config: Option<Box<SessionConfig>>,
}

/// Whether a list starts with the newest or the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    /// The most recently updated session first.
    #[default]
    NewestFirst,
    /// The least recently updated session first.
    OldestFirst,
}

/// The filter of a session list. [`crate::project::session_filter::SessionFilter`] defines its meaning for every store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListFilter {
    /// Only sessions with this working directory.
    pub cwd: Option<String>,
    /// Only sessions in this state.
    pub state: Option<SessionState>,
    /// Only sessions whose context is in this state. A store checks only that the session can have a compaction; the
    /// engine reads the path.
    pub context: Option<ContextState>,
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
    /// The order of the sessions.
    pub order: ListOrder,
    /// Only sessions with an open turn: it runs, waits for a person, or was interrupted.
    pub has_open_turn: bool,
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
    /// Search only this session. `None` searches all sessions that the caller can see.
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

/// The exclusive right to move a session's leaf, until the lease expires.
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

/// Operations on whole sessions.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Create a session. An existing session stays unchanged; [`StoreError::Exists`] if the caller may not read it.
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created>;
    /// Create a session that shares a path of its source. Fails with [`StoreError::Exists`] if the id is taken.
    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head>;
    /// The session's current summary.
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
    /// Store positions that the summary lacks because an earlier version wrote it. Does nothing if the log has changed
    /// since they were computed. Stores whose summaries always have them need no implementation.
    async fn restore_positions(
        &self,
        _scope: &Scope,
        _session: &SessionId,
        _positions: &TurnPositions,
    ) -> Result<()> {
        Ok(())
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
    /// Read entries like [`Log::read_after`], but as they are stored and with their proofs. Only verification and
    /// migration need them. A store without proofs returns unproven entries.
    async fn read_proofs(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<StoredEntry>> {
        let records = self.read_after(scope, session, after, limit).await?;
        let unproven = |Record { meta, version, body }| StoredEntry { meta, version, body, proof: None };
        Ok(records.into_iter().map(unproven).collect())
    }
    /// Read only entries of these kinds, in order, for folds that need few kinds, such as the labels and the ledger.
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
    /// The metadata of the path to `from`, or to the leaf, newest first: at most `limit` entries. The walk continues at
    /// the parent of the last one. Unlike [`Log::read_path`] it decodes no bodies, so that long paths need little memory.
    async fn walk_path(
        &self,
        scope: &Scope,
        session: &SessionId,
        from: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<Meta>> {
        let count = u32::try_from(limit.min(PAGE_ROWS_MAX)).unwrap_or(u32::MAX);
        let slice = self.read_path(scope, session, from, Until::Entries(count)).await?;
        Ok(slice.entries.into_iter().rev().map(|entry| entry.meta).collect())
    }
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
    /// The first entry whose id is `id` or greater, by binary search: ids grow with seq (I13). The seq after the last
    /// entry if there is none.
    async fn first_at_or_after(&self, scope: &Scope, session: &SessionId, id: EntryId) -> Result<Seq> {
        let (mut low, mut high) = (1_u32, u32::MAX);
        while low < high {
            // Near the start, probe at doubling distances, so that a short log needs few reads.
            let middle = if high == u32::MAX { low.saturating_mul(2) } else { low + (high - low) / 2 };
            let middle = middle.min(high - 1);
            let is_before = match self.read_entry(scope, session, Seq(middle)).await {
                Ok(record) => record.meta.id < id,
                Err(StoreError::NoEntry { .. }) => false,
                Err(error) => return Err(error),
            };
            (low, high) = if is_before { (middle + 1, high) } else { (low, middle) };
        }
        Ok(Seq(low))
    }
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
    /// Release a lease before it expires, so that another holder can acquire it at once.
    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()>;
}

/// Which parts of a session this store wrote and which were imported: [`Summary::authority`].
#[async_trait]
pub trait Authorities: Send + Sync {
    /// Reconstruct a missing record from the audit log, for a session that an earlier version wrote. The record is stored
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

/// The audit log: who did what, in chained lines.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Write a line. The store adds its number and hash.
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()>;
    /// Read lines after the number `after`, oldest first: of one session, or all lines for an operator.
    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>>;
    /// Lines about a session, newest first. Reading stops at the first line older than `since`. The audit log is read from
    /// its end.
    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>>;
}

/// Maintenance of the store itself.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Check the store's files and derived rows, which only the store can see. The caller checks the log's invariants.
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>>;
    /// Hash the entries of the scope's tenant that an earlier version wrote without hashes, and add missing checksums.
    /// Entries that have a hash are not changed.
    async fn seal_entries(&self, _scope: &Scope) -> Result<SealReport> {
        Ok(SealReport::default())
    }
    /// Sessions that lists, searches and copies leave out because they cannot be read, as far as they are known after the
    /// last list or search. Only an operator learns their names.
    async fn unreadable(&self, _scope: &Scope) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
    /// Sessions of any tenant with an open turn and an expired lease, whose process has died. `None` if the store would
    /// have to scan all sessions.
    async fn abandoned_turns(&self, _limit: usize) -> Result<Option<Vec<(TenantId, SessionId)>>> {
        Ok(None)
    }
    /// The log format version that the store writes now. It is older than the current one while servers of the previous
    /// version may use the store.
    async fn log_format(&self) -> Result<u32> {
        Ok(LOG_VERSION)
    }
    /// Write the current log format from now on. Servers of the previous version can no longer use the store.
    async fn upgrade(&self) -> Result<u32> {
        Ok(LOG_VERSION)
    }
    /// How the store detects data that has changed on disk. `None` if it does not have such checks in its files.
    async fn checksums(&self) -> Result<Option<Checksums>> {
        Ok(None)
    }
    /// Add checksums to files that an earlier version wrote without them.
    async fn add_checksums(&self) -> Result<Option<Checksums>> {
        self.checksums().await
    }
    /// The kind and version of the store.
    async fn status(&self) -> Result<StoreStatus> {
        Ok(StoreStatus {
            log_format: self.log_format().await?,
            ..StoreStatus::current("custom", self.describe())
        })
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
    Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Records + Upkeep
{
}

impl<T> Store for T where
    T: Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Records + Upkeep
{
}
