//! Entry hashes. An entry's hash covers its parent's hash, its envelope and a salted commitment to its content.
//!
//! The hash follows `parent`, not the position in a log: a fork shares the hashes of the path it shares, and a path can be
//! verified without the rest of its log. Content can be dropped: without content and salt, the commitment reveals
//! nothing about the content, and all hashes stay verifiable. docs/adr/0042 has the definition and its reasons.

use std::collections::HashMap;
use std::fmt;

use super::{Meta, Stance};
use crate::id::{EntryId, Seq, SessionId};

const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// Domains of the three hashes. They are part of the format and never change.
const CONTENT_DOMAIN: &[u8; 16] = b"sapwood content1";
const ENTRY_DOMAIN: &[u8; 16] = b"sapwood entry 01";
const LOG_DOMAIN: &[u8; 16] = b"sapwood log   01";
/// Initial buffer size, enough for the envelope of most entries.
const ENVELOPE_BYTES: usize = 224;

/// Random bytes that keep the content of an entry from being guessed from its commitment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt([u8; SALT_BYTES]);

impl Salt {
    /// A salt of these random bits.
    pub fn new(random: u128) -> Self {
        Self(random.to_le_bytes())
    }

    /// Commit to the content of an entry: the bytes of its encoded body. Line breaks between JSON tokens count as
    /// spaces, because a JSONL line contains none.
    pub fn commit(&self, body: &[u8]) -> Commitment {
        let mut key = [0; HASH_BYTES];
        key[..SALT_BYTES].copy_from_slice(&self.0);
        key[SALT_BYTES..].copy_from_slice(CONTENT_DOMAIN);
        let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
        if !body.iter().any(is_break) {
            return Commitment(*blake3::keyed_hash(&key, body).as_bytes());
        }
        let on_one_line: Vec<u8> =
            body.iter().map(|byte| if is_break(byte) { b' ' } else { *byte }).collect();
        Commitment(*blake3::keyed_hash(&key, &on_one_line).as_bytes())
    }
}

/// The salted hash of an entry's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commitment([u8; HASH_BYTES]);

/// The hash of an entry, as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryHash([u8; HASH_BYTES]);

impl fmt::Display for EntryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

/// What is stored to check the content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The salt of content that is stored.
    Salt(Salt),
    /// The commitment to content that was dropped together with its salt.
    Dropped(Commitment),
}

/// How the hash of an entry covers its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentLink {
    /// The entry has no parent.
    Root,
    /// The parent had no hash when the entry was written.
    Unproven(EntryId),
    /// The parent's hash.
    Proven(EntryHash),
}

impl ParentLink {
    /// The link to an entry with this proof.
    pub fn to(id: EntryId, proof: Option<&Proof>) -> Self {
        proof.map_or(ParentLink::Unproven(id), |proof| ParentLink::Proven(proof.hash))
    }
}

/// The hash of an entry, and what is needed to check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The salt, or the commitment to dropped content.
    pub opening: Opening,
    /// The entry's hash.
    pub hash: EntryHash,
}

impl Proof {
    /// Prove an entry whose content was committed with this salt. `version` is the format version of its body.
    pub fn of(parent: ParentLink, meta: &Meta, version: u32, salt: Salt, content: &Commitment) -> Self {
        Self { opening: Opening::Salt(salt), hash: hash_entry(parent, meta, version, content) }
    }

    /// The salt of the content; `None` if it was dropped.
    pub fn salt(&self) -> Option<Salt> {
        match self.opening {
            Opening::Salt(salt) => Some(salt),
            Opening::Dropped(_) => None,
        }
    }

    /// The same proof after the content and its salt are dropped.
    pub fn without_content(self, body: &[u8]) -> Self {
        Self { opening: Opening::Dropped(self.commitment(body)), ..self }
    }

    fn commitment(&self, body: &[u8]) -> Commitment {
        match &self.opening {
            Opening::Salt(salt) => salt.commit(body),
            Opening::Dropped(commitment) => *commitment,
        }
    }

    /// The binary form: the salt (16 bytes) or the commitment (32 bytes), followed by the hash (32 bytes).
    pub fn to_bytes(&self) -> Vec<u8> {
        let opening: &[u8] = match &self.opening {
            Opening::Salt(salt) => &salt.0,
            Opening::Dropped(commitment) => &commitment.0,
        };
        [opening, &self.hash.0].concat()
    }

    /// Read the binary form. `None` if it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (opening, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
        let opening = match opening.len() {
            SALT_BYTES => Opening::Salt(Salt(opening.try_into().ok()?)),
            HASH_BYTES => Opening::Dropped(Commitment(opening.try_into().ok()?)),
            _ => return None,
        };
        Some(Self { opening, hash: EntryHash(hash.try_into().ok()?) })
    }

    /// The values of `salt`, `commitment` and `hash` in a JSONL line.
    pub(crate) fn to_fields(self) -> ProofFields {
        let (salt, commitment) = match &self.opening {
            Opening::Salt(salt) => (Some(to_hex(&salt.0)), None),
            Opening::Dropped(commitment) => (None, Some(to_hex(&commitment.0))),
        };
        ProofFields { salt, commitment, hash: Some(self.hash.to_string()) }
    }

    /// Read the fields of a JSONL line. `None` if they are not a proof.
    pub(crate) fn from_fields(fields: &ProofFields) -> Option<Self> {
        let opening = fields.salt.as_deref().or(fields.commitment.as_deref())?;
        let mut bytes = from_hex(opening)?;
        bytes.extend(from_hex(fields.hash.as_deref()?)?);
        Self::from_bytes(&bytes)
    }
}

/// A proof as fields of a JSONL line, in hexadecimal digits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProofFields {
    pub salt: Option<String>,
    pub commitment: Option<String>,
    pub hash: Option<String>,
}

fn to_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |char: char| char.to_digit(16).filter(|_| !char.is_ascii_uppercase());
    let digits: Vec<u32> = text.chars().map(digit).collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

/// Hash the envelope of an entry. Positions are left out, because a fork numbers shared entries differently: the
/// parent's hash and the id, which grows with the position (I13), determine them.
fn hash_entry(parent: ParentLink, meta: &Meta, version: u32, content: &Commitment) -> EntryHash {
    let mut bytes = Vec::with_capacity(ENVELOPE_BYTES);
    bytes.extend_from_slice(ENTRY_DOMAIN);
    match parent {
        ParentLink::Root => bytes.push(0),
        ParentLink::Unproven(id) => {
            bytes.push(1);
            bytes.extend_from_slice(id.as_bytes());
        }
        ParentLink::Proven(hash) => {
            bytes.push(2);
            bytes.extend_from_slice(&hash.0);
        }
    }
    bytes.extend_from_slice(meta.id.as_bytes());
    bytes.extend_from_slice(&meta.at.0.to_le_bytes());
    bytes.push(meta.kind.code());
    bytes.extend_from_slice(&version.to_le_bytes());
    match &meta.turn {
        None => bytes.push(0),
        Some(turn) => {
            bytes.push(1);
            bytes.extend_from_slice(turn.as_bytes());
        }
    }
    let by = meta.by.to_string();
    bytes.extend_from_slice(&(by.len() as u64).to_le_bytes());
    bytes.extend_from_slice(by.as_bytes());
    bytes.extend_from_slice(&content.0);
    EntryHash(*blake3::hash(&bytes).as_bytes())
}

/// An entry as it is stored: its body is not upgraded to the current format version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// The entry's metadata, with the kind under which it is stored.
    pub meta: Meta,
    /// The format version of the body.
    pub version: u32,
    /// The stored body; empty if it was dropped.
    pub body: Vec<u8>,
    /// `None` for an entry from before entries had hashes.
    pub proof: Option<Proof>,
}

impl StoredEntry {
    /// Compute a proof for an entry that has none.
    pub fn prove(&self, parent: ParentLink, salt: Salt) -> Proof {
        Proof::of(parent, &self.meta, self.version, salt, &salt.commit(&self.body))
    }
}

/// The end of a verified log: the number of its last entry, and a hash over all of its entries in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHead {
    pub seq: Seq,
    pub hash: EntryHash,
}

impl fmt::Display for LogHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl std::str::FromStr for LogHead {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let why = "it must be NUMBER:HASH, as printed by `sapwood doctor --heads`";
        let (number, hash) = text.split_once(':').ok_or(why)?;
        let hash = from_hex(&hash.to_ascii_lowercase()).and_then(|hash| hash.try_into().ok());
        Ok(Self { seq: Seq(number.parse().map_err(|_| why)?), hash: EntryHash(hash.ok_or(why)?) })
    }
}

/// Why an entry fails verification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The log has a gap, or two entries changed places.
    #[error("entry {seq} ({id}) does not follow entry {last}: its number or its id is out of order")]
    Order { seq: Seq, id: EntryId, last: Seq },
    /// The entry's parent does not exist.
    #[error("entry {seq} ({id}) has a parent that does not exist")]
    Parent { seq: Seq, id: EntryId },
    /// The entry's content, envelope, parent or salt differs from what was hashed.
    #[error("entry {seq} ({id}) does not match its hash: it or its parent was changed")]
    Hash { seq: Seq, id: EntryId },
}

/// Verifies a log, entry by entry. A mismatch does not end the verification: later entries are checked against the
/// stored hash of their parent.
#[derive(Debug)]
pub struct Verifier {
    seq: Seq,
    last_id: Option<EntryId>,
    /// The id and the hash of each entry that can be a parent.
    in_tree: HashMap<Seq, (EntryId, Option<EntryHash>)>,
    log: EntryHash,
    unproven: u64,
}

impl Verifier {
    /// Start before the first entry of a session's log.
    pub fn new(session: &SessionId) -> Self {
        let log = blake3::hash(&[LOG_DOMAIN, session.as_str().as_bytes()].concat());
        Self {
            seq: Seq::ZERO,
            last_id: None,
            in_tree: HashMap::new(),
            log: EntryHash(*log.as_bytes()),
            unproven: 0,
        }
    }

    /// Check the next entry. An entry without a proof is counted, and only its position is checked.
    pub fn check(&mut self, entry: &StoredEntry) -> Result<(), Mismatch> {
        let checked = self.compare(entry);
        let Meta { seq, id, kind, .. } = entry.meta;
        let hash = entry.proof.map(|proof| proof.hash);
        if kind.stance() == Stance::InTree {
            self.in_tree.insert(seq, (id, hash));
        }
        match hash {
            Some(hash) => self.log = EntryHash(*blake3::hash(&[self.log.0, hash.0].concat()).as_bytes()),
            None => self.unproven += 1,
        }
        (self.seq, self.last_id) = (seq, Some(id));
        checked
    }

    fn compare(&self, entry: &StoredEntry) -> Result<(), Mismatch> {
        let (seq, id, last) = (entry.meta.seq, entry.meta.id, self.seq);
        if seq != last.next() || self.last_id.is_some_and(|last_id| id <= last_id) {
            return Err(Mismatch::Order { seq, id, last });
        }
        let links = match entry.meta.parent {
            None => [Some(ParentLink::Root), None],
            Some(parent) => {
                let (id_above, hash) = self.in_tree.get(&parent).ok_or(Mismatch::Parent { seq, id })?;
                // A parent that was sealed later had no hash when the entry was written.
                [hash.map(ParentLink::Proven), Some(ParentLink::Unproven(*id_above))]
            }
        };
        let Some(proof) = &entry.proof else { return Ok(()) };
        let content = proof.commitment(&entry.body);
        let is_covered = |link| hash_entry(link, &entry.meta, entry.version, &content) == proof.hash;
        match links.into_iter().flatten().any(is_covered) {
            true => Ok(()),
            false => Err(Mismatch::Hash { seq, id }),
        }
    }

    /// The number of entries without a proof so far.
    pub fn unproven(&self) -> u64 {
        self.unproven
    }

    /// The end of the log so far. `None` if an entry has no proof.
    pub fn head(&self) -> Option<LogHead> {
        (self.unproven == 0).then_some(LogHead { seq: self.seq, hash: self.log })
    }
}

#[cfg(test)]
mod tests;
