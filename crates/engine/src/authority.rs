//! Decide which entries may configure a turn. Only entries written by this store's engine count. Imported entries
//! can be shown, searched and continued, but never trigger an action.
//!
//! An imported session has no configuration until its first local turn, which assigns the caller's default agent
//! and reports the assignment. The agent stays in force: a reset, a fork or a later import does not change it.

use std::collections::BTreeSet;

use sapwood_core::agent::{Agent, ChainLink};
use sapwood_core::entry::{Body, ContextChanged, Entry, SkillsChanged};
use sapwood_core::port::store::Until;
use sapwood_core::project::summary::Summary;
use sapwood_core::settings::Settings;
use sapwood_core::{Authority, Kind, Scope, Seq, SessionId};

use crate::backends::Backends;
use crate::turn::settings_of;
use crate::{Engine, EngineError, Result};

/// Defaults for sessions without a configuration.
#[derive(Debug, Clone, Default)]
pub struct SessionDefaults {
    /// `None` if the configured agent cannot be used; sessions without an agent are then refused.
    pub agent: Option<Agent>,
    pub cwd: Option<String>,
}

/// Which file-backed models may be called. A model name in a request or an import is not enough, because it could
/// point to any file that the process can read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FileModels {
    /// The process acts for the user who started it: any model that this user named, now or earlier, is
    /// allowed.
    #[default]
    Local,
    /// The process is a server: only models in its operator's configuration and agent files are allowed, and models
    /// that the local command line recorded for the session.
    Named(BTreeSet<String>),
}

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

impl Engine {
    /// Set the defaults for sessions without a configuration.
    pub fn with_session_defaults(mut self, defaults: SessionDefaults) -> Self {
        self.defaults = defaults;
        self
    }

    /// Restrict which file-backed models may be called.
    pub fn with_file_models(mut self, file_models: FileModels) -> Self {
        self.file_models = file_models;
        self
    }

    /// Return which part of a session this store wrote.
    pub(crate) async fn authority_of(&self, scope: &Scope, summary: &Summary) -> Result<Authority> {
        match &summary.authority {
            Some(authority) => Ok(authority.clone()),
            None => Ok(self.store.settle_authority(scope, &summary.id).await?),
        }
    }

    /// Visit the entries of the given kinds that this store wrote.
    pub(crate) async fn each_own_of_kinds(
        &self,
        scope: &Scope,
        session: &SessionId,
        kinds: &[Kind],
        after: Seq,
        mut visit: impl FnMut(Entry),
    ) -> Result<()> {
        let summary = self.store.summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        let after = after.max(authority.imported_prefix());
        self.each_of_kinds_after(scope, session, kinds, after, |entry| {
            if authority.is_own(entry.meta.seq) {
                visit(entry);
            }
        })
        .await
    }

    /// Drop imported entries from a list that begins with an entry of this store. A list that begins with an imported
    /// entry belongs to an imported turn and is not changed.
    pub(crate) async fn retain_own(
        &self,
        scope: &Scope,
        session: &SessionId,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let Some(first) = entries.first().map(|entry| entry.meta.seq) else { return Ok(()) };
        let summary = self.store.summary(scope, session).await?;
        let authority = self.authority_of(scope, &summary).await?;
        if authority.has_imports() && authority.is_own(first) {
            entries.retain(|entry| authority.is_own(entry.meta.seq));
        }
        Ok(())
    }

    /// The settings at the leaf, excluding settings from imported entries.
    pub(crate) async fn settings(&self, scope: &Scope, session: &SessionId) -> Result<Settings> {
        let summary = self.store.summary(scope, session).await?;
        Ok(self.configuration(scope, &summary).await?.settings)
    }

    /// The configuration of the session's next turn.
    pub(crate) async fn configuration(&self, scope: &Scope, summary: &Summary) -> Result<Configured> {
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

    async fn own_entries(
        &self,
        scope: &Scope,
        session: &SessionId,
        authority: &Authority,
    ) -> Result<OwnEntries> {
        let mut own = OwnEntries::default();
        let kinds = [Kind::ContextChanged, Kind::SkillsChanged, Kind::ModelChanged];
        let after = authority.imported_prefix();
        self.each_of_kinds_after(scope, session, &kinds, after, |entry| {
            if authority.is_own(entry.meta.seq) {
                own.apply(entry.body);
            }
        })
        .await?;
        Ok(own)
    }

    /// The session's configuration, if a fork at this entry would not inherit it. The fork then gets a copy of it.
    pub(crate) async fn configuration_beyond(
        &self,
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

    /// Assign the caller's default agent to an imported session on its first local turn.
    async fn assign_default_agent(
        &self,
        scope: &Scope,
        session: &SessionId,
        own: &mut OwnEntries,
    ) -> Result<String> {
        let agent = self.defaults.agent.clone();
        let agent = agent.ok_or_else(|| EngineError::NotConfigured { session: session.clone() })?;
        let memories = self.memory_prompt(scope, &agent).await;
        own.skills.get_or_insert_with(|| agent.skills.clone());
        for body in settings_of(&agent, self.defaults.cwd.clone(), Default::default(), memories) {
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
    async fn path_settings(&self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Settings> {
        let slice = self.store.read_path(scope, session, at, Until::Entries(1)).await?;
        let mut settings = slice.settings_before;
        slice.entries.iter().for_each(|entry| settings.apply(&entry.body));
        Ok(settings)
    }

    /// Refuse a model chain with a file-backed model that is named only by a request or an import. A model named by
    /// the local command line is recorded, so that a server may take over the turn.
    pub(crate) async fn check_chain(
        &self,
        scope: &Scope,
        session: &SessionId,
        backends: &Backends,
        configured: &Configured,
        chain: &[ChainLink],
    ) -> Result<()> {
        for model in chain.iter().map(|link| link.model.as_str()) {
            if !backends.model.is_file_backed(model) || configured.authority.allows_model(model) {
                continue;
            }
            match &self.file_models {
                FileModels::Named(names) if names.contains(model) => {}
                FileModels::Local if configured.is_named_locally(model) => {
                    self.store.grant_model(scope, session, model).await?;
                }
                _ => return Err(EngineError::ModelNotAllowed { model: model.to_owned() }),
            }
        }
        Ok(())
    }

    /// Record the file-backed models of an agent that the local command line started, so that a server may continue
    /// the work.
    pub(crate) async fn record_models(
        &self,
        scope: &Scope,
        session: &SessionId,
        agent: &Agent,
    ) -> Result<()> {
        if self.file_models == FileModels::Local {
            for model in self.file_backed(agent) {
                self.store.grant_model(scope, session, model).await?;
            }
        }
        Ok(())
    }

    /// Let a session call the file-backed models recorded for another session: a role's session gets its run's
    /// models, a sub-session its parent's.
    pub(crate) async fn share_models(
        &self,
        scope: &Scope,
        from: &SessionId,
        to: &SessionId,
        agent: &Agent,
    ) -> Result<()> {
        if self.file_backed(agent).next().is_none() {
            return Ok(());
        }
        let summary = self.store.summary(scope, from).await?;
        let recorded = self.authority_of(scope, &summary).await?;
        for model in self.file_backed(agent).filter(|model| recorded.allows_model(model)) {
            self.store.grant_model(scope, to, model).await?;
        }
        Ok(())
    }

    fn file_backed<'a>(&'a self, agent: &'a Agent) -> impl Iterator<Item = &'a str> {
        let is_file_backed = |model: &&str| {
            self.backends.as_ref().is_some_and(|backends| backends.model.is_file_backed(model))
        };
        agent.models().filter(is_file_backed)
    }

    /// Refuse a file-backed model that a caller names for later turns.
    pub(crate) fn check_model(&self, model: &str) -> Result<()> {
        let is_file_backed =
            self.backends.as_ref().is_some_and(|backends| backends.model.is_file_backed(model));
        match &self.file_models {
            FileModels::Named(names) if is_file_backed && !names.contains(model) => {
                Err(EngineError::ModelNotAllowed { model: model.to_owned() })
            }
            _ => Ok(()),
        }
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

    /// Whether a local user, rather than an import, named the model.
    fn is_named_locally(&self, model: &str) -> bool {
        let is_imported = self.authority.has_imports()
            && self.settings.model_asked.as_deref() == Some(model)
            && !self.named.contains(model);
        !is_imported
    }
}
