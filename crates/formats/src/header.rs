//! The first line of Sapwood's own JSONL: what the session is, apart from its entries.
//!
//! Everything in it comes back when the session is imported, so that exporting again writes the same bytes (I11). The
//! owner is not in it: whoever imports a session owns the copy.

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
    /// The format of the lines that follow.
    #[serde(default = "current_version")]
    pub version: u32,
    pub id: SessionId,
    /// When the session was made.
    pub timestamp: TimestampMs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session this one was forked from, and the last entry they share. The shared entries are in the file all the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_entry: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Only in the files of a JSONL store: how many entries a fork shares, which are in another file. Such a file is not
    /// whole, and is no export.
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

    /// The session to make before its entries are appended.
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
