//! Builds the engine and the scope from options, environment and configuration.

use std::sync::Arc;

use sapwood::core::id::UserName;
use sapwood::core::port::model::Model;
use sapwood::core::port::store::ListFilter;
use sapwood::effects::document::SandboxedReader;
use sapwood::effects::sandbox::Launcher;
use sapwood::engine::SessionDefaults;
use sapwood::store::{Durability, OpenOptions};
use sapwood::{Engine, Principal, Scope, SessionId, TenantId};

use crate::answer_links;
use crate::app_paths::{AppPaths, create_home};
use crate::config::{self, Config};
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::hooks;
use crate::key;
use crate::log::Log;
use crate::providers;
use crate::render::{Format, Out};
use crate::suggest::nearest;
use crate::telemetry::{self, Telemetry};

/// Number of recent sessions compared with a mistyped id.
const SUGGESTION_CANDIDATES_MAX: usize = 500;

/// Maximum number of unreadable sessions that an error names.
const LEFT_OUT_MAX: usize = 20;

/// The state shared by all commands.
pub struct App {
    pub engine: Engine,
    pub scope: Scope,
    pub out: Out,
    pub paths: AppPaths,
    /// The models. Set by [`App::open_backends`].
    pub model: Option<Arc<dyn Model>>,
    /// The server log. Only `serve` sets it; other commands print their errors.
    pub log: Option<Log>,
    /// Dropped when the command ends, which sends the remaining spans.
    telemetry: Option<Telemetry>,
}

impl App {
    /// Fails if the last list or search left out sessions that cannot be read. `what` names it in the message.
    pub async fn check_complete(&mut self, what: &str) -> Result<()> {
        let left_out = self.engine.directory().left_out(&self.scope).await?;
        if left_out.is_empty() {
            return Ok(());
        }
        std::io::Write::flush(&mut self.out)?;
        let named: Vec<String> = left_out
            .iter()
            .take(LEFT_OUT_MAX)
            .map(|found| format!("{}: {}", found.place, found.what))
            .collect();
        let more = left_out.len().saturating_sub(LEFT_OUT_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let message = format!("the {what} is incomplete: {}{more}", named.join("; "));
        Err(Failure::new("store.incomplete", message))
    }

    pub fn open(global: &Global) -> Result<Self> {
        let paths = AppPaths::find(global)?;
        let scope = scope_of(global, &paths.config)?;
        if paths.is_store_at_home {
            create_home(&paths.home)?;
        }
        let durability = match paths.config.durability {
            Some(config::Durability::Normal) => Durability::Normal,
            Some(config::Durability::Full) | None => Durability::Full,
        };
        let options = OpenOptions { durability, key: key::find(&paths)? };
        let engine = sapwood::open_engine(&paths.url, options)?;
        let engine = hooks::install(engine, &paths.config, &scope)?;
        let engine = engine.configured(|config| config.skills = Some(Arc::new(paths.skills())));
        let memory = providers::memory_care(&paths)?;
        let engine = engine.configured(|config| config.memory = memory);
        Ok(Self {
            engine,
            scope,
            out: Out::new(global.format()),
            paths,
            model: None,
            log: None,
            telemetry: None,
        })
    }

    /// Open models and tools, for commands that run turns. Other commands start faster without them.
    pub fn open_backends(&mut self) -> Result<()> {
        if self.model.is_some() {
            return Ok(());
        }
        let backends = providers::open(&self.paths, self.default_model())?;
        self.model = Some(backends.model.clone());
        let thresholds = self.paths.config.pressure.unwrap_or_default();
        let defaults = self.session_defaults();
        self.engine = self.engine.clone().configured(|config| {
            config.thresholds = thresholds;
            config.backends = Some(backends);
            config.documents = Some(Arc::new(SandboxedReader::new(Launcher::this_binary())));
            config.session_defaults = defaults;
        });
        if answer_links::are_used_by_hooks(&self.paths.config) {
            let links = answer_links::open(&self.paths, answer_links::LOCAL_URL)?;
            self.engine = self.engine.clone().configured(|config| config.links = Some(links));
        }
        self.telemetry = telemetry::start(self.format(), self.log.take());
        if self.telemetry.is_some() {
            let trace_ids = Arc::new(telemetry::trace_id_of);
            self.engine = self.engine.clone().configured(|config| config.trace_ids = Some(trace_ids));
        }
        Ok(())
    }

    /// Settings for continuing imported sessions: the agent that a new session would get, in this directory.
    fn session_defaults(&self) -> SessionDefaults {
        let agent = self.paths.agents().choose(None, &self.paths.config).ok();
        SessionDefaults { agent, cwd: self.paths.here.to_str().map(str::to_owned) }
    }

    /// Open the backends for commands that learn from sessions, if learning uses a model.
    pub fn open_backends_to_learn(&mut self) -> Result<()> {
        match self.paths.config.memory.as_ref().is_some_and(|memory| memory.model.is_some()) {
            true => self.open_backends(),
            false => Ok(()),
        }
    }

    /// The model for sessions and agents that do not set a model.
    pub fn default_model(&self) -> String {
        self.paths.config.model.clone().unwrap_or_else(|| "demo".to_owned())
    }

    pub async fn session(&self, given: &str) -> Result<SessionId> {
        match self.engine.directory().find_session(&self.scope, given).await {
            Err(error) if error.code() == "session.not_found" => {
                let suggestion = self.similar_session(given).await;
                let failure = Failure::from(error);
                Err(match suggestion {
                    Some(id) => failure
                        .with_hint(format!("did you mean {id}? run `sapwood ls` to list your sessions")),
                    None => failure,
                })
            }
            found => Ok(found?),
        }
    }

    /// The id of a recent session that is similar to a mistyped id.
    async fn similar_session(&self, given: &str) -> Option<String> {
        let filter = ListFilter { limit: SUGGESTION_CANDIDATES_MAX, ..ListFilter::default() };
        let recent = self.engine.directory().list(&self.scope, &filter).await.ok()?.items;
        nearest(given, recent.iter().map(|summary| summary.id.as_str())).map(str::to_owned)
    }

    /// Find a session to show. The access is audited, so that the owner can see who read it.
    pub async fn session_to_read(&self, given: &str) -> Result<SessionId> {
        let session = self.session(given).await?;
        self.note_read(&session).await?;
        Ok(session)
    }

    /// Record a read in the audit log. If the store is read-only or the disk is full, the read is allowed without a
    /// record, because a local user can access the files anyway. A server refuses such a read, because its audit log
    /// must be complete.
    pub async fn note_read(&self, session: &SessionId) -> Result<()> {
        match self.engine.directory().note_read(&self.scope, session).await {
            Err(error) if matches!(error.code(), "store.read_only" | "store.disk_full") => Ok(()),
            noted => Ok(noted?),
        }
    }

    pub fn format(&self) -> Format {
        self.out.format
    }
}

fn scope_of(global: &Global, config: &Config) -> Result<Scope> {
    let tenant = match global.tenant.as_ref().or(config.tenant.as_ref()) {
        Some(tenant) => tenant.parse().map_err(sapwood::Error::from)?,
        None => TenantId::local(),
    };
    if let Some(user) = &global.as_user {
        return Ok(Scope::user(tenant, user.parse().map_err(sapwood::Error::from)?));
    }
    let user = match &config.user {
        Some(user) => user.parse().map_err(sapwood::Error::from)?,
        None => login_name()?,
    };
    Ok(Scope::operator(tenant, Principal::User(user)))
}

/// The user's login name, or `local` if it is missing or not a valid user name.
fn login_name() -> Result<UserName> {
    let name = std::env::var("USER").or_else(|_| std::env::var("USERNAME")).unwrap_or_default();
    Ok(name.parse().or_else(|_| "local".parse()).map_err(sapwood::Error::from)?)
}
