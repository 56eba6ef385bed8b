//! Session exports, one module per format. [`jsonl`] and [`tree`] write the whole log record by record, so memory
//! use stays small. [`messages`] writes the context that a model would receive. The other modules write the
//! active path, for human readers or other programs.

mod calls;
pub mod html;
pub mod jsonl;
pub mod markdown;
pub mod messages;
pub mod role_files;
pub mod tree;

use sapwood_core::Seq;
use sapwood_core::entry::codec::CodecError;

/// Placeholder for a compaction without a summary, in formats that require a summary. Imports recognize the
/// placeholder.
pub(crate) const OMITTED_SUMMARY: &str = "(Earlier messages were left out.)";

/// Replace control characters that a terminal would interpret. Carriage returns become line breaks, and other
/// control characters become U+FFFD.
pub(crate) fn without_controls(page: String) -> String {
    let is_fine = |ch: char| !ch.is_control() || matches!(ch, '\n' | '\t');
    if page.chars().all(is_fine) {
        return page;
    }
    let shown = |ch: char| match ch {
        '\r' => '\n',
        ch if is_fine(ch) => ch,
        _ => '\u{fffd}',
    };
    page.replace("\r\n", "\n").chars().map(shown).collect()
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("failed to write the export: {0}")]
    Io(#[from] std::io::Error),
    #[error("entry {seq}: {source}")]
    Unreadable { seq: Seq, source: CodecError },
    #[error("expected entry {expected}, but got entry {found} (I1)")]
    OutOfOrder { expected: Seq, found: Seq },
    #[error("the parent of entry {seq} is not the leaf at that point (I2)")]
    OffLeaf { seq: Seq },
}

impl ExportError {
    /// Return the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ExportError::Io(_) => "export.io",
            ExportError::Unreadable { .. } | ExportError::OutOfOrder { .. } | ExportError::OffLeaf { .. } => {
                "store.damaged"
            }
        }
    }
}
