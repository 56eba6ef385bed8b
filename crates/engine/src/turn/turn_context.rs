//! Set up a turn: the session's frozen agent, the chain of models, the granted tools, and the checks before
//! any entry is written or any model is called.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sapwood_core::agent::{Agent, AgentError, ChainLink, OnExceed};
use sapwood_core::content::Json;
use sapwood_core::entry::{Body, ContextChanged, ModelChanged, SkillsChanged, ThinkingChanged};
use sapwood_core::flow::{Assignment, HANDOFF_TOOL};
use sapwood_core::port::model::Thinking;
use sapwood_core::port::tool::ToolGrant;
use sapwood_core::pressure::Pressure;
use sapwood_core::project::summary::Summary;
use sapwood_core::secret_shape::looks_like_key;
use sapwood_core::settings::{Settings, variables_in};
use sapwood_core::turn::{CallersTool, Terms};
use sapwood_core::{Scope, SessionId, TurnId};

use super::auto_compact::budget_tokens;
use super::builtin_tools::{BUILTIN_TOOLS, builtin_specs, skill_spec};
use super::handoff::handoff_spec;
use super::{ATTEMPTS_DEFAULT, TurnContext, TurnProgress};
use crate::authority::Configured;
use crate::backends::Backends;
use crate::pressure::PressureOptions;
use crate::spans::turn_span;
use crate::summarise::ModelSummariser;
use crate::{Engine, EngineError, Result};

/// Parameters of a turn that is started or resumed.
pub(super) struct TurnParameters<'t> {
    pub fence: u64,
    pub turn: TurnId,
    pub terms: &'t Terms,
    /// The flow assignment, if known.
    pub assignment: Option<Assignment>,
}

impl Engine {
    pub(super) async fn build_turn_context(
        &self,
        scope: &Scope,
        summary: &Summary,
        backends: Backends,
        parameters: TurnParameters<'_>,
    ) -> Result<Arc<TurnContext>> {
        let TurnParameters { fence, turn, terms, assignment } = parameters;
        let session = summary.id.clone();
        let mut configured = self.configuration(scope, summary).await?;
        let mut agent = agent_of(&configured.settings)?;
        let mut chain = chain_of(&configured.settings, &agent, &backends);
        apply_terms(terms, &mut agent, &mut chain);
        configured.name_model(terms.model.as_deref());
        self.check_chain(scope, &session, &backends, &configured, &chain).await?;
        let Configured { settings, changes, notice, .. } = configured;
        let grant = grant_of(scope, &session, &settings, &agent);
        let toolbox = backends.tools.open(&grant).await?;
        let skills = self.cards_of(&session, &settings.skills).await;
        let mut specs = toolbox.specs().to_vec();
        if !agent.tools.is_empty() || !agent.mcp_servers.is_empty() || !skills.is_empty() {
            specs.extend(builtin_specs(&agent));
        }
        specs.extend((!skills.is_empty()).then(skill_spec));
        let assignment = self.assignment_for(scope, &session, &agent, assignment).await?;
        specs.extend(assignment.as_ref().and_then(handoff_spec));
        specs.retain(|spec| !terms.tools.iter().any(|tool| tool.name == spec.name));
        specs.extend(terms.tools.iter().map(CallersTool::spec));
        let span = turn_span(&session, &agent);
        let trace_id = self.trace_id(&span);
        let progress = Mutex::new(TurnProgress { head: summary.head.seq, ..TurnProgress::default() });
        let (engine, scope) = (self.clone(), scope.clone());
        Ok(Arc::new(TurnContext {
            engine,
            backends,
            scope,
            session,
            turn,
            agent,
            chain,
            toolbox,
            specs,
            skills,
            instructions: terms.instructions.clone(),
            thinking: terms.thinking,
            fence,
            span,
            trace_id,
            assignment,
            changes,
            notice,
            progress,
        }))
    }

    /// The flow node that the session is working on. Only flow agents have the handoff tool, so sessions of other
    /// agents skip the lookup.
    async fn assignment_for(
        &self,
        scope: &Scope,
        session: &SessionId,
        agent: &Agent,
        given: Option<Assignment>,
    ) -> Result<Option<Assignment>> {
        match given {
            Some(assignment) => Ok(Some(assignment)),
            None if agent.tools.iter().any(|tool| tool == HANDOFF_TOOL) => {
                self.assignment_of(scope, session).await
            }
            None => Ok(None),
        }
    }

    /// The exported trace id, or a generated id that occurs only in the log.
    fn trace_id(&self, span: &tracing::Span) -> String {
        let exported = self.trace_ids.as_ref().and_then(|trace_id_of| trace_id_of(span));
        exported.unwrap_or_else(|| format!("{:032x}", self.clock.random()))
    }

    /// A summariser that uses the named model, or else the session's model.
    pub async fn summariser_of(
        &self,
        scope: &Scope,
        session: &SessionId,
        model: Option<String>,
    ) -> Result<ModelSummariser> {
        let backends = self.backends()?;
        if let Some(model) = model {
            self.check_model(&model)?;
            return Ok(ModelSummariser::new(backends.model, model));
        }
        let (_, chain) = self.agent_and_chain(scope, session, &backends).await?;
        let model = chain.first().map_or(backends.default_model.clone(), |link| link.model.clone());
        Ok(ModelSummariser::new(backends.model, model))
    }

    /// The pressure for the model that would answer next, not counting the tools' schemas.
    pub async fn pressure_of(&self, scope: &Scope, session: &SessionId) -> Result<Option<Pressure>> {
        let backends = self.backends()?;
        let (agent, chain) = match self.agent_and_chain(scope, session, &backends).await {
            Err(EngineError::ModelNotAllowed { .. }) => return Ok(None),
            found => found?,
        };
        let budget_tokens = chain.first().and_then(|link| budget_tokens(&backends, &agent, &link.model));
        let thresholds = agent.pressure.unwrap_or(self.thresholds);
        let options = PressureOptions { budget_tokens, thresholds, ..PressureOptions::default() };
        self.pressure(scope, session, &options).await
    }

    /// The agent and the chain of allowed models for the next answer.
    async fn agent_and_chain(
        &self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
    ) -> Result<(Agent, Vec<ChainLink>)> {
        let summary = self.store.summary(scope, session).await?;
        let configured = self.configuration(scope, &summary).await?;
        let agent = agent_of(&configured.settings)?;
        let chain = chain_of(&configured.settings, &agent, backends);
        self.check_chain(scope, session, backends, &configured, &chain).await?;
        Ok((agent, chain))
    }

    /// The agent that a session was started with.
    pub async fn agent_of(&self, scope: &Scope, session: &SessionId) -> Result<Agent> {
        agent_of(&self.settings(scope, session).await?)
    }
}

/// Check that every variable of the prompt is set and that no value looks like a secret.
pub(super) fn check_variables(agent: &Agent, variables: &BTreeMap<String, String>) -> Result<()> {
    let wanted = agent.system_prompt.as_deref().map(variables_in).unwrap_or_default();
    if let Some(missing) = wanted.into_iter().find(|name| !variables.contains_key(*name)) {
        let why = format!("the prompt of agent {} needs {missing}, which is not set", agent.id);
        return Err(EngineError::Invalid { what: "the list of variables", why });
    }
    match variables.iter().find(|(_, value)| looks_like_key(value).is_some()) {
        None => Ok(()),
        Some((name, _)) => Err(EngineError::Invalid {
            what: "a variable",
            why: format!(
                "{name} looks like a key or a password; store it as a secret and refer to it as secret:NAME"
            ),
        }),
    }
}

/// The first entries of a session, which contain its configuration.
pub(crate) fn settings_of(
    agent: &Agent,
    cwd: Option<String>,
    variables: BTreeMap<String, String>,
    memories: Option<String>,
) -> Vec<Body> {
    let frozen = serde_json::to_value(agent).map(|value| Json::from_value(&value)).ok();
    let system: Vec<String> = agent.system_prompt.iter().cloned().chain(memories).collect();
    let changed = ContextChanged {
        system: (!system.is_empty()).then(|| system.join("\n\n")),
        cwd,
        variables: (!variables.is_empty()).then_some(variables),
        agent: frozen,
    };
    let mut bodies: Vec<Body> = vec![changed.into()];
    if let Some(model) = agent.model.clone() {
        bodies.push(ModelChanged { model }.into());
    }
    if agent.thinking != Thinking::Off {
        bodies.push(ThinkingChanged { level: agent.thinking.as_str().to_owned() }.into());
    }
    if !agent.skills.is_empty() {
        bodies.push(SkillsChanged { active: agent.skills.clone() }.into());
    }
    bodies
}

/// The frozen agent, or the default agent for a session that was created without an agent.
fn agent_of(settings: &Settings) -> Result<Agent> {
    let Some(frozen) = &settings.agent else { return Ok(Agent::default_with(None)) };
    serde_json::from_str(frozen.get()).map_err(|error| {
        let why = format!("failed to parse: {error}");
        AgentError { agent: "of this session".to_owned(), field: "agent".to_owned(), why }.into()
    })
}

/// The models to call: the session's current model, else the agent's, else the default; then the agent's
/// fallback chain.
fn chain_of(settings: &Settings, agent: &Agent, backends: &Backends) -> Vec<ChainLink> {
    let requested = settings.model_asked.clone().or_else(|| agent.model.clone());
    let model = requested.unwrap_or_else(|| backends.default_model.clone());
    let first = ChainLink { model, max_attempts: ATTEMPTS_DEFAULT };
    let rest = agent.fallback_chain.iter().filter(|link| link.model != first.model).cloned();
    std::iter::once(first.clone()).chain(rest).collect()
}

/// Apply the options of the turn's caller, which override the agent's.
fn apply_terms(terms: &Terms, agent: &mut Agent, chain: &mut Vec<ChainLink>) {
    agent.temperature = terms.temperature.or(agent.temperature);
    agent.max_tokens = terms.output_tokens_max.or(agent.max_tokens);
    if let Some(model) = &terms.model {
        // A model named by the caller has no fallback.
        *chain = vec![ChainLink { model: model.clone(), max_attempts: ATTEMPTS_DEFAULT }];
    }
}

fn grant_of(scope: &Scope, session: &SessionId, settings: &Settings, agent: &Agent) -> ToolGrant {
    let is_external = |tool: &&String| !BUILTIN_TOOLS.contains(&tool.as_str());
    ToolGrant {
        tenant: scope.tenant.clone(),
        session: session.clone(),
        cwd: settings.cwd.clone(),
        fs_scope: agent.fs_scope,
        tools: agent.tools.iter().filter(is_external).cloned().collect(),
        allowed_commands: agent.allowed_commands.clone(),
        allowed_hosts: agent.allowed_hosts.clone(),
        mcp_servers: agent.mcp_servers.clone(),
    }
}

/// Check the limits before anything is written.
pub(super) fn check_limits(summary: &Summary, agent: &Agent) -> Result<()> {
    if summary.turns >= agent.limits.turns() {
        return Err(EngineError::TurnLimit { session: summary.id.clone(), limit: agent.limits.turns() });
    }
    let Some(budget) = agent.budget.filter(|budget| budget.on_exceed == OnExceed::Fail) else {
        return Ok(());
    };
    let spent = summary.spend.total().cost_nano_usd;
    if spent >= budget.cap_nano_usd() && budget.cap_nano_usd() > 0 {
        return Err(EngineError::OverBudget { session: summary.id.clone(), cap_usd: budget.cap_usd });
    }
    Ok(())
}
