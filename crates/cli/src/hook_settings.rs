//! The `[[hooks]]` tables of `sapwood.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sapwood::OnFailure;
use sapwood::core::port::hook::HookName;
use serde::Deserialize;

/// One `[[hooks]]` table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookSettings {
    pub name: String,
    /// The events that call the hook.
    pub on: OneOrMany<HookName>,
    /// A program and its arguments, as an alternative to `url`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Working directory of the program. Default: the directory of `sapwood.toml`.
    #[serde(default)]
    pub directory: PathBuf,
    /// Environment variables. Values may be `secret:NAME`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub url: Option<String>,
    /// The secret that signs requests: `secret:NAME`.
    pub secret: Option<String>,
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    #[serde(default)]
    pub priority: i32,
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Call the hook only for these tools. Default: all tools.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Call the hook only for sessions of this tenant. Default: the configured tenant.
    pub tenant: Option<String>,
}

/// A single value, or a list of values.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    pub fn all(&self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![*one],
            OneOrMany::Many(many) => many.clone(),
        }
    }
}
