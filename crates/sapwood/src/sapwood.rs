//! The façade type and how it is opened. The modules next to this one add its operations by topic.

use std::sync::Arc;

use sapwood_engine::Engine;

use crate::storage::{Store, StoreOptions, open_store};
use crate::{Principal, Result, SapwoodBuilder, Scope, TenantId};

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
    /// Open `sqlite:FILE`, `jsonl:DIR`, `postgres://USER@HOST/DB` or `memory:` as the local operator, with
    /// the default models and tools.
    ///
    /// ```
    /// # fn main() -> Result<(), sapwood::Error> {
    /// let sapwood = sapwood::Sapwood::open("memory:")?;
    /// let ana = sapwood.with_scope(sapwood::Scope::user("acme".parse()?, "ana".parse()?));
    /// assert_eq!(ana.scope().tenant.as_str(), "acme");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(url: &str) -> Result<Self> {
        Self::builder(url)?.build()
    }

    /// Open a store by URL and configure models and tools: see [`SapwoodBuilder`].
    ///
    /// ```
    /// # fn main() -> Result<(), sapwood::Error> {
    /// let sapwood = sapwood::Sapwood::builder("memory:")?.default_model("ollama/llama3.2").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> Result<SapwoodBuilder> {
        Ok(SapwoodBuilder::new(open_store(url, StoreOptions::default())?))
    }

    /// Use an own store, with the default models and tools. To configure them too, pass the store to
    /// [`SapwoodBuilder::new`].
    ///
    /// ```
    /// # fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::storage::{Durability, StoreOptions, open_store};
    ///
    /// let dir = tempfile::tempdir().unwrap();
    /// let url = format!("sqlite:{}", dir.path().join("sessions.db").display());
    /// let options = StoreOptions { durability: Durability::Normal, ..StoreOptions::default() };
    /// let sapwood = sapwood::Sapwood::with_store(open_store(&url, options)?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_store(store: Arc<dyn Store>) -> Result<Self> {
        SapwoodBuilder::new(store).build()
    }

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
