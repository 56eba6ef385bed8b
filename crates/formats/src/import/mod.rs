//! Sessions in, one file per format. An importer is fed lines; what it cannot use it reports by line, and goes on with
//! the rest.
//!
//! Sapwood's own files ([`sapwood`]) become drafts as they are. Foreign ones take two steps: a [`Reader`] turns lines into
//! a [`steps::StepBatch`], which says what was there and how it hung together, and a [`reconcile::Reconciler`] turns that into
//! drafts that extend what the store has of the session already.

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

/// Longest line, its line break included: the largest body with its envelope around it.
pub const LINE_BYTES_MAX: usize = BODY_BYTES_MAX + (64 << 10);
/// After so many problems a file is given up: it is not what it was taken for.
pub const PROBLEMS_MAX: usize = 1_000;
/// Largest file that is read as one JSON document.
pub const DOCUMENT_BYTES_MAX: usize = 256 << 20;

/// Something that is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Problem {
    pub line: u64,
    pub what: Trouble,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error("the file does not begin with a session header")]
    NoHeader,
    #[error("the session header cannot be used: {why}")]
    BadHeader { why: String },
    #[error("another session's header begins here; what follows was left out")]
    SecondHeader,
    #[error("the file has format version {found}, and this version of Sapwood reads up to {LOG_VERSION}")]
    TooNew { found: u32 },
    #[error("this is not an entry and was left out: {why}")]
    BadLine { why: String },
    #[error("the file ends in the middle of this line; the rest of it is missing")]
    Torn,
    #[error("the line is longer than {LINE_BYTES_MAX} bytes and was left out")]
    TooLong,
    #[error("entries of type {found:?} are not known; it was kept as custom_info")]
    UnknownType { found: String },
    #[error("entry {id} was there already; this line was left out")]
    Duplicate { id: EntryId },
    #[error("entry {id} is older than the one before it (I13); it was left out")]
    WrongOrder { id: EntryId },
    #[error("entry {found} comes where entry {expected} was due: lines are missing or out of order")]
    Gap { expected: Seq, found: Seq },
    #[error("its parent {parent} is not in the file; it hangs from the entry before the missing one")]
    MissingParent { parent: EntryId },
    #[error("it hangs from another entry than the leaf; a leaf_moved was put before it")]
    Rehung,
    #[error("its parent is not the leaf; it stands beside the tree, so that changes nothing")]
    BesideLeaf,
    #[error("a {kind} names entry {id}, which is not in the tree; it was left out", kind = kind.as_str())]
    UnknownTarget { kind: Kind, id: EntryId },
    #[error("a compaction keeps from entry {id}, which is not on the path it closes; it was left out")]
    KeptOffPath { id: EntryId },
    #[error("there are too many problems or entries; the rest of the file was left out")]
    GivenUp,
    #[error("its parent is not in the file before it; it hangs from the entry before it")]
    LostParent,
    #[error("a record with this id was there already; this one was left out")]
    Repeated,
    #[error("a {kind} names a record that is not in the file; it was left out", kind = kind.as_str())]
    UnknownSource { kind: Kind },
    #[error("{what}; U+FFFD stands for it now")]
    Mended { what: &'static str },
    #[error("part of it was left out: {why}")]
    LeftOut { why: String },
    #[error(
        "this is a JSONL store's own file of a fork, which holds only what is its own: export the session instead"
    )]
    StoreFork,
    #[error("the store has another session under this id; it is left as it is")]
    Differs,
    #[error("it continues {base}, which is not beside it; only its own part was taken")]
    MissingBase { base: String },
}

/// Longest part of what is wrong that is told: it may repeat the source.
const WHY_CHARS_MAX: usize = 200;

impl Trouble {
    /// With no more of the source's words than are worth saying back.
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

    /// Stable, for programs.
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

/// The formats that are told apart.
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

    /// Who signs what the source's agent said.
    pub fn agent(self) -> Option<sapwood_core::Principal> {
        let name = self.as_str().parse().ok()?;
        Some(sapwood_core::Principal::Agent(name))
    }

    /// Whether a file that begins with this line is one JSON document, which is read as a whole: where both are usual, a
    /// line that is JSON by itself is followed by others.
    pub fn is_document(self, first_line: &[u8]) -> bool {
        match self {
            Format::RoleFiles => true,
            Format::Messages | Format::GeminiCli => !document::is_value(first_line),
            _ => false,
        }
    }

    /// Whether the source writes anew what it said before, so that what the log has of it must be compared: messages, or
    /// the role's instructions.
    pub fn rewrites(self) -> bool {
        matches!(self, Format::OpenCode | Format::GeminiCli | Format::RoleFiles)
    }

    /// Whether a session that is resumed may go on in a new file that begins with the records of the old one.
    pub fn repeats(self) -> bool {
        self == Format::ClaudeCode
    }
}

/// An importer of a foreign format.
pub trait Reader {
    /// Reads the next line, its line break included. Of a line that is too long only the beginning comes.
    fn push_line(&mut self, line: &[u8], number: u64, harvest: &mut StepBatch);
    /// Reads a file that is one JSON document.
    fn push_document(&mut self, bytes: &[u8], harvest: &mut StepBatch) {
        self.push_line(bytes, 1, harvest);
    }
    /// What was held back until the end.
    fn finish(&mut self, _harvest: &mut StepBatch) {}
}

/// The reader of a format. `name` is what the source is called, for formats that have no id of their own.
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

/// What the end of a line says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Whole,
    /// The file ends without a line break.
    Cut,
}

/// Where pieces of a document begin. They are asked for mostly in order, so that each byte is looked at once.
struct Lines<'a> {
    document: &'a [u8],
    offset: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    fn new(document: &'a [u8]) -> Self {
        Self { document, offset: 0, line: 1 }
    }

    /// The line that `piece`, a slice of the document, begins on.
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

/// Hands a line to `read`, which parses it and takes it in if that worked. A line that cannot be read is reported, after
/// what can be mended of it was mended.
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

/// A record that has no counterpart here, kept as it is.
fn keep_record(format: Format, kind: &str, key: RecordKey, line: &[u8], harvest: &mut StepBatch) {
    let kind: String = kind.chars().take(64).collect();
    let kept = std::str::from_utf8(line).ok().and_then(text::keep_json);
    match kept {
        Some(data) => {
            let custom_type = format!("{}:{kind}", format.as_str());
            harvest.note(key, CustomInfo { custom_type, data });
        }
        None => harvest.report(Trouble::BadLine { why: "it is nested too deep to be kept".to_owned() }),
    }
}

/// Cuts a stream of bytes into numbered lines, each with its line break. Holds one line at the most, and of a line that
/// is too long only its beginning, which is enough for an importer to say so.
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

    /// What is held of a line that has not ended.
    pub fn held_bytes(&self) -> usize {
        self.partial.len()
    }

    /// The last line, if it has no line break.
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
    fn lines_are_the_same_however_the_bytes_arrive() {
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
    fn an_endless_line_does_not_fill_the_memory() {
        let mut splitter = LineSplitter::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            splitter.push(&chunk, |_, _| panic!("there is no line break"));
        }
        splitter.finish(|line, _| assert_eq!(line.len(), LINE_BYTES_MAX + 1));
    }
}
