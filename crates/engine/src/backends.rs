//! The models and tools that turns need. Without them, an engine stores and shows sessions but runs no turns.

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
