//! Configures a store, models and tools. By default, models use API keys from the environment, and file tools are
//! confined to each session's scratch directory. Commands that an agent allows run without a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sapwood_effects::model::{EnvironmentKeys, Models, OwnModels, Settings as ModelSettings};
use sapwood_effects::tokens::KnownTokenizers;
use sapwood_effects::tool::host::{Host, Settings as ToolSettings};
use sapwood_effects::tool::{OwnTools, ToolFn};
use sapwood_engine::{Backends, Engine};
use serde_json::Value;

use crate::clock::SystemClock;
use crate::memory::MemoryConfig;
use crate::model::Model;
use crate::storage::{Store, StoreOptions, open_store};
use crate::tool::{Tool, ToolOutput, ToolSource, ToolSpec};
use crate::{Error, Result, Sapwood};

/// The model used when neither the agent nor the builder names one. It needs no API key and no network.
pub const DEFAULT_MODEL: &str = "demo";

/// Configures [`Sapwood`]: its models, tools and memory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), sapwood::Error> {
/// use sapwood::model::model_fn;
/// use sapwood::{Agent, Part, Sapwood};
///
/// let shout = model_fn(|request| async move { Ok(vec![Part::text(request.last_text().to_uppercase())]) });
/// let sapwood = Sapwood::builder("memory:")?.model("shout", shout).default_model("shout").build()?;
/// assert_eq!(sapwood.ask(Agent::default(), "hello").await?.text, "HELLO");
/// # Ok(())
/// # }
/// ```
pub struct SapwoodBuilder {
    store: Arc<dyn Store>,
    models: BTreeMap<String, Arc<dyn Model>>,
    default_model: String,
    tools: Vec<Arc<dyn Tool>>,
    sources: Vec<Arc<dyn ToolSource>>,
    scratch_dir: PathBuf,
    memory: MemoryConfig,
}

impl SapwoodBuilder {
    /// Start with a store and the default models and tools. [`Sapwood::builder`] opens the store by its URL.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            models: BTreeMap::new(),
            default_model: DEFAULT_MODEL.to_owned(),
            tools: Vec::new(),
            sources: Vec::new(),
            scratch_dir: default_scratch_dir(),
            memory: MemoryConfig::default(),
        }
    }

    /// Add a custom model: a closure in [`model_fn`](crate::model::model_fn), or an implementation of [`Model`]. Agents
    /// name it in [`Agent::model`](crate::Agent::model). It also receives requests for every `NAME/…`, and replaces a
    /// built-in model or provider of the same name.
    pub fn model(mut self, name: impl Into<String>, model: impl Model + 'static) -> Self {
        self.models.insert(name.into(), Arc::new(model));
        self
    }

    /// Set the model for agents that name none. The default is [`DEFAULT_MODEL`].
    pub fn default_model(mut self, name: impl Into<String>) -> Self {
        self.default_model = name.into();
        self
    }

    /// Add a custom tool as an async closure. A session gets the tool if its agent lists the tool's name. The closure
    /// receives input that matches the schema. Its output is a text, a [`ToolOutput`], or a `Result` whose error is
    /// shown to the model.
    ///
    /// ```
    /// # fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::tool::{ToolSpec, Touch};
    ///
    /// let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    /// let double = ToolSpec::new("double", "Doubles a number.", &schema).with_touch(Touch::Reads);
    /// let sapwood = sapwood::Sapwood::builder("memory:")?
    ///     .tool(double, |input| async move {
    ///         let number = input["n"].as_i64().ok_or("n is missing")?;
    ///         Ok::<_, &str>((number * 2).to_string())
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tool<F, Fut, Out>(mut self, spec: ToolSpec, closure: F) -> Self
    where
        F: Fn(Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Out> + Send + 'static,
        Out: Into<ToolOutput> + 'static,
    {
        self.tools.push(Arc::new(ToolFn::new(spec, closure)));
        self
    }

    /// Add a source of tools that depend on the session, such as tools with a connection per tenant.
    pub fn tool_source(mut self, source: impl ToolSource + 'static) -> Self {
        self.sources.push(Arc::new(source));
        self
    }

    /// Set the directory for the sessions' scratch directories. By default it is in the system's temporary directory.
    pub fn scratch_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.scratch_dir = dir.into();
        self
    }

    /// Configure how memories are extracted and searched.
    pub fn memory(mut self, config: MemoryConfig) -> Self {
        self.memory = config;
        self
    }

    /// Check the configuration and create the façade, with the rights of the local operator. Fails if a tool's name or
    /// schema, or a provider URL from the environment, is not valid.
    pub fn build(self) -> Result<Sapwood> {
        let (engine, memory) = (engine_over(self.store.clone()), self.memory.clone());
        let backends = self.backends()?;
        Ok(Sapwood::with_engine(engine.configured(|config| {
            config.memory = memory;
            config.backends = Some(backends);
        })))
    }

    fn backends(self) -> Result<Backends> {
        let settings = ModelSettings::default().with_variables(|name| std::env::var(name).ok());
        let models = Models::new(settings, Arc::new(EnvironmentKeys));
        let models =
            models.map_err(|error| Error::Invalid { what: "the model settings", why: error.to_string() })?;
        let mut tools = ToolSettings::new(self.scratch_dir);
        tools.sources.push(Arc::new(OwnTools::new(self.tools)?));
        tools.sources.extend(self.sources);
        Ok(Backends {
            model: Arc::new(OwnModels::new(self.models, Arc::new(models))),
            tools: Arc::new(Host::new(tools)),
            default_model: self.default_model,
        })
    }
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

    /// Use a custom store, with the default models and tools. To configure them too, pass the store to
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
}

/// An engine over a store, with the system clock. It cannot run turns until it has [`Backends`].
pub fn engine_over(store: Arc<dyn Store>) -> Engine {
    Engine::new(store, Arc::new(SystemClock)).with_tokenizers(Arc::new(KnownTokenizers))
}

/// An engine over the store at a URL. It cannot run turns until it has [`Backends`].
pub fn open_engine(url: &str, options: StoreOptions) -> Result<Engine> {
    Ok(engine_over(open_store(url, options)?))
}

/// The default location of scratch directories: one per user, accessible only to that user.
fn default_scratch_dir() -> PathBuf {
    let user = std::env::var("USER").or_else(|_| std::env::var("USERNAME")).unwrap_or_default();
    let plain: String = user.chars().filter(char::is_ascii_alphanumeric).collect();
    std::env::temp_dir().join(format!("sapwood-{plain}"))
}
