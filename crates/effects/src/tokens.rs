//! The tokenizers of OpenAI's models, and an approximation for all others. Loading a tokenizer is slow, so
//! each tokenizer is loaded on first use and then shared.

use std::sync::Arc;

use sapwood_core::port::tokens::{Tokenizer, Tokenizers};
use sapwood_core::tokens::Estimate;

/// Prefixes of model names that use the encoding of GPT-4o and later.
const O200K: &[&str] =
    &["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-6", "chatgpt-4o", "o1", "o3", "o4", "gpt-oss"];
/// Prefixes of model names that use the previous encoding.
const CL100K: &[&str] = &["gpt-4", "gpt-3.5", "text-embedding-3", "text-embedding-ada"];

/// Selects a tokenizer by model. Anthropic, Google and most other providers publish no tokenizer.
#[derive(Debug, Clone, Copy, Default)]
pub struct KnownTokenizers;

impl Tokenizers for KnownTokenizers {
    /// `model` is `PROVIDER/NAME` or a bare name.
    fn for_model(&self, model: Option<&str>) -> Arc<dyn Tokenizer> {
        let model = model.unwrap_or_default();
        let name = model.rsplit('/').next().unwrap_or_default();
        let is_one_of = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
        if is_one_of(O200K) {
            Arc::new(Bpe { name: "o200k", tokenizer: bpe_openai::o200k_base() })
        } else if is_one_of(CL100K) {
            Arc::new(Bpe { name: "cl100k", tokenizer: bpe_openai::cl100k_base() })
        } else {
            Arc::new(Estimate)
        }
    }
}

struct Bpe {
    name: &'static str,
    tokenizer: &'static bpe_openai::Tokenizer,
}

impl Tokenizer for Bpe {
    fn name(&self) -> &'static str {
        self.name
    }
    fn count(&self, text: &str) -> u64 {
        self.tokenizer.count(text) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(model: &str) -> &'static str {
        KnownTokenizers.for_model(Some(model)).name()
    }

    #[test]
    fn selects_a_tokenizer_by_name_prefix() {
        assert_eq!(name("openai/gpt-4o-mini"), "o200k");
        assert_eq!(name("gpt-5.2"), "o200k");
        assert_eq!(name("openai/gpt-4-turbo"), "cl100k");
        assert_eq!(name("anthropic/claude-sonnet-4"), "bytes/4");
        assert_eq!(KnownTokenizers.for_model(None).name(), "bytes/4");
    }

    #[test]
    fn counts_tokens_like_the_model() {
        let tokenizer = KnownTokenizers.for_model(Some("gpt-4o"));
        assert_eq!(tokenizer.count("hello world"), 2);
        assert_eq!(tokenizer.count(""), 0);
    }
}
