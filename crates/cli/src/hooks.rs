//! Hooks from the user's `sapwood.toml`: what stands there, strictly read, becomes hooks of the engine. A hook that cannot
//! be made ready (its secret is not there) is installed all the same and fails when it is called, so that its own setting
//! says what that means.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood::core::port::hook::{Hook, HookAnswer, HookError, HookEvent, HookName};
use sapwood::effects::hook::command::DEPTH_VARIABLE;
use sapwood::effects::hook::{CommandHook, HttpHook};
use sapwood::effects::secret::{Secret, Secrets};
use sapwood::engine::hook::TIMEOUT_DEFAULT;
use sapwood::{Engine, Hooks, Installed, OnFailure, Scope};
use serde::Deserialize;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::providers::find_secrets;

/// One `[[hooks]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookSettings {
    pub name: String,
    /// When it is called.
    pub on: OneOrMany<HookName>,
    /// A program and its arguments; or `url`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Where the program is run; the directory of the file if not given.
    #[serde(default)]
    pub directory: PathBuf,
    /// Values may be `secret:NAME`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub url: Option<String>,
    /// What requests are signed with: `secret:NAME`.
    pub secret: Option<String>,
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    #[serde(default)]
    pub priority: i32,
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Only for these tools.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Whose sessions it hears of; the configured tenant if not given.
    pub tenant: Option<String>,
}

/// A value, or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    fn all(&self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![*one],
            OneOrMany::Many(many) => many.clone(),
        }
    }
}

/// The engine with the hooks of the configuration, as deep in hooks as whoever started this program.
pub fn install(engine: Engine, config: &Config, scope: &Scope) -> Result<Engine> {
    let depth = std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0);
    let engine = engine.at_depth(depth);
    if config.hooks.is_empty() {
        return Ok(engine);
    }
    let secrets = find_secrets();
    let mut hooks = Hooks::default();
    for settings in &config.hooks {
        let mut installer = scope.clone();
        if let Some(tenant) = &settings.tenant {
            installer.tenant = tenant.parse().map_err(sapwood::Error::from)?;
        }
        let hook = make_hook(settings, &secrets)?;
        for on in settings.on.all() {
            let installed = Installed {
                priority: settings.priority,
                timeout: settings.timeout_ms.map_or(TIMEOUT_DEFAULT, Duration::from_millis),
                on_failure: settings.on_failure,
                tools: settings.tools.clone(),
                ..Installed::new(settings.name.clone(), on, hook.clone(), installer.clone())
            };
            hooks.install(installed).map_err(|error| invalid(settings, &error.to_string()))?;
        }
    }
    Ok(engine.with_hooks(hooks))
}

fn invalid(settings: &HookSettings, why: &str) -> Failure {
    Failure::new("config.invalid", format!("hooks: {}: {why}", settings.name))
}

fn make_hook(settings: &HookSettings, secrets: &Secrets) -> Result<Arc<dyn Hook>> {
    match (&settings.url, settings.command.as_slice()) {
        (None, [_, ..]) => make_command(settings, secrets),
        (Some(url), []) => make_http(settings, url, secrets),
        _ => Err(invalid(settings, "give either command or url")),
    }
}

fn make_command(settings: &HookSettings, secrets: &Secrets) -> Result<Arc<dyn Hook>> {
    if settings.secret.is_some() || !settings.allowed_hosts.is_empty() {
        return Err(invalid(settings, "secret and allowed_hosts are for a url"));
    }
    let expand = |(name, value): (&String, &String)| Ok((name.clone(), secrets.expand(value)?));
    let env: Result<BTreeMap<String, Secret>, sapwood::effects::secret::SecretError> =
        settings.env.iter().map(expand).collect();
    match env {
        Err(error) => Ok(Arc::new(Unready { what: settings.command.join(" "), why: error.to_string() })),
        Ok(env) => match CommandHook::new(settings.command.clone(), settings.directory.clone(), env) {
            Ok(hook) => Ok(Arc::new(hook)),
            Err(error) => Err(invalid(settings, &error.to_string())),
        },
    }
}

fn make_http(settings: &HookSettings, url: &str, secrets: &Secrets) -> Result<Arc<dyn Hook>> {
    if !settings.env.is_empty() {
        return Err(invalid(settings, "env is for a command"));
    }
    let Some(name) = settings.secret.as_deref().and_then(|secret| secret.strip_prefix("secret:")) else {
        return Err(invalid(settings, "a url needs secret = \"secret:NAME\", which signs what is sent"));
    };
    if settings.allowed_hosts.is_empty() {
        return Err(invalid(settings, "a url needs allowed_hosts"));
    }
    match secrets.resolve(name) {
        Err(error) => Ok(Arc::new(Unready { what: url.to_owned(), why: error.to_string() })),
        Ok(secret) => match HttpHook::new(url, secret, &settings.allowed_hosts) {
            Ok(hook) => Ok(Arc::new(hook)),
            Err(error) => Err(invalid(settings, &error.to_string())),
        },
    }
}

/// A hook that lacks something.
struct Unready {
    what: String,
    why: String,
}

#[async_trait]
impl Hook for Unready {
    async fn call(&self, _: &HookEvent) -> Result<HookAnswer, HookError> {
        Err(HookError::Failed { why: self.why.clone() })
    }

    fn describe(&self) -> String {
        self.what.clone()
    }
}
