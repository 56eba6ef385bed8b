//! Session imports, one module per format. An importer reads lines, reports the lines it cannot use, and
//! continues with the rest.
//!
//! Sapwood's own files ([`sapwood`]) become drafts directly. Foreign files need two passes. A [`Reader`] turns
//! lines into a [`steps::StepBatch`], which describes the records and their relations. Then a
//! [`reconcile::Reconciler`] turns the steps into drafts that extend the session in the store.

mod blocks;
pub mod claude_code;
pub mod codex;
pub mod detect;
mod document;
mod entry_table;
pub mod gemini_cli;
mod keys;
pub mod messages;
pub mod opencode;
pub mod pi;
pub mod reconcile;
mod revisions;
pub mod role_files;
pub mod sapwood;
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
    pub what: Trouble,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
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
    #[error("entry {id} is older than the previous one (I13) and was skipped")]
    WrongOrder { id: EntryId },
    #[error("expected entry {expected}, but found entry {found}: lines are missing or out of order")]
    Gap { expected: Seq, found: Seq },
    #[error("its parent {parent} is not in the file; it was attached to the entry before the missing one")]
    MissingParent { parent: EntryId },
    #[error("its parent is not the current leaf; a leaf_moved was inserted before it")]
    Rehung,
    #[error("its parent is not the current leaf; this has no effect, because it is not in the tree")]
    BesideLeaf,
    #[error("a {kind} refers to entry {id}, which is not in the tree; it was skipped", kind = kind.as_str())]
    UnknownTarget { kind: Kind, id: EntryId },
    #[error("a compaction keeps from entry {id}, which is not on its path; it was skipped")]
    KeptOffPath { id: EntryId },
    #[error("too many problems or entries; the rest of the file was skipped")]
    GivenUp,
    #[error("its parent is not earlier in the file; it was attached to the previous entry")]
    LostParent,
    #[error("duplicate record id; this record was skipped")]
    Repeated,
    #[error("a {kind} refers to a record that is not in the file; it was skipped", kind = kind.as_str())]
    UnknownSource { kind: Kind },
    #[error("{what}, replaced by U+FFFD")]
    Mended { what: &'static str },
    #[error("part of it was skipped: {why}")]
    LeftOut { why: String },
    #[error(
        "the file belongs to a fork in a JSONL store and has only the fork's own entries: export the session instead"
    )]
    StoreFork,
    #[error("the store has a different session with this id, which is left unchanged")]
    Differs,
    #[error("it continues {base}, which is not next to it; only its own part was imported")]
    MissingBase { base: String },
}

/// Maximum length of a reason, which may quote the source.
const WHY_CHARS_MAX: usize = 200;

impl Trouble {
    /// Shorten the quoted part of the source.
    fn brief(mut self) -> Self {
        if let Trouble::BadHeader { why: said }
        | Trouble::BadLine { why: said }
        | Trouble::LeftOut { why: said }
        | Trouble::MissingBase { base: said } = &mut self
            && let Some((end, _)) = said.char_indices().nth(WHY_CHARS_MAX)
        {
            said.truncate(end);
            said.push('…');
        }
        self
    }

    /// Return the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            Trouble::NoHeader => "import.no_header",
            Trouble::BadHeader { .. } => "import.bad_header",
            Trouble::SecondHeader => "import.second_header",
            Trouble::TooNew { .. } => "import.too_new",
            Trouble::BadLine { .. } => "import.bad_line",
            Trouble::Torn => "import.torn",
            Trouble::TooLong => "import.too_long",
            Trouble::UnknownType { .. } => "import.unknown_type",
            Trouble::Duplicate { .. } => "import.duplicate",
            Trouble::WrongOrder { .. } => "import.wrong_order",
            Trouble::Gap { .. } => "import.gap",
            Trouble::MissingParent { .. } => "import.missing_parent",
            Trouble::Rehung => "import.rehung",
            Trouble::BesideLeaf => "import.beside_leaf",
            Trouble::UnknownTarget { .. } => "import.unknown_target",
            Trouble::KeptOffPath { .. } => "import.kept_off_path",
            Trouble::GivenUp => "import.given_up",
            Trouble::LostParent => "import.missing_parent",
            Trouble::Repeated => "import.duplicate",
            Trouble::UnknownSource { .. } => "import.unknown_target",
            Trouble::Mended { .. } => "import.mended",
            Trouble::LeftOut { .. } => "import.left_out",
            Trouble::StoreFork => "import.store_fork",
            Trouble::Differs => "import.differs",
            Trouble::MissingBase { .. } => "import.missing_base",
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

    /// Whether a file with this first line is read as one JSON document. For formats that also have files
    /// with one record per line, a first line that is complete JSON indicates such a file.
    pub fn is_document(self, first_line: &[u8]) -> bool {
        match self {
            Format::RoleFiles => true,
            Format::Messages | Format::GeminiCli => !document::is_value(first_line),
            _ => false,
        }
    }

    /// Whether the source rewrites earlier messages or instructions, so that they must be compared with the
    /// log.
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
    /// Read the next line, including its line break. A line that is too long is passed truncated.
    fn push_line(&mut self, line: &[u8], number: u64, harvest: &mut StepBatch);
    /// Read a file that is one JSON document.
    fn push_document(&mut self, bytes: &[u8], harvest: &mut StepBatch) {
        self.push_line(bytes, 1, harvest);
    }
    /// Emit the records that were held back until the end.
    fn finish(&mut self, _harvest: &mut StepBatch) {}
}

/// Return the reader for a format. `name` names the source, for formats without a session id.
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
enum Ending {
    Whole,
    /// The file ends without a line break.
    Cut,
}

/// Finds the line of a slice in a document. Mostly called in order, so that each byte is scanned once.
struct Lines<'a> {
    document: &'a [u8],
    offset: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    fn new(document: &'a [u8]) -> Self {
        Self { document, offset: 0, line: 1 }
    }

    /// Return the line on which `piece`, a slice of the document, starts.
    fn of(&mut self, piece: &str) -> u64 {
        let offset = (piece.as_ptr() as usize).saturating_sub(self.document.as_ptr() as usize);
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

/// Pass a line to `read`, which parses and imports it. If `read` fails, repair invalid text and try again. A line
/// that still cannot be read is reported.
fn read_json_line(
    line: &[u8],
    number: u64,
    harvest: &mut StepBatch,
    mut read: impl FnMut(&[u8], &mut StepBatch) -> Result<(), serde_json::Error>,
) {
    harvest.line = number;
    if line.len() > LINE_BYTES_MAX {
        harvest.report(Trouble::TooLong);
        return;
    }
    let ending = if line.ends_with(b"\n") { Ending::Whole } else { Ending::Cut };
    let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return;
    }
    let Err(error) = read(line, harvest) else { return };
    if let Some(mended) = text::mend(line)
        && read(&mended, harvest).is_ok()
    {
        harvest.report(Trouble::Mended { what: text::fault_of(line) });
        return;
    }
    harvest.report(match ending {
        Ending::Cut if error.is_eof() => Trouble::Torn,
        _ => Trouble::BadLine { why: error.to_string() },
    });
}

/// Keep a record without an equivalent unchanged.
fn keep_record(format: Format, kind: &str, key: RecordKey, line: &[u8], harvest: &mut StepBatch) {
    let kind: String = kind.chars().take(64).collect();
    let kept = std::str::from_utf8(line).ok().and_then(text::keep_json);
    match kept {
        Some(data) => {
            let custom_type = format!("{}:{kind}", format.as_str());
            harvest.note(key, CustomInfo { custom_type, data });
        }
        None => harvest.report(Trouble::BadLine { why: "it is nested too deeply".to_owned() }),
    }
}

/// Splits a byte stream into numbered lines, each with its line break. Buffers at most one line. Of a line
/// that is too long only the beginning is kept, which is enough to report it.
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
                self.keep(line);
                each(&self.partial, self.lines);
                self.partial.clear();
            }
            chunk = rest;
        }
        self.keep(chunk);
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

    fn keep(&mut self, piece: &[u8]) {
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.partial.len());
        self.partial.extend_from_slice(&piece[..piece.len().min(room)]);
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
            splitter.push(&chunk, |_, _| panic!("there is no line break"));
        }
        splitter.finish(|line, _| assert_eq!(line.len(), LINE_BYTES_MAX + 1));
    }
}
