//! Creates models and tools from configuration and environment, for the commands that need them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood::core::port::embedder::Embedder;
use sapwood::effects::model::{
    EnvironmentKeys, KeySource, ModelEmbedder, Models, ProviderKey, Settings as ModelSettings,
};
use sapwood::effects::sandbox::Launcher;
use sapwood::effects::sandbox::limits::Profile;
use sapwood::effects::secret::{Secret, Secrets};
use sapwood::effects::tool::host::{Host, Settings as ToolSettings};
use sapwood::engine::Backends;
use sapwood::engine::memory::{AtEnd, MemoryConfig};

use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::keychain;

/// Directory in Sapwood's home that contains the sessions' scratch directories.
const SCRATCH_DIR: &str = "scratch";
/// Suffixes of variables whose values are redacted from tool output.
const SECRET_SUFFIXES: &[&str] = &["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "SAPWOOD_KEY"];

/// Build the memory settings from the user's configuration file. Calls no model.
pub fn memory_care(paths: &AppPaths) -> Result<MemoryConfig> {
    let Some(settings) = &paths.config.memory else { return Ok(MemoryConfig::default()) };
    let embedder = match &settings.embedding {
        Some(name) => {
            let embedder = ModelEmbedder::new(Arc::new(models(paths, Arc::new(find_secrets()))?), name);
            Some(Arc::new(embedder) as Arc<dyn Embedder>)
        }
        None => None,
    };
    let at_end = if settings.learn == Some(false) { AtEnd::Leave } else { AtEnd::Learn };
    Ok(MemoryConfig { model: settings.model.clone(), embedder, at_end })
}

/// Create the models without tools, for commands that only show models.
pub fn open_models(paths: &AppPaths) -> Result<Models> {
    models(paths, Arc::new(find_secrets()))
}

fn models(paths: &AppPaths, secrets: Arc<Secrets>) -> Result<Models> {
    let (providers, models) = (paths.config.providers.clone(), paths.config.models.clone());
    let settings = ModelSettings { providers, models, ..ModelSettings::default() };
    let settings = settings.with_variables(|name| std::env::var(name).ok());
    Models::new(settings, Arc::new(ModelKeys::new(secrets)))
        .map_err(|error| Failure::new("config.invalid", error.to_string()))
}

pub fn open(paths: &AppPaths, default_model: String) -> Result<Backends> {
    let secrets = Arc::new(find_secrets());
    let models = models(paths, Arc::clone(&secrets))?;
    let mut settings = ToolSettings::new(paths.home.join(SCRATCH_DIR));
    let sandbox = paths.config.sandbox.clone().unwrap_or_default();
    settings.launcher = Launcher::this_binary();
    settings.limits = sandbox.limits(Profile::Command);
    settings.network = sandbox.command_network();
    settings.readable = sandbox.command.read.clone();
    settings.mcp_profile = sandbox.mcp_profile();
    settings.cgroups = sandbox.cgroups;
    settings.secrets = secrets;
    Ok(Backends { model: Arc::new(models), tools: Arc::new(Host::new(settings)), default_model })
}

/// Collect the secrets that settings can reference as `secret:NAME`. API keys from the environment are only redacted.
pub fn find_secrets() -> Secrets {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let secrets = Secrets::from_variables(variables.clone()).with_lookup(Box::new(find_in_keychain));
    let is_key = |name: &str| SECRET_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    for (name, value) in variables.into_iter().filter(|(name, _)| is_key(name)) {
        secrets.guard(&name, Secret::new(value));
    }
    secrets
}

/// Look up a name in the keychain. A keychain that is locked, absent or not built in counts as empty, and the caller
/// reports the missing key.
fn find_in_keychain(name: &str) -> Option<Secret> {
    keychain::find(name).ok().flatten().map(Secret::new)
}

/// Provider keys from the environment, then from the keychain. Each keychain entry is looked up once, because the
/// OS may ask the user for consent. Keys are redacted from all output.
struct ModelKeys {
    found: Mutex<BTreeMap<String, Option<Secret>>>,
    secrets: Arc<Secrets>,
}

impl ModelKeys {
    fn new(secrets: Arc<Secrets>) -> Self {
        Self { found: Mutex::default(), secrets }
    }

    fn find_once(&self, variable: &str) -> Option<Secret> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let look_up = || {
            let secret = find_in_keychain(variable);
            if let Some(secret) = &secret {
                self.secrets.guard(variable, secret.clone());
            }
            secret
        };
        found.entry(variable.to_owned()).or_insert_with(look_up).clone()
    }
}

impl KeySource for ModelKeys {
    fn find_key(&self, variable: &str) -> Option<ProviderKey> {
        let from_keychain =
            || self.find_once(variable).map(|secret| ProviderKey::new(secret.expose().to_owned()));
        EnvironmentKeys.find_key(variable).or_else(from_keychain)
    }
}
