//! What may decide how a turn runs. Only entries that this store's engine wrote count; imported ones are shown, searched and
//! continued, and start nothing.
//!
//! A session that was imported has no configuration until its first local turn, which gives it the caller's default agent
//! and says so. From then on that one is in force, whatever the path shows: a reset, a fork or a later import does not
//! change it.

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

/// How sessions are continued that have no configuration of their own.
#[derive(Debug, Clone, Default)]
pub struct SessionDefaults {
    /// None if the configured agent cannot be used; then a session without one is refused.
    pub agent: Option<Agent>,
    pub cwd: Option<String>,
}

/// Which file-backed models may be called. A name in a request or an import is never enough: it could name any file that
/// the process can read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FileModels {
    /// This process acts for the person who started it: what they name, here or earlier, counts.
    #[default]
    Local,
    /// A server: only what its operator's configuration and agent files name, and what the local command line named for a
    /// session.
    Named(BTreeSet<String>),
}

/// The configuration that a turn runs under.
#[derive(Debug, Clone)]
pub(crate) struct Configured {
    pub settings: Settings,
    pub authority: Authority,
    /// Entries that put it in force on the path, if the path shows another one.
    pub changes: Vec<Body>,
    /// What the caller is told about it.
    pub notice: Option<String>,
    /// Models that own entries named.
    named: BTreeSet<String>,
}

/// What a session's own entries say about its configuration, in the order they were written.
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
    /// Continue sessions that have no configuration of their own in this way.
    pub fn with_session_defaults(mut self, defaults: SessionDefaults) -> Self {
        self.defaults = defaults;
        self
    }

    /// Call only these file-backed models.
    pub fn with_file_models(mut self, file_models: FileModels) -> Self {
        self.file_models = file_models;
        self
    }

    /// Which part of a session this store wrote itself.
    pub(crate) async fn authority_of(&self, scope: &Scope, summary: &Summary) -> Result<Authority> {
        match &summary.authority {
            Some(authority) => Ok(authority.clone()),
            None => Ok(self.store.settle_authority(scope, &summary.id).await?),
        }
    }

    /// Visit the entries of some kinds that this store wrote itself.
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

    /// The settings in force at the leaf, as far as they may decide something.
    pub(crate) async fn settings(&self, scope: &Scope, session: &SessionId) -> Result<Settings> {
        let summary = self.store.summary(scope, session).await?;
        Ok(self.configuration(scope, &summary).await?.settings)
    }

    /// The configuration that the session's next turn runs under.
    pub(crate) async fn configuration(&self, scope: &Scope, summary: &Summary) -> Result<Configured> {
        let authority = self.authority_of(scope, summary).await?;
        let mut settings = self.shown_settings(scope, &summary.id, None).await?;
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
            notice = Some(self.fix_configuration(scope, &summary.id, &mut own).await?);
        }
        let own_cwd = summary.cwd.clone().filter(|_| authority.is_own(Seq::ZERO));
        let changes = own.put_in_force(&mut settings, own_cwd);
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

    /// The configuration of a session, if a fork that begins at this entry would not share it: the fork gets a copy.
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
        // What the path of a session with imports shows may be imported.
        if at.is_some()
            && !authority.has_imports()
            && self.shown_settings(scope, &source.id, at).await?.agent.is_some()
        {
            return Ok(None);
        }
        let own = self.own_entries(scope, &source.id, &authority).await?;
        Ok(Some(own.context).filter(|context| context.agent.is_some()))
    }

    /// The first local turn of an imported session gives it the caller's default agent.
    async fn fix_configuration(
        &self,
        scope: &Scope,
        session: &SessionId,
        own: &mut OwnEntries,
    ) -> Result<String> {
        let agent = self.defaults.agent.clone();
        let agent = agent.ok_or_else(|| EngineError::NotConfigured { session: session.clone() })?;
        let told = self.told(scope, &agent).await;
        own.skills.get_or_insert_with(|| agent.skills.clone());
        for body in settings_of(&agent, self.defaults.cwd.clone(), Default::default(), told) {
            if matches!(body, Body::ContextChanged(_)) {
                own.apply(body);
            }
        }
        Ok(format!(
            "session {session} was imported: it continues under agent {}, and nothing that the import names is started",
            agent.id
        ))
    }

    /// The settings that the path shows, imported ones included.
    async fn shown_settings(&self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Settings> {
        let slice = self.store.read_path(scope, session, at, Until::Entries(1)).await?;
        let mut settings = slice.settings_before;
        slice.entries.iter().for_each(|entry| settings.apply(&entry.body));
        Ok(settings)
    }

    /// Refuse a chain with a file-backed model that only a request or an import names. One that the local command line names
    /// is recorded, so that a server may take the turn over.
    pub(crate) async fn check_chain(
        &self,
        scope: &Scope,
        session: &SessionId,
        world: &Backends,
        configured: &Configured,
        chain: &[ChainLink],
    ) -> Result<()> {
        for model in chain.iter().map(|link| link.model.as_str()) {
            if !world.model.is_file_backed(model) || configured.authority.names_model(model) {
                continue;
            }
            match &self.file_models {
                FileModels::Named(names) if names.contains(model) => {}
                FileModels::Local if configured.is_named_here(model) => {
                    self.store.grant_model(scope, session, model).await?;
                }
                _ => return Err(EngineError::ModelNotAllowed { model: model.to_owned() }),
            }
        }
        Ok(())
    }

    /// Refuse a file-backed model that a caller names for later turns.
    pub(crate) fn check_model(&self, model: &str) -> Result<()> {
        let is_file_backed = self.world.as_ref().is_some_and(|world| world.model.is_file_backed(model));
        match &self.file_models {
            FileModels::Named(names) if is_file_backed && !names.contains(model) => {
                Err(EngineError::ModelNotAllowed { model: model.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

impl OwnEntries {
    /// Let this configuration hold in `settings`, and say which entries the path needs to show it.
    fn put_in_force(&self, settings: &mut Settings, own_cwd: Option<String>) -> Vec<Body> {
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

    /// Note that this call names a model itself.
    pub(crate) fn name_model(&mut self, model: Option<&str>) {
        self.named.extend(model.map(str::to_owned));
    }

    /// Whether a person at this machine, and not an import, named the model.
    fn is_named_here(&self, model: &str) -> bool {
        let is_imported = self.authority.has_imports()
            && self.settings.model_asked.as_deref() == Some(model)
            && !self.named.contains(model);
        !is_imported
    }
}
