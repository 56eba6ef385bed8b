//! Counting tokens. A tokenizer is a pure function of text; which one a model has is known outside.

use std::sync::Arc;

pub trait Tokenizer: Send + Sync {
    /// Such as `o200k`: counts are remembered under it.
    fn name(&self) -> &'static str;
    fn count(&self, text: &str) -> u64;
}

/// Knows the tokenizer of a model, or the best stand-in for it.
pub trait Tokenizers: Send + Sync {
    fn for_model(&self, model: Option<&str>) -> Arc<dyn Tokenizer>;
}
