//! The first line of a session's file: all data about the session that is not in its entries.

use sapwood_core::entry::{LOG_VERSION, SessionState};
use sapwood_core::port::store::{NewSession, Result};
use sapwood_core::project::summary::{ForkPoint, Lineage, Origin, Summary};
use sapwood_core::tree::Head;
use sapwood_core::{EntryId, Principal, Seq, SessionId, Source, StoreError, TimestampMs};
use serde::{Deserialize, Serialize};

use super::{line_sum, sealed_lines};
use crate::validate::damaged;

const TYPE: &str = "session_header";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    #[serde(rename = "type")]
    kind: String,
    pub id: SessionId,
    pub timestamp: TimestampMs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_entry: Option<EntryId>,
    pub version: u32,
    pub owner: Principal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Copied from the source of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// The number of entries that a fork shares. They are in the file of `base` or, without a base,
    /// in the first lines of this file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inherited: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseRef>,
    /// Whether the session is erased and cannot be opened. If so, the file contains only entries that
    /// forks need.
    #[serde(default, skip_serializing_if = "is_false")]
    pub erased: bool,
}

/// The fork point: the name, without the extension, of the file that contains the last shared entry,
/// and the entry's seq in that file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRef {
    pub file: String,
    pub seq: Seq,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Header {
    /// Creates the header from the summary of a session that has no entries of its own.
    pub fn of(summary: &Summary, base: Option<BaseRef>) -> Self {
        let parent = summary.parent.clone();
        Self {
            kind: TYPE.to_owned(),
            id: summary.id.clone(),
            timestamp: summary.created_at,
            cwd: summary.cwd.clone(),
            parent_session: parent.as_ref().map(|parent| parent.session.clone()),
            parent_entry: parent.and_then(|parent| parent.at),
            version: LOG_VERSION,
            owner: summary.owner.clone(),
            title: summary.title.clone(),
            agent: summary.agent.clone(),
            origin: summary.origin.clone(),
            preview: summary.preview.clone().filter(|_| summary.inherited > 0),
            inherited: summary.inherited,
            base,
            erased: false,
        }
    }

    /// Returns the header for the retained entries of the erased session, without personal data.
    pub fn erased(&self) -> Self {
        Self {
            cwd: None,
            parent_session: None,
            parent_entry: None,
            owner: Principal::System,
            title: None,
            agent: None,
            origin: None,
            preview: None,
            version: LOG_VERSION,
            erased: true,
            ..self.clone()
        }
    }

    pub fn read(place: &str, line: &[u8]) -> Result<Self> {
        line_sum::check(line).map_err(|error| damaged(format!("{place}:1"), error))?;
        let header: Header = serde_json::from_slice(line)
            .map_err(|error| damaged(format!("{place}:1"), format!("failed to parse the header: {error}")))?;
        if header.kind != TYPE {
            return Err(damaged(
                format!("{place}:1"),
                format!("the header has the unknown type {:?}", header.kind),
            ));
        }
        if header.version > LOG_VERSION {
            let found = header.version;
            return Err(StoreError::TooNew { place: place.to_owned(), found, known: LOG_VERSION });
        }
        Ok(header)
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(sealed_lines::to_line(self));
    }

    /// Returns the summary before the session's own first entry. `point` is the fork point.
    pub fn summary(&self, point: Option<ForkPoint>) -> Summary {
        let new = NewSession {
            id: self.id.clone(),
            at: self.timestamp,
            now: self.timestamp,
            title: self.title.clone(),
            agent: self.agent.clone(),
            cwd: self.cwd.clone(),
            parent: self.parent_session.clone().map(|session| Lineage { session, at: self.parent_entry }),
            origin: self.origin.clone(),
            source: Source::Own,
        };
        let mut summary = Summary::new(&new, self.owner.clone());
        summary.version = self.version;
        summary.preview.clone_from(&self.preview);
        if let Some(point) = point {
            summary.inherited = self.inherited;
            summary.head = Head { seq: Seq(self.inherited), leaf: Some(Seq(self.inherited)) };
            summary.last_id = Some(point.id);
            summary.messages = point.links.messages;
            summary.model = point.model;
            if point.links.messages > 0 {
                summary.state = SessionState::Active;
            }
        }
        summary
    }
}
