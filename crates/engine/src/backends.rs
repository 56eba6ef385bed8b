//! The external services that a turn needs: a model and tools. Without them an engine can do everything
//! except run turns.

use std::sync::Arc;

use sapwood_core::port::model::Model;
use sapwood_core::port::tool::ToolHost;

#[derive(Clone)]
pub struct Backends {
    pub model: Arc<dyn Model>,
    pub tools: Arc<dyn ToolHost>,
    /// Used when neither the session nor its agent names a model.
    pub default_model: String,
}
