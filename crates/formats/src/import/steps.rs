//! The output of a foreign importer: a session, and the steps that build its log. Sources identify records by ids in
//! various formats. A [`RecordKey`] is a hash of such an id that fits into an entry id, so that a later import
//! recognises records already in the log. [`super::reconcile`] converts steps to drafts.

use std::collections::HashMap;

use sapwood_core::content::{BlobRef, Part, joined_text};
use sapwood_core::entry::{SessionNamed, Usage, fit_title};
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::{Lineage, Origin};
use sapwood_core::{BlobHash, Body, EntryId, SessionId, TimestampMs};

use super::{Format, PROBLEMS_MAX, Problem, ProblemKind};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepParent {
    /// The previous step on the main path.
    Leaf,
    /// A new root.
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
    /// The entry is in the tree, but never the leaf. Used for the conversation of a subagent.
    Side,
}

/// A record that an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordRef {
    /// The entry with this key.
    Entry(RecordKey),
    /// A record that may have no entry. In that case, a compaction keeps from the next entry.
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
    /// Add an entry to the tree. `names` are candidate records that it may refer to; the first one found is
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
    /// Versions differ by parent and content, and usage is counted once.
    Version { body: Body, under: StepParent, by: Author, path: PathKind, refs: Option<RecordKey> },
    /// Add an entry outside the tree.
    Note(Body),
    /// Add a label once its target is known.
    Label { target: RecordKey, text: Option<String> },
    /// Map a record without an entry to its parent, so that other records can refer to it.
    Alias { under: StepParent, path: PathKind },
    /// Rewind the source. If no entry follows, a `leaf_moved` with the record's key is added, but only once.
    Rewind(StepParent),
    /// Add the first entry of a conversation, but only to an empty log. Otherwise its children become roots.
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
    /// Return the body that the step adds to the log.
    pub fn body(&self) -> Option<&Body> {
        match self {
            StepAction::Add { body, .. }
            | StepAction::Version { body, .. }
            | StepAction::Note(body)
            | StepAction::Opening(body) => Some(body),
            StepAction::Label { .. }
            | StepAction::Alias { .. }
            | StepAction::Rewind(_)
            | StepAction::Title(_)
            | StepAction::System(_)
            | StepAction::SyncLeaf => None,
        }
    }

    /// Shorten a title to fit. Returns `None` for a title without visible text.
    fn with_fit_title(self) -> Option<Self> {
        match self {
            StepAction::Title(title) => fit_title(&title).map(StepAction::Title),
            StepAction::Note(Body::SessionNamed(named)) => {
                fit_title(&named.title).map(|title| StepAction::Note(SessionNamed { title }.into()))
            }
            other => Some(other),
        }
    }

    pub fn body_mut(&mut self) -> Option<&mut Body> {
        match self {
            StepAction::Add { body, .. }
            | StepAction::Version { body, .. }
            | StepAction::Note(body)
            | StepAction::Opening(body) => Some(body),
            StepAction::Label { .. }
            | StepAction::Alias { .. }
            | StepAction::Rewind(_)
            | StepAction::Title(_)
            | StepAction::System(_)
            | StepAction::SyncLeaf => None,
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
}

/// Number of steps after which a portion is sent while the reader is still running.
const PORTION_STEPS: usize = 512;

/// Steps and media that are sent together.
#[derive(Debug, Default)]
pub struct Portion {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    pub blobs: Vec<Vec<u8>>,
    pub problems: Vec<Problem>,
}

/// Receives portions while a reader is running. Returns `false` to stop the reader.
type PortionReceiver = Box<dyn FnMut(Portion) -> bool + Send>;

/// The import of a file without a session name stops after this many steps.
const NAMELESS_STEPS_MAX: usize = 100_000;

/// The steps that an importer has produced so far. The caller removes them as it processes them.
#[derive(Default)]
pub struct StepBatch {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    /// Inline media that a step refers to. Sent together with the steps.
    pub blobs: Vec<Vec<u8>>,
    /// Media that no step refers to yet, because their message is still being read.
    pending_blobs: HashMap<BlobHash, PendingBlob>,
    pub problems: Vec<Problem>,
    /// The current line.
    pub line: u64,
    pub at: Option<TimestampMs>,
    /// When the file was last modified, for sources without timestamps.
    file_time: Option<TimestampMs>,
    receiver: Option<PortionReceiver>,
    /// Total number of problems, including problems already sent.
    reported: usize,
    is_given_up: bool,
}

/// The bytes of a blob, and the number of pending bodies that refer to it.
#[derive(Debug)]
struct PendingBlob {
    bytes: Vec<u8>,
    references: usize,
}

impl StepBatch {
    /// Create an empty batch for a file with this modification time.
    pub fn of_file(file_time: TimestampMs) -> Self {
        Self { file_time: Some(file_time), ..Self::default() }
    }

    /// Send portions of a named session to `receiver` while reading. One line or document may contain any number of
    /// records, and all its steps together would need many times its size in memory.
    pub fn send_to(&mut self, receiver: impl FnMut(Portion) -> bool + Send + 'static) {
        self.receiver = Some(Box::new(receiver));
    }

    /// Stop sending portions, and collect steps again.
    pub fn stop_sending(&mut self) {
        self.receiver = None;
    }

    /// Remove and return everything collected so far.
    pub fn take_portion(&mut self) -> Portion {
        Portion {
            session: self.session.clone(),
            steps: std::mem::take(&mut self.steps),
            blobs: std::mem::take(&mut self.blobs),
            problems: std::mem::take(&mut self.problems),
        }
    }

    /// Append a portion to this batch.
    pub fn absorb(&mut self, portion: Portion) {
        self.session = self.session.take().or(portion.session);
        self.steps.extend(portion.steps);
        self.blobs.extend(portion.blobs);
        self.problems.extend(portion.problems);
    }

    pub fn open(&mut self, format: Format, source_id: &str, at: Option<TimestampMs>) -> &mut NewSession {
        self.at = self.at.or(at);
        let at = at.or(self.at).or(self.file_time).unwrap_or_default();
        let origin = Origin { format: format.as_str().to_owned(), id: source_id.chars().take(256).collect() };
        let id = session_id(format, source_id);
        self.session.insert(NewSession { origin: Some(origin), ..NewSession::new(id, at) })
    }

    /// Name a session without a header after its file, if the file has a name.
    pub fn open_headless(&mut self, format: Format, file: &str, at: Option<TimestampMs>) {
        self.line = 1;
        self.report(ProblemKind::NoHeader);
        if !file.is_empty() && file != "-" {
            self.open(format, file, at);
        }
    }

    /// Add an entry to the main path.
    pub fn add(&mut self, key: RecordKey, under: StepParent, by: Author, body: impl Into<Body>) {
        self.add_on(PathKind::Main, key, under, by, body);
    }

    pub fn add_on(
        &mut self,
        path: PathKind,
        key: RecordKey,
        under: StepParent,
        by: Author,
        body: impl Into<Body>,
    ) {
        self.step(
            key,
            StepAction::Add {
                body: body.into(),
                under,
                by,
                path,
                refs: Vec::new(),
                earlier: EarlierEntries::default(),
            },
        );
    }

    /// Add a compaction or branch summary, with the record it refers to.
    pub fn add_summary(
        &mut self,
        key: RecordKey,
        under: StepParent,
        refs: Option<RecordKey>,
        body: impl Into<Body>,
    ) {
        self.step(
            key,
            StepAction::Add {
                body: body.into(),
                under,
                by: Author::Agent,
                path: PathKind::Main,
                refs: refs.map(RecordRef::Record).into_iter().collect(),
                earlier: EarlierEntries::default(),
            },
        );
    }

    /// Add a message that may be rewritten.
    pub fn version(&mut self, key: RecordKey, under: StepParent, body: impl Into<Body>) {
        let body = body.into();
        let by = if matches!(body, Body::UserMessage(_)) { Author::Caller } else { Author::Agent };
        self.step(key, StepAction::Version { body, under, by, path: PathKind::Main, refs: None });
    }

    pub fn note(&mut self, key: RecordKey, body: impl Into<Body>) {
        self.step(key, StepAction::Note(body.into()));
    }

    pub fn alias(&mut self, key: RecordKey, under: StepParent, path: PathKind) {
        self.step(key, StepAction::Alias { under, path });
    }

    /// Add a step together with the media it refers to. A title is shortened to fit.
    pub fn step(&mut self, key: RecordKey, action: StepAction) {
        let Some(action) = action.with_fit_title() else { return };
        for blob in action.body().map(Body::blobs).unwrap_or_default() {
            let bytes = self.take_pending_blob(blob);
            self.blobs.extend(bytes);
        }
        if self.is_given_up {
            return;
        }
        self.steps.push(ImportStep { key, at: self.at, line: self.line, action });
        match self.session {
            Some(_) if self.steps.len() >= PORTION_STEPS => self.send_portion(),
            None => self.is_given_up = self.is_nameless(),
            Some(_) => {}
        }
    }

    /// Whether too many steps were read without a session name.
    pub fn is_nameless(&self) -> bool {
        self.session.is_none() && self.steps.len() > NAMELESS_STEPS_MAX
    }

    fn send_portion(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        self.is_given_up = !receiver(self.take_portion());
        self.receiver = Some(receiver);
    }

    /// Whether reading should stop: there are too many problems, the session has no name, or the receiver refused a
    /// portion. Any further steps are dropped.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    pub fn report(&mut self, what: ProblemKind) {
        if self.reported < PROBLEMS_MAX {
            self.reported += 1;
            self.problems.push(Problem { line: self.line, what: what.brief() });
        }
        self.is_given_up |= self.reported >= PROBLEMS_MAX;
    }

    /// Register media of a message as a blob.
    pub fn media(&mut self, mime: &str, bytes: Vec<u8>, name: Option<String>) -> Part {
        let media = BlobRef {
            blob: BlobHash::of(&bytes),
            mime: mime.chars().take(128).collect(),
            name,
            bytes: bytes.len() as u64,
            duration_ms: None,
        };
        self.add_pending_blob(media.blob, bytes);
        Part::Media(media)
    }

    /// Store text as a blob and return a reference to the blob.
    pub fn store_text(&mut self, text: String) -> BlobRef {
        let bytes = text.into_bytes();
        let blob = BlobHash::of(&bytes);
        let kept = BlobRef {
            blob,
            mime: "text/plain".to_owned(),
            name: None,
            bytes: bytes.len() as u64,
            duration_ms: None,
        };
        self.add_pending_blob(blob, bytes);
        kept
    }

    /// Join the text of parts where only text is allowed. Media is dropped and reported.
    pub fn text_only(&mut self, parts: &[Part]) -> String {
        if self.drop_media(parts) > 0 {
            self.report(ProblemKind::PartSkipped { why: "media is not supported here".to_owned() });
        }
        joined_text(parts)
    }

    /// Drop media of parts that no step will refer to, and return their number.
    pub fn drop_media(&mut self, parts: &[Part]) -> usize {
        let media = parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media.blob),
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => None,
        });
        media.map(|blob| self.take_pending_blob(blob)).count()
    }

    fn add_pending_blob(&mut self, blob: BlobHash, bytes: Vec<u8>) {
        self.pending_blobs.entry(blob).or_insert(PendingBlob { bytes, references: 0 }).references += 1;
    }

    fn take_pending_blob(&mut self, blob: BlobHash) -> Option<Vec<u8>> {
        let pending = self.pending_blobs.get_mut(&blob)?;
        pending.references -= 1;
        match pending.references {
            0 => self.pending_blobs.remove(&blob).map(|pending| pending.bytes),
            _ => Some(pending.bytes.clone()),
        }
    }
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
    use sapwood_core::entry::UserMessage;

    use super::*;

    fn user_message(part: Part) -> Body {
        UserMessage { parts: vec![part], origin: None }.into()
    }

    #[test]
    fn a_parent_in_a_record_key_reads_as_in_earlier_versions() {
        let key = StepParent::RecordKey(RecordKey([7; 10]));
        assert_eq!(key.key_text(), "Key(Key([7, 7, 7, 7, 7, 7, 7, 7, 7, 7]))");
        assert_eq!([StepParent::Leaf, StepParent::Root].map(StepParent::key_text), ["Leaf", "Root"]);
    }

    #[test]
    fn media_is_sent_with_the_step_that_refers_to_it() {
        let mut batch = StepBatch::default();
        let part = batch.media("image/png", vec![7; 9], None);
        assert!(batch.blobs.is_empty(), "no step refers to the media yet");
        batch.note(RecordKey::of("other"), user_message(Part::text("no media")));
        assert!(batch.blobs.is_empty());
        batch.add(RecordKey::of("one"), StepParent::Root, Author::Caller, user_message(part));
        assert_eq!(batch.blobs, [vec![7; 9]]);
        assert!(batch.pending_blobs.is_empty());
    }

    #[test]
    fn media_of_two_messages_is_sent_with_each_message() {
        let mut batch = StepBatch::default();
        let parts = [0, 1].map(|_| batch.media("image/png", vec![7; 9], None));
        for (number, part) in parts.into_iter().enumerate() {
            batch.blobs.clear();
            batch.add(
                RecordKey::of("one").part(number),
                StepParent::Root,
                Author::Caller,
                user_message(part),
            );
            assert_eq!(batch.blobs.len(), 1, "the first step may be sent before the second is added");
        }
        assert!(batch.pending_blobs.is_empty());
    }

    #[test]
    fn media_of_dropped_parts_is_released() {
        let mut batch = StepBatch::default();
        let part = batch.media("image/png", vec![7; 9], None);
        assert_eq!(batch.text_only(&[Part::text("so far"), part]), "so far");
        assert!(batch.pending_blobs.is_empty());
        assert_eq!(batch.problems[0].what.code(), "import.left_out");
    }
}
