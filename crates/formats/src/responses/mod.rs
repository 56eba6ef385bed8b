//! OpenAI's Conversations and Responses APIs, for unmodified clients. A conversation is a session, an item is an entry
//! or a part of an entry, and a response is a turn. All functions are pure: they fold entries or parse requests.
//!
//! | file | does |
//! |---|---|
//! | [`read`] | converts items from clients to entries |
//! | [`items`] | converts entries to items |
//! | [`response`] | converts a turn's entries to a response |
//! | [`event_sequence`] | converts a turn to stream events, whose numbers depend only on the log |
//!
//! Ids encode their target, so no lookup table is needed. A response's id contains its turn and
//! session. An item's id contains its entry, or its position in a turn's output, which is known before the
//! entry is written.

pub mod event_sequence;
pub mod items;
pub mod read;
pub mod response;

use std::fmt;
use std::str::FromStr;

use sapwood_core::{EntryId, SessionId, TurnId};

/// Number of hexadecimal digits of a UUID.
const HEX_DIGITS: usize = 32;

/// The turn or entry in which an item is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// The item is output of this turn.
    Turn(TurnId),
    /// The item is part of this entry, which a client added.
    Entry(EntryId),
}

/// The id of an item, without the prefix for its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ItemId {
    pub anchor: Anchor,
    /// The zero-based index of the item in the turn's output or in the entry.
    pub index: u32,
}

impl ItemId {
    /// Format the id with the prefix of its kind: `msg`, `fc`, `rs`, …
    pub fn named(&self, kind: &str) -> String {
        format!("{kind}_{self}")
    }

    /// Parse an id with any prefix.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('_')?;
        let (hex, rest) = rest.split_at_checked(HEX_DIGITS)?;
        let (tag, index) = rest.split_at_checked(1)?;
        let anchor = match tag {
            "t" => Anchor::Turn(parse_hex(hex)?),
            "e" => Anchor::Entry(parse_hex(hex)?),
            _ => return None,
        };
        Some(Self { anchor, index: index.parse().ok()? })
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.anchor {
            Anchor::Turn(turn) => write!(f, "{}t{}", hex(&turn), self.index),
            Anchor::Entry(entry) => write!(f, "{}e{}", hex(&entry), self.index),
        }
    }
}

/// The id of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseId {
    pub turn: TurnId,
    pub session: SessionId,
}

impl ResponseId {
    pub fn parse(text: &str) -> Option<Self> {
        let (hex, rest) = text.strip_prefix("resp_")?.split_at_checked(HEX_DIGITS)?;
        Some(Self { turn: parse_hex(hex)?, session: rest.strip_prefix('_')?.parse().ok()? })
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resp_{}_{}", hex(&self.turn), self.session)
    }
}

fn hex(id: &impl fmt::Display) -> String {
    id.to_string().replace('-', "")
}

fn parse_hex<T: FromStr>(hex: &str) -> Option<T> {
    hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| hex.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_parse_back_and_invalid_ids_are_refused() {
        let turn: TurnId = "0197a000-0000-7000-8000-000000000001".parse().unwrap();
        let entry: EntryId = "0197a000-0000-7000-8000-000000000002".parse().unwrap();
        for anchor in [Anchor::Turn(turn), Anchor::Entry(entry)] {
            let id = ItemId { anchor, index: 7 };
            assert_eq!(ItemId::parse(&id.named("msg")), Some(id));
        }
        let response = ResponseId { turn, session: "conv_1".parse().unwrap() };
        assert_eq!(ResponseId::parse(&response.to_string()), Some(response));
        for bad in [
            "",
            "msg",
            "msg_",
            "resp_",
            "resp_é",
            "msg_0197a000000070008000000000000001",
            "msg_0197a000000070008000000000000001x1",
            "resp_0197a000000070008000000000000001_",
            "resp_0197a000000070008000000000000001_../x",
        ] {
            assert_eq!((ItemId::parse(bad), ResponseId::parse(bad)), (None, None), "{bad}");
        }
    }
}
