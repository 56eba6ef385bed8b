//! A session to create, and where it came from.

use serde::{Deserialize, Serialize};

use crate::authority::Source;
use crate::id::{EntryId, SessionId, TimestampMs};

/// A session to create. The caller becomes its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The session's id.
    pub id: SessionId,
    /// When the session began. For an imported session this is the time at its origin.
    pub at: TimestampMs,
    /// When the session is created in this store, for the audit log.
    pub now: TimestampMs,
    /// The title. A fork without a title gets its source's.
    pub title: Option<String>,
    /// The id of the session's agent. A fork without an agent gets its source's.
    pub agent: Option<String>,
    /// The working directory. A fork without a directory gets its source's.
    pub cwd: Option<String>,
    /// The session that an imported session was forked from, in any store. For a fork created here, the store sets it.
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

/// The session and entry that a fork was created from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lineage {
    /// The source session.
    pub session: SessionId,
    /// The last shared entry. `None` if no entry is shared, or if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<EntryId>,
}

/// Where an imported session came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The name of the format that the session was imported from.
    pub format: String,
    /// The session's id at its origin.
    pub id: String,
}
