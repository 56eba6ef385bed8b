//! Reads the triggers from the user's `sapwood.toml`, resolves their agents and secrets, and runs them for `serve`.

use std::path::PathBuf;
use std::sync::Arc;

use sapwood::core::agent::Agent;
use sapwood::core::trigger::{Conflict, Missed, Trigger, TriggerTarget};
use sapwood::effects::secret::Secret;
use sapwood::effects::trigger::{Cron, FileWatch};
use sapwood::engine::trigger::{InstalledTrigger, TriggerRunner, TriggerSource};
use sapwood::{Engine, Scope, SessionId};
use sapwood_server::ServedTrigger;
use serde::Deserialize;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::providers::find_secrets;

/// Maximum number of configured triggers.
const TRIGGERS_MAX: usize = 100;
/// Default maximum of firings per hour.
const PER_HOUR_DEFAULT: u32 = 120;
/// Default and minimum poll interval for files.
const POLL_MS_DEFAULT: u64 = 1_000;
const POLL_MS_MIN: u64 = 100;
/// Maximum debounce time: one hour.
const DEBOUNCE_MS_MAX: u64 = 3_600_000;

/// One `[[triggers]]` table. Exactly one of webhook, cron, watch and event must be set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerSettings {
    pub name: String,
    pub webhook: Option<WebhookSettings>,
    pub cron: Option<String>,
    /// Time zone of the cron pattern, such as `Europe/Berlin`.
    pub time_zone: Option<String>,
    #[serde(default)]
    pub missed: Option<Missed>,
    pub watch: Option<WatchSettings>,
    pub event: Option<EventSettings>,
    /// The session to send to. Default: a new session for each firing.
    pub session: Option<String>,
    /// The agent of new sessions.
    pub agent: Option<String>,
    pub cwd: Option<PathBuf>,
    /// The message to send. Default: the payload.
    pub prompt: Option<String>,
    #[serde(default)]
    pub debounce_ms: u64,
    #[serde(default)]
    pub conflict: Conflict,
    pub per_hour_max: Option<u32>,
    /// The trigger's owner, whose rights apply. Default: the operator.
    pub user: Option<String>,
    pub tenant: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSettings {
    /// The secret, `secret:NAME`, that callers without an API key use to sign requests.
    pub secret: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchSettings {
    #[serde(default)]
    pub directory: PathBuf,
    /// Globs of paths in the directory.
    pub files: Vec<String>,
    pub poll_ms: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSettings {
    pub session: String,
    /// Event types, such as `session:turn_completed`. Empty means every event.
    #[serde(default)]
    pub types: Vec<String>,
}

/// A configured trigger with its resolved agent, scope and secret.
pub struct ConfiguredTrigger {
    pub installed: InstalledTrigger,
    secret: Option<Secret>,
}

impl ConfiguredTrigger {
    pub fn to_served(&self) -> ServedTrigger {
        ServedTrigger { installed: self.installed.clone(), secret: self.secret.clone() }
    }
}

/// Read the configured triggers.
pub fn read(app: &App) -> Result<Vec<ConfiguredTrigger>> {
    let all = &app.paths.config.triggers;
    if all.len() > TRIGGERS_MAX {
        return Err(Failure::new(
            "config.invalid",
            format!("more than {TRIGGERS_MAX} triggers are configured"),
        ));
    }
    for (at, settings) in all.iter().enumerate() {
        if all[..at].iter().any(|other| other.name == settings.name) {
            return Err(invalid(settings, "another trigger has the same name"));
        }
    }
    all.iter().map(|settings| resolve_trigger(app, settings)).collect()
}

fn invalid(settings: &TriggerSettings, why: impl std::fmt::Display) -> Failure {
    Failure::new("config.invalid", format!("triggers: {}: {why}", settings.name))
}

fn resolve_trigger(app: &App, settings: &TriggerSettings) -> Result<ConfiguredTrigger> {
    let (source, secret) = source_of(settings)?;
    let target = match &settings.session {
        Some(session) => TriggerTarget::Session(parse_session(settings, session)?),
        None => TriggerTarget::New,
    };
    if let (TriggerSource::Event { session, .. }, TriggerTarget::Session(to)) = (&source, &target)
        && session == to
    {
        return Err(invalid(settings, "it would trigger itself: event.session and session are the same"));
    }
    let trigger = Trigger {
        name: settings.name.clone(),
        target,
        prompt: settings.prompt.clone().unwrap_or_else(|| "{{payload}}".to_owned()),
        debounce_ms: settings.debounce_ms,
        conflict: settings.conflict,
        per_hour_max: settings.per_hour_max.unwrap_or(PER_HOUR_DEFAULT),
    };
    if let Some(mistake) = trigger.mistake() {
        return Err(invalid(settings, mistake));
    }
    if settings.debounce_ms > DEBOUNCE_MS_MAX {
        return Err(invalid(settings, format!("debounce_ms exceeds {DEBOUNCE_MS_MAX}")));
    }
    let agent = agent_of(app, settings)?;
    let cwd = settings.cwd.as_ref().map(|path| path.display().to_string());
    let scope = scope_of(app, settings)?;
    Ok(ConfiguredTrigger { installed: InstalledTrigger { trigger, source, agent, cwd, scope }, secret })
}

fn parse_session(settings: &TriggerSettings, session: &str) -> Result<SessionId> {
    session.parse().map_err(|error| invalid(settings, error))
}

fn agent_of(app: &App, settings: &TriggerSettings) -> Result<Agent> {
    let named = settings.agent.as_deref();
    app.paths.agents().choose(named, &app.paths.config).map_err(|failure| failure.at(&settings.name))
}

fn scope_of(app: &App, settings: &TriggerSettings) -> Result<Scope> {
    let mut scope = app.scope.clone();
    if let Some(tenant) = &settings.tenant {
        scope.tenant = tenant.parse().map_err(|error| invalid(settings, error))?;
    }
    match &settings.user {
        // A user's trigger has the same access as the user.
        Some(user) => Ok(Scope::user(scope.tenant, user.parse().map_err(|error| invalid(settings, error))?)),
        None => Ok(scope),
    }
}

fn source_of(settings: &TriggerSettings) -> Result<(TriggerSource, Option<Secret>)> {
    let TriggerSettings { webhook, cron, watch, event, .. } = settings;
    if cron.is_none() && (settings.time_zone.is_some() || settings.missed.is_some()) {
        return Err(invalid(settings, "time_zone and missed require cron"));
    }
    match (webhook, cron, watch, event) {
        (Some(webhook), None, None, None) => Ok((TriggerSource::Webhook, secret_of(settings, webhook)?)),
        (None, Some(pattern), None, None) => {
            let zone =
                settings.time_zone.as_deref().ok_or_else(|| invalid(settings, "cron requires time_zone"))?;
            let calendar = Cron::parse(pattern, zone).map_err(|why| invalid(settings, why))?;
            let missed = settings.missed.unwrap_or_default();
            Ok((TriggerSource::Cron { calendar: Arc::new(calendar), missed }, None))
        }
        (None, None, Some(watch), None) => {
            let files =
                FileWatch::new(&watch.directory, &watch.files).map_err(|why| invalid(settings, why))?;
            let poll_ms = watch.poll_ms.unwrap_or(POLL_MS_DEFAULT).max(POLL_MS_MIN);
            Ok((TriggerSource::Watch { watcher: Arc::new(files), poll_ms }, None))
        }
        (None, None, None, Some(event)) => {
            let session = parse_session(settings, &event.session)?;
            Ok((TriggerSource::Event { session, types: event.types.clone() }, None))
        }
        _ => Err(invalid(settings, "set exactly one of webhook, cron, watch and event")),
    }
}

fn secret_of(settings: &TriggerSettings, webhook: &WebhookSettings) -> Result<Option<Secret>> {
    let Some(given) = &webhook.secret else { return Ok(None) };
    let Some(name) = given.strip_prefix("secret:") else {
        return Err(invalid(settings, "webhook.secret must be secret:NAME, not the secret itself"));
    };
    find_secrets().resolve(name).map(Some).map_err(|error| invalid(settings, error))
}

/// Start a task for each trigger. If a trigger fails to start, its task logs the error and retries.
pub fn start(engine: &Engine, triggers: Vec<ConfiguredTrigger>) -> Vec<JoinHandle<()>> {
    let run = |trigger: ConfiguredTrigger| tokio::spawn(keep_running(engine.clone(), trigger.installed));
    triggers.into_iter().map(run).collect()
}

async fn keep_running(engine: Engine, installed: InstalledTrigger) {
    loop {
        match TriggerRunner::new(&engine, installed.clone()).await {
            Ok(runner) => return runner.run().await,
            Err(error) => {
                let trigger = &installed.trigger.name;
                tracing::warn!(%trigger, %error, "failed to start a trigger; retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Delay before a trigger that failed to start is retried.
const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(10);
