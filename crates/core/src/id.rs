//! Newtype ids. Parsing validates the text and is the only way to create an id from text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

/// A text that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not valid: {why}")]
pub struct IdError {
    /// What the text should be, such as `session id`.
    pub what: &'static str,
    /// The text, shortened.
    pub text: String,
    /// Why the text is not valid.
    pub why: &'static str,
}

/// Maximum length of a session, tenant or user name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

fn check_name(what: &'static str, text: &str) -> Result<(), IdError> {
    let fail = |why| Err(IdError { what, text: text.chars().take(64).collect(), why });
    if text.is_empty() {
        return fail("it is empty");
    }
    if text.len() > NAME_BYTES_MAX {
        return fail("it is longer than 128 bytes");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@+-".contains(&b)) {
        return fail("only ASCII letters, digits and . _ : @ + - are allowed");
    }
    if !text.as_bytes()[0].is_ascii_alphanumeric() {
        return fail("it must begin with a letter or a digit");
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                check_name($what, text)?;
                Ok(Self(text.to_owned()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                check_name($what, &text)?;
                Ok(Self(text))
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A session's name within its tenant. A UUIDv7 is minted if the caller supplies no name.
    SessionId,
    "session id"
);
name_type!(
    /// A tenant: the isolation boundary.
    TenantId,
    "tenant"
);
name_type!(
    /// The name of a user or an agent within its tenant.
    UserName,
    "user name"
);

impl SessionId {
    /// Create an id from a time and random bits.
    pub fn mint(at: TimestampMs, random: u128) -> Self {
        Self(v7(at, random).hyphenated().to_string())
    }
}

impl TenantId {
    /// The default tenant of a store with a single tenant.
    pub fn local() -> Self {
        Self("local".to_owned())
    }
}

/// An entry's position in its session's log: 1, 2, 3 … without gaps (I1). Zero means "before the first".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// The position before the first entry.
    pub const ZERO: Seq = Seq(0);

    /// The following position.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimestampMs(pub i64);

fn v7(at: TimestampMs, random: u128) -> Uuid {
    let millis = u64::try_from(at.0).unwrap_or(0);
    let bytes = random.to_be_bytes();
    let mut tail = [0u8; 10];
    tail.copy_from_slice(&bytes[..10]);
    uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid()
}

macro_rules! uuid_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// The id with these bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
            /// The bytes of the id.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
            /// Create an id from a time and random bits.
            pub fn mint(at: TimestampMs, random: u128) -> Self {
                Self(v7(at, random))
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text).map(Self).map_err(|_| IdError {
                    what: $what,
                    text: text.chars().take(64).collect(),
                    why: "it is not a UUID",
                })
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    };
}

uuid_type!(
    /// A UUIDv7 that increases with seq (I13), so that an id is found by binary search without an index.
    EntryId,
    "entry id"
);
uuid_type!(
    /// A turn: the processing of one input.
    TurnId,
    "turn id"
);
uuid_type!(
    /// A memory. Ids increase with creation time.
    MemoryId,
    "memory id"
);

impl TurnId {
    /// A lower bound of the ids of the turn's entries. It does not hold for imported turns, whose ids can have any form,
    /// or if the clock was set back after the turn's id was minted.
    pub fn entries_from(&self) -> EntryId {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&self.as_bytes()[..6]);
        EntryId::from_bytes(bytes)
    }
}

impl EntryId {
    /// The next id of a log whose newest id is `last`. The new id is always greater, even if the clock was set back
    /// (I13).
    pub fn after(last: Option<EntryId>, at: TimestampMs, random: u128) -> Self {
        let fresh = Self::mint(at, random);
        match last {
            Some(last) if fresh <= last => Self(Uuid::from_u128(last.0.as_u128().wrapping_add(1))),
            _ => fresh,
        }
    }

    /// The range of ids with this prefix of hexadecimal digits. Hyphens are ignored.
    pub fn prefix_range(prefix: &str) -> Option<(EntryId, EntryId)> {
        let hex: String = prefix.chars().filter(|c| *c != '-').collect();
        if hex.is_empty() || hex.len() > 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let parse =
            |pad: &str| u128::from_str_radix(&format!("{hex}{}", pad.repeat(32 - hex.len())), 16).ok();
        Some((Self(Uuid::from_u128(parse("0")?)), Self(Uuid::from_u128(parse("f")?))))
    }
}

/// The address of a blob: the BLAKE3 hash of its bytes, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// Compute the BLAKE3 hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
    /// A hash that was computed before, from its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from_bytes(self.0).to_hex().fmt(f)
    }
}

impl FromStr for BlobHash {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let why = "it is not 64 hexadecimal digits";
        let fail = |_| IdError { what: "blob hash", text: text.chars().take(80).collect(), why };
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(fail)
    }
}

impl TryFrom<String> for BlobHash {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<BlobHash> for String {
    fn from(hash: BlobHash) -> String {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_increase_even_when_the_clock_goes_back() {
        let first = EntryId::after(None, TimestampMs(2_000), u128::MAX);
        let second = EntryId::after(Some(first), TimestampMs(1_000), 0);
        assert!(second > first);
    }

    #[test]
    fn a_prefix_covers_exactly_the_ids_that_begin_with_it() {
        let id = EntryId::mint(TimestampMs(1_700_000_000_000), 7);
        let (low, high) = EntryId::prefix_range(&id.to_string()[..9]).unwrap();
        assert!(low <= id && id <= high);
        assert_eq!(EntryId::prefix_range("xyz"), None);
    }

    #[test]
    fn names_that_could_be_paths_or_options_are_refused() {
        for bad in ["", "-x", "../a", "a/b", "a b", ".hidden", "é", &"x".repeat(129)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?} was accepted");
        }
        assert!("flow-1__owner_2".parse::<SessionId>().is_ok());
    }
}
