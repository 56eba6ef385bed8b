//! The summariser port, and the hooks around a compaction. A model or an extension can be a summariser.

use async_trait::async_trait;

use crate::compact::Archive;
use crate::entry::{Compaction, Details, WrittenBy};

/// A request to a summariser, one per chunk of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryRequest {
    /// The instructions.
    pub system: String,
    /// The text to summarise.
    pub text: String,
}

/// A summariser's text, and its usage if a model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WrittenSummary {
    /// The text.
    pub text: String,
    /// The model that wrote the summary, and its usage. `None` if no model was called.
    pub by: Option<WrittenBy>,
}

impl From<String> for WrittenSummary {
    fn from(text: String) -> Self {
        Self { text, by: None }
    }
}

/// A failure to write a summary, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SummariserError(pub String);

/// Turns a request into text. A summariser has no access to the session.
#[async_trait]
pub trait Summariser: Send + Sync {
    /// Write the summary of one chunk.
    async fn write(&self, request: SummaryRequest) -> Result<WrittenSummary, SummariserError>;
}

/// The strategy `custom`: receives the archive itself and returns a summary.
#[async_trait]
pub trait Compactor: Send + Sync {
    /// Write the text that replaces the archived messages.
    async fn compact(&self, archive: &Archive<'_>) -> Result<String, SummariserError>;
}

/// A hook's decision about a planned compaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BeforeCompact {
    /// Compact as planned.
    #[default]
    GoOn,
    /// Do not compact.
    Cancel { reason: String },
    /// Use this summary instead of the strategy's.
    Supply { summary: String, details: Details },
}

/// Hooks around a compaction.
#[async_trait]
pub trait CompactHook: Send + Sync {
    /// Decide about a compaction before its summary is created.
    async fn before_compact(&self, archive: &Archive<'_>) -> BeforeCompact;
    /// Called after the compaction was written.
    async fn after_compact(&self, _compaction: &Compaction) {}
}
