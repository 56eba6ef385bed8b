//! The document port: extracts the text of documents. Documents are untrusted input, so an implementation must isolate
//! the extraction from the process that calls it.

use async_trait::async_trait;

/// Maximum size of a document whose text is extracted.
pub const DOCUMENT_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of the extracted text. Longer text is cut.
pub const DOCUMENT_TEXT_BYTES_MAX: usize = 16 << 20;

/// A document format from which text can be extracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentFormat {
    Pdf,
    Html,
    Docx,
}

impl DocumentFormat {
    /// The short name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            DocumentFormat::Pdf => "pdf",
            DocumentFormat::Html => "html",
            DocumentFormat::Docx => "docx",
        }
    }

    /// The format with this short name; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pdf, Self::Html, Self::Docx].into_iter().find(|format| format.as_str() == name)
    }
}

/// Why a document's text cannot be extracted. The texts are shown to models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The document is larger than the limit.
    #[error("the document has {bytes} bytes, over the limit of {DOCUMENT_BYTES_MAX} for text extraction")]
    TooLarge { bytes: u64 },
    /// The document is damaged, encrypted or not of this format.
    #[error("the document cannot be read: {why}")]
    Damaged { why: String },
    /// The extraction used too much time or memory.
    #[error("the text extraction was stopped: {why}")]
    Stopped { why: String },
    /// The extraction could not be started.
    #[error("text extraction is not available: {why}")]
    Unavailable { why: String },
}

/// Extracts the text of documents.
#[async_trait]
pub trait DocumentReader: Send + Sync {
    /// Extract the text, at most [`DOCUMENT_TEXT_BYTES_MAX`] of it. The document has at most [`DOCUMENT_BYTES_MAX`]
    /// bytes.
    async fn read_text(&self, format: DocumentFormat, document: Vec<u8>) -> Result<String, DocumentError>;
}
