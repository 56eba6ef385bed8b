//! The header line of Sapwood's JSONL format: session metadata, without entries.
//!
//! An import restores every header field, so exporting again writes the same bytes (I11). The owner is not
//! included: an imported session belongs to the importing principal.

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::{Lineage, Origin, Summary};
use sapwood_core::{EntryId, SessionId, TimestampMs};
use serde::{Deserialize, Serialize};

pub const HEADER_TYPE: &str = "session_header";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    #[serde(rename = "type")]
    kind: String,
    /// The format version of the lines that follow.
    #[serde(default = "current_version")]
    pub version: u32,
    pub id: SessionId,
    /// When the session was created.
    pub timestamp: TimestampMs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session from which this session was forked. `parent_entry` is the last shared entry. The file still
    /// contains the shared entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_entry: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Number of entries that a fork shares with another file. Used only in the files of a JSONL store. Such a
    /// file is incomplete and is not an export.
    #[serde(default, skip_serializing)]
    pub inherited: u32,
    #[serde(default, skip_serializing)]
    pub base: Option<serde::de::IgnoredAny>,
}

fn current_version() -> u32 {
    LOG_VERSION
}

impl Header {
    pub fn of(summary: &Summary) -> Self {
        let parent = summary.parent.as_ref();
        Self {
            kind: HEADER_TYPE.to_owned(),
            version: LOG_VERSION,
            id: summary.id.clone(),
            timestamp: summary.created_at,
            cwd: summary.cwd.clone(),
            title: summary.title.clone(),
            agent: summary.agent.clone(),
            parent_session: parent.map(|lineage| lineage.session.clone()),
            parent_entry: parent.and_then(|lineage| lineage.at),
            origin: summary.origin.clone(),
            inherited: 0,
            base: None,
        }
    }

    /// Build the session to create before its entries are appended.
    pub fn new_session(&self) -> NewSession {
        let lineage = |session: &SessionId| Lineage { session: session.clone(), at: self.parent_entry };
        NewSession {
            title: self.title.clone(),
            agent: self.agent.clone(),
            cwd: self.cwd.clone(),
            parent: self.parent_session.as_ref().map(lineage),
            origin: self.origin.clone(),
            ..NewSession::new(self.id.clone(), self.timestamp)
        }
    }
}
