//! One row of the model catalog: the window, the output limit, the prices, and how to request thinking.

use sapwood_core::agent::CONTEXT_TOKENS_MIN;
use sapwood_core::port::model::{ModelFacts, Price};
use serde::Deserialize;

/// Converts dollars per million tokens to billionths of a dollar per token.
const NANO_PER_DOLLAR_PER_MILLION: f64 = 1_000.0;

/// The properties of one model.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogRow {
    pub window: Option<u64>,
    pub output: Option<u64>,
    #[serde(default)]
    pub thinking: ThinkingStyle,
    pub price: Option<DollarPrice>,
}

/// How to request thinking from a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThinkingStyle {
    /// The model is not in the catalog: thinking is requested as the provider's newest models expect.
    #[default]
    Unknown,
    None,
    Budget,
    Adaptive,
    /// The model thinks unless the request disables thinking.
    AdaptiveByDefault,
    Effort,
    Level,
}

/// Prices in US dollars per million tokens, as providers publish them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DollarPrice {
    pub input: f64,
    pub output: f64,
    #[serde(default)]
    pub cache_read: f64,
    #[serde(default)]
    pub cache_write: f64,
}

impl DollarPrice {
    fn price(&self) -> Price {
        // The cast from float to integer saturates, so a negative price in a custom table becomes zero.
        let nano = |dollars: f64| (dollars * NANO_PER_DOLLAR_PER_MILLION).round() as u64;
        Price {
            input: nano(self.input),
            output: nano(self.output),
            cache_read: nano(self.cache_read),
            cache_write: nano(self.cache_write),
        }
    }
}

impl CatalogRow {
    /// Check the numbers of a configured row.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.window.is_some_and(|window| window < CONTEXT_TOKENS_MIN) {
            return Err("window is less than 1000 tokens");
        }
        if self.output == Some(0) {
            return Err("output is zero");
        }
        let prices = self.price.map(|price| [price.input, price.output, price.cache_read, price.cache_write]);
        let is_valid = |price: &f64| price.is_finite() && *price >= 0.0;
        match prices.is_none_or(|prices| prices.iter().all(is_valid)) {
            true => Ok(()),
            false => Err("a price is negative or not a number"),
        }
    }

    pub(super) fn overridden_by(self, given: &CatalogRow) -> Self {
        let thinking = if given.thinking == ThinkingStyle::Unknown { self.thinking } else { given.thinking };
        Self {
            window: given.window.or(self.window),
            output: given.output.or(self.output),
            thinking,
            price: given.price.or(self.price),
        }
    }

    pub fn facts(&self) -> ModelFacts {
        ModelFacts {
            window_tokens: self.window,
            output_tokens_max: self.output,
            price: self.price.as_ref().map(DollarPrice::price),
        }
    }
}
