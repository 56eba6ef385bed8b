//! Reads two `sapwood.toml` files: the project's, in the current directory or a parent, and the user's, in Sapwood's
//! home. An unknown key is an error, because a misspelled setting would otherwise be silently ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sapwood::core::pressure::Thresholds;
use sapwood::effects::model::{CatalogRow, ProviderSettings};
use serde::Deserialize;

use crate::failure::{Failure, Result};
use crate::hook_settings::HookSettings;
use crate::sandbox_settings::SandboxSettings;
use crate::time_arg::duration_ms;
use crate::triggers::TriggerSettings;

const FILE_NAME: &str = "sapwood.toml";
/// Maximum size of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    Full,
    Normal,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub store: Option<String>,
    pub tenant: Option<String>,
    /// The local user's name. Default: `$USER`.
    pub user: Option<String>,
    pub durability: Option<Durability>,
    pub key_file: Option<PathBuf>,
    /// Whether to look up the store's key in the OS keychain.
    pub keychain: Option<bool>,
    /// The default agent of new sessions.
    pub agent: Option<String>,
    /// The model for agents that do not set a model: `PROVIDER/NAME`, or `demo`.
    pub model: Option<String>,
    /// Default thresholds of context pressure, for agents that do not set them.
    pub pressure: Option<Thresholds>,
    /// Allowed only in the user's file, see [`load`].
    pub providers: BTreeMap<String, ProviderSettings>,
    /// Windows, output limits and prices of models, by `PROVIDER/NAME`. Allowed only in the user's file, see [`load`].
    pub models: BTreeMap<String, CatalogRow>,
    /// Allowed only in the user's file, see [`load`].
    pub prune: Option<PruneSettings>,
    /// Allowed only in the user's file, see [`load`].
    pub server: Option<ServerSettings>,
    /// Allowed only in the user's file, see [`load`].
    pub memory: Option<MemorySettings>,
    /// Allowed only in the user's file, see [`load`].
    pub sandbox: Option<SandboxSettings>,
    /// Directories of skills, in addition to the default directories in the project and in Sapwood's home.
    pub skills: Vec<PathBuf>,
    /// Allowed only in the user's file, see [`load`].
    pub hooks: Vec<HookSettings>,
    /// Allowed only in the user's file, see [`load`].
    pub triggers: Vec<TriggerSettings>,
    /// Directory of the project's file.
    #[serde(skip)]
    pub project: Option<PathBuf>,
    /// Whether the project's file sets `agent`.
    #[serde(skip)]
    pub is_agent_from_project: bool,
}

/// Settings of `sapwood serve`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Requests per second and principal, with bursts of up to four times this rate. 0 means no limit.
    pub rate_per_second: Option<u32>,
    pub body_bytes_max: Option<usize>,
    /// Maximum total size of the JSON bodies that are received or processed at the same time. One caller gets half.
    pub body_bytes_in_flight_max: Option<usize>,
    pub upload_bytes_max: Option<usize>,
    /// Maximum number of concurrent requests, including streams.
    pub connections_max: Option<usize>,
    /// Maximum number of concurrent requests per principal. 0 means no limit except `connections_max`.
    pub connections_per_principal_max: Option<usize>,
    /// Maximum number of event streams and WebSockets per principal. 0 means no limit except
    /// `connections_per_principal_max`.
    pub streams_per_principal_max: Option<usize>,
    /// Maximum number of concurrent requests per tenant. Default and 0: no limit except `connections_max`.
    pub connections_per_tenant_max: Option<usize>,
    /// Maximum number of event streams and WebSockets per tenant. Default and 0: no limit.
    pub streams_per_tenant_max: Option<usize>,
    /// Maximum number of projections and exports that are computed at the same time.
    pub projections_max: Option<usize>,
    /// Maximum number of projections and exports of one principal that are computed at the same time.
    pub projections_per_principal_max: Option<usize>,
    /// When no connection slot is free, a new connection from an address with at least this many connections replaces
    /// idle connections of that address first. 0 means no limit.
    pub connections_per_address_max: Option<usize>,
    /// Concurrent requests reserved for `operate` keys, in addition to `connections_max`.
    pub operate_connections_reserved: Option<usize>,
    /// The model that answers on the OpenAI routes in place of a name without a provider that cannot be called here.
    /// Default: such requests are refused.
    pub openai_model: Option<String>,
    /// The address at which clients reach the server, for answer links. Default: the address that it listens on.
    pub public_url: Option<String>,
    /// The secret, `secret:NAME`, that signs answer links. All servers of a store need the same secret. Default: a key
    /// file in Sapwood's home.
    pub link_secret: Option<String>,
    pub oidc: Option<OidcSettings>,
}

/// Settings of memories learned from sessions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemorySettings {
    /// The model that extracts memories. Default: rules instead of a model.
    pub model: Option<String>,
    /// The embedding model that finds memories, `PROVIDER/NAME`. Default: keyword search.
    pub embedding: Option<String>,
    /// Whether to learn from sessions that are closed, archived or idle. Default: true.
    pub learn: Option<bool>,
    /// Minutes without use after which `serve` learns from a session. 0 means never.
    pub idle_minutes: Option<u32>,
}

/// Settings of automatic pruning by `serve`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruneSettings {
    /// Time without a write after which a session is pruned, such as `30d`.
    #[serde(deserialize_with = "read_duration_ms")]
    pub inactive_for: i64,
    /// Number of recent messages to keep. Default: 12.
    pub keep_last: Option<u32>,
}

/// Read a duration with a unit, such as `30d`. Zero would prune sessions that are in use.
fn read_duration_ms<'de, D>(deserializer: D) -> std::result::Result<i64, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    match duration_ms(&text) {
        Ok(0) => Err(serde::de::Error::custom("the duration is zero")),
        parsed => parsed.map_err(serde::de::Error::custom),
    }
}

/// The OIDC issuer whose tokens are accepted, and how their claims map to principals.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcSettings {
    pub issuer: String,
    pub audience: String,
    pub jwks_file: Option<PathBuf>,
    pub jwks_url: Option<String>,
    pub user_claim: Option<String>,
    pub tenant: Option<String>,
    pub tenant_claim: Option<String>,
}

/// Load the project's settings, with the user's settings as defaults. A project may be untrusted, so it must not decide
/// where keys and messages are sent, who has access, what calls cost, what leaves a context or what runs without
/// approval. Therefore it cannot set providers, models, memory, prune, server, sandbox, hooks or triggers.
pub fn load(start: &Path, home: &Path) -> Result<Config> {
    let user_file = home.join(FILE_NAME);
    let user = read(&user_file)?.unwrap_or_default();
    let is_project = |path: &PathBuf| path.is_file() && *path != user_file;
    let Some(path) = start.ancestors().map(|dir| dir.join(FILE_NAME)).find(is_project) else {
        return Ok(user);
    };
    let mut project = read(&path)?.unwrap_or_default();
    let acts = !project.hooks.is_empty() || !project.triggers.is_empty() || project.sandbox.is_some();
    let sends = !project.providers.is_empty() || !project.models.is_empty() || project.memory.is_some();
    if sends || project.prune.is_some() || project.server.is_some() || acts {
        let own = user_file.display();
        let why = format!(
            "providers, models, memory, prune, server, sandbox, hooks and triggers can only be set in your own file, {own}"
        );
        return Err(invalid(&path, &why));
    }
    project.project = path.parent().map(Path::to_owned);
    project.is_agent_from_project = project.agent.is_some();
    Ok(project.or(user))
}

fn read(path: &Path) -> Result<Option<Config>> {
    let size = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::file(path, &error)),
    };
    if size > FILE_BYTES_MAX {
        return Err(invalid(path, &format!("it has {size} bytes, but the limit is {FILE_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    let config: Config = toml::from_str(&text).map_err(|error| invalid(path, error.to_string().trim()))?;
    if let Some(Err(error)) = config.pressure.map(Thresholds::check) {
        return Err(invalid(path, &error.to_string()));
    }
    if let Some(mistake) = config.sandbox.as_ref().and_then(SandboxSettings::mistake) {
        return Err(invalid(path, &mistake));
    }
    Ok(Some(config.with_absolute_paths(path.parent().unwrap_or(Path::new(".")))))
}

fn invalid(path: &Path, why: &str) -> Failure {
    Failure::new("config.invalid", format!("{}: {why}", path.display()))
}

impl Config {
    fn or(self, other: Config) -> Config {
        Config {
            store: self.store.or(other.store),
            tenant: self.tenant.or(other.tenant),
            user: self.user.or(other.user),
            durability: self.durability.or(other.durability),
            key_file: self.key_file.or(other.key_file),
            keychain: self.keychain.or(other.keychain),
            agent: self.agent.or(other.agent),
            model: self.model.or(other.model),
            pressure: self.pressure.or(other.pressure),
            providers: other.providers,
            models: other.models,
            prune: other.prune,
            server: other.server,
            memory: other.memory,
            sandbox: other.sandbox,
            skills: [self.skills, other.skills].concat(),
            hooks: other.hooks,
            triggers: other.triggers,
            project: self.project,
            is_agent_from_project: self.is_agent_from_project,
        }
    }

    /// Make paths absolute, so that they do not depend on the current directory.
    fn with_absolute_paths(mut self, dir: &Path) -> Config {
        self.key_file = self.key_file.map(|path| dir.join(path));
        self.skills.iter_mut().for_each(|path| *path = dir.join(&*path));
        for trigger in &mut self.triggers {
            trigger.cwd = trigger.cwd.take().map(|path| dir.join(path));
            if let Some(watch) = &mut trigger.watch {
                watch.directory = dir.join(std::mem::take(&mut watch.directory));
            }
        }
        for hook in &mut self.hooks {
            hook.directory = dir.join(std::mem::take(&mut hook.directory));
        }
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.resolve_paths(dir);
        }
        if let Some(oidc) = self.server.as_mut().and_then(|server| server.oidc.as_mut()) {
            oidc.jwks_file = oidc.jwks_file.take().map(|path| dir.join(path));
        }
        self.store = self.store.map(|url| match url.split_once(':') {
            Some((scheme @ ("sqlite" | "jsonl"), path)) if !path.is_empty() => {
                format!("{scheme}:{}", dir.join(path).display())
            }
            _ => url,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, text: &str) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(FILE_NAME), text).unwrap();
    }

    #[test]
    fn the_project_overrides_the_user_key_by_key() {
        let temp = tempfile::tempdir().unwrap();
        let (home, project) = (temp.path().join("home"), temp.path().join("project"));
        write(&home, "store = \"sqlite:mine.db\"\ntenant = \"acme\"\n");
        write(&project, "store = \"jsonl:logs\"\ndurability = \"normal\"\n");
        let deep = project.join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let config = load(&deep, &home).unwrap();
        assert_eq!(config.store.unwrap(), format!("jsonl:{}", project.join("logs").display()));
        assert_eq!(config.tenant.as_deref(), Some("acme"));
        assert_eq!(config.durability, Some(Durability::Normal));
    }

    #[test]
    fn a_project_cannot_set_where_keys_are_sent() {
        let temp = tempfile::tempdir().unwrap();
        let (home, project) = (temp.path().join("home"), temp.path().join("project"));
        let providers = "[providers.anthropic]\nbase_url = \"https://example.org\"\n";
        write(&home, providers);
        write(&project, "model = \"demo\"\n");
        let config = load(&project, &home).unwrap();
        assert_eq!(config.providers["anthropic"].base_url.as_deref(), Some("https://example.org"));
        write(&project, providers);
        let failure = load(&project, &home).unwrap_err();
        assert!(failure.message.contains("your own file"), "{}", failure.message);
    }

    #[test]
    fn models_and_prune_are_read_only_from_the_users_file() {
        let temp = tempfile::tempdir().unwrap();
        let (home, project) = (temp.path().join("home"), temp.path().join("project"));
        let (models, prune) = ("[models.\"openai/x\"]\nwindow = 9000\n", "[prune]\ninactive_for = \"30d\"\n");
        write(&home, &format!("{models}{prune}"));
        write(&project, "");
        let config = load(&project, &home).unwrap();
        assert_eq!(config.models["openai/x"].window, Some(9_000));
        assert_eq!(config.prune.unwrap().inactive_for, 30 * 86_400_000);
        for text in [models, prune, "[sandbox]\nprocesses = 9\n"] {
            write(&project, text);
            let failure = load(&project, &home).unwrap_err();
            assert!(failure.message.contains("your own file"), "{}", failure.message);
        }
        write(&project, "");
        for wrong in [
            "[prune]\ninactive_for = \"30\"",
            "[prune]\ninactive_for = \"0s\"",
            "[prune]\nkeep_last = 3",
            "[sandbox]\ncpu_s = 0",
        ] {
            write(&home, wrong);
            assert_eq!(load(&project, &home).unwrap_err().code, "config.invalid", "{wrong}");
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it_and_the_file() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), "stroe = \"memory:\"\n");
        let failure = load(temp.path(), Path::new("/nonexistent")).unwrap_err();
        assert_eq!(failure.code, "config.invalid");
        assert!(
            failure.message.contains("stroe") && failure.message.contains(FILE_NAME),
            "{}",
            failure.message
        );
    }
}
