//! Perform actions that hooks request in other sessions. Actions run in the background with the rights of the
//! hook's installer, at the next nesting depth. The nesting depth and the number of concurrent actions are limited.

use std::sync::Arc;
use std::time::Duration;

use sapwood_core::port::hook::{HookAction, HookEvent, HookNote, HookResult};
use sapwood_core::{Part, SessionId};
use tokio::sync::watch;

use super::registry::InstalledHook;
use super::{DEPTH_MAX, EventLocation, Hooks};
use crate::sessions::{OpenOptions, StartOptions};
use crate::turn::{IfRunning, OnWait, SendOptions, Sent};
use crate::{EngineError, Result};

/// Maximum number of hook calls with running actions; the actions of further calls are dropped with a warning.
const ACTIONS_MAX: usize = 64;
/// How long an action waits for a session with a running turn.
const BUSY_WAIT: Duration = Duration::from_secs(60);
/// Poll interval for a session that is running another turn.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Counts the actions of one hook call as running until dropped.
struct RunningAction(Arc<watch::Sender<usize>>);

impl RunningAction {
    fn begin(running_actions: &Arc<watch::Sender<usize>>) -> Option<Self> {
        let is_admitted = running_actions.send_if_modified(|count| {
            let is_free = *count < ACTIONS_MAX;
            *count += usize::from(is_free);
            is_free
        });
        is_admitted.then(|| Self(running_actions.clone()))
    }
}

impl Drop for RunningAction {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Hooks<'_> {
    /// Wait until all actions of hooks are done. Call this before the process exits.
    pub async fn settled(self) {
        let running = &self.engine.config.hooks.running_actions;
        let _ = running.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(super) fn spawn_actions(
        self,
        event: &HookEvent,
        installed: &InstalledHook,
        actions: Vec<HookAction>,
    ) {
        if actions.is_empty() {
            return;
        }
        let (engine, event, installed) = (self.engine.clone(), event.clone(), installed.clone());
        let Some(guard) = RunningAction::begin(&self.engine.config.hooks.running_actions) else {
            tracing::warn!(hook = %installed.name, "too many hook actions are running; this hook's actions are dropped");
            return;
        };
        // Not awaited: the target session may itself be waiting for this hook.
        tokio::spawn(async move {
            for action in actions {
                engine.hooks().run_action(&event, &installed, action).await;
            }
            drop(guard);
        });
    }

    async fn run_action(self, event: &HookEvent, installed: &InstalledHook, action: HookAction) {
        let done = match self.engine.depth < DEPTH_MAX {
            true => {
                let engine = self.engine.clone().at_depth(self.engine.depth + 1);
                Box::pin(engine.hooks().perform_action(event, installed, action)).await
            }
            false => Err(EngineError::HookDepth { limit: DEPTH_MAX }),
        };
        let (result, why) = match done {
            Ok(session) => (HookResult::Acted, format!("session {session}")),
            Err(error) => {
                tracing::warn!(session = %event.session, hook = %installed.name, %error, "a hook's action failed");
                (HookResult::Failed, format!("action failed: {error}"))
            }
        };
        let note =
            HookNote { by: installed.name.clone(), hook: event.hook, result, why: Some(why), data: None };
        let at = EventLocation { scope: &installed.installer, session: &event.session, turn: None };
        self.write_note(at, &note).await;
    }

    async fn perform_action(
        self,
        event: &HookEvent,
        installed: &InstalledHook,
        action: HookAction,
    ) -> Result<SessionId> {
        let scope = &installed.installer;
        match action {
            HookAction::Send { session, text } => {
                self.run_turn(installed, &session, text).await?;
                Ok(session)
            }
            HookAction::Open { id, title, text } => {
                // The new session uses the same agent and so has no additional rights.
                let agent = self.engine.configuration().agent_of(scope, &event.session).await?;
                let open = OpenOptions { id, title, ..OpenOptions::default() };
                let start = StartOptions { open, agent, ..StartOptions::default() };
                let (session, _) = self.engine.sessions().start(scope, start).await?;
                if let Some(text) = text {
                    self.run_turn(installed, &session, text).await?;
                }
                Ok(session)
            }
        }
    }

    /// Run a turn and wait for its end, so that the process does not exit earlier.
    async fn run_turn(self, installed: &InstalledHook, session: &SessionId, text: String) -> Result<()> {
        let options = SendOptions { if_running: IfRunning::Refuse, on_wait: OnWait::Leave };
        let deadline = tokio::time::Instant::now() + BUSY_WAIT;
        let sent = loop {
            let parts = vec![Part::text(text.clone())];
            match self.engine.turns().send(&installed.installer, session, parts, options).await {
                Err(EngineError::TurnRunning { .. }) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                sent => break sent?,
            }
        };
        if let Sent::Started(running) = sent {
            running.ended().await?;
        }
        Ok(())
    }
}
