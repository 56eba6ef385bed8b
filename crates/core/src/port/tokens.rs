//! The tokenizer port. A tokenizer is a pure function of text. The mapping from models to tokenizers is outside core.

use std::sync::Arc;

pub trait Tokenizer: Send + Sync {
    /// The name, such as `o200k`. It is part of the cache key of token counts.
    fn name(&self) -> &'static str;
    fn count(&self, text: &str) -> u64;
}

/// Finds the tokenizer of a model, or the closest alternative.
pub trait Tokenizers: Send + Sync {
    fn for_model(&self, model: Option<&str>) -> Arc<dyn Tokenizer>;
}
