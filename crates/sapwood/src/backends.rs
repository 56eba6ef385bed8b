//! Default backends: models with API keys from the environment, and tools confined to each session's scratch
//! directory.

use std::path::PathBuf;
use std::sync::Arc;

use sapwood_effects::model::{EnvironmentKeys, Models, Settings as ModelSettings};
use sapwood_effects::tool::host::{Host, Settings as ToolSettings};
use sapwood_engine::Backends;

use crate::{Error, Result};

/// The model used when the agent sets none. It needs no API key and no network.
pub const DEFAULT_MODEL: &str = "demo";

/// Models by `PROVIDER/NAME`, with keys from variables like `ANTHROPIC_API_KEY`; tools with scratch
/// directories below `base`.
pub fn default_backends(base: impl Into<PathBuf>) -> Result<Backends> {
    let settings = ModelSettings::default().with_variables(|name| std::env::var(name).ok());
    let models = Models::new(settings, Arc::new(EnvironmentKeys));
    let models =
        models.map_err(|error| Error::Invalid { what: "the model settings", why: error.to_string() })?;
    let tools = Host::new(ToolSettings::new(base));
    Ok(Backends { model: Arc::new(models), tools: Arc::new(tools), default_model: DEFAULT_MODEL.to_owned() })
}

/// The default location of scratch directories: one per user, accessible only to that user.
pub(crate) fn scratch_dir() -> PathBuf {
    let user = std::env::var("USER").or_else(|_| std::env::var("USERNAME")).unwrap_or_default();
    let plain: String = user.chars().filter(char::is_ascii_alphanumeric).collect();
    std::env::temp_dir().join(format!("sapwood-{plain}"))
}
