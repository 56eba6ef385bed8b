//! Set up a turn: the session's agent, the chain of models, the granted tools, and the checks before any entry is
//! written or any model is called.

use std::sync::{Arc, Mutex};

use sapwood_core::agent::{Agent, OnExceed};
use sapwood_core::flow::{Assignment, HANDOFF_TOOL};
use sapwood_core::port::tool::ToolGrant;
use sapwood_core::pressure::Level;
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::turn::{CallersTool, Terms};
use sapwood_core::{Scope, SessionId, TurnId};

use super::builtin_tools::{BUILTIN_TOOLS, READ_OUTPUT, builtin_specs, skill_spec};
use super::handoff::handoff_spec;
use super::input_tools::input_specs;
use super::{TurnContext, TurnProgress};
use crate::backends::Backends;
use crate::configuration::ResolvedConfig;
use crate::spans::turn_span;
use crate::{Engine, EngineError, Result};

/// Parameters of a turn that is started or resumed.
pub(super) struct TurnParameters<'t> {
    pub fence: u64,
    pub turn: TurnId,
    pub terms: &'t Terms,
    /// The flow assignment, if the turn is part of a visit. It narrows the tools and the file access for this turn.
    pub assignment: Option<Assignment>,
}

impl TurnContext {
    /// Read the session's configuration and open its tools. No entry is written.
    pub(super) async fn build(
        engine: &Engine,
        scope: &Scope,
        summary: &Summary,
        backends: Backends,
        parameters: TurnParameters<'_>,
    ) -> Result<Arc<Self>> {
        let TurnParameters { fence, turn, terms, assignment } = parameters;
        let session = summary.id.clone();
        let mut configured = engine.configuration().resolve(scope, summary).await?;
        let mut agent = configured.agent.clone();
        assignment.iter().for_each(|visit| narrow_for_visit(&mut agent, visit));
        let visit_tools = assignment.as_ref().map(|visit| visit.tools.clone()).unwrap_or_default();
        apply_terms(terms, &mut agent);
        let asked = terms.model.as_deref();
        configured.name_model(asked);
        let chain = engine.configuration().model_chain(scope, &session, &configured, &agent, asked).await?;
        let ResolvedConfig { settings, mut changes, notice, inherited, token_budget, .. } = configured;
        let notices: Vec<String> = notice.into_iter().chain(chain.notice).collect();
        let (chain, notice) = (chain.links, (!notices.is_empty()).then(|| notices.join("; ")));
        let grant = grant_of(scope, &session, &settings, &agent);
        let toolbox = backends.tools.open(&grant).await?;
        let skills = engine.skills().cards_of(&session, settings.skills.as_deref().unwrap_or_default()).await;
        let mut specs = toolbox.specs().to_vec();
        if !agent.tools.is_empty() || !agent.mcp_servers.is_empty() || !skills.is_empty() {
            specs.extend(builtin_specs(&agent));
        }
        specs.retain(|spec| visit_tools.is_empty() || is_available(&visit_tools, &spec.name));
        specs.extend((!skills.is_empty()).then(skill_spec));
        let artifacts = engine.views().artifacts(scope, &session).await?;
        specs.extend(input_specs(&agent, &artifacts));
        changes.extend(engine.inputs().missing_notes(scope, &session, &artifacts).await?);
        let assignment = assignment_for(engine, scope, &session, &agent, assignment).await?;
        specs.extend(assignment.as_ref().and_then(handoff_spec));
        specs.retain(|spec| !terms.tools.iter().any(|tool| tool.name == spec.name));
        specs.extend(terms.tools.iter().map(CallersTool::spec));
        let span = turn_span(&session, &agent);
        let trace_id = trace_id(engine, &span);
        let level = summary.pressure.unwrap_or(Level::Green);
        let progress =
            TurnProgress { head: summary.head.seq, level, recorded_level: level, ..Default::default() };
        let progress = Mutex::new(progress);
        let (engine, scope) = (engine.clone(), scope.clone());
        Ok(Arc::new(Self {
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
            inherited,
            token_budget,
            progress,
        }))
    }
}

/// The flow node that the session is working on. Only flow agents have the handoff tool, so sessions of other
/// agents skip the lookup.
async fn assignment_for(
    engine: &Engine,
    scope: &Scope,
    session: &SessionId,
    agent: &Agent,
    given: Option<Assignment>,
) -> Result<Option<Assignment>> {
    match given {
        Some(assignment) => Ok(Some(assignment)),
        None if agent.tools.iter().any(|tool| tool == HANDOFF_TOOL) => {
            engine.flows().assignment_of(scope, session).await
        }
        None => Ok(None),
    }
}

/// Narrow the session's agent for a visit. A node never adds a tool or widens the file access.
fn narrow_for_visit(agent: &mut Agent, visit: &Assignment) {
    if !visit.tools.is_empty() {
        agent.tools.retain(|tool| is_available(&visit.tools, tool));
    }
    agent.fs_scope = visit.fs_scope.map_or(agent.fs_scope, |scope| scope.min(agent.fs_scope));
}

/// Whether a tool is available at a node that names tools. The handoff tool and `read_output` always are.
fn is_available(visit_tools: &[String], tool: &str) -> bool {
    tool == HANDOFF_TOOL || tool == READ_OUTPUT || visit_tools.iter().any(|named| named == tool)
}

/// The exported trace id, or a generated id that occurs only in the log.
fn trace_id(engine: &Engine, span: &tracing::Span) -> String {
    let exported = engine.config.trace_ids.as_ref().and_then(|trace_id_of| trace_id_of(span));
    exported.unwrap_or_else(|| format!("{:032x}", engine.clock.random()))
}

/// Apply the options of the turn's caller, which override the agent's.
fn apply_terms(terms: &Terms, agent: &mut Agent) {
    agent.temperature = terms.temperature.or(agent.temperature);
    agent.max_tokens = terms.output_tokens_max.or(agent.max_tokens);
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
        sandbox: agent.sandbox.unwrap_or_default(),
    }
}

impl TurnContext {
    /// Check the limits before anything is written. A fork also counts what its ancestors used.
    pub(super) fn check_limits(&self, summary: &Summary) -> Result<()> {
        let inherited = self.inherited.as_ref();
        let turns = inherited.map_or(0, |source| source.turns).saturating_add(summary.turns);
        if turns >= self.agent.limits.turns() {
            let limit = self.agent.limits.turns();
            return Err(EngineError::TurnLimit { session: summary.id.clone(), limit });
        }
        let Some(budget) = self.agent.budget.filter(|budget| budget.on_exceed == OnExceed::Fail) else {
            return Ok(());
        };
        let spent = self.spent_nano_usd(summary);
        if spent >= budget.cap_nano_usd() && budget.cap_nano_usd() > 0 {
            return Err(EngineError::OverBudget { session: summary.id.clone(), cap_usd: budget.cap_usd });
        }
        Ok(())
    }

    /// What the session and its ancestors have spent.
    pub(super) fn spent_nano_usd(&self, summary: &Summary) -> u64 {
        let inherited = self.inherited.as_ref().map_or(0, |source| source.cost_nano_usd);
        inherited.saturating_add(summary.spend.total().cost_nano_usd)
    }
}
