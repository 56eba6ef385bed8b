//! Decide which entries may configure a turn. Only entries written by this store's engine count. Imported entries
//! can be shown, searched and continued, but never trigger an action.
//!
//! An imported session has no configuration until its first local turn, which assigns the engine's default agent
//! and reports the assignment. The agent stays in force: a reset, a fork or a later import does not change it.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_core::agent::{Agent, AgentError};
use sapwood_core::content::Json;
use sapwood_core::entry::{Body, ContextChanged, Entry, ModelChanged, SkillsChanged, ThinkingChanged};
use sapwood_core::port::model::Thinking;
use sapwood_core::port::store::Until;
use sapwood_core::project::summary::Summary;
use sapwood_core::secret_shape::looks_like_key;
use sapwood_core::settings::{Settings, variables_in};
use sapwood_core::{Authority, Kind, Scope, Seq, SessionId};

use crate::session_defaults::FileModels;
use crate::{EngineError, Result, service};

/// Default number of attempts per model.
pub(crate) const ATTEMPTS_DEFAULT: u32 = 3;

/// The configuration that a turn runs under.
#[derive(Debug, Clone)]
pub(crate) struct Configured {
    pub settings: Settings,
    pub authority: Authority,
    /// Entries that apply this configuration on the path, if the path has a different configuration.
    pub changes: Vec<Body>,
    /// A notice for the caller, if the configuration differs from the one on the path.
    pub notice: Option<String>,
    /// Models named by entries that this store wrote.
    named: BTreeSet<String>,
}

/// The configuration in the entries that this store wrote, in log order.
#[derive(Debug, Default)]
struct OwnEntries {
    context: ContextChanged,
    skills: Option<Vec<String>>,
    models: BTreeSet<String>,
}

impl OwnEntries {
    fn apply(&mut self, body: Body) {
        match body {
            Body::ContextChanged(changed) => {
                let ContextChanged { system, cwd, variables, agent } = changed;
                let context = &mut self.context;
                context.system = system.or(context.system.take());
                context.cwd = cwd.or(context.cwd.take());
                context.variables = variables.or(context.variables.take());
                context.agent = agent.or(context.agent.take());
            }
            Body::SkillsChanged(changed) => self.skills = Some(changed.active),
            Body::ModelChanged(changed) => drop(self.models.insert(changed.model)),
            _ => {}
        }
    }
}

service! {
    /// The configuration of a turn: its agent, its models, and which entries may set them.
    pub struct Configuration;
    configuration
}

impl Configuration<'_> {
    /// Return which part of a session this store wrote.
    pub(crate) async fn authority_of(self, scope: &Scope, summary: &Summary) -> Result<Authority> {
        match &summary.authority {
            Some(authority) => Ok(authority.clone()),
            None => Ok(self.engine.store.settle_authority(scope, &summary.id).await?),
        }
    }

    /// Visit the entries after `after` of the given kinds that this store wrote.
    pub(crate) async fn each_own_of_kinds(
        self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        mut visit: impl FnMut(Entry),
    ) -> Result<()> {
        let summary = self.engine.store.summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        let after = after.max(authority.imported_prefix());
        self.engine
            .log()
            .each_of_kinds_after(scope, session, kinds, after, |entry| {
                if authority.is_own(entry.meta.seq) {
                    visit(entry);
                }
            })
            .await
    }

    /// Drop imported entries from a list that begins with an entry of this store. A list that begins with an imported
    /// entry belongs to an imported turn and is not changed.
    pub(crate) async fn retain_own(
        self,
        scope: &Scope,
        session: &SessionId,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let Some(first) = entries.first().map(|entry| entry.meta.seq) else { return Ok(()) };
        let summary = self.engine.store.summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        if authority.has_imports() && authority.is_own(first) {
            entries.retain(|entry| authority.is_own(entry.meta.seq));
        }
        Ok(())
    }

    /// The settings at the leaf, excluding settings from imported entries.
    pub(crate) async fn settings(self, scope: &Scope, session: &SessionId) -> Result<Settings> {
        let summary = self.engine.store.summary(scope, session).await?;
        Ok(self.resolve(scope, &summary).await?.settings)
    }

    /// The configuration of the session's next turn.
    pub(crate) async fn resolve(self, scope: &Scope, summary: &Summary) -> Result<Configured> {
        let authority = self.authority_of(scope, summary).await?;
        let mut settings = self.path_settings(scope, &summary.id, None).await?;
        settings.cwd = settings.cwd.or_else(|| summary.cwd.clone());
        if !authority.has_imports() && settings.agent.is_some() {
            return Ok(Configured::unchanged(settings, authority));
        }
        let mut own = self.own_entries(scope, &summary.id, &authority).await?;
        if own.context.agent.is_none() && !authority.has_imports() {
            return Ok(Configured::unchanged(settings, authority));
        }
        let mut notice = None;
        if own.context.agent.is_none() {
            notice = Some(self.assign_default_agent(scope, &summary.id, &mut own).await?);
        }
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let changes = own.apply_to(&mut settings, own_cwd);
        Ok(Configured { settings, authority, changes, notice, named: own.models })
    }

    /// The configuration of an imported session that has no agent to continue with, to show what its path says.
    pub(crate) async fn unconfigured(self, scope: &Scope, summary: &Summary) -> Result<Configured> {
        let authority = self.authority_of(scope, summary).await?;
        let settings = self.path_settings(scope, &summary.id, None).await?;
        Ok(Configured::unchanged(Settings { agent: None, ..settings }, authority))
    }

    async fn own_entries(
        self,
        scope: &Scope,
        session: &SessionId,
        authority: &Authority,
    ) -> Result<OwnEntries> {
        let mut own = OwnEntries::default();
        let kinds = [Kind::ContextChanged, Kind::SkillsChanged, Kind::ModelChanged];
        let after = authority.imported_prefix();
        self.engine
            .log()
            .each_of_kinds_after(scope, session, &kinds, after, |entry| {
                if authority.is_own(entry.meta.seq) {
                    own.apply(entry.body);
                }
            })
            .await?;
        Ok(own)
    }

    /// The session's configuration, if a fork at this entry would not inherit it. The fork then gets a copy of it.
    pub(crate) async fn configuration_beyond(
        self,
        scope: &Scope,
        source: &Summary,
        at: Option<Seq>,
    ) -> Result<Option<ContextChanged>> {
        let at = at.filter(|at| *at > Seq::ZERO);
        let authority = self.authority_of(scope, source).await?;
        if at.is_some() && source.agent.is_none() && !authority.has_imports() {
            return Ok(None);
        }
        // In a session with imports, the settings on the path may be set by imported entries.
        if at.is_some()
            && !authority.has_imports()
            && self.path_settings(scope, &source.id, at).await?.agent.is_some()
        {
            return Ok(None);
        }
        let own = self.own_entries(scope, &source.id, &authority).await?;
        Ok(Some(own.context).filter(|context| context.agent.is_some()))
    }

    /// Assign the engine's default agent to an imported session on its first local turn.
    async fn assign_default_agent(
        self,
        scope: &Scope,
        session: &SessionId,
        own: &mut OwnEntries,
    ) -> Result<String> {
        let agent = self.engine.config.session_defaults.agent.clone();
        let agent = agent.ok_or_else(|| EngineError::NotConfigured { session: session.clone() })?;
        let memories = self.engine.memories().memory_prompt(scope, &agent).await;
        own.skills.get_or_insert_with(|| agent.skills.clone());
        for body in
            settings_of(&agent, self.engine.config.session_defaults.cwd.clone(), Default::default(), memories)
        {
            if matches!(body, Body::ContextChanged(_)) {
                own.apply(body);
            }
        }
        Ok(format!(
            "session {session} was imported: it continues with agent {}; agents, tools and servers named by the import are not used",
            agent.id
        ))
    }

    /// The settings on the path, including imported settings.
    async fn path_settings(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Settings> {
        let slice = self.engine.store.read_path(scope, session, at, Until::Entries(1)).await?;
        let mut settings = slice.settings_before;
        slice.entries.iter().for_each(|entry| settings.apply(&entry.body));
        Ok(settings)
    }

    /// Record the file-backed models of an agent that the local command line started, so that a server may continue
    /// the work.
    pub(crate) async fn record_models(self, scope: &Scope, session: &SessionId, agent: &Agent) -> Result<()> {
        if self.engine.config.file_models == FileModels::Local {
            for model in self.file_backed(agent) {
                self.engine.store.grant_model(scope, session, model).await?;
            }
        }
        Ok(())
    }

    /// Let a session call the file-backed models recorded for another session: a role's session gets its run's
    /// models, a sub-session its parent's.
    pub(crate) async fn share_models(
        self,
        scope: &Scope,
        from: &SessionId,
        to: &SessionId,
        agent: &Agent,
    ) -> Result<()> {
        if self.file_backed(agent).next().is_none() {
            return Ok(());
        }
        let summary = self.engine.store.summary(scope, from).await?;
        let recorded = self.authority_of(scope, &summary).await?;
        for model in self.file_backed(agent).filter(|model| recorded.allows_model(model)) {
            self.engine.store.grant_model(scope, to, model).await?;
        }
        Ok(())
    }

    fn file_backed<'a>(&'a self, agent: &'a Agent) -> impl Iterator<Item = &'a str> {
        let is_file_backed = |model: &&str| {
            self.engine.config.backends.as_ref().is_some_and(|backends| backends.model.is_file_backed(model))
        };
        agent.models().filter(is_file_backed)
    }

    /// Refuse a file-backed model that a server's caller names for later turns, unless the operator named it too.
    pub(crate) fn check_model(self, model: &str) -> Result<()> {
        let is_file_backed =
            self.engine.config.backends.as_ref().is_some_and(|backends| backends.model.is_file_backed(model));
        match &self.engine.config.file_models {
            FileModels::Named(names) if is_file_backed && !names.contains(model) => {
                Err(EngineError::ModelNotAllowed { model: model.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The models that can be called now, starting with the default.
    pub fn models(self) -> Result<Vec<String>> {
        let backends = self.engine.backends()?;
        let others = backends.model.names().into_iter().filter(|name| *name != backends.default_model);
        Ok(std::iter::once(backends.default_model.clone()).chain(others).collect())
    }

    /// The agent that a session was started with, or the default agent.
    pub async fn agent_of(self, scope: &Scope, session: &SessionId) -> Result<Agent> {
        agent_of(&self.settings(scope, session).await?)
    }
}

impl OwnEntries {
    /// Apply this configuration to `settings`. Returns the entries that apply it on the path.
    fn apply_to(&self, settings: &mut Settings, own_cwd: Option<String>) -> Vec<Body> {
        let shown = settings.clone();
        let context = &self.context;
        let system = context.system.clone().unwrap_or_default();
        settings.system = Some(system.clone()).filter(|system| !system.is_empty());
        settings.variables = context.variables.clone().unwrap_or_default();
        settings.agent.clone_from(&context.agent);
        settings.cwd = context.cwd.clone().or(own_cwd);
        settings.skills = self.skills.clone().unwrap_or_default();
        let is_shown = shown.system.as_deref().unwrap_or_default() == system
            && (&shown.variables, &shown.agent) == (&settings.variables, &settings.agent)
            && (context.cwd.is_none() || shown.cwd == context.cwd);
        let mut changes: Vec<Body> = Vec::new();
        if !is_shown {
            let variables = Some(settings.variables.clone());
            let (agent, cwd) = (settings.agent.clone(), context.cwd.clone());
            changes.push(ContextChanged { system: Some(system), cwd, variables, agent }.into());
        }
        if shown.skills != settings.skills {
            changes.push(SkillsChanged { active: settings.skills.clone() }.into());
        }
        changes
    }
}

impl Configured {
    fn unchanged(settings: Settings, authority: Authority) -> Self {
        Self { settings, authority, changes: Vec::new(), notice: None, named: BTreeSet::new() }
    }

    /// Record that the current call names a model.
    pub(crate) fn name_model(&mut self, model: Option<&str>) {
        self.named.extend(model.map(str::to_owned));
    }

    /// Whether the current call or an entry that this store wrote names the model. An answer names no model: it could be
    /// injected.
    pub(crate) fn is_named(&self, model: &str) -> bool {
        let is_asked = self.settings.model_asked.as_deref() == Some(model);
        self.named.contains(model) || (is_asked && !self.authority.has_imports())
    }

    /// Whether only imported entries name the model.
    pub(crate) fn is_only_imported(&self, model: &str) -> bool {
        self.authority.has_imports() && !self.named.contains(model)
    }
}

/// Check that every variable of the prompt is set and that no value looks like a secret.
pub(crate) fn check_variables(agent: &Agent, variables: &BTreeMap<String, String>) -> Result<()> {
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
pub(crate) fn agent_of(settings: &Settings) -> Result<Agent> {
    let Some(frozen) = &settings.agent else { return Ok(Agent::default_with(None)) };
    serde_json::from_str(frozen.get()).map_err(|error| {
        let why = format!("failed to parse: {error}");
        AgentError { agent: "of this session".to_owned(), field: "agent".to_owned(), why }.into()
    })
}
