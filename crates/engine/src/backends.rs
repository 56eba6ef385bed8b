//! What a turn needs of the world: a model to ask and tools to call. An engine without a world can do everything but
//! run turns.

use std::sync::Arc;

use sapwood_core::port::model::Model;
use sapwood_core::port::tool::ToolHost;

#[derive(Clone)]
pub struct Backends {
    pub model: Arc<dyn Model>,
    pub tools: Arc<dyn ToolHost>,
    /// Asked when neither the session nor its agent names a model.
    pub default_model: String,
}
