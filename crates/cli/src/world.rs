//! The models and tools that turns are run with, from configuration and environment. Made only for commands that run turns.

use std::sync::Arc;

use sapwood::effects::model::{EnvironmentKeys, Models, Settings as ModelSettings};
use sapwood::effects::sandbox::Launcher;
use sapwood::effects::secret::{Secret, Secrets};
use sapwood::effects::tool::host::{Host, Settings as ToolSettings};
use sapwood::engine::World;

use crate::failure::{Failure, Result};
use crate::wiring::Place;

/// Where sessions have their scratch directories, in Sapwood's home.
const SCRATCH_DIR: &str = "scratch";
/// Variables whose values must not be seen in what a tool brings back.
const SECRET_ENDINGS: &[&str] = &["_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "SAPWOOD_KEY"];

pub fn open(place: &Place, default_model: String) -> Result<World> {
    let settings = ModelSettings { providers: place.config.providers.clone(), ..ModelSettings::default() };
    let settings = settings.with_variables(|name| std::env::var(name).ok());
    let models = Models::new(settings, Arc::new(EnvironmentKeys))
        .map_err(|error| Failure::new("config.invalid", error.to_string()))?;
    let mut settings = ToolSettings::new(place.home.join(SCRATCH_DIR));
    settings.launcher = Launcher::this_binary();
    settings.secrets = Arc::new(find_secrets());
    Ok(World { model: Arc::new(models), tools: Arc::new(Host::new(settings)), default_model })
}

/// What may be asked for as `secret:NAME`, and the keys that nobody may see.
pub fn find_secrets() -> Secrets {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let secrets = Secrets::from_variables(variables.clone());
    let is_key = |name: &str| SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending));
    for (name, value) in variables.into_iter().filter(|(name, _)| is_key(name)) {
        secrets.guard(&name, Secret::new(value));
    }
    secrets
}
