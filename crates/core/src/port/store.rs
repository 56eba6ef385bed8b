//! What a store of sessions does. Small traits, each a noun; [`Store`] is all of them.
//!
//! Every method takes the caller's [`Scope`], and every implementation answers a session of another tenant, or one the
//! caller may not see, exactly as it answers an id that was never used (I9). The conformance suite in `sapwood-store`
//! is the contract in executable form.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::authority::{Authority, Source};
use crate::entry::{Body, Draft, Entry, Kind, Outcome, Record, SessionState, codec};
use crate::id::{BlobHash, EntryId, MemoryId, Seq, SessionId, TenantId, TimestampMs, TurnId};
pub use crate::port::blob::{BLOB_BYTES_MAX, BlobSink, Blobs, PIECE_BYTES_MAX, WHOLE_BLOB_BYTES_MAX};
use crate::port::keys::Keys;
use crate::port::memory::Memories;
use crate::project::summary::{Lineage, Origin, Summary};
use crate::scope::{Principal, Right, Scope};
use crate::settings::Settings;
use crate::tree::{Head, PlaceError};

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Most drafts in one append; a caller with more sends several.
pub const APPEND_ENTRIES_MAX: usize = 10_000;
/// Largest body of one entry, encoded; bigger content belongs in a blob.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Digits of a request's hash that are kept with its key: 128 bits.
const REQUEST_HEX: usize = 32;
/// Most rows one page of any list holds.
pub const PAGE_ROWS_MAX: usize = 10_000;
/// About how many bytes of bodies a page of a log holds: it ends with the record that reaches this, so whoever stands still
/// with a page holds no more than that and one record.
pub const PAGE_BYTES: usize = 256 << 10;

/// Longest life of a lease, in milliseconds. A store that finds one which claims to end later knows that the clock was
/// wrong that wrote it.
pub const LEASE_TTL_MS_MAX: i64 = 10_000;

/// Whether a page of a log, asked for with this limit, ended because it was full: only then can there be more behind it.
pub fn is_full_page(page: &[Record], limit: usize) -> bool {
    page.len() >= limit.min(PAGE_ROWS_MAX) || bytes_of_page(page) >= PAGE_BYTES
}

/// What the bodies of a page weigh.
pub fn bytes_of_page(page: &[Record]) -> usize {
    page.iter().map(|record| record.body.len()).sum()
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no session {session}")]
    NoSession { session: SessionId },
    #[error("session {session} has no entry {entry}")]
    NoEntry { session: SessionId, entry: String },
    #[error("there is no blob {blob}")]
    NoBlob { blob: BlobHash },
    #[error("there is no key {key}")]
    NoKey { key: String },
    #[error("there is no memory {memory}")]
    NoMemory { memory: MemoryId },
    #[error("memory {memory} has changed: the caller expected version {expected}, and it is at {actual}")]
    MemoryConflict { memory: MemoryId, expected: u64, actual: u64 },
    #[error("{principal} may not change memory {memory}: it takes its owner, or whoever made it everybody's")]
    MemoryDenied { memory: MemoryId, principal: Principal },
    #[error("a session {session} exists already")]
    Exists { session: SessionId },
    #[error("the session moved on: the caller expected head {expected}, and it is at {actual}")]
    Conflict { expected: Seq, actual: Seq },
    #[error("the idempotency key {key:?} was used for another request")]
    KeyReused { key: String },
    #[error("fence {given} is stale: the session's lease has moved on to fence {current}")]
    StaleFence { given: u64, current: u64 },
    #[error("the session is being written by {holder} until its lease ends in {remaining_ms} ms")]
    Leased { holder: String, remaining_ms: i64 },
    #[error("{principal} may not do this with session {session}: it takes {}", needed.whose())]
    Denied { session: SessionId, principal: Principal, needed: Right },
    #[error("session {session} is archived and takes no more entries")]
    Archived { session: SessionId },
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{what} is over the limit of {limit}")]
    TooLarge { what: &'static str, limit: usize },
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    #[error("{place}: {what}")]
    Damaged { place: String, what: String },
    #[error("{place} was written by a newer Sapwood (format {found}, this one knows up to {known})")]
    TooNew { place: String, found: u32, known: u32 },
    #[error("{place} is encrypted, and {why}")]
    Locked { place: String, why: String },
    #[error("{place} cannot be written: {why}")]
    ReadOnly { place: String, why: String },
    #[error("no space is left for {place}")]
    DiskFull { place: String },
    #[error("{place} was busy for {waited_ms} ms")]
    Busy { place: String, waited_ms: u64 },
    #[error("{place} cannot be reached: {why}")]
    Unreachable { place: String, why: String },
    #[error("{place} is not trusted: {why}")]
    Untrusted { place: String, why: String },
    #[error("{place}: {source}")]
    Io { place: String, source: std::io::Error },
    #[error("{place}: {what}")]
    Backend { place: String, what: String },
}

impl StoreError {
    /// Stable, for programs. docs/errors has a page for each.
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

/// A session to be made. Whoever calls becomes its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    pub id: SessionId,
    /// When it began: for an imported one, where it came from.
    pub at: TimestampMs,
    /// When it is made here, which is what the audit says.
    pub now: TimestampMs,
    pub title: Option<String>,
    pub agent: Option<String>,
    pub cwd: Option<String>,
    /// The session an imported one was forked from, wherever that is. A fork made here gets this from its source.
    pub parent: Option<Lineage>,
    /// Where an imported session came from.
    pub origin: Option<Origin>,
    /// Whether a caller makes it or an import.
    pub source: Source,
}

impl NewSession {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    New,
    /// It was there already, and was left as it is.
    Existed,
}

/// A session that begins with another one's path, by reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    pub source: SessionId,
    /// An entry in the tree; the source's leaf if none. Seq zero, and a source without a leaf, give an empty fork.
    pub at: Option<Seq>,
    pub new: NewSession,
    /// The first own entries of the fork. The store leaves out labels of entries that the fork does not share.
    pub drafts: Vec<Draft>,
}

/// What the caller knows of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Append after whatever is there.
    Any,
    /// Append only if the log ends here; otherwise [`StoreError::Conflict`], and nothing is written (I5).
    Head(Seq),
}

/// Entries to be appended: all of them, or none (I4).
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    pub session: SessionId,
    pub expect: Expect,
    /// The fence of the lease the caller holds. Without one only entries beside the tree may be written while somebody
    /// holds a lease: a lease guards the leaf.
    pub fence: Option<u64>,
    /// The same key gives the first answer again and writes nothing (I5).
    pub idempotency_key: Option<String>,
    /// What was asked under the key, as [`hash_request`] says. The same key with another is refused; none of it gets the
    /// first answer, whatever was asked.
    pub request: Option<String>,
    pub drafts: Vec<Draft>,
    /// Written in the same transaction.
    pub audit: Option<AuditNote>,
    /// Imported entries are recorded as such in the same transaction.
    pub source: Source,
    /// What the audit says. Whether a lease is over is for the store's clock to say.
    pub now: TimestampMs,
}

impl Append {
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

/// What is asked by appending these, for [`Append::request`].
pub fn hash_request(bodies: &[Body]) -> String {
    let mut hasher = blake3::Hasher::new();
    for body in bodies {
        let bytes = codec::encode(body);
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
    }
    hasher.finalize().to_hex()[..REQUEST_HEX].to_owned()
}

/// What became of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    pub head: Head,
    /// Seq and id of each entry, in the order given.
    pub entries: Vec<(Seq, EntryId)>,
}

/// How far back a path is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// To where the latest compaction on the path says the context begins: what a model needs.
    ContextStart,
    /// To the root.
    Root,
    /// At most so many entries.
    Entries(u32),
}

/// A piece of a path, oldest first, with what a fold needs to know about the part before it. Unlike a log that is paged
/// through, a path is read to be folded, so its entries come decoded: a store can do that while it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSlice {
    pub head: Head,
    pub entries: Vec<Entry>,
    /// Entries of this seq or lower belong to the session this one was forked from.
    pub inherited: u32,
    /// The settings in force before the first entry.
    pub settings_before: Settings,
    /// How turns of this session's own ended that began (`turn_started`) after the entry the first one hangs from:
    /// all they did on this path is in the slice.
    pub ended_turns: Vec<(TurnId, Outcome)>,
    pub open_turn: Option<TurnId>,
}

/// One page of a list, and where the next one begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// Which end of a list its first page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    #[default]
    NewestFirst,
    OldestFirst,
}

/// What a list is narrowed to. What it means is in [`crate::project::wanted`], for every store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListFilter {
    pub cwd: Option<String>,
    pub state: Option<SessionState>,
    pub agent: Option<String>,
    pub owner: Option<Principal>,
    /// Updated at this time or later.
    pub since: Option<TimestampMs>,
    /// Updated before this time.
    pub until: Option<TimestampMs>,
    /// Only sessions that are called so: each of these words is in what a list shows as the title, or in the id.
    pub title: Option<String>,
    pub order: ListOrder,
    /// Only sessions whose id begins so.
    pub id_prefix: Option<String>,
    pub limit: usize,
    /// What [`Page::next`] said.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchQuery {
    /// Words that must all occur; "words in quotes" occur together; a trailing * matches the rest of a word.
    pub text: String,
    pub session: Option<SessionId>,
    pub limit: usize,
    pub cursor: Option<String>,
}

/// One entry that a search found, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    pub session: SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub seq: Seq,
    pub id: EntryId,
    pub kind: &'static str,
    pub at: TimestampMs,
    pub snippet: String,
}

/// The right to write a session, until it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub session: SessionId,
    pub holder: String,
    /// Grows each time the lease changes hands; a smaller one is refused.
    pub fence: u64,
    /// How long it lasts, by the store's clock, from when it was taken or renewed.
    pub ttl_ms: i64,
}

/// What somebody did, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditNote {
    pub action: AuditAction,
    pub session: Option<SessionId>,
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    Create,
    Open,
    Read,
    Edit,
    Fork,
    Share,
    Archive,
    Reopen,
    Close,
    Erase,
    Export,
    Import,
    KeyChange,
    TenantChange,
    MemoryChange,
}

/// As long as most lines: nearly every append over HTTP writes one.
const AUDIT_LINE_BYTES: usize = 512;

/// One line of a tenant's audit: its hash covers the line and the hash before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    pub number: u64,
    pub at: TimestampMs,
    pub by: Principal,
    pub action: AuditAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub hash: String,
}

impl AuditLine {
    /// The line that follows one with `previous` as its hash.
    pub fn chained(number: u64, at: TimestampMs, by: Principal, note: AuditNote, previous: &str) -> Self {
        let mut line = Self {
            number,
            at,
            by,
            action: note.action,
            session: note.session,
            detail: note.detail,
            hash: String::new(),
        };
        line.hash = line.expected_hash(previous);
        line
    }

    pub fn expected_hash(&self, previous: &str) -> String {
        let fields = (previous, self.number, self.at, &self.by, self.action, &self.session, &self.detail);
        let mut text = Vec::with_capacity(AUDIT_LINE_BYTES);
        serde_json::to_writer(&mut text, &fields).expect("strings and numbers always print");
        blake3::hash(&text).to_hex().as_str().to_owned()
    }
}

/// Something `doctor` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The invariant that does not hold, such as `I1`, or what else is wrong, such as `cache`.
    pub rule: &'static str,
    pub place: String,
    pub what: String,
    pub repaired: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    No,
    /// Rebuild what is derived. The log itself is never changed.
    Yes,
}

/// Sessions as wholes.
#[async_trait]
pub trait Sessions: Send + Sync {
    async fn create(&self, scope: &Scope, new: NewSession) -> Result<Created>;
    async fn fork(&self, scope: &Scope, fork: Fork) -> Result<Head>;
    async fn summary(&self, scope: &Scope, session: &SessionId) -> Result<Summary>;
    /// One page, the newest first unless the filter says otherwise. A store looks through a limited number of sessions at
    /// a time: a page of a narrowed list can be short, or empty, and still have a `next`.
    async fn list(&self, scope: &Scope, filter: &ListFilter) -> Result<Page<Summary>>;
    /// The sessions that were forked from this one.
    async fn children(&self, scope: &Scope, session: &SessionId) -> Result<Vec<SessionId>>;
    /// Really deletes: entries, blobs nobody else refers to, the search index, memories that nothing else supports. What
    /// forks need stays with them.
    async fn erase(&self, scope: &Scope, session: &SessionId, now: TimestampMs) -> Result<()>;
    /// Where each log ends, in the order asked; none for a session the caller cannot see.
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
    /// A number that is another one after any write, by whichever process. None if the store cannot tell cheaply.
    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Waits until the mark is another one, in a store that is told; in others, for ever.
    async fn changed(&self, _mark: u64) {
        std::future::pending().await
    }
}

/// The entries of one session.
#[async_trait]
pub trait Log: Send + Sync {
    async fn append(&self, scope: &Scope, append: Append) -> Result<Appended>;
    /// Whether appends are done in the order in which they were first polled. Then a caller may begin one before it knows
    /// what became of the one before, and expect the head that one will leave.
    fn keeps_order(&self) -> bool {
        false
    }
    /// In order, beginning after `after`: at most `limit`, and about [`PAGE_BYTES`], but always one if there is any.
    async fn read_after(
        &self,
        scope: &Scope,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Record>>;
    /// Only entries of these kinds, in order; what labels, archives, the ledger and members are folded from.
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
    /// The entry on the path to `leaf` that holds its `count`-th message.
    async fn nth_message(
        &self,
        scope: &Scope,
        session: &SessionId,
        leaf: Seq,
        count: u32,
    ) -> Result<Option<Seq>>;
    async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record>;
    /// At most two entries whose id begins with the prefix: enough to know whether it is unique.
    async fn find_entries(&self, scope: &Scope, session: &SessionId, id_prefix: &str) -> Result<Vec<Record>>;
}

/// Who may write. The store's own clock says when a lease ends, never a caller's: stores on one machine go by the time
/// since it was booted, PostgreSQL by the time of the database.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes a free or expired lease, or renews the holder's own (the fence stays). At most [`LEASE_TTL_MS_MAX`].
    async fn take_lease(
        &self,
        scope: &Scope,
        session: &SessionId,
        holder: &str,
        ttl_ms: i64,
    ) -> Result<Lease>;
    async fn release_lease(&self, scope: &Scope, lease: &Lease) -> Result<()>;
}

/// What this store wrote itself, and what was imported: [`Summary::authority`].
#[async_trait]
pub trait Authorities: Send + Sync {
    /// The record of a session that has none because an earlier version wrote it: worked out from the audit, and stored if
    /// the store can be written.
    async fn settle_authority(&self, scope: &Scope, session: &SessionId) -> Result<Authority>;
    /// Record a file-backed model that the local command line named for the session. No import and no HTTP request may
    /// lead here.
    async fn grant_model(&self, scope: &Scope, session: &SessionId, model: &str) -> Result<()>;
}

#[async_trait]
pub trait Search: Send + Sync {
    async fn search(&self, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>>;
}

#[async_trait]
pub trait Audit: Send + Sync {
    async fn write_audit(&self, scope: &Scope, note: AuditNote, now: TimestampMs) -> Result<()>;
    async fn read_audit(
        &self,
        scope: &Scope,
        session: Option<&SessionId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<AuditLine>>;
    /// Lines about a session, newest first, back to the first that is older than that: the audit is read from its end.
    async fn read_audit_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        since: TimestampMs,
        limit: usize,
    ) -> Result<Vec<AuditLine>>;
}

/// Upkeep of the store itself.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Checks what only the store can see: its files, its derived rows. What the log promises is checked from outside.
    async fn check(&self, scope: &Scope, repair: Repair) -> Result<Vec<Finding>>;
    /// Sessions, of any tenant, whose turn is open and whose lease is over: their process died. None if the store cannot
    /// tell without going through its sessions.
    async fn abandoned_turns(&self, _limit: usize) -> Result<Option<Vec<(TenantId, SessionId)>>> {
        Ok(None)
    }
    /// Whether something could be written now, as far as that can be told without leaving anything behind.
    async fn check_writable(&self) -> Result<()> {
        Ok(())
    }
    /// Finishes what is under way. A store that is dropped does the same.
    async fn flush(&self) -> Result<()>;
    /// For people: what and where this store is.
    fn describe(&self) -> String;
}

pub trait Store:
    Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Upkeep
{
}

impl<T: Sessions + Log + Leases + Authorities + Search + Blobs + Audit + Keys + Memories + Upkeep> Store
    for T
{
}
