//! Decide which entries may configure a turn. Only entries written by this store's engine count; of imported entries,
//! only the model and the thinking level apply. Imported entries can be shown, searched and continued, but never trigger
//! an action.
//!
//! A session's configuration is its own `configured` entry, outside the tree, and applies on every branch. Sessions of
//! log format 2 are configured by their own `context_changed` entries instead.
//!
//! An imported session has no configuration until its first local turn, which assigns the engine's default agent
//! and reports the assignment. The agent stays in force: a reset, a fork or a later import does not change it.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_core::agent::Agent;
use sapwood_core::entry::{
    Body, ConfigSource, Configured, ContextChanged, Entry, LOG_VERSION, ModelChanged, SessionContext,
    SkillsChanged, ThinkingChanged,
};
use sapwood_core::port::model::Thinking;
use sapwood_core::port::store::{PathSlice, Until};
use sapwood_core::project::summary::Summary;
use sapwood_core::session_config::{ConfigEntries, SessionConfig};
use sapwood_core::settings::{Settings, variables_in};
use sapwood_core::{Authority, Kind, Scope, Seq, SessionId};

use crate::session_defaults::FileModels;
use crate::{EngineError, Result, service};

/// Default number of attempts per model.
pub(crate) const ATTEMPTS_DEFAULT: u32 = 3;

/// The configuration that a turn runs under.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedConfig {
    pub settings: Settings,
    pub agent: Agent,
    /// Maximum number of tokens in the context, if the owner has set one.
    pub token_budget: Option<u64>,
    /// What the fork's ancestors have used of the limits.
    pub inherited: Option<ConfigSource>,
    pub authority: Authority,
    /// Entries that apply this configuration on the path, if the path has a different configuration.
    pub changes: Vec<Body>,
    /// A notice for the caller, if an imported session continues with the default agent.
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

    /// The settings at the leaf. Of the settings in imported entries, only the model and the thinking level apply.
    pub(crate) async fn settings(self, scope: &Scope, session: &SessionId) -> Result<Settings> {
        let summary = self.engine.store.summary(scope, session).await?;
        Ok(self.resolve(scope, &summary).await?.settings)
    }

    /// The configuration of the session's next turn.
    pub(crate) async fn resolve(self, scope: &Scope, summary: &Summary) -> Result<ResolvedConfig> {
        let authority = self.authority_of(scope, summary).await?;
        let mut settings = self.path_settings(scope, &summary.id, None).await?;
        let mut own = OwnEntries::default();
        if authority.has_imports() {
            own = self.own_entries(scope, &summary.id, &authority).await?;
            settings.skills.clone_from(&own.skills);
        }
        // The summary of a copied log may have been folded before its origin was known.
        let is_own = summary.config.configured.is_some_and(|seq| authority.is_own(seq));
        if is_own && let Some(config) = self.config(scope, &summary.id, &summary.config, None).await? {
            return Ok(ResolvedConfig::of(config, settings, authority, own.models));
        }
        settings.cwd = settings.cwd.or_else(|| summary.cwd.clone());
        if !authority.has_imports() {
            if settings.agent.is_some() {
                return ResolvedConfig::of_format_2(settings, authority);
            }
            own = self.own_entries(scope, &summary.id, &authority).await?;
        }
        if own.context.agent.is_none() {
            return self.assign_default_agent(scope, summary, settings, authority, own).await;
        }
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let changes = own.apply_to(&mut settings, own_cwd);
        let resolved = ResolvedConfig::of_format_2(settings, authority)?;
        Ok(ResolvedConfig { changes, named: own.models, ..resolved })
    }

    /// Read the configuration from a session's own entries, with the context as of entry `at`. `None` if the session has
    /// none, or is of format 2.
    pub(crate) async fn config(
        self,
        scope: &Scope,
        session: &SessionId,
        entries: &ConfigEntries,
        at: Option<Seq>,
    ) -> Result<Option<SessionConfig>> {
        let Some(configured) = entries.configured else { return Ok(None) };
        let Body::Configured(configured) = self.own_entry(scope, session, configured).await? else {
            return Ok(None);
        };
        let context = match entries.context {
            None => None,
            Some(newest) if at.is_none_or(|at| newest <= at) => Some(newest),
            Some(_) => self.context_entry_before(scope, session, at).await?,
        };
        let context = match context {
            None => None,
            Some(seq) => match self.own_entry(scope, session, seq).await? {
                Body::ContextSet(set) => Some(set.context),
                _ => None,
            },
        };
        Ok(Some(SessionConfig::of(configured, context, &entries.limits)?))
    }

    async fn own_entry(self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Body> {
        let record = self.engine.store.read_entry(scope, session, seq).await?;
        record.decode().map_err(|source| EngineError::Unreadable { session: session.clone(), source })
    }

    async fn context_entry_before(
        self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
    ) -> Result<Option<Seq>> {
        let mut found = None;
        self.each_own_of_kinds(scope, session, &[Kind::ContextSet], Seq::ZERO, |entry| {
            if at.is_none_or(|at| entry.meta.seq <= at) {
                found = Some(entry.meta.seq);
            }
        })
        .await?;
        Ok(found)
    }

    /// Read a path together with the session's configuration, from which a context can be built.
    pub(crate) async fn read_path(
        self,
        scope: &Scope,
        session: &SessionId,
        at: Option<Seq>,
        until: Until,
    ) -> Result<PathSlice> {
        let mut slice = self.engine.store.read_path(scope, session, at, until).await?;
        let config = self.config(scope, session, &slice.config_entries, at).await?;
        slice.config = config.map(Box::new);
        Ok(slice)
    }

    /// The id of the agent that the session's turns run with. `None` if the first local turn has not assigned one yet: an
    /// imported agent does not count.
    pub(crate) async fn agent_in_force(self, scope: &Scope, summary: &Summary) -> Result<Option<String>> {
        if let Some(config) = self.current_config(scope, summary).await? {
            return Ok(Some(config.agent.id));
        }
        let is_imported = self.authority_of(scope, summary).await?.has_imports();
        Ok((summary.turns > 0 && !is_imported).then(|| Agent::default().id))
    }

    /// The entries that fix the configuration of a role's session.
    pub(crate) async fn role_bodies(
        self,
        agent: &Agent,
        prompt: String,
        working_dir: Option<String>,
        variables: BTreeMap<String, String>,
    ) -> Result<Vec<Body>> {
        let prompted = Agent { system_prompt: Some(prompt), ..agent.clone() };
        if self.engine.store.log_format().await? >= LOG_VERSION {
            let context = SessionContext { working_dir, variables, ..SessionContext::default() };
            let configured = configured_body(&prompted, context, None);
            return Ok(vec![Configured { agent: agent.to_frozen(), ..configured }.into()]);
        }
        let mut bodies = format_2_bodies(agent, working_dir, variables, None);
        for body in &mut bodies {
            if let Body::ContextChanged(changed) = body {
                changed.system.clone_from(&prompted.system_prompt);
            }
        }
        Ok(bodies)
    }

    /// The configuration of a session that has no agent to continue with, from the settings on its path. For display only.
    pub(crate) async fn unconfigured(self, scope: &Scope, summary: &Summary) -> Result<ResolvedConfig> {
        let authority = self.authority_of(scope, summary).await?;
        let settings = self.path_settings(scope, &summary.id, None).await?;
        ResolvedConfig::of_format_2(Settings { agent: None, ..settings }, authority)
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

    /// The session's configuration, also if it is of format 2; `None` if it has none yet.
    pub(crate) async fn current_config(
        self,
        scope: &Scope,
        summary: &Summary,
    ) -> Result<Option<SessionConfig>> {
        let config = self.config(scope, &summary.id, &summary.config, None).await?;
        if config.is_some() {
            return Ok(config);
        }
        let authority = self.authority_of(scope, summary).await?;
        self.format_2_config(scope, summary, &authority).await
    }

    /// The configuration of a session of format 2, from its own `context_changed` entries.
    async fn format_2_config(
        self,
        scope: &Scope,
        summary: &Summary,
        authority: &Authority,
    ) -> Result<Option<SessionConfig>> {
        let own = self.own_entries(scope, &summary.id, authority).await?;
        let Some(agent) = &own.context.agent else { return Ok(None) };
        let mut agent = Agent::from_frozen(agent)?;
        if let Some(skills) = own.skills {
            agent.skills = skills;
        }
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let variables = own.context.variables.unwrap_or_default();
        let system = own.context.system.filter(|system| !system.is_empty());
        let rendered =
            Settings { system, variables: variables.clone(), ..Settings::default() }.system_prompt();
        let working_dir = own.context.cwd.or(own_cwd);
        let context = SessionContext { working_dir, variables, ..SessionContext::default() };
        Ok(Some(SessionConfig { agent, system: rendered, context, inherited: None, token_budget: None }))
    }

    /// In format 2: the session's configuration, if a fork at this entry would not inherit it.
    pub(crate) async fn format_2_beyond(
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

    /// Assign the default agent to a session without a configuration, on its first local turn.
    async fn assign_default_agent(
        self,
        scope: &Scope,
        summary: &Summary,
        mut settings: Settings,
        authority: Authority,
        mut own: OwnEntries,
    ) -> Result<ResolvedConfig> {
        let defaults = &self.engine.config.session_defaults;
        let session = &summary.id;
        let agent = defaults.agent.clone();
        let agent = agent.ok_or_else(|| EngineError::NotConfigured { session: session.clone() })?;
        let memories = self.engine.memories().memory_prompt(scope, &agent).await;
        let notice = authority.has_imports().then(|| {
            format!(
                "session {session} was imported: it continues with agent {}; agents, tools and servers named by the import are not used",
                agent.id
            )
        });
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let working_dir = own_cwd.or_else(|| defaults.cwd.clone());
        if self.engine.store.log_format().await? >= LOG_VERSION {
            let context = SessionContext { working_dir, ..SessionContext::default() };
            let configured = configured_body(&agent, context, memories);
            let config = SessionConfig::of(configured.clone(), None, &summary.config.limits)?;
            let resolved = ResolvedConfig::of(config, settings, authority, own.models);
            return Ok(ResolvedConfig { changes: vec![configured.into()], notice, ..resolved });
        }
        if notice.is_none() {
            return ResolvedConfig::of_format_2(settings, authority);
        }
        own.skills.get_or_insert_with(|| agent.skills.clone());
        for body in format_2_bodies(&agent, defaults.cwd.clone(), Default::default(), memories) {
            if matches!(body, Body::ContextChanged(_)) {
                own.apply(body);
            }
        }
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let changes = own.apply_to(&mut settings, own_cwd);
        let resolved = ResolvedConfig::of_format_2(settings, authority)?;
        Ok(ResolvedConfig { changes, notice, named: own.models, ..resolved })
    }

    /// The settings on the path, including imported settings.
    async fn path_settings(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Settings> {
        let slice = self.engine.store.read_path(scope, session, at, Until::Entries(1)).await?;
        let mut settings = slice.settings_before;
        slice.entries.iter().for_each(|entry| settings.apply(&entry.body));
        Ok(settings)
    }

    /// Record the agent's file-backed models if the local command line named them, so that a server may continue the
    /// work.
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
        let summary = self.engine.store.summary(scope, session).await?;
        Ok(self.resolve(scope, &summary).await?.agent)
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
        settings.skills = Some(self.skills.clone().unwrap_or_default());
        let is_shown = shown.system.as_deref().unwrap_or_default() == system
            && (&shown.variables, &shown.agent) == (&settings.variables, &settings.agent)
            && (context.cwd.is_none() || shown.cwd == context.cwd);
        let mut changes: Vec<Body> = Vec::new();
        if !is_shown {
            let variables = Some(settings.variables.clone());
            let (agent, cwd) = (settings.agent.clone(), context.cwd.clone());
            changes.push(ContextChanged { system: Some(system), cwd, variables, agent }.into());
        }
        let active = settings.skills.clone().unwrap_or_default();
        if shown.skills.unwrap_or_default() != active {
            changes.push(SkillsChanged { active }.into());
        }
        changes
    }
}

impl ResolvedConfig {
    fn of(
        config: SessionConfig,
        mut settings: Settings,
        authority: Authority,
        named: BTreeSet<String>,
    ) -> Self {
        config.apply_to(&mut settings);
        let SessionConfig { agent, token_budget, inherited, .. } = config;
        Self { settings, agent, token_budget, inherited, authority, changes: Vec::new(), notice: None, named }
    }

    /// The configuration of a session of format 2, whose settings contain its agent.
    fn of_format_2(settings: Settings, authority: Authority) -> Result<Self> {
        Ok(Self {
            agent: agent_of(&settings)?,
            settings,
            token_budget: None,
            inherited: None,
            authority,
            changes: Vec::new(),
            notice: None,
            named: BTreeSet::new(),
        })
    }

    /// Record that the current call names a model.
    pub(crate) fn name_model(&mut self, model: Option<&str>) {
        self.named.extend(model.map(str::to_owned));
    }

    /// Whether the current call or an entry that this store wrote names the model. The model of an answer does not count,
    /// because answers can be injected.
    pub(crate) fn is_named(&self, model: &str) -> bool {
        let is_asked = self.settings.model_asked.as_deref() == Some(model);
        self.named.contains(model) || (is_asked && !self.authority.has_imports())
    }

    /// Whether only imported entries name the model.
    pub(crate) fn is_only_imported(&self, model: &str) -> bool {
        self.authority.has_imports() && !self.named.contains(model)
    }
}

/// Check that every variable of the prompt is set.
pub(crate) fn check_variables(agent: &Agent, variables: &BTreeMap<String, String>) -> Result<()> {
    let wanted = agent.system_prompt.as_deref().map(variables_in).unwrap_or_default();
    if let Some(missing) = wanted.into_iter().find(|name| !variables.contains_key(*name)) {
        let why = format!("the prompt of agent {} needs {missing}, which is not set", agent.id);
        return Err(EngineError::Invalid { what: "the list of variables", why });
    }
    Ok(())
}

/// The entry that sets a session's configuration. The prompt is rendered once, here.
pub(crate) fn configured_body(
    agent: &Agent,
    context: SessionContext,
    memories: Option<String>,
) -> Configured {
    let system = Settings {
        system: agent.system_prompt.clone(),
        variables: context.variables.clone(),
        ..Settings::default()
    };
    let parts: Vec<String> =
        system.system_prompt().into_iter().chain(memories).chain(context.prompt_block()).collect();
    let system = (!parts.is_empty()).then(|| parts.join("\n\n"));
    Configured { agent: agent.to_frozen(), system, context, inherited: None }
}

/// The first entries of a session in format 2, which contain its configuration.
pub(crate) fn format_2_bodies(
    agent: &Agent,
    cwd: Option<String>,
    variables: BTreeMap<String, String>,
    memories: Option<String>,
) -> Vec<Body> {
    let frozen = Some(agent.to_frozen());
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

/// The agent in the settings of a session of format 2, or the default agent if it was created without one.
pub(crate) fn agent_of(settings: &Settings) -> Result<Agent> {
    match &settings.agent {
        Some(frozen) => Ok(Agent::from_frozen(frozen)?),
        None => Ok(Agent::default_with(None)),
    }
}
