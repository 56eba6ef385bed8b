//! The installed hooks, their installers and their call order. The registry is a value: adding a hook creates a new
//! engine, and a running turn keeps the hooks it started with.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::Scope;
use sapwood_core::port::hook::{Hook, HookAnswer, HookError, HookEvent, HookName};
use sapwood_core::scope::Reach;
use serde::Deserialize;
use tokio::sync::watch;

use crate::{EngineError, Result};

/// Default timeout of a hook.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Upper limit for hook timeouts.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Maximum number of hooks per event name.
const HOOKS_MAX: usize = 16;
/// Longest hook name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// How a hook's failure affects the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Continue as if the hook did not exist.
    #[default]
    Ignore,
    /// Refuse the operation.
    Refuse,
}

impl OnFailure {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Ignore => "ignore",
            OnFailure::Refuse => "refuse",
        }
    }
}

/// A hook and the conditions under which it is called.
#[derive(Clone)]
pub struct InstalledHook {
    /// Identifies the hook to users and in the log.
    pub name: String,
    /// The event for which the hook is called.
    pub on: HookName,
    /// The hook.
    pub hook: Arc<dyn Hook>,
    /// Lower values are called first; hooks with equal values in installation order.
    pub priority: i32,
    /// The maximum duration of a call.
    pub timeout: Duration,
    /// What happens if the hook fails.
    pub on_failure: OnFailure,
    /// Call only for these tools; for all tools if empty.
    pub tools: Vec<String>,
    /// The installer's scope: the hook only receives events of this tenant and acts with these rights.
    pub installer: Scope,
}

impl InstalledHook {
    /// A hook with default priority and timeout, whose failure is ignored.
    pub fn new(name: impl Into<String>, on: HookName, hook: Arc<dyn Hook>, installer: Scope) -> Self {
        Self {
            name: name.into(),
            on,
            hook,
            priority: 0,
            timeout: TIMEOUT_DEFAULT,
            on_failure: OnFailure::Ignore,
            tools: Vec::new(),
            installer,
        }
    }

    /// Whether the hook receives an event. A hook never receives events of another tenant, and a non-operator's hook only
    /// receives events of that user.
    pub(super) fn listens_to(&self, event: &HookEvent) -> bool {
        let is_visible = self.installer.reach == Reach::Tenant || self.installer.principal == event.by;
        let tool = event.data["tool"].as_str().unwrap_or_default();
        let matches_tool = self.tools.is_empty() || self.tools.iter().any(|name| name == tool);
        self.installer.tenant == event.tenant && is_visible && matches_tool
    }

    fn check(&self) -> Result<()> {
        let fail = |why: String| Err(EngineError::Invalid { what: "a hook", why });
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            let why = "the name must have 1 to 64 characters: letters, digits, -, _ and .";
            return fail(format!("{:.80?}: {why}", self.name));
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return fail(format!(
                "{}: the timeout must be between 1 ms and {} s",
                self.name,
                TIMEOUT_MAX.as_secs()
            ));
        }
        let is_about_tools = matches!(self.on, HookName::BeforeTool | HookName::AfterTool);
        if !self.tools.is_empty() && !is_about_tools {
            return fail(format!("{}: {} does not support a tool filter", self.name, self.on));
        }
        Ok(())
    }
}

/// All hooks of an engine.
#[derive(Clone)]
pub struct HookRegistry {
    installed: Vec<InstalledHook>,
    /// Number of hook calls with running actions, shared with clones of this registry.
    pub(super) running_actions: Arc<watch::Sender<usize>>,
}

impl Default for HookRegistry {
    fn default() -> Self {
        Self { installed: Vec::new(), running_actions: Arc::new(watch::Sender::new(0)) }
    }
}

impl HookRegistry {
    /// Whether no hook is installed.
    pub fn is_empty(&self) -> bool {
        self.installed.is_empty()
    }

    /// The hooks in the order of their calls.
    pub fn iter(&self) -> impl Iterator<Item = &InstalledHook> {
        self.installed.iter()
    }

    /// Add a hook. Hooks are sorted in call order: by event, by priority, then by installation order.
    pub fn install(&mut self, installed: InstalledHook) -> Result<()> {
        installed.check()?;
        let fail = |why: String| Err(EngineError::Invalid { what: "a hook", why });
        if self.of(installed.on).len() >= HOOKS_MAX {
            return fail(format!("{} already has {HOOKS_MAX} hooks", installed.on));
        }
        if self.of(installed.on).iter().any(|other| other.name == installed.name) {
            return fail(format!("{} already has a hook {}", installed.on, installed.name));
        }
        let order = |one: &InstalledHook| (one.on, one.priority);
        let at = self.installed.partition_point(|other| order(other) <= order(&installed));
        self.installed.insert(at, installed);
        Ok(())
    }

    pub(super) fn of(&self, name: HookName) -> &[InstalledHook] {
        let from = self.installed.partition_point(|one| one.on < name);
        let to = self.installed.partition_point(|one| one.on <= name);
        &self.installed[from..to]
    }

    pub(super) fn listens(&self, name: HookName) -> bool {
        !self.of(name).is_empty()
    }
}

/// A closure as a hook.
pub struct Closure<F>(pub F);

#[async_trait]
impl<F, Fut, A> Hook for Closure<F>
where
    F: Fn(HookEvent) -> Fut + Send + Sync,
    Fut: Future<Output = A> + Send,
    A: Into<HookAnswer>,
{
    async fn call(&self, event: &HookEvent) -> Result<HookAnswer, HookError> {
        let answer = (self.0)(event.clone());
        Ok(answer.await.into())
    }

    fn describe(&self) -> String {
        "closure".to_owned()
    }
}
