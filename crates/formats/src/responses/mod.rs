//! OpenAI's Conversations and Responses APIs, as its unmodified clients speak them: a conversation is a session, an item is an
//! entry or a piece of one, a response is a turn. Everything here is a fold of entries or a reading of what a client sent.
//!
//! | file | has |
//! |---|---|
//! | [`read`] | items as clients send them, as entries |
//! | [`items`] | entries as items |
//! | [`response`] | a turn's entries as a response |
//! | [`event_sequence`] | a turn as the events of a stream, numbered so that the log alone says which comes after which |
//!
//! Ids carry what they stand for, so nothing is kept to find it: a response's id is its turn and its session, an item's id is
//! its entry, or its place in what a turn brought forth, as that is known before the entry is written.

pub mod event_sequence;
pub mod items;
pub mod read;
pub mod response;

use std::fmt;
use std::str::FromStr;

use sapwood_core::{EntryId, SessionId, TurnId};

/// Digits of a UUID.
const HEX_DIGITS: usize = 32;

/// What an item's id counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// What a turn brought forth.
    Turn(TurnId),
    /// What somebody put in.
    Entry(EntryId),
}

/// The id of an item, without the letters in front that say what kind of item it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ItemId {
    pub anchor: Anchor,
    pub place: u32,
}

impl ItemId {
    /// With the letters of its kind: `msg`, `fc`, `rs` …
    pub fn named(&self, kind: &str) -> String {
        format!("{kind}_{self}")
    }

    /// Reads an id of any kind.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('_')?;
        let (hex, rest) = rest.split_at_checked(HEX_DIGITS)?;
        let (letter, place) = rest.split_at_checked(1)?;
        let anchor = match letter {
            "t" => Anchor::Turn(parse_hex(hex)?),
            "e" => Anchor::Entry(parse_hex(hex)?),
            _ => return None,
        };
        Some(Self { anchor, place: place.parse().ok()? })
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.anchor {
            Anchor::Turn(turn) => write!(f, "{}t{}", hex(&turn), self.place),
            Anchor::Entry(entry) => write!(f, "{}e{}", hex(&entry), self.place),
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
    fn ids_read_back_and_what_is_none_is_refused() {
        let turn: TurnId = "0197a000-0000-7000-8000-000000000001".parse().unwrap();
        let entry: EntryId = "0197a000-0000-7000-8000-000000000002".parse().unwrap();
        for anchor in [Anchor::Turn(turn), Anchor::Entry(entry)] {
            let id = ItemId { anchor, place: 7 };
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
