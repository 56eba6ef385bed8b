//! Sessions out, one file per format. [`jsonl`] and [`tree`] write the whole log, record by record, so that memory stays
//! flat. [`messages`] writes what a model would receive; the others the active path, for people or other programs.

mod calls;
pub mod html;
pub mod jsonl;
pub mod markdown;
pub mod messages;
pub mod role_files;
pub mod tree;

use sapwood_core::Seq;
use sapwood_core::entry::codec::CodecError;

/// What stands for a compaction without a summary, in formats that want one. Imports know it again.
pub(crate) const LEFT_OUT: &str = "(Earlier messages were left out.)";

/// A page for people, without what a terminal would obey and a browser would not show: U+FFFD stands for it, and a line
/// break for what moves the cursor to the beginning of its line.
pub(crate) fn without_controls(page: String) -> String {
    let is_fine = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    if page.chars().all(is_fine) {
        return page;
    }
    let shown = |letter: char| match letter {
        '\r' => '\n',
        letter if is_fine(letter) => letter,
        _ => '\u{fffd}',
    };
    page.replace("\r\n", "\n").chars().map(shown).collect()
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("the export cannot be written: {0}")]
    Io(#[from] std::io::Error),
    #[error("entry {seq}: {source}")]
    Unreadable { seq: Seq, source: CodecError },
    #[error("entry {found} came where entry {expected} was due (I1)")]
    OutOfOrder { expected: Seq, found: Seq },
    #[error("entry {seq} does not hang from the leaf that the entries before it leave (I2)")]
    OffLeaf { seq: Seq },
}

impl ExportError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ExportError::Io(_) => "export.io",
            ExportError::Unreadable { .. } | ExportError::OutOfOrder { .. } | ExportError::OffLeaf { .. } => {
                "store.damaged"
            }
        }
    }
}
