//! Helpers that import a foreign file through the reader and the reconciler into an in-memory log, as the
//! engine does.

use sapwood_core::fixture::MemLog;
use sapwood_core::port::store::NewSession;
use sapwood_core::project::context::{Message, Role};
use sapwood_core::{BlobHash, Draft, Kind};
use sapwood_formats::import::reconcile::Reconciler;
use sapwood_formats::import::steps::StepBatch;
use sapwood_formats::import::{Format, LineSplitter, Problem, reader};

pub struct ImportResult {
    pub session: Option<NewSession>,
    pub log: MemLog,
    pub problems: Vec<Problem>,
    pub added: u64,
    pub skipped: u64,
}

pub fn import(format: Format, bytes: impl AsRef<[u8]>) -> ImportResult {
    import_again(format, MemLog::default(), bytes)
}

/// Import a file into a log that may already contain a part of the file.
pub fn import_again(format: Format, log: MemLog, bytes: impl AsRef<[u8]>) -> ImportResult {
    let bytes = bytes.as_ref();
    import_with(format, log, |batch| {
        let mut reader = reader(format, "-").unwrap();
        if format.is_document(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()) {
            reader.push_document(bytes, batch);
        } else {
            let mut splitter = LineSplitter::default();
            splitter.push(bytes, |line, number| reader.push_line(line, number, batch));
            splitter.finish(|line, number| reader.push_line(line, number, batch));
        }
        reader.finish(batch);
    })
}

/// Import the steps that `read` produces into a log.
pub fn import_with(format: Format, mut log: MemLog, read: impl FnOnce(&mut StepBatch)) -> ImportResult {
    let mut batch = StepBatch::default();
    read(&mut batch);
    let mut reconciler = Reconciler::new(format.agent());
    for entry in log.entries() {
        let meta = &entry.meta;
        reconciler.register(meta.id, meta.parent.map(|parent| parent.0), meta.kind.stance());
        reconciler.register_body(&entry.body);
    }
    if log.entries().next().is_some() {
        reconciler.register_leaf(log.head().leaf.map(|leaf| leaf.0));
    }
    let mut drafts: Vec<Draft> = Vec::new();
    let mut problems = std::mem::take(&mut batch.problems);
    for step in batch.steps.drain(..) {
        let provided: Vec<BlobHash> = step.blobs.iter().map(|(_, bytes)| BlobHash::of(bytes)).collect();
        let before = drafts.len();
        reconciler.take(step, &mut drafts, &mut problems);
        let mut named = drafts[before..].iter().flat_map(|draft| draft.body.blobs());
        let missing = named.find(|blob| !provided.contains(blob));
        assert_eq!(missing, None, "a draft refers to a blob that its step does not have");
    }
    reconciler.finish(&mut drafts);
    let mut rest = &drafts[..];
    let mut size = 1;
    while !rest.is_empty() {
        let (chunk, remaining) = rest.split_at(rest.len().min(size));
        log.append(chunk.to_vec()).unwrap_or_else(|error| panic!("an imported draft was refused: {error}"));
        (rest, size) = (remaining, size % 7 + 3);
    }
    ImportResult {
        session: batch.session,
        log,
        problems,
        added: reconciler.added,
        skipped: reconciler.skipped,
    }
}

impl ImportResult {
    /// Return the context, one line per message: `u:hello`, `a:text`, `C:tool(call id)`, `t:result`,
    /// `r:reasoning`.
    pub fn context(&self) -> Vec<String> {
        self.log.context().messages.iter().map(show).collect()
    }

    pub fn codes(&self) -> Vec<(u64, &'static str)> {
        self.problems.iter().map(|problem| (problem.line, problem.what.code())).collect()
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.log.entries().filter(|entry| entry.meta.kind == kind).count()
    }

    /// Return the spend that a session list would show.
    pub fn spend(&self) -> sapwood_core::project::usage::Total {
        let mut spend = sapwood_core::project::usage::Spend::default();
        self.log.entries().for_each(|entry| spend.apply(&entry.body));
        spend.total()
    }
}

fn show(message: &Message) -> String {
    use sapwood_core::content::Part;
    let sign = match message.role {
        Role::User => "u",
        Role::Assistant => "a",
        Role::Tool => "t",
        Role::System => "s",
    };
    let parts = message.parts.iter().map(|part| match part {
        // A summary without the frame that the model receives.
        Part::Text(text) => format!("{sign}:{}", message.summary.as_ref().unwrap_or(&text.text)),
        Part::Reasoning(reasoning) => format!("r:{}", reasoning.text),
        Part::ToolCall(call) => format!("C:{}({})", call.name, call.call_id),
        Part::Media(media) => format!("m:{} {}", media.mime, media.bytes),
    });
    let text = parts.collect::<Vec<_>>().join(" ");
    if text.is_empty() { format!("{sign}:") } else { text }
}

/// Format values as JSON Lines.
pub fn lines(values: &[serde_json::Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}
