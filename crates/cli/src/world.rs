//! The models and tools that turns are run with, from options, environment and configuration. Made only for commands that
//! run turns.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood::core::content::ToolCall;
use sapwood::core::port::tool::{Grant, ToolError, ToolHost, ToolOutput, ToolSpec, Toolbox};
use sapwood::effects::model::{EnvironmentKeys, Models, Settings};
use sapwood::engine::World;

use crate::failure::{Failure, Result};
use crate::wiring::Place;

pub fn open(place: &Place, default_model: String) -> Result<World> {
    let settings = Settings { providers: place.config.providers.clone(), ..Settings::default() };
    let settings = settings.with_variables(|name| std::env::var(name).ok());
    let models = Models::new(settings, Arc::new(EnvironmentKeys))
        .map_err(|error| Failure::new("config.invalid", error.to_string()))?;
    Ok(World { model: Arc::new(models), tools: Arc::new(NoTools), default_model })
}

struct NoTools;
#[async_trait]
impl ToolHost for NoTools {
    async fn open(&self, _: &Grant) -> Result<Arc<dyn Toolbox>, ToolError> {
        Ok(Arc::new(NoTools))
    }
}
#[async_trait]
impl Toolbox for NoTools {
    fn specs(&self) -> &[ToolSpec] {
        &[]
    }
    async fn run(&self, _: &ToolCall) -> ToolOutput {
        ToolOutput::error("none")
    }
    fn check(&self, _: &ToolCall) -> Result<(), String> {
        Ok(())
    }
}
