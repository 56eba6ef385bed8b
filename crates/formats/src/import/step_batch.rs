//! The steps that a reader has produced and the engine has not yet processed.

use std::collections::HashMap;

use sapwood_core::content::{BlobRef, Part, joined_text};
use sapwood_core::port::store::NewSession;
use sapwood_core::project::summary::Origin;
use sapwood_core::{BlobHash, Body, TimestampMs};

use super::steps::{
    Author, EarlierEntries, ImportStep, PathKind, RecordKey, RecordRef, StepAction, StepParent, session_id,
};
use super::{Format, PROBLEMS_MAX, Problem, ProblemKind};

/// Number of steps, and of input bytes, after which a portion is sent while the file is still being read.
const PORTION_STEPS: usize = 512;
const PORTION_BYTES: usize = 2 << 20;

/// Steps that are sent together.
#[derive(Debug, Default)]
pub struct Portion {
    pub session: Option<NewSession>,
    pub steps: Vec<ImportStep>,
    pub problems: Vec<Problem>,
    /// The line at which the portion ends.
    pub line: u64,
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
    /// Bytes of the lines that were read since steps were last removed.
    input_bytes: usize,
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
    /// Create an empty batch for a file with this modification time, if it is known.
    pub fn of_file(file_time: impl Into<Option<TimestampMs>>) -> Self {
        Self { file_time: file_time.into(), ..Self::default() }
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
            steps: self.take_steps(),
            problems: std::mem::take(&mut self.problems),
            line: self.line,
        }
    }

    /// Remove and return the steps collected so far.
    pub fn take_steps(&mut self) -> Vec<ImportStep> {
        self.input_bytes = 0;
        std::mem::take(&mut self.steps)
    }

    /// Count the bytes of a line that was read.
    pub fn count_input(&mut self, bytes: usize) {
        self.input_bytes += bytes;
        if self.session.is_some() && self.is_full() {
            self.send_portion();
        }
    }

    /// Whether the steps collected so far should be stored.
    pub fn is_full(&self) -> bool {
        self.steps.len() >= PORTION_STEPS || self.input_bytes >= PORTION_BYTES
    }

    /// Append a portion to this batch.
    pub fn absorb(&mut self, portion: Portion) {
        self.session = self.session.take().or(portion.session);
        match self.steps.is_empty() {
            true => self.steps = portion.steps,
            false => self.steps.extend(portion.steps),
        }
        self.problems.extend(portion.problems);
        self.line = portion.line;
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
        let (body, refs, earlier) = (body.into(), Vec::new(), EarlierEntries::default());
        self.step(key, StepAction::Add { body, under, by, path, refs, earlier });
    }

    /// Add a compaction or branch summary, with the record it refers to.
    pub fn add_summary(
        &mut self,
        key: RecordKey,
        under: StepParent,
        refs: Option<RecordKey>,
        body: impl Into<Body>,
    ) {
        let (body, refs) = (body.into(), refs.map(RecordRef::Record).into_iter().collect());
        let (by, path, earlier) = (Author::Agent, PathKind::Main, EarlierEntries::default());
        self.step(key, StepAction::Add { body, under, by, path, refs, earlier });
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
        let Some(mut action) = action.with_fit_title() else { return };
        let named = action.body_mut().map(|body| body.blobs()).unwrap_or_default();
        let blobs =
            named.into_iter().filter_map(|blob| Some((blob, self.take_pending_blob(blob)?))).collect();
        if self.is_given_up {
            return;
        }
        self.steps.push(ImportStep { key, at: self.at, line: self.line, action, blobs });
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
        self.is_given_up |= !receiver(self.take_portion());
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
        Part::Media(self.add_pending_blob(mime, bytes, name))
    }

    /// Store text as a blob and return a reference to the blob.
    pub fn store_text(&mut self, text: String) -> BlobRef {
        self.add_pending_blob("text/plain", text.into_bytes(), None)
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

    fn add_pending_blob(&mut self, mime: &str, bytes: Vec<u8>, name: Option<String>) -> BlobRef {
        let (blob, length) = (BlobHash::of(&bytes), bytes.len() as u64);
        self.pending_blobs.entry(blob).or_insert(PendingBlob { bytes, references: 0 }).references += 1;
        BlobRef { blob, mime: mime.chars().take(128).collect(), name, bytes: length, duration_ms: None }
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

#[cfg(test)]
mod tests {
    use sapwood_core::entry::UserMessage;

    use super::*;

    fn user_message(part: Part) -> Body {
        UserMessage { parts: vec![part], origin: None }.into()
    }

    #[test]
    fn media_is_sent_with_the_step_that_refers_to_it() {
        let mut batch = StepBatch::default();
        let part = batch.media("image/png", vec![7; 9], None);
        batch.note(RecordKey::of("other"), user_message(Part::text("no media")));
        assert!(batch.steps[0].blobs.is_empty());
        batch.add(RecordKey::of("one"), StepParent::Root, Author::Caller, user_message(part));
        assert_eq!(batch.steps[1].blobs, [(BlobHash::of(&[7; 9]), vec![7; 9])]);
        assert!(batch.pending_blobs.is_empty());
    }

    #[test]
    fn media_of_two_messages_is_sent_with_each_message() {
        let mut batch = StepBatch::default();
        let parts = [0, 1].map(|_| batch.media("image/png", vec![7; 9], None));
        for (number, part) in parts.into_iter().enumerate() {
            batch.add(
                RecordKey::of("one").part(number),
                StepParent::Root,
                Author::Caller,
                user_message(part),
            );
            assert_eq!(
                batch.steps[number].blobs.len(),
                1,
                "the first step may be sent before the second is added"
            );
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
