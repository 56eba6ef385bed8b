//! The lines of a tenant's audit, chained by their hashes.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, TimestampMs};
use crate::scope::Principal;

/// An action for the audit.
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

/// Initial buffer size, enough for most lines. Nearly every append over HTTP writes an audit line.
const AUDIT_LINE_BYTES: usize = 512;

/// One line of a tenant's audit. Its hash covers the line and the previous line's hash.
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

    pub fn expected_hash(&self, previous: &str) -> String {
        let fields = (previous, self.number, self.at, &self.by, self.action, &self.session, &self.detail);
        let mut text = Vec::with_capacity(AUDIT_LINE_BYTES);
        serde_json::to_writer(&mut text, &fields).expect("strings and numbers always serialize");
        blake3::hash(&text).to_hex().as_str().to_owned()
    }
}
