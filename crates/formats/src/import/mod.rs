//! Session imports, one module per format. An importer reads lines, reports the lines it cannot use, and
//! continues with the rest.
//!
//! Sapwood's own files ([`sapwood`]) become drafts directly. For foreign files, a [`Reader`] converts
//! lines to a [`steps::StepBatch`], which describes the records and their relations. A [`reconcile::Reconciler`]
//! converts each step to drafts that extend the session in the store.

mod blocks;
pub mod claude_code;
pub mod codex;
pub mod detect;
mod document;
mod entry_table;
pub mod gemini_cli;
mod keys;
mod late_usage;
mod log_index;
pub mod messages;
pub mod opencode;
pub mod pi;
pub mod reconcile;
mod revisions;
pub mod role_files;
pub mod sapwood;
mod step_batch;
pub mod steps;
pub mod text;

use sapwood_core::entry::{CustomInfo, LOG_VERSION};
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{EntryId, Kind, Seq};
use steps::{RecordKey, StepBatch};

/// Maximum line length, including the line break: the largest body and its envelope.
pub const LINE_BYTES_MAX: usize = BODY_BYTES_MAX + (64 << 10);
/// The import of a file stops after this many problems, because the file is probably in another format.
pub const PROBLEMS_MAX: usize = 1_000;
/// Maximum size of a file that is read as one JSON document.
pub const DOCUMENT_BYTES_MAX: usize = 256 << 20;

/// A problem in a file, with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Problem {
    pub line: u64,
    pub what: ProblemKind,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemKind {
    #[error("the file does not start with a session header")]
    NoHeader,
    #[error("invalid session header: {why}")]
    BadHeader { why: String },
    #[error("another session header begins here; the lines after it were skipped")]
    SecondHeader,
    #[error(
        "the file has format version {found}, but this version of Sapwood reads only up to {LOG_VERSION}"
    )]
    TooNew { found: u32 },
    #[error("not a valid entry, skipped: {why}")]
    BadLine { why: String },
    #[error("the file ends in the middle of this line")]
    Torn,
    #[error("the line is longer than {LINE_BYTES_MAX} bytes and was skipped")]
    TooLong,
    #[error("unknown entry type {found:?}; the entry was kept as custom_info")]
    UnknownType { found: String },
    #[error("duplicate entry {id}; this line was skipped")]
    Duplicate { id: EntryId },
    #[error("entry {id} is older than the previous entry (I13) and was skipped")]
    WrongOrder { id: EntryId },
    #[error("expected entry {expected}, but found entry {found}: lines are missing or out of order")]
    Gap { expected: Seq, found: Seq },
    #[error(
        "parent {parent} is not in the file; the entry was attached to the last entry before the missing parent"
    )]
    MissingParent { parent: EntryId },
    #[error("the parent is not the current leaf; a leaf_moved was inserted before the entry")]
    Reattached,
    #[error("the parent is not the current leaf; this has no effect, because the entry is not in the tree")]
    NotAtLeaf,
    #[error("a {kind} refers to entry {id}, which is not in the tree; the line was skipped", kind = kind.as_str())]
    UnknownTarget { kind: Kind, id: EntryId },
    #[error("the first entry that a compaction keeps, {id}, is not on its path; the compaction was skipped")]
    KeptOffPath { id: EntryId },
    #[error("too many problems or entries; the rest of the file was skipped")]
    GivenUp,
    #[error("the parent does not occur earlier in the file; the record was attached to the previous entry")]
    ParentNotFound,
    #[error("duplicate record id; this record was skipped")]
    DuplicateRecord,
    #[error("a {kind} refers to a record that is not in the file; the {kind} was skipped", kind = kind.as_str())]
    UnknownSource { kind: Kind },
    #[error("{what}, replaced by U+FFFD")]
    Repaired { what: &'static str },
    #[error("part of the record was skipped: {why}")]
    PartSkipped { why: String },
    #[error(
        "the file belongs to a fork in a JSONL store and has only the fork's own entries: export the session instead"
    )]
    StoreFork,
    #[error("the store has a different session with this id, which is left unchanged")]
    Differs,
    #[error("the file continues {base}, which was not found; only the file's own records were imported")]
    MissingBase { base: String },
}

/// Maximum length of a reason in characters. A reason may quote the source.
const WHY_CHARS_MAX: usize = 200;

impl ProblemKind {
    /// Shorten the text, which may quote the source.
    fn brief(mut self) -> Self {
        if let ProblemKind::BadHeader { why: quote }
        | ProblemKind::BadLine { why: quote }
        | ProblemKind::PartSkipped { why: quote }
        | ProblemKind::MissingBase { base: quote } = &mut self
            && let Some((end, _)) = quote.char_indices().nth(WHY_CHARS_MAX)
        {
            quote.truncate(end);
            quote.push('…');
        }
        self
    }

    /// Return the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ProblemKind::NoHeader => "import.no_header",
            ProblemKind::BadHeader { .. } => "import.bad_header",
            ProblemKind::SecondHeader => "import.second_header",
            ProblemKind::TooNew { .. } => "import.too_new",
            ProblemKind::BadLine { .. } => "import.bad_line",
            ProblemKind::Torn => "import.torn",
            ProblemKind::TooLong => "import.too_long",
            ProblemKind::UnknownType { .. } => "import.unknown_type",
            ProblemKind::Duplicate { .. } | ProblemKind::DuplicateRecord => "import.duplicate",
            ProblemKind::WrongOrder { .. } => "import.wrong_order",
            ProblemKind::Gap { .. } => "import.gap",
            ProblemKind::MissingParent { .. } | ProblemKind::ParentNotFound => "import.missing_parent",
            ProblemKind::Reattached => "import.rehung",
            ProblemKind::NotAtLeaf => "import.beside_leaf",
            ProblemKind::UnknownTarget { .. } | ProblemKind::UnknownSource { .. } => "import.unknown_target",
            ProblemKind::KeptOffPath { .. } => "import.kept_off_path",
            ProblemKind::GivenUp => "import.given_up",
            ProblemKind::Repaired { .. } => "import.mended",
            ProblemKind::PartSkipped { .. } => "import.left_out",
            ProblemKind::StoreFork => "import.store_fork",
            ProblemKind::Differs => "import.differs",
            ProblemKind::MissingBase { .. } => "import.missing_base",
        }
    }
}

/// The supported formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Sapwood,
    Operator,
    Pi,
    ClaudeCode,
    Codex,
    OpenCode,
    GeminiCli,
    RoleFiles,
    Messages,
}

impl Format {
    pub const ALL: &'static [Format] = &[
        Format::Sapwood,
        Format::Operator,
        Format::Pi,
        Format::ClaudeCode,
        Format::Codex,
        Format::OpenCode,
        Format::GeminiCli,
        Format::RoleFiles,
        Format::Messages,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Format::Sapwood => "sapwood",
            Format::Operator => "operator",
            Format::Pi => "pi",
            Format::ClaudeCode => "claude-code",
            Format::Codex => "codex",
            Format::OpenCode => "opencode",
            Format::GeminiCli => "gemini-cli",
            Format::RoleFiles => "role-files",
            Format::Messages => "messages",
        }
    }

    /// Return the principal for messages of the source's agent.
    pub fn agent(self) -> Option<sapwood_core::Principal> {
        let name = self.as_str().parse().ok()?;
        Some(sapwood_core::Principal::Agent(name))
    }

    /// Whether a file with this first line is read as one JSON document. Some formats also have files with one record
    /// per line. For these formats, a first line that is complete JSON means one record per line.
    pub fn is_document(self, first_line: &[u8]) -> bool {
        match self {
            Format::RoleFiles => true,
            Format::Messages | Format::GeminiCli => !document::is_value(first_line),
            _ => false,
        }
    }

    /// Whether the source rewrites earlier messages or instructions. An import must then compare them with the log.
    pub fn rewrites(self) -> bool {
        matches!(self, Format::OpenCode | Format::GeminiCli | Format::RoleFiles)
    }

    /// Whether a resumed session may continue in a new file that repeats the records of the old one.
    pub fn repeats(self) -> bool {
        self == Format::ClaudeCode
    }
}

/// An importer for a foreign format.
pub trait Reader {
    /// Read the next line, including its line break. The caller truncates a line that is too long.
    fn push_line(&mut self, line: &[u8], number: u64, batch: &mut StepBatch);
    /// Read a file that is one JSON document.
    fn push_document(&mut self, bytes: &[u8], batch: &mut StepBatch) {
        self.push_line(bytes, 1, batch);
    }
    /// Read a line of a file that this file continues. Records from `end_ordinal` on are skipped. Only Codex has such
    /// files.
    fn push_inherited(&mut self, line: &[u8], number: u64, _end_ordinal: u64, batch: &mut StepBatch) {
        self.push_line(line, number, batch);
    }
    /// Emit the records that are still buffered at the end of the file.
    fn finish(&mut self, _batch: &mut StepBatch) {}
}

/// Return the reader for a format. `name` is the file name without its extension, from which some formats derive the
/// session's id.
pub fn reader(format: Format, name: &str) -> Option<Box<dyn Reader + Send>> {
    Some(match format {
        Format::Sapwood => return None,
        Format::Operator => Box::new(pi::Importer::new(pi::Dialect::Operator, name)),
        Format::Pi => Box::new(pi::Importer::new(pi::Dialect::Pi, name)),
        Format::ClaudeCode => Box::new(claude_code::Importer::new(name)),
        Format::Codex => Box::new(codex::Importer::new(name)),
        Format::OpenCode => Box::new(opencode::Importer::default()),
        Format::GeminiCli => Box::new(gemini_cli::Importer::new(name)),
        Format::RoleFiles => Box::new(role_files::Importer::default()),
        Format::Messages => Box::new(messages::Importer::new(name)),
    })
}

/// How a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Complete,
    /// The file ends without a line break.
    Truncated,
}

/// Finds the line number of a slice of a document. Lookups in document order scan each byte only once.
struct LineLocator<'a> {
    document: &'a [u8],
    offset: usize,
    line: u64,
}

impl<'a> LineLocator<'a> {
    fn new(document: &'a [u8]) -> Self {
        Self { document, offset: 0, line: 1 }
    }

    /// Return the line on which `slice`, which must be part of the document, starts.
    fn line_of(&mut self, slice: &str) -> u64 {
        let offset = (slice.as_ptr() as usize).saturating_sub(self.document.as_ptr() as usize);
        let offset = offset.min(self.document.len());
        if offset < self.offset {
            (self.offset, self.line) = (0, 1);
        }
        let passed = &self.document[self.offset..offset];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.offset = offset;
        self.line
    }
}

/// Pass a line to `read`, which parses and imports it. If `read` fails, repair invalid text and call `read` again. If
/// that fails too, report the line.
fn read_json_line(
    line: &[u8],
    number: u64,
    batch: &mut StepBatch,
    mut read: impl FnMut(&[u8], &mut StepBatch) -> Result<(), serde_json::Error>,
) {
    batch.line = number;
    if line.len() > LINE_BYTES_MAX {
        batch.report(ProblemKind::TooLong);
        return;
    }
    let ending = if line.ends_with(b"\n") { LineEnd::Complete } else { LineEnd::Truncated };
    let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return;
    }
    let Err(error) = read(line, batch) else { return };
    if let Some(repaired) = text::repair(line)
        && read(&repaired, batch).is_ok()
    {
        batch.report(ProblemKind::Repaired { what: text::damage_of(line) });
        return;
    }
    batch.report(match ending {
        LineEnd::Truncated if error.is_eof() => ProblemKind::Torn,
        _ => ProblemKind::BadLine { why: error.to_string() },
    });
}

/// Store a record without an equivalent unchanged, as custom_info.
fn keep_record(format: Format, kind: &str, key: RecordKey, line: &[u8], batch: &mut StepBatch) {
    let kind: String = kind.chars().take(64).collect();
    let kept = std::str::from_utf8(line).ok().and_then(text::keep_json);
    match kept {
        Some(data) => {
            let custom_type = format!("{}:{kind}", format.as_str());
            batch.note(key, CustomInfo { custom_type, data });
        }
        None => batch.report(ProblemKind::BadLine { why: "it is nested too deeply".to_owned() }),
    }
}

/// Splits a byte stream into numbered lines, each with its line break. Buffers at most one line. A line that is too
/// long is truncated, which is enough to report it.
#[derive(Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
    lines: u64,
}

impl LineSplitter {
    pub fn push(&mut self, mut chunk: &[u8], mut each: impl FnMut(&[u8], u64)) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = chunk.split_at(end + 1);
            self.lines += 1;
            if self.partial.is_empty() {
                each(line, self.lines);
            } else {
                self.buffer(line);
                each(&self.partial, self.lines);
                self.partial.clear();
            }
            chunk = rest;
        }
        self.buffer(chunk);
    }

    /// Return the number of buffered bytes of the unfinished line.
    pub fn held_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Emit the last line, if it has no line break.
    pub fn finish(mut self, mut each: impl FnMut(&[u8], u64)) {
        if !self.partial.is_empty() {
            self.lines += 1;
            each(&std::mem::take(&mut self.partial), self.lines);
        }
    }

    fn buffer(&mut self, bytes: &[u8]) {
        let capacity = (LINE_BYTES_MAX + 1).saturating_sub(self.partial.len());
        self.partial.extend_from_slice(&bytes[..bytes.len().min(capacity)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::default();
        for chunk in chunks {
            splitter.push(chunk, |line, number| lines.push((number, line.to_vec())));
        }
        splitter.finish(|line, number| lines.push((number, line.to_vec())));
        lines
    }

    #[test]
    fn lines_do_not_depend_on_chunk_boundaries() {
        let text = b"one\n\ntwo and more\nthree";
        let whole = split(&[text]);
        assert_eq!(whole.len(), 4);
        assert_eq!(whole[3], (4, b"three".to_vec()));
        for cut in 0..text.len() {
            assert_eq!(split(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(split(&text.iter().map(std::slice::from_ref).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn an_endless_line_uses_bounded_memory() {
        let mut splitter = LineSplitter::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            splitter.push(&chunk, |_, _| panic!("no line is complete yet"));
        }
        splitter.finish(|line, _| assert_eq!(line.len(), LINE_BYTES_MAX + 1));
    }
}
