//! The façade type and how it is opened. The modules next to this one add its operations by topic.

use sapwood_engine::Engine;

use crate::{Principal, Scope, TenantId};

/// One user's sessions: a store with models and tools, and the scope of its calls. Cheap to clone.
///
/// An unknown id is an error for every operation except [`exists`](Sapwood::exists), [`snapshot`](Sapwood::snapshot),
/// [`ancestry`](Sapwood::ancestry) and opening.
#[derive(Clone)]
pub struct Sapwood {
    pub(crate) engine: Engine,
    pub(crate) scope: Scope,
}

impl Sapwood {
    /// Use the same sessions with the rights of another scope. Example: [`open`](Sapwood::open).
    pub fn with_scope(&self, scope: Scope) -> Self {
        Self { engine: self.engine.clone(), scope }
    }

    /// The scope of all calls. Example: [`open`](Sapwood::open).
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Use an engine that the caller configured. Not part of the API: use [`Sapwood::builder`].
    #[doc(hidden)]
    pub fn with_engine(engine: Engine) -> Self {
        Self { engine, scope: Scope::operator(TenantId::local(), Principal::System) }
    }

    /// The engine. Not part of the API.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}
