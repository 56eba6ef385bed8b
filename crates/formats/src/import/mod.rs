//! Sessions in, one file per format. An importer is fed lines and gives drafts; what it cannot use it reports by line,
//! and goes on with the rest.

mod rows;
pub mod sapwood;

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{EntryId, Kind, Seq};

/// Longest line, its line break included: the largest body with its envelope around it.
pub const LINE_BYTES_MAX: usize = BODY_BYTES_MAX + (64 << 10);
/// After so many problems a file is given up: it is not what it was taken for.
pub const PROBLEMS_MAX: usize = 1_000;

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
}

impl Trouble {
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
        }
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
