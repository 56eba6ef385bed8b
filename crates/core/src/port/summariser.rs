//! Who writes a summary, and who may have a say in it. A model is one summariser; an extension may be another.

use async_trait::async_trait;

use crate::compact::Archive;
use crate::entry::{Compaction, Details, WrittenBy};

/// What a summariser is asked, once per piece of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// How to write.
    pub system: String,
    /// What to write about.
    pub text: String,
}

/// What a summariser wrote, and what that took if a model did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    pub text: String,
    pub by: Option<WrittenBy>,
}

impl From<String> for Written {
    fn from(text: String) -> Self {
        Self { text, by: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SummariserError(pub String);

/// Turns a request into text. It sees what it is given and nothing else.
#[async_trait]
pub trait Summariser: Send + Sync {
    async fn write(&self, request: Request) -> Result<Written, SummariserError>;
}

/// The strategy `custom`: gets the archive itself, and answers with a summary.
#[async_trait]
pub trait Compactor: Send + Sync {
    async fn compact(&self, archive: &Archive<'_>) -> Result<String, SummariserError>;
}

/// What becomes of a compaction that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BeforeCompact {
    #[default]
    GoOn,
    Cancel {
        reason: String,
    },
    /// Takes the place of what the strategy would have written.
    Supply {
        summary: String,
        details: Details,
    },
}

/// The seam for hooks around a compaction.
#[async_trait]
pub trait CompactHook: Send + Sync {
    async fn before_compact(&self, archive: &Archive<'_>) -> BeforeCompact;
    /// Told of the compaction that was written.
    async fn after_compact(&self, _compaction: &Compaction) {}
}
