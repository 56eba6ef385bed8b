//! The output of a foreign importer: a session, and the steps that build its log. Sources identify records by ids in
//! various formats. A [`RecordKey`] is a hash of such an id that fits into an entry id, so that a later import
//! recognizes records already in the log. [`super::reconcile`] converts steps to drafts.

use sapwood_core::entry::{SessionNamed, Usage, fit_title};
use sapwood_core::project::summary::Lineage;
use sapwood_core::{BlobHash, Body, EntryId, SessionId, TimestampMs};

use super::Format;
pub use super::step_batch::{Portion, StepBatch};

/// Identifies a source record. Stored in the last bytes of an entry id: 58 bits of a hash, and a 16-bit checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 10]);

impl RecordKey {
    /// Hash a source id. The same text produces the same key on every machine.
    pub fn of(text: &str) -> Self {
        Self::of_hash(&BlobHash::of(text.as_bytes()))
    }

    /// Derive the key of a record without an id from its content and the key of the record before it.
    pub fn after(before: RecordKey, content: &[u8]) -> Self {
        let mut bytes = before.0.to_vec();
        bytes.extend_from_slice(BlobHash::of(content).as_bytes());
        Self::of_hash(&BlobHash::of(&bytes))
    }

    /// Return the key of the n-th entry created from a record.
    pub fn part(self, number: usize) -> Self {
        if number == 0 { self } else { Self::after(self, &number.to_le_bytes()) }
    }

    /// Return the key part of an entry id.
    pub fn of_id(id: EntryId) -> Self {
        let mut tail = [0; 10];
        tail.copy_from_slice(&id.as_bytes()[6..]);
        Self(tail)
    }

    /// Return the bits that distinguish keys. The other bytes are derived from them.
    pub(super) fn bits(self) -> [u8; 8] {
        let mut bits = [0; 8];
        bits.copy_from_slice(&self.0[..8]);
        bits
    }

    /// Build the entry id for this key at a time.
    pub(super) fn id_at(self, at: TimestampMs) -> EntryId {
        EntryId::mint(at, self.random())
    }

    fn of_hash(hash: &BlobHash) -> Self {
        let mut random = [0; 16];
        random.copy_from_slice(&hash.as_bytes()[..16]);
        // Convert to an entry id and back, because the id's version and variant replace six bits.
        let mut key = Self::of_id(EntryId::mint(TimestampMs(0), u128::from_be_bytes(random)));
        let checksum = key.checksum();
        key.0[8..].copy_from_slice(&checksum);
        key
    }

    /// Whether this is the key of an imported record, not part of an id minted by the store. False-positive
    /// rate: 1/65,536.
    pub(super) fn is_of_source(self) -> bool {
        self.0[8..] == self.checksum()
    }

    fn checksum(self) -> [u8; 2] {
        let mixed = u64::from_be_bytes(self.bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [(mixed >> 56) as u8, (mixed >> 48) as u8]
    }

    fn random(self) -> u128 {
        let mut bytes = [0; 16];
        bytes[..10].copy_from_slice(&self.0);
        u128::from_be_bytes(bytes)
    }
}

/// The parent of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepParent {
    /// The previous step on the main path.
    Leaf,
    /// A new root.
    #[default]
    Root,
    RecordKey(RecordKey),
}

impl StepParent {
    /// The parent as text, for the key of a record that the source does not name. Ids of stored entries contain such
    /// keys, so the text must never change.
    pub fn key_text(self) -> String {
        match self {
            Self::Leaf => "Leaf".to_owned(),
            Self::Root => "Root".to_owned(),
            Self::RecordKey(RecordKey(bytes)) => format!("Key(Key({bytes:?}))"),
        }
    }
}

/// The author of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// The importing user.
    Caller,
    /// The source's agent.
    Agent,
}

/// Whether the leaf moves to the added entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    Main,
    /// The entry is in the tree, but never the leaf. Used, for example, for the conversation of a subagent.
    Side,
}

/// A record that an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordRef {
    /// The entry with this key.
    Entry(RecordKey),
    /// A record that may have no entry. In that case, a compaction keeps everything from the next entry on.
    Record(RecordKey),
}

impl RecordRef {
    pub(super) fn key(self) -> RecordKey {
        match self {
            RecordRef::Entry(key) | RecordRef::Record(key) => key,
        }
    }
}

/// Entries that the log may have for this record from an earlier import of a less complete source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EarlierEntries {
    /// Shorter versions of the same response, shortest first, each with its usage so far.
    pub shorter: Vec<(RecordKey, Option<Usage>)>,
    /// The other key of the same entry. An entry has one key if its usage is known, and another key if not.
    pub same: Option<RecordKey>,
    /// Keys of entries that may already count this usage.
    pub counted: Vec<RecordKey>,
    /// The response that this entry answers. If a longer version of the response is imported, the entry is
    /// added again after it.
    pub answers: Option<RecordKey>,
    /// Whether the entry continues a call already counted with an earlier entry. Its usage is then additional.
    pub continues: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// Add an entry to the tree. `refs` are candidate records that it may refer to; the first one found is
    /// used. A compaction refers to its first kept entry, a branch summary to the leaf of the branch.
    Add {
        body: Body,
        under: StepParent,
        by: Author,
        path: PathKind,
        refs: Vec<RecordRef>,
        earlier: EarlierEntries,
    },
    /// Add a message that the source may rewrite. The step's key identifies the message, not its content.
    /// Versions differ by parent or content, and usage is counted once.
    Version { body: Body, under: StepParent, by: Author, path: PathKind, refs: Option<RecordKey> },
    /// Add an entry outside the tree.
    Note(Body),
    /// Add a label. The record that it refers to must come first.
    Label { target: RecordKey, text: Option<String> },
    /// Map a record without an entry to its parent, so that other records can refer to it.
    Alias { under: StepParent, path: PathKind },
    /// Rewind the source. If no entry follows, a `leaf_moved` with the record's key is added, but only once.
    Rewind(StepParent),
    /// Add the first entry of a conversation, but only to an empty log. If a log with entries lacks it, its
    /// children become roots.
    Opening(Body),
    /// Set the session title. For sources that store only the latest title.
    Title(String),
    /// Set the instructions. For sources that store only the latest instructions.
    System(String),
    /// Move the log's leaf to the source's current leaf, if an import was the last to move it. For sources that do not
    /// record leaf moves.
    SyncLeaf,
}

impl StepAction {
    /// Shorten a title to fit. Returns `None` for a title without visible text.
    pub(super) fn with_fit_title(self) -> Option<Self> {
        match self {
            StepAction::Title(title) => fit_title(&title).map(StepAction::Title),
            StepAction::Note(Body::SessionNamed(named)) => {
                fit_title(&named.title).map(|title| StepAction::Note(SessionNamed { title }.into()))
            }
            other => Some(other),
        }
    }

    /// Return the body that the step adds to the log.
    pub fn body_mut(&mut self) -> Option<&mut Body> {
        match self {
            StepAction::Add { body, .. }
            | StepAction::Version { body, .. }
            | StepAction::Note(body)
            | StepAction::Opening(body) => Some(body),
            _ => None,
        }
    }
}

/// One import step, with its source line.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportStep {
    pub key: RecordKey,
    /// Defaults to the time of the previous step.
    pub at: Option<TimestampMs>,
    pub line: u64,
    pub action: StepAction,
    /// Inline media that the body refers to.
    pub blobs: Vec<(BlobHash, Vec<u8>)>,
}

/// Return the source's id if it is a valid session id, or else an id derived from it.
pub fn session_id(format: Format, source_id: &str) -> SessionId {
    source_id.parse().unwrap_or_else(|_| derived_id(format, source_id))
}

fn derived_id(format: Format, text: &str) -> SessionId {
    let hash = BlobHash::of(text.as_bytes()).to_string();
    let name = format!("{}-{}", format.as_str(), &hash[..24]);
    name.parse().expect("a format name and hexadecimal digits form a valid session id")
}

pub fn lineage(format: Format, source_id: &str) -> Lineage {
    Lineage { session: session_id(format, source_id), at: None }
}

/// Return the usage, or `None` if it is zero or a count is implausibly large.
pub fn plausible_usage(usage: Usage) -> Option<Usage> {
    let counts = [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning];
    (counts.iter().all(|count| *count <= crate::message::TOKENS_MAX) && counts.iter().any(|count| *count > 0))
        .then_some(usage)
}

/// Return the increase of `usage` over `counted`.
pub fn usage_since(usage: Usage, counted: Usage) -> Usage {
    Usage {
        input: usage.input.saturating_sub(counted.input),
        output: usage.output.saturating_sub(counted.output),
        cache_read: usage.cache_read.saturating_sub(counted.cache_read),
        cache_write: usage.cache_write.saturating_sub(counted.cache_write),
        reasoning: usage.reasoning.saturating_sub(counted.reasoning),
    }
}

/// Return the model as `PROVIDER/NAME` if the provider is known, so that the session can continue with the same model.
/// Other programs call the provider `google` that Sapwood calls `gemini`.
pub fn model_name(provider: Option<&str>, model: &str) -> String {
    let provider = provider.map(|provider| if provider == "google" { "gemini" } else { provider });
    match provider.filter(|provider| !provider.is_empty() && *provider != "unknown") {
        Some(provider) if !model.strip_prefix(provider).is_some_and(|rest| rest.starts_with('/')) => {
            format!("{provider}/{model}")
        }
        _ => model.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_in_a_record_key_reads_as_in_earlier_versions() {
        let key = StepParent::RecordKey(RecordKey([7; 10]));
        assert_eq!(key.key_text(), "Key(Key([7, 7, 7, 7, 7, 7, 7, 7, 7, 7]))");
        assert_eq!([StepParent::Leaf, StepParent::Root].map(StepParent::key_text), ["Leaf", "Root"]);
    }
}
