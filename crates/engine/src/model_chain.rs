//! The models of a turn. The model is chosen, checked against the caller's rights and resolved in the catalog before
//! the turn writes an entry, compacts the context or sends a request.

use sapwood_core::agent::{Agent, ChainLink};
use sapwood_core::model_choice::{DEMO_MODEL, ModelOrigin, choose_model};
use sapwood_core::port::model::ModelError;
use sapwood_core::pressure::ContextLimits;
use sapwood_core::{Scope, SessionId};

use crate::backends::Backends;
use crate::configuration::{ATTEMPTS_DEFAULT, Configuration, ResolvedConfig};
use crate::session_defaults::FileModels;
use crate::{EngineError, Result};

/// The notice for a session that has never had a model.
const DEMO_NOTICE: &str = "no model was chosen, so the demo model answers; it only simulates a model";

/// The models that a turn may call, under the names that providers use. There is at least one.
#[derive(Debug, Clone)]
pub(crate) struct ModelChain {
    pub links: Vec<ChainLink>,
    /// A notice for the caller, if a different model answers than the caller may expect.
    pub notice: Option<String>,
}

impl ModelChain {
    /// The model that is called first.
    pub fn first(&self) -> &str {
        &self.links[0].model
    }
}

/// The agent and the model of the next answer.
pub(crate) struct NextModel {
    pub agent: Agent,
    /// The model's name; `None` if the model reads a file that the session may not read.
    pub model: Option<String>,
    /// Maximum number of tokens in the context, if the owner has set one.
    pub token_budget: Option<u64>,
}

/// Whether a session may call a file-backed model.
enum FileModelRight {
    Granted,
    /// The local command line named the model; record it, so that a server may take over the turn.
    Record,
    Refused,
}

impl Configuration<'_> {
    /// Choose the models of a turn and check that they can be called. `call` is the model that the caller asked for; it
    /// has no fallback. Fails with [`EngineError::ModelUnavailable`] or [`EngineError::ModelNotAllowed`].
    pub(crate) async fn model_chain(
        self,
        scope: &Scope,
        session: &SessionId,
        configured: &ResolvedConfig,
        agent: &Agent,
        call: Option<&str>,
    ) -> Result<ModelChain> {
        let backends = self.engine.backends()?;
        let choice = choose_model(call, &configured.settings, agent, &backends.default_model);
        let origin = match choice.origin {
            ModelOrigin::Path if configured.is_only_imported(&choice.model) => ModelOrigin::Import,
            origin => origin,
        };
        let first = ChainLink { model: choice.model, max_attempts: ATTEMPTS_DEFAULT };
        let fallbacks =
            agent.fallback_chain.iter().filter(|link| call.is_none() && link.model != first.model);
        let links: Vec<ChainLink> = std::iter::once(first.clone()).chain(fallbacks.cloned()).collect();
        for link in &links {
            self.check_file_model(scope, session, &backends, configured, agent, &link.model).await?;
        }
        let is_first_chosen = configured.settings.model.is_none();
        let demo = (origin == ModelOrigin::Default && first.model == DEMO_MODEL && is_first_chosen)
            .then(|| DEMO_NOTICE.to_owned());
        let (links, fallback_notice) = callable_links(&backends, links, origin)?;
        let allowed = self.engine.allowances().allowed_links(scope, links).await?;
        let links = allowed.map_err(|source| EngineError::ModelUnavailable { origin, source })?;
        Ok(ModelChain { links, notice: fallback_notice.or(demo) })
    }

    /// Check that a model can be called here, for a caller that chooses it. Returns the name that its provider uses.
    pub fn callable_model(self, model: &str) -> Result<String> {
        self.check_model(model)?;
        let backends = self.engine.backends()?;
        let name = backends.model.resolve(model);
        let name = name.and_then(|name| backends.model.check(&name).map(|()| name));
        name.map_err(|source| EngineError::ModelUnavailable { origin: ModelOrigin::Call, source })
    }

    /// The agent and the models for the next answer.
    pub(crate) async fn agent_and_chain(
        self,
        scope: &Scope,
        session: &SessionId,
    ) -> Result<(Agent, ModelChain)> {
        let summary = self.engine.store.summary(scope, session).await?;
        let configured = self.resolve(scope, &summary).await?;
        let agent = configured.agent.clone();
        let chain = self.model_chain(scope, session, &configured, &agent, None).await?;
        Ok((agent, chain))
    }

    /// The agent, and the name of the model that would answer next even if it cannot be called here. The name is `None`
    /// if the model reads a file that the session may not read.
    pub(crate) async fn next_model(
        self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
    ) -> Result<NextModel> {
        let summary = self.engine.store.summary(scope, session).await?;
        let configured = match self.resolve(scope, &summary).await {
            Err(EngineError::NotConfigured { .. }) => self.unconfigured(scope, &summary).await?,
            configured => configured?,
        };
        let agent = configured.agent.clone();
        let choice = choose_model(None, &configured.settings, &agent, &backends.default_model);
        let right = self.file_model_right(backends, &configured, &agent, &choice.model);
        let model = (!matches!(right, FileModelRight::Refused)).then_some(choice.model);
        Ok(NextModel { agent, model, token_budget: configured.token_budget })
    }

    /// The name of the model that answers next, even if it cannot be called here.
    pub async fn next_model_name(self, scope: &Scope, session: &SessionId) -> Result<Option<String>> {
        let backends = self.engine.backends()?;
        let next = self.next_model(scope, session, &backends).await?;
        Ok(next.model.map(|model| backends.model.resolve(&model).unwrap_or(model)))
    }

    /// Refuse a file-backed model that is named only by a client's request to a server, or by an import. A model
    /// named by the local command line is recorded, so that a server may take over the turn.
    async fn check_file_model(
        self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
        configured: &ResolvedConfig,
        agent: &Agent,
        model: &str,
    ) -> Result<()> {
        match self.file_model_right(backends, configured, agent, model) {
            FileModelRight::Granted => Ok(()),
            FileModelRight::Record => Ok(self.engine.store.grant_model(scope, session, model).await?),
            FileModelRight::Refused => Err(EngineError::ModelNotAllowed { model: model.to_owned() }),
        }
    }

    fn file_model_right(
        self,
        backends: &Backends,
        configured: &ResolvedConfig,
        agent: &Agent,
        model: &str,
    ) -> FileModelRight {
        if !backends.model.is_file_backed(model) || configured.authority.allows_model(model) {
            return FileModelRight::Granted;
        }
        let is_named = agent.models().any(|named| named == model)
            || backends.default_model == model
            || configured.is_named(model);
        match &self.engine.config.file_models {
            FileModels::Named(names) if names.contains(model) => FileModelRight::Granted,
            FileModels::Local if is_named => FileModelRight::Record,
            FileModels::Named(_) | FileModels::Local => FileModelRight::Refused,
        }
    }
}

/// Resolve the links and drop those that cannot be called. If an import named the first model, that model must be
/// callable: a fallback never replaces it. Otherwise, the agent's fallbacks may replace the first model.
fn callable_links(
    backends: &Backends,
    links: Vec<ChainLink>,
    origin: ModelOrigin,
) -> Result<(Vec<ChainLink>, Option<String>)> {
    let mut first_error: Option<ModelError> = None;
    let mut callable = Vec::with_capacity(links.len());
    for (at, link) in links.into_iter().enumerate() {
        let resolved = backends.model.resolve(&link.model);
        match resolved.and_then(|model| backends.model.check(&model).map(|()| model)) {
            Ok(model) => callable.push(ChainLink { model, ..link }),
            Err(error) if at == 0 => first_error = Some(error),
            Err(_) => {}
        }
    }
    match (first_error, callable.first()) {
        (None, _) => Ok((callable, None)),
        (Some(source), Some(next)) if origin != ModelOrigin::Import => {
            let notice = format!("{source}: the agent's fallback {} answers", next.model);
            Ok((callable, Some(notice)))
        }
        (Some(source), _) => Err(EngineError::ModelUnavailable { origin, source }),
    }
}

/// The number of tokens that a context may have: see [`ContextLimits::budget_tokens`]. `session_budget` is the token
/// budget in the session's own configuration, which can only lower the agent's.
pub(crate) fn budget_tokens(
    backends: &Backends,
    agent: &Agent,
    model: &str,
    session_budget: Option<u64>,
) -> Option<u64> {
    let facts = backends.model.facts(model);
    let limits = ContextLimits {
        window_tokens: facts.window_tokens.or(agent.context_window),
        answer_tokens: agent.max_tokens.map(u64::from).or(facts.output_tokens_max),
        token_budget: agent.token_budget.into_iter().chain(session_budget).min(),
    };
    limits.budget_tokens()
}
