//! Durable events: every entry is an event, and its seq is the event id. Stream fragments are not entries and have no
//! id.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::entry::{Body, Outcome, Record, SessionState, Strategy, codec::CodecError};
use crate::id::{EntryId, Seq, SessionId, TimestampMs, TurnId};
use crate::project::feed::FeedChange;
use crate::scope::Principal;

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event<'a> {
    #[serde(rename = "type")]
    pub name: &'static str,
    pub session: &'a SessionId,
    pub seq: Seq,
    pub at: TimestampMs,
    pub id: EntryId,
    pub parent: Option<Seq>,
    pub by: &'a Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The body, unchanged from the log.
    #[cfg_attr(feature = "openapi", schema(value_type = Body))]
    pub entry: &'a RawValue,
    /// The change that this entry makes to the feed, if the reader asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed: Option<FeedChange>,
}

impl<'a> Event<'a> {
    pub fn of(session: &'a SessionId, record: &'a Record) -> Result<Self, CodecError> {
        let malformed = |source| CodecError::Malformed { kind: record.meta.kind, source };
        Ok(Self {
            name: event_name(record)?,
            session,
            seq: record.meta.seq,
            at: record.meta.at,
            id: record.meta.id,
            parent: record.meta.parent,
            by: &record.meta.by,
            turn: record.meta.turn,
            entry: serde_json::from_slice(&record.body).map_err(malformed)?,
            feed: None,
        })
    }
}

fn event_name(record: &Record) -> Result<&'static str, CodecError> {
    let names = record.meta.kind.events();
    if let [name] = names {
        return Ok(name);
    }
    let index = match record.decode()? {
        Body::Compaction(body) => usize::from(body.strategy == Strategy::Trim),
        Body::TurnEnded(body) => usize::from(body.outcome == Outcome::Cancelled),
        Body::StateChanged(body) => match body.state {
            SessionState::Created | SessionState::Active => 0,
            SessionState::Closed => 1,
            SessionState::Archived => 2,
        },
        _ => 0,
    };
    Ok(names[index])
}
