//! Changes to a session's configuration after its start. No change adds tools or raises the level of file access. Only
//! an operator, or the owner of the session that set the configuration, may set another working directory.

use sapwood_core::agent::Narrowing;
use sapwood_core::entry::{
    Body, ConfigSource, Configured, ContextSet, LOG_VERSION, LimitsChanged, SessionContext, SystemNote,
};
use sapwood_core::port::store::{Appended, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::scope::Reach;
use sapwood_core::secret_shape::looks_like_key;
use sapwood_core::session_config::SessionConfig;
use sapwood_core::{Principal, Right, Scope, Seq, SessionId};

use crate::configuration::Configuration;
use crate::{EngineError, Result};

/// The `reason` of the note that tells the model about a change of the context.
pub const CONTEXT_REASON: &str = "context";
/// Maximum number of variables of a session.
const VARIABLES_MAX: usize = 256;
/// Maximum size of one value of the context, in bytes.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// How a fork's configuration differs from its source's.
#[derive(Debug, Clone, Default)]
pub struct ForkChanges {
    /// Restrictions, in addition to those of the source.
    pub narrowing: Narrowing,
    /// Another working directory. Only an operator, or the owner of the session that set the configuration, may set it.
    pub cwd: Option<String>,
    /// The branch or commit of that directory.
    pub git_ref: Option<String>,
}

impl ForkChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.cwd.is_none() && self.narrowing == Narrowing::default()
    }

    pub(crate) fn refuse_in_format_2(&self) -> Result<()> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(EngineError::FormatTooOld { what: "a fork with another configuration" }),
        }
    }

    /// A source without a configuration has nothing to change.
    pub(crate) fn refuse_without_configuration(&self, source: &SessionId) -> Result<Vec<Body>> {
        match self.is_empty() {
            true => Ok(Vec::new()),
            false => Err(EngineError::NotConfigured { session: source.clone() }),
        }
    }
}

/// An owner's changes to a session's context and limits. Absent fields keep their value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigChange {
    /// The working directory. Only an operator, or the owner of the session that set the configuration, may set it.
    pub working_dir: Option<String>,
    /// The open file; an empty text removes it.
    pub active_file: Option<String>,
    /// The selected lines; `Some(None)` removes the selection.
    pub selection: Option<Option<sapwood_core::entry::Selection>>,
    /// The branch or commit; an empty text removes it.
    pub git_ref: Option<String>,
    /// Variables to set; an empty value removes the variable.
    pub variables: std::collections::BTreeMap<String, String>,
    /// New limits.
    pub limits: LimitsChanged,
}

impl ConfigChange {
    fn changes_context(&self) -> bool {
        let limits_only = Self { limits: self.limits.clone(), ..Self::default() };
        *self != limits_only
    }

    /// The context after the change.
    fn apply_to(&self, context: &SessionContext) -> SessionContext {
        let mut changed = context.clone();
        let set = |field: &mut Option<String>, value: &Option<String>| {
            if let Some(value) = value {
                *field = Some(value.clone()).filter(|value| !value.is_empty());
            }
        };
        set(&mut changed.working_dir, &self.working_dir);
        set(&mut changed.active_file, &self.active_file);
        set(&mut changed.git_ref, &self.git_ref);
        if let Some(selection) = &self.selection {
            changed.selection.clone_from(selection);
        }
        for (name, value) in &self.variables {
            match value.is_empty() {
                true => drop(changed.variables.remove(name)),
                false => drop(changed.variables.insert(name.clone(), value.clone())),
            }
        }
        changed
    }
}

impl Configuration<'_> {
    /// The entries that give a fork its source's configuration, and narrow it.
    pub(crate) async fn for_fork(
        self,
        scope: &Scope,
        source: &Summary,
        at: Option<Seq>,
        changes: &ForkChanges,
    ) -> Result<Vec<Body>> {
        if self.engine.store.log_format().await? < LOG_VERSION {
            changes.refuse_in_format_2()?;
            return Ok(self.format_2_beyond(scope, source, at).await?.map(Body::from).into_iter().collect());
        }
        let is_configured = source.config.configured.is_some() || source.agent.is_some();
        let authority = self.authority_of(scope, source).await?;
        if !is_configured && !authority.has_imports() && changes.is_empty() {
            return Ok(Vec::new());
        }
        let Some(mut config) = self.current_config(scope, source).await? else {
            return changes.refuse_without_configuration(&source.id);
        };
        let inherited = inherited_by_fork(source, config.inherited.as_ref());
        if let Some(dir) = &changes.cwd {
            check_path_owner(scope, &source.id, &inherited.owner)?;
            config.context.working_dir = Some(dir.clone());
            config.context.git_ref.clone_from(&changes.git_ref);
        }
        let agent = config.agent.narrowed(&changes.narrowing)?.to_frozen();
        let SessionConfig { system, context, token_budget, .. } = config;
        let limits = LimitsChanged { token_budget, ..LimitsChanged::default() };
        let configured = Configured { agent, system, context, inherited: Some(inherited) };
        let limits = (!limits.is_empty()).then(|| limits.into());
        Ok(std::iter::once(configured.into()).chain(limits).collect())
    }

    /// Change a session's context or limits. A note appended to the conversation informs the model of a changed context:
    /// the prompt is not rendered again, so that the cached prefix stays valid.
    pub async fn change(self, scope: &Scope, session: &SessionId, change: &ConfigChange) -> Result<Appended> {
        self.engine.directory().check_right(scope, session, Right::Own).await?;
        if self.engine.store.log_format().await? < LOG_VERSION {
            return Err(EngineError::FormatTooOld { what: "changing a session's configuration" });
        }
        check_limits(&change.limits)?;
        let (scope_of, change_of) = (scope.clone(), change.clone());
        self.engine
            .log()
            .decide(scope, session, "set", move |engine, summary| {
                let (scope, change) = (scope_of.clone(), change_of.clone());
                async move { engine.configuration().change_bodies(&scope, &summary, &change).await }
            })
            .await
    }

    async fn change_bodies(
        self,
        scope: &Scope,
        summary: &Summary,
        change: &ConfigChange,
    ) -> Result<Vec<Body>> {
        let mut bodies: Vec<Body> = Vec::new();
        if !change.limits.is_empty() {
            bodies.push(change.limits.clone().into());
        }
        if !change.changes_context() {
            return Ok(bodies);
        }
        let unconfigured = || EngineError::NotConfigured { session: summary.id.clone() };
        let config = self.current_config(scope, summary).await?.ok_or_else(unconfigured)?;
        if change.working_dir.is_some() {
            let owner = config.inherited.as_ref().map_or(&summary.owner, |source| &source.owner);
            check_path_owner(scope, &summary.id, owner)?;
        }
        let context = change.apply_to(&config.context);
        check_context(&context)?;
        if context != config.context {
            let note = SystemNote {
                text: change_note(&config.context, &context),
                reason: Some(CONTEXT_REASON.to_owned()),
            };
            bodies.push(ContextSet { context }.into());
            bodies.push(note.into());
        }
        Ok(bodies)
    }
}

/// What the ancestors of a fork have used of their limits, and which session set the configuration.
fn inherited_by_fork(source: &Summary, before: Option<&ConfigSource>) -> ConfigSource {
    let spent = source.spend.total();
    let (session, owner) = match before {
        Some(before) => (before.session.clone(), before.owner.clone()),
        None => (source.id.clone(), source.owner.clone()),
    };
    ConfigSource {
        session,
        owner,
        turns: before.map_or(0, |before| before.turns).saturating_add(source.turns),
        cost_nano_usd: before.map_or(0, |before| before.cost_nano_usd).saturating_add(spent.cost_nano_usd),
        tokens: before.map_or(0, |before| before.tokens).saturating_add(spent.usage.total()),
    }
}

/// Refuse a change of paths, unless the caller is an operator or owns the session that set the configuration.
fn check_path_owner(scope: &Scope, session: &SessionId, owner: &Principal) -> Result<()> {
    if scope.principal == *owner || scope.reach == Reach::Tenant {
        return Ok(());
    }
    let principal = scope.principal.clone();
    Err(StoreError::Denied { session: session.clone(), principal, needed: Right::Own }.into())
}

fn check_limits(limits: &LimitsChanged) -> Result<()> {
    let fail = |why: &str| Err(EngineError::Invalid { what: "the limit", why: why.to_owned() });
    if limits.token_budget == Some(0) {
        return fail("a token budget of 0 leaves no room for a message; give a positive number");
    }
    if limits.budget_nano_usd == Some(0) {
        return fail("a budget of 0 USD allows no model call; give a positive amount");
    }
    Ok(())
}

/// Refuse values that are too large, too many, or look like secrets.
pub(crate) fn check_context(context: &SessionContext) -> Result<()> {
    let fail = |why: String| Err(EngineError::Invalid { what: "the context", why });
    if context.variables.len() > VARIABLES_MAX {
        return fail(format!("it has more than {VARIABLES_MAX} variables"));
    }
    if let Some(selection) = &context.selection
        && (selection.start_line == 0 || selection.end_line < selection.start_line)
    {
        return fail(format!("the selection {selection} is not a range of lines; lines are numbered from 1"));
    }
    let fields = [&context.working_dir, &context.active_file, &context.git_ref];
    let fields = fields.into_iter().flatten().map(|value| ("a field", value));
    let variables = context.variables.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in fields.chain(variables) {
        if value.len() > VALUE_BYTES_MAX {
            return fail(format!("{name} is longer than {VALUE_BYTES_MAX} bytes"));
        }
        if looks_like_key(value).is_some() {
            return fail(format!(
                "{name} looks like a key or a password; store it as a secret and refer to it as secret:NAME"
            ));
        }
    }
    Ok(())
}

/// The note that tells the model what changed.
fn change_note(before: &SessionContext, after: &SessionContext) -> String {
    let lines_before: Vec<String> = before.to_string().lines().map(str::to_owned).collect();
    let after_text = after.to_string();
    let changed = after_text.lines().filter(|line| !lines_before.iter().any(|before| before == line));
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once([':', '='])?.0.trim().to_owned())).collect()
    };
    let names_after = names(&after_text);
    let removed = names(&before.to_string()).into_iter().filter(|name| !names_after.contains(name));
    let removed = removed.map(|name| format!("{name}: none"));
    let lines: Vec<String> = changed.map(str::to_owned).chain(removed).collect();
    format!("The context of this session has changed:\n{}", lines.join("\n"))
}
