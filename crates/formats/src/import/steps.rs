//! What an importer of a foreign format gives: a session, and steps that grow its log. Sources name their records by ids
//! of their own, in any shape; a [`RecordKey`] is such an id as bits that fit into an entry's id, so that a later import knows
//! again what the log has already. [`super::grow`] turns steps into drafts.

use std::collections::HashMap;

use sapwood_core::content::{BlobRef, Part, joined_text};
use sapwood_core::entry::{SessionNamed, Usage, fit_title};
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::{Lineage, Origin};
use sapwood_core::{BlobHash, Body, EntryId, SessionId, TimestampMs};

use super::{Format, PROBLEMS_MAX, Problem, Trouble};

/// A record of the source, as the end of an entry's id: 58 bits of its hash, and 16 that say that it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 10]);

impl RecordKey {
    /// The same text gives the same key, whatever the machine.
    pub fn of(text: &str) -> Self {
        Self::of_hash(&BlobHash::of(text.as_bytes()))
    }

    /// A record that stands behind others: where a source has no ids, its place and what it says are its id.
    pub fn after(before: RecordKey, content: &[u8]) -> Self {
        let mut bytes = before.0.to_vec();
        bytes.extend_from_slice(BlobHash::of(content).as_bytes());
        Self::of_hash(&BlobHash::of(&bytes))
    }

    /// One of several entries that a record becomes.
    pub fn part(self, number: usize) -> Self {
        if number == 0 { self } else { Self::after(self, &number.to_le_bytes()) }
    }

    /// The key an entry's id was made of, if it was made here.
    pub fn of_id(id: EntryId) -> Self {
        let mut tail = [0; 10];
        tail.copy_from_slice(&id.as_bytes()[6..]);
        Self(tail)
    }

    /// What tells keys of records apart: the rest is made of it.
    pub(super) fn bits(self) -> [u8; 8] {
        let mut bits = [0; 8];
        bits.copy_from_slice(&self.0[..8]);
        bits
    }

    /// The entry's id for this key at a time.
    pub(super) fn id_at(self, at: TimestampMs) -> EntryId {
        EntryId::mint(at, self.random())
    }

    fn of_hash(hash: &BlobHash) -> Self {
        let mut random = [0; 16];
        random.copy_from_slice(&hash.as_bytes()[..16]);
        // Through a real id and back: its version bits take the place of six of ours.
        let mut key = Self::of_id(EntryId::mint(TimestampMs(0), u128::from_be_bytes(random)));
        let mark = key.mark();
        key.0[8..].copy_from_slice(&mark);
        key
    }

    /// Whether this is the key of an imported record, and not the end of an id that was minted here. One in 65,536 of
    /// those is taken for one.
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

/// Where a step hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// Behind the step before it on the main path.
    Leaf,
    /// A new root.
    Root,
    RecordKey(RecordKey),
}

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Whoever imports: the user's own words.
    Caller,
    /// The source's agent.
    Agent,
}

/// Whether the leaf follows what was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Main,
    /// Beside the main path, such as a helper's own conversation: in the tree, and never the leaf.
    Side,
}

/// A record that an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The entry that the key leads to.
    Entry(RecordKey),
    /// A link of the source's chain, which may have no entry: then what is kept from there begins with what follows it.
    Record(RecordKey),
}

impl Name {
    pub(super) fn key(self) -> RecordKey {
        match self {
            Name::Entry(key) | Name::Record(key) => key,
        }
    }
}

/// What the log may have of a record from an import when its source said less of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Earlier {
    /// Shorter versions of the same response, the shortest first, each with what it had taken by then.
    pub shorter: Vec<(RecordKey, Option<Usage>)>,
    /// The same entry under its other key: one is for before its usage was known, one for after.
    pub same: Option<RecordKey>,
    /// Where its usage was counted, if the log has one of these.
    pub counted: Vec<RecordKey>,
    /// The response that this answers: behind a longer version of it, it is grown again.
    pub answers: Option<RecordKey>,
    /// Whether it goes on with a call that was counted with an earlier entry: its usage is what the call took more.
    pub continues: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// An entry in the tree. `names` are records it may refer to, of which the first that is there counts: what a
    /// compaction keeps from, if that is on its path, or the leaf that a branch's summary tells of.
    Add { body: Body, under: Under, by: By, path: Path, names: Vec<Name>, earlier: Earlier },
    /// A message that the source may write anew: the step's key is that of the message, whatever it says. Versions are
    /// told apart by where they hang and what they say, and what the calls took counts once.
    Version { body: Body, under: Under, by: By, path: Path, names: Option<RecordKey> },
    /// An entry beside the tree.
    Note(Body),
    /// A label, once its target is known.
    Label { target: RecordKey, text: Option<String> },
    /// A record without an entry of its own, from which others hang: it stands for the one it hangs from.
    Alias { under: Under, path: Path },
    /// The source went back. Where nothing follows, the leaf is moved under the record's key, and so only once.
    Rewind(Under),
    /// What a conversation begins with, if there is nothing of it yet. To one that is there it comes too late: what hangs from
    /// it hangs from nothing.
    Opening(Body),
    /// What the session is called, by a source that keeps only its latest title.
    Title(String),
    /// The instructions in force at the end, by a source that keeps only its latest ones.
    System(String),
    /// A source that keeps no record of how its leaf came to be where it is: if an import put the log's leaf where that is,
    /// it goes to where the source has it now.
    Stand,
}

impl Act {
    /// What the step brings into the log.
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

    /// None if it is a title, and one of nothing that can be shown.
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

/// One step of a log's growth, with the line it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportStep {
    pub key: RecordKey,
    /// The time of the step before it, if none.
    pub at: Option<TimestampMs>,
    pub line: u64,
    pub act: Act,
}

/// Steps after which what was harvested can be taken away, although the reader is still at it.
const PORTION_STEPS: usize = 512;

/// What is taken away at a time.
#[derive(Debug, Default)]
pub struct Portion {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    pub blobs: Vec<Vec<u8>>,
    pub problems: Vec<Problem>,
}

/// Where portions go while a reader is still at it. It says whether anybody takes them.
type Outlet = Box<dyn FnMut(Portion) -> bool + Send>;

/// A file that has not said its session's name after so many steps does not have one.
const NAMELESS_STEPS_MAX: usize = 100_000;

/// What an importer has brought in so far; whoever drives it takes the steps away.
#[derive(Default)]
pub struct StepBatch {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    /// Media that came inline and that a step names, by hash. They go where the steps go.
    pub blobs: Vec<Vec<u8>>,
    /// Media that no step has named yet: the message they are part of is held.
    unnamed: HashMap<BlobHash, Unnamed>,
    pub problems: Vec<Problem>,
    /// The line that is being read.
    pub line: u64,
    pub at: Option<TimestampMs>,
    /// When the file was written last, for sources that say no times.
    dated: Option<TimestampMs>,
    outlet: Option<Outlet>,
    /// How many problems there were, whoever took them away.
    reported: usize,
    is_given_up: bool,
}

/// Bytes, and how many bodies to come name them.
#[derive(Debug)]
struct Unnamed {
    bytes: Vec<u8>,
    times: usize,
}

impl StepBatch {
    /// Of a file that was written last at this time.
    pub fn of_file(dated: TimestampMs) -> Self {
        Self { dated: Some(dated), ..Self::default() }
    }

    /// From now on, portions of a session that has a name go there: a line or a document may hold any number of records, and
    /// takes many times its room once all of them are steps.
    pub fn pour_into(&mut self, outlet: impl FnMut(Portion) -> bool + Send + 'static) {
        self.outlet = Some(Box::new(outlet));
    }

    /// Keeps what comes from now on.
    pub fn close_outlet(&mut self) {
        self.outlet = None;
    }

    /// Takes away what is there.
    pub fn take_portion(&mut self) -> Portion {
        Portion {
            session: self.session.clone(),
            steps: std::mem::take(&mut self.steps),
            blobs: std::mem::take(&mut self.blobs),
            problems: std::mem::take(&mut self.problems),
        }
    }

    /// Puts what was taken away behind what is here.
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

    /// The header is missing: the session is called by its file, and what has none stays without a name.
    pub fn open_headless(&mut self, format: Format, file: &str, at: Option<TimestampMs>) {
        self.line = 1;
        self.report(Trouble::NoHeader);
        if !file.is_empty() && file != "-" {
            self.open(format, file, at);
        }
    }

    /// An entry on the main path.
    pub fn add(&mut self, key: RecordKey, under: Under, by: By, body: impl Into<Body>) {
        self.add_on(Path::Main, key, under, by, body);
    }

    pub fn add_on(&mut self, path: Path, key: RecordKey, under: Under, by: By, body: impl Into<Body>) {
        self.step(
            key,
            Act::Add { body: body.into(), under, by, path, names: Vec::new(), earlier: Earlier::default() },
        );
    }

    /// A compaction or a branch's summary, with the record it names.
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

    /// A message that may be written anew.
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

    /// A step, and with it the media it names: whoever takes the step away takes both. A title is made to fit.
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

    /// Whether so much has come of a session without a name that it will never have one.
    pub fn is_nameless(&self) -> bool {
        self.session.is_none() && self.steps.len() > NAMELESS_STEPS_MAX
    }

    fn pour(&mut self) {
        let Some(mut outlet) = self.outlet.take() else { return };
        self.is_given_up = !outlet(self.take_portion());
        self.outlet = Some(outlet);
    }

    /// Whether the rest is not worth reading: there are too many problems, nobody knows what session it is of, or nobody takes
    /// it any more. What comes all the same goes.
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

    /// Media of a message, kept as a blob.
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

    /// A text that is too long to show, kept as a blob.
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

    /// The words of parts that become words only. Media among them goes, and that is said.
    pub fn words(&mut self, parts: &[Part]) -> String {
        if self.forget(parts) > 0 {
            self.report(Trouble::LeftOut { why: "media where only words have a place".to_owned() });
        }
        joined_text(parts)
    }

    /// Parts that no step will name. How many of them were media.
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

/// The source's own id where it can be one here; otherwise one made of it.
pub fn session_id(format: Format, source_id: &str) -> SessionId {
    source_id.parse().unwrap_or_else(|_| derived_id(format, source_id))
}

fn derived_id(format: Format, text: &str) -> SessionId {
    let hash = BlobHash::of(text.as_bytes()).to_string();
    let name = format!("{}-{}", format.as_str(), &hash[..24]);
    name.parse().expect("a format's name and hexadecimal digits are a session's name")
}

pub fn lineage(format: Format, source_id: &str) -> Lineage {
    Lineage { session: session_id(format, source_id), at: None }
}

/// Counts that make no sense are left out.
pub fn believable(usage: Usage) -> Option<Usage> {
    let counts = [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning];
    (counts.iter().all(|count| *count <= crate::message::TOKENS_MAX) && counts.iter().any(|count| *count > 0))
        .then_some(usage)
}

/// What a call took beyond what was counted of it.
pub fn usage_beyond(usage: Usage, counted: Usage) -> Usage {
    Usage {
        input: usage.input.saturating_sub(counted.input),
        output: usage.output.saturating_sub(counted.output),
        cache_read: usage.cache_read.saturating_sub(counted.cache_read),
        cache_write: usage.cache_write.saturating_sub(counted.cache_write),
        reasoning: usage.reasoning.saturating_sub(counted.reasoning),
    }
}

/// A model as it is named here, `PROVIDER/NAME`, where its provider is known: then a session can be continued with it.
/// Others call Google what is `gemini` here.
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
    fn media_waits_for_the_step_that_names_it_and_goes_with_it() {
        let mut harvest = StepBatch::default();
        let part = harvest.media("image/png", vec![7; 9], None);
        assert!(harvest.blobs.is_empty(), "nobody has named it");
        harvest.note(RecordKey::of("other"), say(Part::text("no media")));
        assert!(harvest.blobs.is_empty());
        harvest.add(RecordKey::of("one"), Under::Root, By::Caller, say(part));
        assert_eq!(harvest.blobs, [vec![7; 9]]);
        assert!(harvest.unnamed.is_empty());
    }

    #[test]
    fn media_that_two_messages_hold_goes_with_each_of_them() {
        let mut harvest = StepBatch::default();
        let parts = [0, 1].map(|_| harvest.media("image/png", vec![7; 9], None));
        for (number, part) in parts.into_iter().enumerate() {
            harvest.blobs.clear();
            harvest.add(RecordKey::of("one").part(number), Under::Root, By::Caller, say(part));
            assert_eq!(harvest.blobs.len(), 1, "the first may be taken away before the second comes");
        }
        assert!(harvest.unnamed.is_empty());
    }

    #[test]
    fn media_of_what_is_not_taken_is_not_held() {
        let mut harvest = StepBatch::default();
        let part = harvest.media("image/png", vec![7; 9], None);
        assert_eq!(harvest.words(&[Part::text("so far"), part]), "so far");
        assert!(harvest.unnamed.is_empty());
        assert_eq!(harvest.problems[0].what.code(), "import.left_out");
    }
}
