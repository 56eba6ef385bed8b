//! The embedding port: models that turn texts into vectors, so that texts with similar meaning have similar vectors.

use async_trait::async_trait;

/// Maximum number of texts per call.
pub const EMBED_TEXTS_MAX: usize = 64;

/// A failure to compute an embedding, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbedderError(pub String);

/// Computes the embeddings of texts, so that memories are found by meaning.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// Compute one embedding per text, in order. All embeddings have the same length.
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedderError>;
    /// The model's name. Embeddings of different models cannot be compared.
    fn model(&self) -> &str;
}
