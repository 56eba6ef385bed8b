//! The errors of stores, each with a stable code.

use crate::id::{BlobHash, MemoryId, Seq, SessionId};
use crate::scope::{Principal, Right};
use crate::tree::PlaceError;

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

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
    /// The memory does not have the expected version.
    #[error("memory {memory} has changed: the caller expected version {expected}, but it is at {actual}")]
    MemoryConflict { memory: MemoryId, expected: u64, actual: u64 },
    /// The caller may not change the memory.
    #[error("{principal} may not change memory {memory}: only its owner, its creator or an operator may")]
    MemoryDenied { memory: MemoryId, principal: Principal },
    /// A session with this id already exists, possibly one that the caller may not see.
    #[error("session {session} already exists")]
    Exists { session: SessionId },
    /// The log does not end where the caller expected.
    #[error("the session has changed: the caller expected head {expected}, but it is at {actual}")]
    Conflict { expected: Seq, actual: Seq },
    /// The idempotency key was used for another request.
    #[error("the idempotency key {key:?} was used for another request")]
    KeyReused { key: String },
    /// Another holder has acquired the lease since the caller got its fence.
    #[error("fence {given} is stale: the session's lease is now at fence {current}")]
    StaleFence { given: u64, current: u64 },
    /// Another holder has the session's lease.
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
    /// The store can be read but not written.
    #[error("{place} cannot be written: {why}")]
    ReadOnly { place: String, why: String },
    /// No disk space is left.
    #[error("no disk space is left for {place}")]
    DiskFull { place: String },
    /// Concurrent writes kept the store busy for too long. The caller can retry.
    #[error("{place} was busy for {waited_ms} ms")]
    Busy { place: String, waited_ms: u64 },
    /// The database cannot be reached.
    #[error("{place} cannot be reached: {why}")]
    Unreachable { place: String, why: String },
    /// The server's certificate is not trusted.
    #[error("{place} is not trusted: {why}")]
    Untrusted { place: String, why: String },
    /// The operating system reported another error.
    #[error("{place}: {source}")]
    Io { place: String, source: std::io::Error },
    /// The database reported another error.
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
