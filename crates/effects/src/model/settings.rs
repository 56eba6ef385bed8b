//! Provider settings: built-in providers, and custom ones with a base URL. Pure: variables are read through a function.
//! Settings take precedence over variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Url;
use serde::Deserialize;

use super::catalog_row::CatalogRow;
use super::ollama;

/// Default idle timeout of a provider's stream.
const IDLE_MS_DEFAULT: u64 = 120_000;
/// Default idle timeout of Ollama and custom providers, which may have to load the model first.
const IDLE_MS_LOCAL: u64 = 300_000;
/// Reserved names, not available for providers.
const RESERVED: &[&str] = &["demo", "scripted"];

/// Settings of all models. An unknown key is an error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Overrides for the built-in providers (`anthropic`, `openai`, `gemini`, `ollama`), and custom providers.
    pub providers: BTreeMap<String, ProviderSettings>,
    /// A catalog in the format of `data/models.toml`, as text. Its rows override the built-in ones.
    pub table: Option<String>,
    /// Rows for single models, by `PROVIDER/NAME`. Each value that is set overrides the value of the built-in row.
    pub models: BTreeMap<String, CatalogRow>,
    /// The directory in which `scripted/NAME` finds NAME.toml or NAME.json.
    pub scripts_dir: Option<PathBuf>,
    /// The demo model's pause between words.
    pub demo_pace_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderSettings {
    /// The provider's protocol. The default for a custom provider is `openai-compatible`.
    pub kind: Option<ProviderKind>,
    pub base_url: Option<String>,
    /// The environment variable or keychain entry that contains the provider's key.
    pub key_variable: Option<String>,
    /// The proxy to use. Proxy settings in the environment are ignored.
    pub proxy: Option<String>,
    pub idle_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    Anthropic,
    Openai,
    OpenaiCompatible,
    Gemini,
    Ollama,
}

impl ProviderKind {
    /// The built-in provider with this protocol.
    pub(super) fn built_in(self) -> &'static str {
        match self {
            ProviderKind::Anthropic => "anthropic",
            ProviderKind::Openai | ProviderKind::OpenaiCompatible => "openai",
            ProviderKind::Gemini => "gemini",
            ProviderKind::Ollama => "ollama",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("failed to parse the model catalog: {why}")]
    Catalog { why: String },
    #[error("provider {provider}: {why}")]
    Provider { provider: String, why: String },
}

impl SettingsError {
    /// Stable error code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            SettingsError::Catalog { .. } => "model.bad_table",
            SettingsError::Provider { .. } => "model.bad_provider",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyNeed {
    Required,
    Optional,
}

/// A resolved provider.
#[derive(Debug, Clone)]
pub(super) struct ProviderEndpoint {
    pub kind: ProviderKind,
    /// Without a trailing slash.
    pub base_url: String,
    pub key_variables: Vec<String>,
    pub key_need: KeyNeed,
    pub proxy: Option<String>,
    pub idle_ms: u64,
}

/// Name, protocol, base URL, variable for the base URL, variables for the key.
type BuiltIn = (&'static str, ProviderKind, &'static str, &'static str, &'static [&'static str]);

const BUILT_IN: &[BuiltIn] = &[
    (
        "anthropic",
        ProviderKind::Anthropic,
        "https://api.anthropic.com",
        "ANTHROPIC_BASE_URL",
        &["ANTHROPIC_API_KEY"],
    ),
    ("openai", ProviderKind::Openai, "https://api.openai.com/v1", "OPENAI_BASE_URL", &["OPENAI_API_KEY"]),
    (
        "gemini",
        ProviderKind::Gemini,
        "https://generativelanguage.googleapis.com",
        "GEMINI_BASE_URL",
        &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
    ),
    ("ollama", ProviderKind::Ollama, "http://127.0.0.1:11434", "OLLAMA_HOST", &["OLLAMA_API_KEY"]),
];

impl Settings {
    /// Fill in addresses from environment variables where the settings have none.
    pub fn with_variables(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        for (name, kind, _, address, _) in BUILT_IN {
            let Some(value) = variable(address).filter(|value| !value.trim().is_empty()) else { continue };
            let value = if *kind == ProviderKind::Ollama { ollama::base_url_of(&value) } else { value };
            self.providers.entry((*name).to_owned()).or_default().base_url.get_or_insert(value);
        }
        self
    }

    pub(super) fn endpoints(&self) -> Result<BTreeMap<String, ProviderEndpoint>, SettingsError> {
        let mut endpoints = BTreeMap::new();
        let none = ProviderSettings::default();
        for built_in in BUILT_IN {
            let given = self.providers.get(built_in.0).unwrap_or(&none);
            endpoints.insert(built_in.0.to_owned(), resolve_built_in(built_in, given)?);
        }
        for (name, given) in self.providers.iter().filter(|(name, _)| !is_built_in(name)) {
            endpoints.insert(name.clone(), resolve_custom(name, given)?);
        }
        Ok(endpoints)
    }
}

fn is_built_in(name: &str) -> bool {
    BUILT_IN.iter().any(|(known, ..)| *known == name)
}

fn resolve_built_in(built_in: &BuiltIn, given: &ProviderSettings) -> Result<ProviderEndpoint, SettingsError> {
    let (name, kind, address, _, keys) = *built_in;
    if given.kind.is_some_and(|other| other != kind) {
        return Err(invalid(
            name,
            "the kind of a built-in provider cannot be changed: use another name for yours",
        ));
    }
    let base_url = given.base_url.as_deref().unwrap_or(address);
    let is_local = kind == ProviderKind::Ollama;
    Ok(ProviderEndpoint {
        kind,
        base_url: check_url(name, kind, base_url)?,
        key_variables: given
            .key_variable
            .as_ref()
            .map_or_else(|| keys.iter().map(|key| (*key).to_owned()).collect(), |key| vec![key.clone()]),
        key_need: if is_local { KeyNeed::Optional } else { KeyNeed::Required },
        proxy: given.proxy.clone(),
        idle_ms: given.idle_ms.unwrap_or(if is_local { IDLE_MS_LOCAL } else { IDLE_MS_DEFAULT }),
    })
}

/// Resolve a custom provider. Its key is required if `key_variable` is set, and otherwise optional.
fn resolve_custom(name: &str, given: &ProviderSettings) -> Result<ProviderEndpoint, SettingsError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if RESERVED.contains(&name) || name.is_empty() || !name.chars().all(is_plain) {
        return Err(invalid(name, "invalid provider name"));
    }
    let kind = given.kind.unwrap_or(ProviderKind::OpenaiCompatible);
    let base_url = given.base_url.as_deref().ok_or_else(|| invalid(name, "base_url is missing"))?;
    let guess = format!("{}_API_KEY", name.to_ascii_uppercase().replace(['-', '.'], "_"));
    let is_named = given.key_variable.is_some();
    Ok(ProviderEndpoint {
        kind,
        base_url: check_url(name, kind, base_url)?,
        key_variables: vec![given.key_variable.clone().unwrap_or(guess)],
        key_need: if is_named { KeyNeed::Required } else { KeyNeed::Optional },
        proxy: given.proxy.clone(),
        idle_ms: given.idle_ms.unwrap_or(IDLE_MS_LOCAL),
    })
}

fn check_url(name: &str, kind: ProviderKind, text: &str) -> Result<String, SettingsError> {
    let url = Url::parse(text.trim()).map_err(|error| invalid(name, &format!("base_url: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid(name, "base_url must start with http:// or https:// and have a host"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid(name, "base_url cannot have a query or a fragment"));
    }
    let text = text.trim().trim_end_matches('/');
    // Base URLs with and without the version are both common.
    let version = match kind {
        ProviderKind::Anthropic => "/v1",
        ProviderKind::Gemini => "/v1beta",
        ProviderKind::Openai | ProviderKind::OpenaiCompatible | ProviderKind::Ollama => "",
    };
    Ok(text.strip_suffix(version).unwrap_or(text).to_owned())
}

fn invalid(provider: &str, why: &str) -> SettingsError {
    SettingsError::Provider { provider: provider.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn settings_override_variables_and_variables_override_the_built_in_address() {
        let variable = |name: &str| match name {
            "OPENAI_BASE_URL" => Some("http://gateway:1/v1/".to_owned()),
            "OLLAMA_HOST" => Some("box".to_owned()),
            "ANTHROPIC_BASE_URL" => Some("http://other".to_owned()),
            _ => None,
        };
        let given = settings("[providers.anthropic]\nbase_url = \"https://mine.example/v1\"");
        let endpoints = given.with_variables(variable).endpoints().unwrap();
        assert_eq!(endpoints["openai"].base_url, "http://gateway:1/v1");
        assert_eq!(endpoints["ollama"].base_url, "http://box:11434");
        assert_eq!(endpoints["anthropic"].base_url, "https://mine.example");
        assert_eq!(endpoints["gemini"].base_url, "https://generativelanguage.googleapis.com");
    }

    #[test]
    fn a_custom_provider_uses_chat_completions_and_requires_a_key_only_if_it_names_one() {
        let given = settings(
            "[providers.lab]\nbase_url = \"http://lab:8000/v1\"\n\
             [providers.my-gate]\nbase_url = \"https://g.example\"\nkind = \"anthropic\"\nkey_variable = \"GATE\"",
        );
        let endpoints = given.endpoints().unwrap();
        assert_eq!(endpoints["lab"].kind, ProviderKind::OpenaiCompatible);
        assert_eq!(endpoints["lab"].key_need, KeyNeed::Optional);
        assert_eq!(endpoints["lab"].key_variables, ["LAB_API_KEY"]);
        assert_eq!(endpoints["my-gate"].key_need, KeyNeed::Required);
    }

    #[test]
    fn rejects_invalid_settings_of_a_provider() {
        let cases = [
            "[providers.lab]",
            "[providers.lab]\nbase_url = \"lab:8000\"",
            "[providers.lab]\nbase_url = \"file:///etc\"",
            "[providers.lab]\nbase_url = \"http://x/?key=1\"",
            "[providers.demo]\nbase_url = \"http://x\"",
            "[providers.\"a/b\"]\nbase_url = \"http://x\"",
            "[providers.openai]\nkind = \"gemini\"",
        ];
        for case in cases {
            let error = settings(case).endpoints().unwrap_err();
            assert_eq!(error.code(), "model.bad_provider", "{case}");
        }
        assert!(toml::from_str::<Settings>("[providers.lab]\nbase = \"x\"").is_err());
    }
}
