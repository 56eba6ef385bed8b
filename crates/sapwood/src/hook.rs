//! Hooks: code that can refuse or change an operation, or is notified after it. `docs/spec/hooks.md` lists the events
//! with their fields.

use std::sync::Arc;

pub use sapwood_core::port::hook::{Hook, HookAction, HookAnswer, HookError, HookEvent, HookName, Verdict};
use sapwood_engine::hook::Closure;
pub use sapwood_engine::hook::{HookRegistry, InstalledHook, OnFailure};

use crate::{Result, Sapwood};

/// Installation of hooks.
impl Sapwood {
    /// Install a closure as a hook. It acts with the rights of this scope:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Agent, HookName, Sapwood, Verdict};
    ///
    /// let sapwood = Sapwood::open("memory:")?.on(HookName::BeforeSend, |event| async move {
    ///     match event.data["text"].as_str() {
    ///         Some(text) if text.contains("password") => Verdict::Refuse { reason: "no passwords".into() },
    ///         _ => Verdict::GoOn,
    ///     }
    /// })?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let refused = sapwood.send(&session, "my password is …").await.unwrap_err();
    /// assert_eq!(refused.code(), "hook.refused");
    /// # Ok(())
    /// # }
    /// ```
    pub fn on<F, Fut, A>(self, name: HookName, closure: F) -> Result<Self>
    where
        F: Fn(HookEvent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = A> + Send + 'static,
        A: Into<HookAnswer> + 'static,
    {
        let number = self.engine.config().hooks.iter().filter(|hook| hook.on == name).count() + 1;
        let hook = Arc::new(Closure(closure));
        let installed = InstalledHook::new(format!("closure-{number}"), name, hook, self.scope.clone());
        self.install(installed)
    }

    /// Install a hook with a name, priority and timeout.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use std::sync::Arc;
    ///
    /// use sapwood::hook::{Hook, HookAnswer, HookError, HookEvent, HookName, InstalledHook};
    /// use sapwood::{Agent, Sapwood};
    ///
    /// struct PrintTurns;
    ///
    /// #[sapwood::async_trait]
    /// impl Hook for PrintTurns {
    ///     async fn call(&self, event: &HookEvent) -> Result<HookAnswer, HookError> {
    ///         println!("a turn ended in {}: {}", event.session, event.data);
    ///         Ok(HookAnswer::default())
    ///     }
    ///     fn describe(&self) -> String {
    ///         "prints each turn".to_owned()
    ///     }
    /// }
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let scope = sapwood.scope().clone();
    /// let hook = InstalledHook::new("print-turns", HookName::AfterTurn, Arc::new(PrintTurns), scope);
    /// let sapwood = sapwood.install(hook)?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// sapwood.send(&session, "Hello!").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn install(self, installed: InstalledHook) -> Result<Self> {
        let mut hooks = self.engine.config().hooks.clone();
        hooks.install(installed)?;
        Ok(Self { engine: self.engine.configured(|config| config.hooks = hooks), scope: self.scope })
    }
}
