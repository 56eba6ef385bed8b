//! The lines of a tenant's audit log, chained by their hashes.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, TimestampMs};
use crate::scope::Principal;

/// An action to record in the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditNote {
    /// What was done.
    pub action: AuditAction,
    /// The session that it was done to.
    pub session: Option<SessionId>,
    /// Further information.
    pub detail: Option<String>,
}

/// What the audit log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// A session was created.
    Create,
    /// An existing session was opened again.
    Open,
    /// A principal read a session of another owner.
    Read,
    /// A session was changed in another way. The detail states how.
    Edit,
    /// A session was created as a fork. The detail names its source.
    Fork,
    /// A member was added, changed or removed.
    Share,
    /// A session was archived.
    Archive,
    /// An archived session was reopened.
    Reopen,
    /// A session was closed.
    Close,
    /// A session was erased.
    Erase,
    /// A session was exported.
    Export,
    /// Entries were imported into a session.
    Import,
    /// An API key was created or revoked.
    KeyChange,
    /// A tenant was created.
    TenantChange,
    /// A memory was created, changed or deleted.
    MemoryChange,
}

/// Initial buffer size, enough for most lines.
const AUDIT_LINE_BYTES: usize = 512;

/// One line of a tenant's audit log. Its hash covers the line and the previous line's hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// The number of the line, from 1.
    pub number: u64,
    /// When the action was performed.
    pub at: TimestampMs,
    /// The principal that performed the action.
    pub by: Principal,
    /// What was done.
    pub action: AuditAction,
    /// The session that it was done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Further information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The BLAKE3 hash of the previous line's hash and this line's other fields, in hexadecimal digits.
    pub hash: String,
}

impl AuditLine {
    /// Build the line that follows the line with the hash `previous`.
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

    /// The hash that the line should have after the line with the hash `previous`.
    pub fn expected_hash(&self, previous: &str) -> String {
        let fields = (previous, self.number, self.at, &self.by, self.action, &self.session, &self.detail);
        let mut text = Vec::with_capacity(AUDIT_LINE_BYTES);
        serde_json::to_writer(&mut text, &fields).expect("strings and numbers always serialize");
        blake3::hash(&text).to_hex().as_str().to_owned()
    }
}
