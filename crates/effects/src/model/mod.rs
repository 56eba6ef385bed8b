//! Model adapters that implement `core/src/port/model.rs`. [`Models`] resolves a name to an adapter, a key and an
//! address, and calls the model. The engine projects durable messages to a request. Each adapter writes the request in
//! its provider's format ([`conversation`] has the shared parts) and reads the stream that the provider returns
//! ([`wire`]).
//!
//! `docs/adr/0009-own-model-adapters.md` explains why Sapwood has its own adapters.

mod anthropic;
mod catalog;
mod catalog_row;
mod conversation;
pub mod demo;
mod embed;
mod error_map;
mod gemini;
mod key;
mod listing;
mod model_name;
mod ollama;
mod openai;
mod own;
pub mod scripted;
mod settings;
pub mod sse;
mod wire;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use reqwest::{Client, Url};
use sapwood_core::port::model::{Model, ModelError, ModelFacts, ReplyStream, Request};

pub use catalog_row::{CatalogRow, DollarPrice, ThinkingStyle};
pub use embed::ModelEmbedder;
pub use key::{EnvironmentKeys, KeySource, ProviderKey};
pub use listing::{Checked, KeyState, ModelEntry};
pub use own::{ModelFn, OwnModels, model_fn};
pub use settings::{ProviderKind, ProviderSettings, Settings, SettingsError};
pub use wire::ANSWER_BYTES_MAX;

use crate::egress::provider::provider_client;
use catalog::Catalog;
use demo::Demo;
use model_name::{is_portable, plain_name};
use scripted::Scripted;
use settings::{KeyNeed, ProviderEndpoint};
use wire::{Decode, Wire};

/// Every model that can be called by name: `PROVIDER/NAME`, `demo`, `scripted/NAME` or `scripted:FILE`.
pub struct Models {
    providers: BTreeMap<String, Provider>,
    catalog: Catalog,
    keys: Arc<dyn KeySource>,
    demo: Demo,
    scripts_dir: Option<PathBuf>,
    /// Cassettes by model name. Each keeps its call counter for the lifetime of the process.
    cassettes: Mutex<BTreeMap<String, Arc<Scripted>>>,
}

struct Provider {
    endpoint: ProviderEndpoint,
    /// Created on first use, because models that need no network must work without one.
    client: OnceLock<Client>,
}

enum Route<'a> {
    Demo,
    Scripted(Arc<Scripted>),
    Provider { name: &'a str, provider: &'a Provider, model: &'a str },
}

impl Models {
    /// Create the models from settings. Reads no files and opens no connections until a model is used.
    pub fn new(settings: Settings, keys: Arc<dyn KeySource>) -> Result<Self, SettingsError> {
        let catalog = Catalog::load(settings.table.as_deref())?;
        let demo = Demo::new(settings.demo_pace_ms);
        let scripts_dir = settings.scripts_dir.clone();
        let endpoints = settings.endpoints()?;
        let catalog = catalog.with_models(&settings.models, |provider| endpoints.contains_key(provider))?;
        let providers = endpoints
            .into_iter()
            .map(|(name, endpoint)| (name, Provider { endpoint, client: OnceLock::new() }));
        Ok(Self {
            providers: providers.collect(),
            catalog,
            keys,
            demo,
            scripts_dir,
            cassettes: Mutex::default(),
        })
    }

    fn route<'a>(&'a self, model: &'a str) -> Result<Route<'a>, ModelError> {
        if model == "demo" || model.starts_with("demo/") {
            return Ok(Route::Demo);
        }
        if let Some(path) = model.strip_prefix("scripted:") {
            return self.cassette(model, vec![PathBuf::from(path)]).map(Route::Scripted);
        }
        let (name, rest) = model.split_once('/').ok_or_else(|| self.unknown(model))?;
        if name == "scripted" {
            return self.named_cassette(model, rest).map(Route::Scripted);
        }
        let provider = self.providers.get(name).filter(|_| !rest.is_empty());
        let provider = provider.ok_or_else(|| self.unknown(model))?;
        Ok(Route::Provider { name, provider, model: rest })
    }

    fn unknown(&self, model: &str) -> ModelError {
        let names: Vec<&str> = self.providers.keys().map(String::as_str).collect();
        let why = format!(
            "use PROVIDER/NAME with one of the providers {}, or demo, which needs no key",
            names.join(", ")
        );
        ModelError::Unknown { model: model.to_owned(), why }
    }

    fn named_cassette(&self, model: &str, name: &str) -> Result<Arc<Scripted>, ModelError> {
        let is_plain = !name.is_empty() && !name.contains(['/', '\\']) && !name.starts_with('.');
        let Some(dir) = self.scripts_dir.as_ref().filter(|_| is_plain) else {
            let why = "no cassette directory is set; use scripted:FILE to name a file".to_owned();
            return Err(ModelError::Unknown { model: model.to_owned(), why });
        };
        self.cassette(model, vec![dir.join(format!("{name}.toml")), dir.join(format!("{name}.json"))])
    }

    fn cassette(&self, model: &str, paths: Vec<PathBuf>) -> Result<Arc<Scripted>, ModelError> {
        let mut cassettes = self.cassettes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cassettes.get(model) {
            return Ok(known.clone());
        }
        let path = paths.iter().find(|path| path.is_file()).unwrap_or(&paths[0]);
        let read = Scripted::read(path)
            .map_err(|error| ModelError::Unknown { model: model.to_owned(), why: error.to_string() })?;
        let scripted = Arc::new(read);
        cassettes.insert(model.to_owned(), scripted.clone());
        Ok(scripted)
    }

    /// List the models of all local servers. Skips servers that are not running.
    pub async fn local_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (name, provider) in &self.providers {
            if provider.endpoint.kind == ProviderKind::Ollama
                && let Ok(client) = provider.client(name)
            {
                let found = ollama::list_names(&client, &provider.endpoint.base_url).await;
                names.extend(found.into_iter().map(|model| format!("{name}/{model}")));
            }
        }
        names
    }

    async fn call_provider(
        &self,
        name: &str,
        provider: &Provider,
        model: &str,
        request: &Request,
    ) -> Result<ReplyStream, ModelError> {
        let key = self.find_key(provider, &request.model)?;
        let endpoint = &provider.endpoint;
        let row = self.catalog.row_or_inherited(name, endpoint.kind.built_in(), model);
        let (base_url, key_ref) = (endpoint.base_url.as_str(), key.as_ref());
        let (wire_request, decoder): (_, Box<dyn Decode>) = match endpoint.kind {
            ProviderKind::Anthropic => (
                anthropic::build_request(base_url, model, request, &row, key_ref),
                Box::new(anthropic::Decoder::default()),
            ),
            ProviderKind::Openai | ProviderKind::OpenaiCompatible => {
                let dialect = match endpoint.kind {
                    ProviderKind::Openai => openai::Dialect::Openai,
                    _ => openai::Dialect::Compatible,
                };
                let wire_request = openai::build_request(base_url, dialect, model, request, &row, key_ref);
                (wire_request, Box::new(openai::Decoder::default()))
            }
            ProviderKind::Gemini => (
                gemini::build_request(base_url, model, request, &row, key_ref),
                Box::new(gemini::Decoder::default()),
            ),
            ProviderKind::Ollama => (
                ollama::build_request(base_url, model, request, &row, key_ref),
                Box::new(ollama::Decoder::default()),
            ),
        };
        let client = provider.client(&request.model)?;
        let wire = Wire { client, model: request.model.clone(), key, idle_ms: endpoint.idle_ms };
        wire.open(wire_request, decoder).await
    }

    fn find_key(&self, provider: &Provider, model: &str) -> Result<Option<ProviderKey>, ModelError> {
        let endpoint = &provider.endpoint;
        let found = endpoint.key_variables.iter().find_map(|variable| self.keys.find_key(variable));
        let found = found.filter(|key| !key.is_empty());
        if found.as_ref().is_some_and(|key| key.header("").is_none()) {
            let why = "it has characters that are not allowed in an HTTP header".to_owned();
            return Err(ModelError::KeyRefused { model: model.to_owned(), status: 0, why });
        }
        match (found, endpoint.key_need) {
            (None, KeyNeed::Required) => {
                let variable = endpoint.key_variables.first().cloned().unwrap_or_default();
                Err(ModelError::NoKey { model: model.to_owned(), variable })
            }
            (found, _) => Ok(found),
        }
    }

    fn has_key(&self, endpoint: &ProviderEndpoint) -> bool {
        endpoint.key_need == KeyNeed::Optional
            || endpoint.key_variables.iter().any(|variable| self.keys.find_key(variable).is_some())
    }
}

impl Provider {
    fn client(&self, model: &str) -> Result<Client, ModelError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let unreachable = |why: String| ModelError::Unreachable { model: model.to_owned(), why };
        let url = Url::parse(&self.endpoint.base_url).map_err(|error| unreachable(error.to_string()))?;
        let client = provider_client(&url, self.endpoint.proxy.as_deref())
            .map_err(|error| unreachable(format!("failed to create an HTTP client: {error}")))?;
        Ok(self.client.get_or_init(|| client).clone())
    }
}

#[async_trait]
impl Model for Models {
    async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
        let name = self.resolve(&request.model)?;
        match self.route(&name)? {
            Route::Demo => self.demo.call(request, self.facts("demo").window_tokens),
            Route::Scripted(scripted) => scripted.call(request),
            Route::Provider { name, provider, model } => {
                self.call_provider(name, provider, model, request).await
            }
        }
    }

    fn facts(&self, model: &str) -> ModelFacts {
        let Ok(name) = self.resolve(model) else { return ModelFacts::default() };
        match self.route(&name) {
            Ok(Route::Demo) => self.catalog.row("demo", "demo").facts(),
            Ok(Route::Scripted(scripted)) => scripted.facts(),
            Ok(Route::Provider { name, provider, model }) => {
                self.catalog.row_or_inherited(name, provider.endpoint.kind.built_in(), model).facts()
            }
            Err(_) => ModelFacts::default(),
        }
    }

    fn resolve(&self, model: &str) -> Result<String, ModelError> {
        if is_inside(model) {
            return Ok(model.to_owned());
        }
        let plain = plain_name(model);
        if let Some((provider, name)) = model.split_once('/')
            && self.providers.contains_key(provider)
            && !name.is_empty()
        {
            // A provider's own spelling is used as it is, also for a model that the catalog does not have yet.
            let is_foreign = !self.catalog.has(provider, name) && self.catalog.has(provider, &plain);
            return Ok(if is_foreign { format!("{provider}/{plain}") } else { model.to_owned() });
        }
        if !is_portable(model) {
            return Err(self.unknown(model));
        }
        let having = || self.providers.iter().filter(|(name, _)| self.catalog.has(name, &plain));
        let callable = having().find(|(_, provider)| self.has_key(&provider.endpoint));
        let found = callable.or_else(|| having().next());
        found.map(|(provider, _)| format!("{provider}/{plain}")).ok_or_else(|| self.unknown(model))
    }

    fn check(&self, model: &str) -> Result<(), ModelError> {
        match self.route(model)? {
            Route::Demo | Route::Scripted(_) => Ok(()),
            Route::Provider { provider, .. } => self.find_key(provider, model).map(drop),
        }
    }

    fn is_file_backed(&self, model: &str) -> bool {
        scripted::is_scripted(model)
    }

    fn names(&self) -> Vec<String> {
        let mut names = vec!["demo".to_owned()];
        for (name, _) in self.providers.iter().filter(|(_, provider)| self.has_key(&provider.endpoint)) {
            names.extend(self.catalog.names(name).map(|model| format!("{name}/{model}")));
        }
        names
    }
}

/// Whether the name refers to a model inside this program: the demo model, or a scripted one.
fn is_inside(model: &str) -> bool {
    model == "demo" || model.starts_with("demo/") || scripted::is_scripted(model)
}

/// Create a random call id for providers that send none. Unique within a session.
fn fresh_call_id() -> String {
    format!("call_{:016x}", RandomState::new().build_hasher().finish())
}
