//! The model catalog: context windows, prices, and how to request thinking. The rows are data (`data/models.toml`).
//! The caller may supply a table in the same format, whose rows take precedence.

use std::collections::BTreeMap;

use super::SettingsError;
use super::catalog_row::CatalogRow;

const BUILT_IN_ROWS: &str = include_str!("../../data/models.toml");
/// Minimum length of an edition suffix, so that `claude-opus-4` does not match `claude-opus-4-5`.
const EDITION_CHARS_MIN: usize = 3;

type CatalogRows = BTreeMap<String, CatalogRow>;

/// Catalog rows by provider and model name.
#[derive(Debug, Clone)]
pub struct Catalog(BTreeMap<String, CatalogRows>);

impl Catalog {
    /// Load the built-in rows and override them with those in `given`.
    pub fn load(given: Option<&str>) -> Result<Self, SettingsError> {
        let mut table = parse(BUILT_IN_ROWS)?;
        for (provider, rows) in given.map(parse).transpose()?.unwrap_or_default() {
            table.entry(provider).or_default().extend(rows);
        }
        Ok(Self(table))
    }

    /// Find a row by exact name, else by name without its edition, else by the longest matching pattern.
    pub fn row(&self, provider: &str, name: &str) -> CatalogRow {
        let Some(rows) = self.0.get(provider) else { return CatalogRow::default() };
        let edition_of = |(known, _): &(&String, &CatalogRow)| is_edition(name, known);
        let found = rows.get(name).or_else(|| rows.iter().find(edition_of).map(|(_, row)| row));
        found.or_else(|| find_by_pattern(rows, name)).cloned().unwrap_or_default()
    }

    /// Find the provider's row, else the row of `built_in`, the built-in provider with the same protocol. An inherited
    /// row has no price, because gateways set different prices.
    pub fn row_or_inherited(&self, provider: &str, built_in: &str, name: &str) -> CatalogRow {
        let own = self.row(provider, name);
        if own != CatalogRow::default() || provider == built_in {
            return own;
        }
        CatalogRow { price: None, ..self.row(built_in, name.rsplit('/').next().unwrap_or(name)) }
    }

    /// Add rows for single models, by `PROVIDER/NAME`. Each value that is set overrides the value of the row so far.
    pub fn with_models(
        mut self,
        models: &BTreeMap<String, CatalogRow>,
        is_provider: impl Fn(&str) -> bool,
    ) -> Result<Self, SettingsError> {
        for (name, given) in models {
            let invalid = |why: &str| SettingsError::Catalog { why: format!("models.{name:?}: {why}") };
            let (provider, model) = name.split_once('/').unwrap_or((name, ""));
            if model.is_empty() || model.starts_with('*') {
                return Err(invalid("write the name as PROVIDER/NAME"));
            }
            if !is_provider(provider) {
                return Err(invalid(&format!(
                    "there is no provider {provider:?}: add [providers.{provider}]"
                )));
            }
            given.check().map_err(|why| invalid(why))?;
            let row = self.row(provider, model).overridden_by(given);
            self.0.entry(provider.to_owned()).or_default().insert(model.to_owned(), row);
        }
        Ok(self)
    }

    /// Whether the provider has a row for this model, by exact name or as an edition. Patterns do not count.
    pub fn has(&self, provider: &str, name: &str) -> bool {
        let Some(rows) = self.0.get(provider) else { return false };
        rows.keys().any(|known| !known.starts_with('*') && (known == name || is_edition(name, known)))
    }

    /// List the names of a provider's models, without patterns.
    pub fn names(&self, provider: &str) -> impl Iterator<Item = &str> {
        let names = self.0.get(provider).into_iter().flat_map(BTreeMap::keys);
        names.map(String::as_str).filter(|name| !name.starts_with('*'))
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, CatalogRows>, SettingsError> {
    toml::from_str(text).map_err(|error| SettingsError::Catalog { why: error.to_string() })
}

fn is_edition(name: &str, known: &str) -> bool {
    let Some(rest) = name.strip_prefix(known).and_then(|rest| rest.strip_prefix('-')) else { return false };
    let is_number = rest.chars().all(|letter| letter.is_ascii_digit() || letter == '-');
    let is_preview = rest.strip_prefix("preview").is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|date| date.len() >= EDITION_CHARS_MIN)
    });
    rest == "latest" || is_preview || (is_number && rest.len() >= EDITION_CHARS_MIN)
}

fn find_by_pattern<'a>(rows: &'a CatalogRows, name: &str) -> Option<&'a CatalogRow> {
    let matching =
        rows.iter().filter(|(known, _)| known.strip_prefix('*').is_some_and(|end| name.ends_with(end)));
    matching.max_by_key(|(known, _)| known.len()).map(|(_, row)| row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_core::port::model::{ModelFacts, Price};

    fn facts(provider: &str, name: &str) -> ModelFacts {
        Catalog::load(None).unwrap().row(provider, name).facts()
    }

    #[test]
    fn converts_a_price_per_million_to_billionths_per_token() {
        let price = facts("anthropic", "claude-sonnet-4-5").price.unwrap();
        let expected = Price { input: 3_000, output: 15_000, cache_read: 300, cache_write: 3_750 };
        assert_eq!(price, expected);
        assert_eq!(facts("openai", "gpt-5-nano").price.unwrap().cache_read, 5);
    }

    #[test]
    fn an_edition_uses_its_models_row_and_a_sibling_does_not() {
        let base = facts("anthropic", "claude-opus-4-5");
        assert_eq!(facts("anthropic", "claude-opus-4-5-20251101"), base);
        assert_eq!(facts("openai", "gpt-5-2025-08-07"), facts("openai", "gpt-5"));
        assert_eq!(facts("anthropic", "claude-opus-4-5-9"), ModelFacts::default());
        assert_eq!(facts("openai", "gpt-5-giant"), ModelFacts::default());
    }

    #[test]
    fn a_local_model_is_free_and_an_unknown_model_has_no_price() {
        assert_eq!(facts("ollama", "qwen3:8b").price, Some(Price::default()));
        assert_eq!(facts("ollama", "gpt-oss:120b-cloud").price, None);
        assert_eq!(facts("somewhere", "x").price, None);
    }

    #[test]
    fn a_gateway_inherits_the_window_but_not_the_price() {
        let table = Catalog::load(Some("[gate]\n\"big\" = { window = 5 }")).unwrap();
        let row = table.row_or_inherited("gate", "openai", "openai/gpt-5");
        assert_eq!((row.window, row.price), (Some(272_000), None));
        assert_eq!(table.row_or_inherited("gate", "openai", "big").window, Some(5));
        assert!(table.row_or_inherited("openai", "openai", "gpt-5").price.is_some());
    }

    #[test]
    fn a_configured_model_overrides_value_by_value_and_is_checked() {
        let with = |text: &str| {
            let models: BTreeMap<String, CatalogRow> = toml::from_str(text).unwrap();
            Catalog::load(None).unwrap().with_models(&models, |provider| provider != "nowhere")
        };
        let table = with(
            "[\"openai/gpt-5\"]\nwindow = 9000\n[\"lab/llama\"]\nwindow = 8000\noutput = 500\n\
            price = { input = 1, output = 2.5 }",
        );
        let table = table.unwrap();
        let known = table.row("openai", "gpt-5");
        assert_eq!((known.window, known.output), (Some(9_000), Some(128_000)));
        assert_eq!(known.price, Catalog::load(None).unwrap().row("openai", "gpt-5").price);
        let own = table.row("lab", "llama-20260101").facts();
        assert_eq!((own.window_tokens, own.price.map(|price| price.output)), (Some(8_000), Some(2_500)));
        for wrong in [
            "[\"llama\"]\nwindow = 8000",
            "[\"nowhere/llama\"]\nwindow = 8000",
            "[\"openai/\"]\nwindow = 8000",
            "[\"openai/x\"]\nwindow = 8",
            "[\"openai/x\"]\noutput = 0",
            "[\"openai/x\"]\nprice = { input = -1, output = 1 }",
        ] {
            assert_eq!(with(wrong).unwrap_err().code(), "model.bad_table", "{wrong}");
        }
    }

    #[test]
    fn a_custom_table_overrides_row_by_row() {
        let own = "[openai]\n\"gpt-5\" = { window = 1000 }\n[lab]\n\"*\" = { window = 5, price = { input = 0.5, output = 1.0 } }";
        let table = Catalog::load(Some(own)).unwrap();
        assert_eq!(table.row("openai", "gpt-5").facts().window_tokens, Some(1000));
        assert_eq!(table.row("openai", "gpt-5").facts().price, None);
        assert!(table.row("openai", "gpt-5-mini").facts().price.is_some());
        assert_eq!(table.row("lab", "anything").facts().price.unwrap().input, 500);
        assert!(Catalog::load(Some("[openai]\n\"x\" = { windows = 1 }")).is_err());
    }
}
