//! Information about the models, for display: the list of models, one model in detail, and a check of its key and
//! endpoint. A check sends no conversation and costs nothing.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Response;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName};
use sapwood_core::port::model::{Model, ModelError, ModelFacts};
use tokio::time::timeout;

use super::error_map::ProviderError;
use super::key::ProviderKey;
use super::settings::KeyNeed;
use super::{Models, Provider, ProviderKind, Route, ThinkingStyle, anthropic};

/// Maximum duration of a check.
const CHECK_MS_MAX: u64 = 15_000;
/// Maximum size of a list of models.
const LIST_BYTES_MAX: usize = 8 << 20;
/// Maximum length of an error response that is shown, in characters.
const ERROR_CHARS_MAX: usize = 2_000;

/// Whether the key of a model's provider is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyState {
    /// The model needs no key.
    NotNeeded,
    /// The environment or the keychain has the key under this name.
    Found(String),
    /// The key is missing: it should be in this variable.
    Missing(String),
}

/// A model and its properties, for display.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelEntry {
    /// `PROVIDER/NAME`, or `demo`.
    pub name: String,
    /// The provider; `None` for a model inside this program.
    pub provider: Option<String>,
    /// The address that requests are sent to.
    pub base_url: Option<String>,
    pub key: KeyState,
    pub facts: ModelFacts,
    pub thinking: ThinkingStyle,
}

impl ModelEntry {
    /// Whether the model can be called now, as far as this is known without a network connection.
    pub fn is_available(&self) -> bool {
        !matches!(self.key, KeyState::Missing(_))
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The model is inside this program, so there is nothing to connect to.
    Local,
    /// The provider accepted the key and has the model.
    Listed,
    /// The provider accepted the key, but did not report which models it has.
    Answered,
}

impl Models {
    /// List the demo model and every model of the catalog whose provider is configured.
    pub fn list(&self) -> Vec<ModelEntry> {
        let of_provider = |(provider, _): (&String, &Provider)| -> Vec<String> {
            self.catalog.names(provider).map(|model| format!("{provider}/{model}")).collect()
        };
        let names = self.providers.iter().flat_map(of_provider);
        let names = std::iter::once("demo".to_owned()).chain(names);
        names.filter_map(|name| self.describe(&name).ok()).collect()
    }

    /// Describe one model. The name may have any spelling that [`Model::resolve`] accepts.
    pub fn describe(&self, model: &str) -> Result<ModelEntry, ModelError> {
        let name = self.resolve(model)?;
        let facts = self.facts(&name);
        let entry = match self.route(&name)? {
            Route::Demo | Route::Scripted(_) => ModelEntry {
                name: name.clone(),
                provider: None,
                base_url: None,
                key: KeyState::NotNeeded,
                facts,
                thinking: ThinkingStyle::None,
            },
            Route::Provider { name: provider_name, provider, model } => {
                let built_in = provider.endpoint.kind.built_in();
                ModelEntry {
                    name: name.clone(),
                    provider: Some(provider_name.to_owned()),
                    base_url: Some(provider.endpoint.base_url.clone()),
                    key: self.key_state(provider),
                    facts,
                    thinking: self.catalog.row_or_inherited(provider_name, built_in, model).thinking,
                }
            }
        };
        Ok(entry)
    }

    fn key_state(&self, provider: &Provider) -> KeyState {
        let variables = &provider.endpoint.key_variables;
        let found = variables.iter().find(|variable| self.keys.find_key(variable).is_some());
        match (found, provider.endpoint.key_need) {
            (Some(variable), _) => KeyState::Found(variable.clone()),
            (None, KeyNeed::Optional) => KeyState::NotNeeded,
            (None, KeyNeed::Required) => KeyState::Missing(variables.first().cloned().unwrap_or_default()),
        }
    }

    /// Ask the model's provider whether it accepts the key and has the model.
    pub async fn check_endpoint(&self, model: &str) -> Result<Checked, ModelError> {
        let name = self.resolve(model)?;
        match self.route(&name)? {
            Route::Demo | Route::Scripted(_) => Ok(Checked::Local),
            Route::Provider { provider, model, .. } => self.ask_provider(provider, &name, model).await,
        }
    }

    async fn ask_provider(
        &self,
        provider: &Provider,
        name: &str,
        model: &str,
    ) -> Result<Checked, ModelError> {
        let key = self.find_key(provider, name)?;
        let endpoint = &provider.endpoint;
        let base_url = &endpoint.base_url;
        let header = |header: HeaderName, prefix: &str| {
            key.as_ref().and_then(|key| key.header(prefix)).map(|value| (header, value))
        };
        let (url, headers): (String, HeaderMap) = match endpoint.kind {
            ProviderKind::Anthropic => {
                let key = header(HeaderName::from_static("x-api-key"), "");
                (format!("{base_url}/v1/models/{model}"), anthropic::version_header().chain(key).collect())
            }
            ProviderKind::Gemini => {
                let key = header(HeaderName::from_static("x-goog-api-key"), "");
                (format!("{base_url}/v1beta/models/{model}"), key.into_iter().collect())
            }
            ProviderKind::Openai | ProviderKind::OpenaiCompatible => {
                (format!("{base_url}/models"), header(AUTHORIZATION, "Bearer ").into_iter().collect())
            }
            ProviderKind::Ollama => {
                (format!("{base_url}/api/tags"), header(AUTHORIZATION, "Bearer ").into_iter().collect())
            }
        };
        let body = self.get(provider, name, &url, headers, key.as_ref()).await?;
        Ok(match endpoint.kind {
            ProviderKind::Anthropic | ProviderKind::Gemini => Checked::Listed,
            ProviderKind::Openai | ProviderKind::OpenaiCompatible | ProviderKind::Ollama => {
                check_list(&body, name, model)?
            }
        })
    }

    /// Send a GET request. Returns the body of a successful response.
    async fn get(
        &self,
        provider: &Provider,
        name: &str,
        url: &str,
        headers: HeaderMap,
        key: Option<&ProviderKey>,
    ) -> Result<serde_json::Value, ModelError> {
        let unreachable = |error: reqwest::Error| ModelError::Unreachable {
            model: name.to_owned(),
            why: error.without_url().to_string(),
        };
        let exchange = async {
            let response = provider.client(name)?.get(url).headers(headers).send().await;
            let response = response.map_err(unreachable)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = read_body(response).await.map_err(unreachable)?;
            if status.is_success() {
                return Ok(serde_json::from_slice(&body).unwrap_or_default());
            }
            let text: String = String::from_utf8_lossy(&body).chars().take(ERROR_CHARS_MAX).collect();
            let text = key.map_or(text.clone(), |key| key.scrub(&text));
            Err(ProviderError::from_response(status.as_u16(), &headers, &text, 0).into_error(name))
        };
        let silent = ModelError::Silent { model: name.to_owned(), waited_ms: CHECK_MS_MAX };
        timeout(Duration::from_millis(CHECK_MS_MAX), exchange).await.unwrap_or(Err(silent))
    }
}

/// Read a body up to [`LIST_BYTES_MAX`]. The rest of a longer body is not read.
async fn read_body(response: Response) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await.transpose()? {
        body.extend_from_slice(&chunk);
        if body.len() > LIST_BYTES_MAX {
            break;
        }
    }
    Ok(body)
}

/// Look for a model in the list of an OpenAI-compatible server or of Ollama.
fn check_list(body: &serde_json::Value, name: &str, model: &str) -> Result<Checked, ModelError> {
    let items = body["data"].as_array().or_else(|| body["models"].as_array());
    let Some(items) = items.filter(|items| !items.is_empty()) else { return Ok(Checked::Answered) };
    let is_model = |item: &serde_json::Value| {
        [&item["id"], &item["name"], &item["model"]]
            .iter()
            .filter_map(|name| name.as_str())
            .any(|listed| listed == model || listed.strip_suffix(":latest") == Some(model))
    };
    if items.iter().any(is_model) {
        return Ok(Checked::Listed);
    }
    let why = "the provider accepts the key, but does not list this model".to_owned();
    Err(ModelError::Unknown { model: name.to_owned(), why })
}
