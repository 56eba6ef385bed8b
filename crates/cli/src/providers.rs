//! Creates models and tools from configuration and environment, only for commands that run turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood::core::port::embedder::Embedder;
use sapwood::effects::model::{
    EnvironmentKeys, KeySource, ModelEmbedder, Models, ProviderKey, Settings as ModelSettings,
};
use sapwood::effects::sandbox::Launcher;
use sapwood::effects::secret::{Secret, Secrets};
use sapwood::effects::tool::host::{Host, Settings as ToolSettings};
use sapwood::engine::Backends;
use sapwood::engine::memory::{AtEnd, MemoryCare};

use crate::app::AppPaths;
use crate::failure::{Failure, Result};
use crate::keychain;

/// Directory of the sessions' scratch directories, in Sapwood's home.
const SCRATCH_DIR: &str = "scratch";
/// Suffixes of variables whose values are redacted from tool output.
const SECRET_ENDINGS: &[&str] = &["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "SAPWOOD_KEY"];

/// How memories are written and found, from the user's configuration file. No model is called yet.
pub fn memory_care(place: &AppPaths) -> Result<MemoryCare> {
    let Some(settings) = &place.config.memory else { return Ok(MemoryCare::default()) };
    let embedder = match &settings.embedding {
        Some(name) => {
            let embedder = ModelEmbedder::new(Arc::new(models(place, Arc::new(find_secrets()))?), name);
            Some(Arc::new(embedder) as Arc<dyn Embedder>)
        }
        None => None,
    };
    let at_end = if settings.learn == Some(false) { AtEnd::Leave } else { AtEnd::Learn };
    Ok(MemoryCare { model: settings.model.clone(), embedder, at_end })
}

fn models(place: &AppPaths, secrets: Arc<Secrets>) -> Result<Models> {
    let settings = ModelSettings { providers: place.config.providers.clone(), ..ModelSettings::default() };
    let settings = settings.with_variables(|name| std::env::var(name).ok());
    Models::new(settings, Arc::new(ModelKeys::new(secrets)))
        .map_err(|error| Failure::new("config.invalid", error.to_string()))
}

pub fn open(place: &AppPaths, default_model: String) -> Result<Backends> {
    let secrets = Arc::new(find_secrets());
    let models = models(place, Arc::clone(&secrets))?;
    let mut settings = ToolSettings::new(place.home.join(SCRATCH_DIR));
    settings.launcher = Launcher::this_binary();
    settings.secrets = secrets;
    Ok(Backends { model: Arc::new(models), tools: Arc::new(Host::new(settings)), default_model })
}

/// The secrets available as `secret:NAME`, and the keys that are only redacted.
pub fn find_secrets() -> Secrets {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let secrets = Secrets::from_variables(variables.clone()).with_lookup(Box::new(ask_keychain));
    let is_key = |name: &str| SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending));
    for (name, value) in variables.into_iter().filter(|(name, _)| is_key(name)) {
        secrets.guard(&name, Secret::new(value));
    }
    secrets
}

/// Look up a name in the keychain. A keychain that is locked, absent or not built in counts as empty: the caller
/// reports the missing key and where to store it.
fn ask_keychain(name: &str) -> Option<Secret> {
    keychain::find(name).ok().flatten().map(Secret::new)
}

/// Provider keys from the environment, then from the keychain. Each keychain entry is looked up once, because a
/// lookup may ask the user for consent. Keys are redacted from all output.
struct ModelKeys {
    found: Mutex<BTreeMap<String, Option<Secret>>>,
    secrets: Arc<Secrets>,
}

impl ModelKeys {
    fn new(secrets: Arc<Secrets>) -> Self {
        Self { found: Mutex::default(), secrets }
    }

    fn ask_once(&self, variable: &str) -> Option<Secret> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || {
            let secret = ask_keychain(variable);
            if let Some(secret) = &secret {
                self.secrets.guard(variable, secret.clone());
            }
            secret
        };
        found.entry(variable.to_owned()).or_insert_with(ask).clone()
    }
}

impl KeySource for ModelKeys {
    fn find_key(&self, variable: &str) -> Option<ProviderKey> {
        let kept = || self.ask_once(variable).map(|secret| ProviderKey::new(secret.expose().to_owned()));
        EnvironmentKeys.find_key(variable).or_else(kept)
    }
}
