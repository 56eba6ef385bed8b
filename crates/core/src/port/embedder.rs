//! The seam to models that turn texts into directions, so that texts which mean much the same point much the same way.

use async_trait::async_trait;

/// Most texts in one call.
pub const EMBED_TEXTS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbedderError(pub String);

#[async_trait]
pub trait Embedder: Send + Sync {
    /// One direction for each text, in order; all of one length.
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedderError>;
    /// Directions of different models cannot be compared.
    fn model(&self) -> &str;
}
