//! The output of a foreign importer: a session, and the steps that build its log. Sources identify records by
//! ids of any shape. A [`RecordKey`] is a hash of such an id that fits into an entry id, so that a later
//! import recognises records already in the log. [`super::reconcile`] turns steps into drafts.

use std::collections::HashMap;

use sapwood_core::content::{BlobRef, Part, joined_text};
use sapwood_core::entry::{SessionNamed, Usage, fit_title};
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::{Lineage, Origin};
use sapwood_core::{BlobHash, Body, EntryId, SessionId, TimestampMs};

use super::{Format, PROBLEMS_MAX, Problem, Trouble};

/// Identifies a source record, stored in the last bytes of an entry id: 58 bits of its hash and a 16-bit
/// mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 10]);

impl RecordKey {
    /// Hash a source id. The same text produces the same key on every machine.
    pub fn of(text: &str) -> Self {
        Self::of_hash(&BlobHash::of(text.as_bytes()))
    }

    /// Derive the key of a record without an id from the record before it and its content.
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
        // Convert to an entry id and back: six bits are replaced by the id's version bits.
        let mut key = Self::of_id(EntryId::mint(TimestampMs(0), u128::from_be_bytes(random)));
        let mark = key.mark();
        key.0[8..].copy_from_slice(&mark);
        key
    }

    /// Whether this is the key of an imported record, not part of an id minted by the store. False-positive
    /// rate: 1/65,536.
    pub(super) fn is_of_source(self) -> bool {
        self.0[8..] == self.mark()
    }

    fn mark(self) -> [u8; 2] {
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
pub enum Under {
    /// The previous step on the main path.
    Leaf,
    /// A new root.
    Root,
    RecordKey(RecordKey),
}

/// The author of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The importing user.
    Caller,
    /// The source's agent.
    Agent,
}

/// Whether the leaf moves to the added entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Main,
    /// In the tree, but never the leaf, for example the conversation of a subagent.
    Side,
}

/// A record that an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The entry with this key.
    Entry(RecordKey),
    /// A record that may have no entry. In that case the kept part starts with the entry after it.
    Record(RecordKey),
}

impl Name {
    pub(super) fn key(self) -> RecordKey {
        match self {
            Name::Entry(key) | Name::Record(key) => key,
        }
    }
}

/// Entries that an earlier, less complete version of the source may have left in the log for this record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Earlier {
    /// Shorter versions of the same response, shortest first, each with its usage so far.
    pub shorter: Vec<(RecordKey, Option<Usage>)>,
    /// The other key of the same entry. One key is for the entry without usage, the other for the entry with
    /// usage.
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
pub enum Act {
    /// Add an entry to the tree. `names` are candidate records that it may refer to; the first one found is
    /// used. A compaction refers to its first kept entry, a branch summary to the leaf of the branch.
    Add { body: Body, under: Under, by: By, path: Path, names: Vec<Name>, earlier: Earlier },
    /// Add a message that the source may rewrite. The step's key identifies the message, not its content.
    /// Versions differ by parent and content, and usage is counted once.
    Version { body: Body, under: Under, by: By, path: Path, names: Option<RecordKey> },
    /// Add an entry outside the tree.
    Note(Body),
    /// Add a label once its target is known.
    Label { target: RecordKey, text: Option<String> },
    /// Map a record without an entry to its parent, so that other records can refer to it.
    Alias { under: Under, path: Path },
    /// The source was rewound. If no entry follows, a `leaf_moved` with the record's key is added, and only once.
    Rewind(Under),
    /// The first entry of a conversation, added only to an empty log. Otherwise its children become roots.
    Opening(Body),
    /// The session title, for sources that keep only the latest title.
    Title(String),
    /// The current instructions, for sources that keep only the latest ones.
    System(String),
    /// For sources that do not record leaf moves: if an import last moved the log's leaf, move it to the
    /// source's current leaf.
    Stand,
}

impl Act {
    /// Return the body that the step adds to the log.
    pub fn body(&self) -> Option<&Body> {
        match self {
            Act::Add { body, .. } | Act::Version { body, .. } | Act::Note(body) | Act::Opening(body) => {
                Some(body)
            }
            Act::Label { .. }
            | Act::Alias { .. }
            | Act::Rewind(_)
            | Act::Title(_)
            | Act::System(_)
            | Act::Stand => None,
        }
    }

    /// Shorten a title to fit. Returns `None` for a title without visible text.
    fn with_fit_title(self) -> Option<Self> {
        match self {
            Act::Title(title) => fit_title(&title).map(Act::Title),
            Act::Note(Body::SessionNamed(named)) => {
                fit_title(&named.title).map(|title| Act::Note(SessionNamed { title }.into()))
            }
            other => Some(other),
        }
    }

    pub fn body_mut(&mut self) -> Option<&mut Body> {
        match self {
            Act::Add { body, .. } | Act::Version { body, .. } | Act::Note(body) | Act::Opening(body) => {
                Some(body)
            }
            Act::Label { .. }
            | Act::Alias { .. }
            | Act::Rewind(_)
            | Act::Title(_)
            | Act::System(_)
            | Act::Stand => None,
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
    pub act: Act,
}

/// Number of steps after which a portion is passed on while the reader is still running.
const PORTION_STEPS: usize = 512;

/// Steps and media that are passed on together.
#[derive(Debug, Default)]
pub struct Portion {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    pub blobs: Vec<Vec<u8>>,
    pub problems: Vec<Problem>,
}

/// Receives portions while a reader is running. Returns whether more are wanted.
type Outlet = Box<dyn FnMut(Portion) -> bool + Send>;

/// A file without a session name after this many steps is given up.
const NAMELESS_STEPS_MAX: usize = 100_000;

/// The steps that an importer has produced so far. The caller removes them as it processes them.
#[derive(Default)]
pub struct StepBatch {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    /// Inline media that a step refers to. Passed on together with the steps.
    pub blobs: Vec<Vec<u8>>,
    /// Media that no step refers to yet, because their message is still being read.
    unnamed: HashMap<BlobHash, Unnamed>,
    pub problems: Vec<Problem>,
    /// The current line.
    pub line: u64,
    pub at: Option<TimestampMs>,
    /// When the file was last modified, for sources without timestamps.
    dated: Option<TimestampMs>,
    outlet: Option<Outlet>,
    /// Total number of problems, including those already passed on.
    reported: usize,
    is_given_up: bool,
}

/// Bytes, and the number of pending bodies that refer to them.
#[derive(Debug)]
struct Unnamed {
    bytes: Vec<u8>,
    times: usize,
}

impl StepBatch {
    /// Create an empty batch for a file with this modification time.
    pub fn of_file(dated: TimestampMs) -> Self {
        Self { dated: Some(dated), ..Self::default() }
    }

    /// Pass on portions of a named session to `outlet` while reading. One line or document may contain any
    /// number of records, and all its steps together would need many times its size.
    pub fn pour_into(&mut self, outlet: impl FnMut(Portion) -> bool + Send + 'static) {
        self.outlet = Some(Box::new(outlet));
    }

    /// Stop passing on portions, and collect steps again.
    pub fn close_outlet(&mut self) {
        self.outlet = None;
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
        let at = at.or(self.at).or(self.dated).unwrap_or_default();
        let origin = Origin { format: format.as_str().to_owned(), id: source_id.chars().take(256).collect() };
        let id = session_id(format, source_id);
        self.session.insert(NewSession { origin: Some(origin), ..NewSession::new(id, at) })
    }

    /// Name a session without a header after its file, if the file has a name.
    pub fn open_headless(&mut self, format: Format, file: &str, at: Option<TimestampMs>) {
        self.line = 1;
        self.report(Trouble::NoHeader);
        if !file.is_empty() && file != "-" {
            self.open(format, file, at);
        }
    }

    /// Add an entry to the main path.
    pub fn add(&mut self, key: RecordKey, under: Under, by: By, body: impl Into<Body>) {
        self.add_on(Path::Main, key, under, by, body);
    }

    pub fn add_on(&mut self, path: Path, key: RecordKey, under: Under, by: By, body: impl Into<Body>) {
        self.step(
            key,
            Act::Add { body: body.into(), under, by, path, names: Vec::new(), earlier: Earlier::default() },
        );
    }

    /// Add a compaction or branch summary, with the record it refers to.
    pub fn sum_up(&mut self, key: RecordKey, under: Under, names: Option<RecordKey>, body: impl Into<Body>) {
        self.step(
            key,
            Act::Add {
                body: body.into(),
                under,
                by: By::Agent,
                path: Path::Main,
                names: names.map(Name::Record).into_iter().collect(),
                earlier: Earlier::default(),
            },
        );
    }

    /// Add a message that may be rewritten.
    pub fn version(&mut self, key: RecordKey, under: Under, body: impl Into<Body>) {
        let body = body.into();
        let by = if matches!(body, Body::UserMessage(_)) { By::Caller } else { By::Agent };
        self.step(key, Act::Version { body, under, by, path: Path::Main, names: None });
    }

    pub fn note(&mut self, key: RecordKey, body: impl Into<Body>) {
        self.step(key, Act::Note(body.into()));
    }

    pub fn alias(&mut self, key: RecordKey, under: Under, path: Path) {
        self.step(key, Act::Alias { under, path });
    }

    /// Add a step together with the media it refers to. A title is shortened to fit.
    pub fn step(&mut self, key: RecordKey, act: Act) {
        let Some(act) = act.with_fit_title() else { return };
        for named in act.body().map(Body::blobs).unwrap_or_default() {
            let bytes = self.take_unnamed(named);
            self.blobs.extend(bytes);
        }
        if self.is_given_up {
            return;
        }
        self.steps.push(ImportStep { key, at: self.at, line: self.line, act });
        match self.session {
            Some(_) if self.steps.len() >= PORTION_STEPS => self.pour(),
            None => self.is_given_up = self.is_nameless(),
            Some(_) => {}
        }
    }

    /// Whether too many steps were read without a session name.
    pub fn is_nameless(&self) -> bool {
        self.session.is_none() && self.steps.len() > NAMELESS_STEPS_MAX
    }

    fn pour(&mut self) {
        let Some(mut outlet) = self.outlet.take() else { return };
        self.is_given_up = !outlet(self.take_portion());
        self.outlet = Some(outlet);
    }

    /// Whether the rest should not be read: there are too many problems, the session is unknown, or the
    /// receiver wants no more. Any further steps are dropped.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    pub fn report(&mut self, what: Trouble) {
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
        self.keep_unnamed(media.blob, bytes);
        Part::Media(media)
    }

    /// Store overlong text as a blob and return a reference to it.
    pub fn whole_text(&mut self, text: String) -> BlobRef {
        let bytes = text.into_bytes();
        let blob = BlobHash::of(&bytes);
        let kept = BlobRef {
            blob,
            mime: "text/plain".to_owned(),
            name: None,
            bytes: bytes.len() as u64,
            duration_ms: None,
        };
        self.keep_unnamed(blob, bytes);
        kept
    }

    /// Join the text of parts where only text is allowed. Media is dropped and reported.
    pub fn words(&mut self, parts: &[Part]) -> String {
        if self.forget(parts) > 0 {
            self.report(Trouble::LeftOut { why: "media is not supported here".to_owned() });
        }
        joined_text(parts)
    }

    /// Drop media of parts that no step will refer to, and return their number.
    pub fn forget(&mut self, parts: &[Part]) -> usize {
        let media = parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media.blob),
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => None,
        });
        media.map(|blob| self.take_unnamed(blob)).count()
    }

    fn keep_unnamed(&mut self, blob: BlobHash, bytes: Vec<u8>) {
        self.unnamed.entry(blob).or_insert(Unnamed { bytes, times: 0 }).times += 1;
    }

    fn take_unnamed(&mut self, blob: BlobHash) -> Option<Vec<u8>> {
        let unnamed = self.unnamed.get_mut(&blob)?;
        unnamed.times -= 1;
        match unnamed.times {
            0 => self.unnamed.remove(&blob).map(|unnamed| unnamed.bytes),
            _ => Some(unnamed.bytes.clone()),
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

/// Drop implausible counts.
pub fn believable(usage: Usage) -> Option<Usage> {
    let counts = [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning];
    (counts.iter().all(|count| *count <= crate::message::TOKENS_MAX) && counts.iter().any(|count| *count > 0))
        .then_some(usage)
}

/// Return the usage that was not counted yet.
pub fn usage_beyond(usage: Usage, counted: Usage) -> Usage {
    Usage {
        input: usage.input.saturating_sub(counted.input),
        output: usage.output.saturating_sub(counted.output),
        cache_read: usage.cache_read.saturating_sub(counted.cache_read),
        cache_write: usage.cache_write.saturating_sub(counted.cache_write),
        reasoning: usage.reasoning.saturating_sub(counted.reasoning),
    }
}

/// Return the model as `PROVIDER/NAME` if the provider is known, so that the session can be continued with it.
/// Other programs use `google` for `gemini`.
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

    fn say(part: Part) -> Body {
        UserMessage { parts: vec![part], origin: None }.into()
    }

    #[test]
    fn media_is_passed_on_with_the_step_that_refers_to_it() {
        let mut harvest = StepBatch::default();
        let part = harvest.media("image/png", vec![7; 9], None);
        assert!(harvest.blobs.is_empty(), "no step refers to it yet");
        harvest.note(RecordKey::of("other"), say(Part::text("no media")));
        assert!(harvest.blobs.is_empty());
        harvest.add(RecordKey::of("one"), Under::Root, By::Caller, say(part));
        assert_eq!(harvest.blobs, [vec![7; 9]]);
        assert!(harvest.unnamed.is_empty());
    }

    #[test]
    fn media_of_two_messages_is_passed_on_with_each() {
        let mut harvest = StepBatch::default();
        let parts = [0, 1].map(|_| harvest.media("image/png", vec![7; 9], None));
        for (number, part) in parts.into_iter().enumerate() {
            harvest.blobs.clear();
            harvest.add(RecordKey::of("one").part(number), Under::Root, By::Caller, say(part));
            assert_eq!(harvest.blobs.len(), 1, "the first may be passed on before the second is added");
        }
        assert!(harvest.unnamed.is_empty());
    }

    #[test]
    fn media_of_dropped_parts_is_released() {
        let mut harvest = StepBatch::default();
        let part = harvest.media("image/png", vec![7; 9], None);
        assert_eq!(harvest.words(&[Part::text("so far"), part]), "so far");
        assert!(harvest.unnamed.is_empty());
        assert_eq!(harvest.problems[0].what.code(), "import.left_out");
    }
}
