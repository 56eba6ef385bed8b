//! Installs the hooks from the user's `sapwood.toml`. A hook whose secret is missing is also installed, but fails when
//! it is called, so that its `on_failure` setting applies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood::core::port::hook::{Hook, HookAnswer, HookError, HookEvent};
use sapwood::effects::hook::command::DEPTH_VARIABLE;
use sapwood::effects::hook::{CommandHook, HttpHook};
use sapwood::effects::sandbox::Launcher;
use sapwood::effects::sandbox::limits::Profile;
use sapwood::effects::secret::{Secret, Secrets};
use sapwood::engine::hook::TIMEOUT_DEFAULT;
use sapwood::{Engine, HookRegistry, InstalledHook, Scope};

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::hook_settings::HookSettings;
use crate::providers::find_secrets;

/// Install the configured hooks. The nesting depth is inherited from the parent process.
pub fn install(engine: Engine, config: &Config, scope: &Scope) -> Result<Engine> {
    let depth = std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0);
    let engine = engine.at_depth(depth);
    if config.hooks.is_empty() {
        return Ok(engine);
    }
    let secrets = find_secrets();
    let mut hooks = HookRegistry::default();
    for settings in &config.hooks {
        let mut installer = scope.clone();
        if let Some(tenant) = &settings.tenant {
            installer.tenant = tenant.parse().map_err(sapwood::Error::from)?;
        }
        let hook = make_hook(settings, &secrets, config)?;
        for on in settings.on.all() {
            let installed = InstalledHook {
                priority: settings.priority,
                timeout: settings.timeout_ms.map_or(TIMEOUT_DEFAULT, Duration::from_millis),
                on_failure: settings.on_failure,
                tools: settings.tools.clone(),
                ..InstalledHook::new(settings.name.clone(), on, hook.clone(), installer.clone())
            };
            hooks.install(installed).map_err(|error| invalid(settings, &error.to_string()))?;
        }
    }
    Ok(engine.configured(|config| config.hooks = hooks))
}

fn invalid(settings: &HookSettings, why: &str) -> Failure {
    Failure::new("config.invalid", format!("hooks: {}: {why}", settings.name))
}

fn make_hook(settings: &HookSettings, secrets: &Secrets, config: &Config) -> Result<Arc<dyn Hook>> {
    match (&settings.url, settings.command.as_slice()) {
        (None, [_, ..]) => make_command(settings, secrets, config),
        (Some(url), []) => make_http(settings, url, secrets),
        _ => Err(invalid(settings, "set either command or url")),
    }
}

fn make_command(settings: &HookSettings, secrets: &Secrets, config: &Config) -> Result<Arc<dyn Hook>> {
    if settings.secret.is_some() || !settings.allowed_hosts.is_empty() {
        return Err(invalid(settings, "secret and allowed_hosts require a url"));
    }
    let expand = |(name, value): (&String, &String)| Ok((name.clone(), secrets.expand(value)?));
    let env: Result<BTreeMap<String, Secret>, sapwood::effects::secret::SecretError> =
        settings.env.iter().map(expand).collect();
    match env {
        Err(error) => Ok(Arc::new(UnavailableHook {
            description: settings.command.join(" "),
            error: error.to_string(),
        })),
        Ok(env) => match CommandHook::new(settings.command.clone(), settings.directory.clone(), env) {
            Ok(hook) => Ok(Arc::new(with_limits(hook, config))),
            Err(error) => Err(invalid(settings, &error.to_string())),
        },
    }
}

fn with_limits(hook: CommandHook, config: &Config) -> CommandHook {
    let sandbox = config.sandbox.clone().unwrap_or_default();
    let limits = sandbox.limits(Profile::Hook);
    hook.with_limits(Launcher::this_binary(), limits, sandbox.cgroups)
}

fn make_http(settings: &HookSettings, url: &str, secrets: &Secrets) -> Result<Arc<dyn Hook>> {
    if !settings.env.is_empty() {
        return Err(invalid(settings, "env requires a command"));
    }
    let Some(name) = settings.secret.as_deref().and_then(|secret| secret.strip_prefix("secret:")) else {
        return Err(invalid(settings, "a url requires secret = \"secret:NAME\" to sign requests"));
    };
    if settings.allowed_hosts.is_empty() {
        return Err(invalid(settings, "a url requires allowed_hosts"));
    }
    match secrets.resolve(name) {
        Err(error) => Ok(Arc::new(UnavailableHook { description: url.to_owned(), error: error.to_string() })),
        Ok(secret) => match HttpHook::new(url, secret, &settings.allowed_hosts) {
            Ok(hook) => Ok(Arc::new(hook)),
            Err(error) => Err(invalid(settings, &error.to_string())),
        },
    }
}

/// A hook whose secrets could not be resolved. Every call fails.
struct UnavailableHook {
    description: String,
    error: String,
}

#[async_trait]
impl Hook for UnavailableHook {
    async fn call(&self, _: &HookEvent) -> Result<HookAnswer, HookError> {
        Err(HookError::Failed { why: self.error.clone() })
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
