//! Running hooks: in the order of their priority, each within its time, each answer checked before it counts. Whoever has
//! something to ask or to tell calls [`Engine::ask_hooks`] or [`Engine::fire`]; where no hook listens, both return at once
//! and the event is never put together.

mod actions;
mod compact;
mod dry_run;
mod registry;

pub(crate) use compact::compacted;
pub use dry_run::Rehearsed;
pub use registry::{Closure, Hooks, Installed, OnFailure, TIMEOUT_DEFAULT};

use std::time::Duration;

use sapwood_core::entry::Draft;
use sapwood_core::port::hook::{
    HookAnswer, HookError, HookEvent, HookName, HookNote, HookResult, REASON_CHARS_MAX, Verdict,
};
use sapwood_core::port::store::Append;
use sapwood_core::{Scope, SessionId, TurnId};
use serde_json::Value;

use crate::{Engine, EngineError, Result};

/// How far hooks may lead to hooks: an action of a hook this deep is not done.
pub const DEPTH_MAX: u8 = 3;

/// Where an event happens.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub scope: &'a Scope,
    pub session: &'a SessionId,
    pub turn: Option<TurnId>,
}

impl<'a> At<'a> {
    pub fn new(scope: &'a Scope, session: &'a SessionId) -> Self {
        Self { scope, session, turn: None }
    }
}

/// What hooks made of what was about to happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    GoOn,
    /// Goes on with this data.
    Changed(Value),
    /// This takes its place, and that hook gave it.
    Supplied {
        by: String,
        data: Value,
    },
}

impl Engine {
    /// The same engine, with hooks.
    pub fn with_hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = (!hooks.is_empty()).then(|| std::sync::Arc::new(hooks));
        self
    }

    /// The hooks that are installed, in the order in which they are called.
    pub fn hooks(&self) -> Hooks {
        self.hooks.as_deref().cloned().unwrap_or_default()
    }

    /// The same engine for what hooks themselves lead to.
    pub fn at_depth(mut self, depth: u8) -> Self {
        self.depth = depth;
        self
    }

    pub(crate) fn has_hooks(&self, name: HookName) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.listens(name))
    }

    /// Tells whoever listens. Nothing can go wrong for the caller.
    pub async fn fire(
        &self,
        name: HookName,
        scope: &Scope,
        session: &SessionId,
        turn: Option<TurnId>,
        data: impl FnOnce() -> Value,
    ) {
        if self.has_hooks(name) {
            // A telling hook can only go on: an error here would be an answer it cannot give.
            let _ = Box::pin(self.ask_each(name, At { scope, session, turn }, data())).await;
        }
    }

    /// Asks whoever listens. A refusal is an error with its reason.
    pub(crate) async fn ask_hooks(
        &self,
        name: HookName,
        at: At<'_>,
        data: impl FnOnce() -> Value,
    ) -> Result<Said> {
        if !self.has_hooks(name) {
            return Ok(Said::GoOn);
        }
        Box::pin(self.ask_each(name, at, data())).await
    }

    async fn ask_each(&self, name: HookName, at: At<'_>, data: Value) -> Result<Said> {
        let Some(hooks) = self.hooks.clone() else { return Ok(Said::GoOn) };
        let mut event = self.event(name, at, data);
        let mut said = Said::GoOn;
        for installed in hooks.of(name) {
            if !installed.listens_to(&event) {
                continue;
            }
            let Some(answer) = self.hear(at, installed, &event).await? else { continue };
            self.act_later(&event, installed, answer.actions);
            self.note_verdict(at, installed, &answer.verdict).await;
            match answer.verdict {
                Verdict::GoOn => {}
                Verdict::Refuse { reason } => return Err(refused(installed, &reason)),
                Verdict::Supply { data } => {
                    return Ok(Said::Supplied { by: installed.name.clone(), data });
                }
                Verdict::Change { data } => {
                    put_into(&mut event.data, data);
                    said = Said::Changed(event.data.clone());
                }
            }
        }
        Ok(said)
    }

    /// What one hook says; nothing if it failed and that is ignored.
    async fn hear(&self, at: At<'_>, installed: &Installed, event: &HookEvent) -> Result<Option<HookAnswer>> {
        let error = match ask(installed, event).await {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error.to_string(),
        };
        let (name, on) = (&installed.name, installed.on);
        tracing::warn!(session = %at.session, hook = %name, %on, %error, "a hook failed");
        self.note(at, installed, HookResult::Failed, Some(error.clone()), None).await;
        match installed.on_failure {
            OnFailure::Refuse if on.asks() => Err(refused(installed, &error)),
            OnFailure::Refuse | OnFailure::Ignore => Ok(None),
        }
    }

    async fn note_verdict(&self, at: At<'_>, installed: &Installed, verdict: &Verdict) {
        let (result, why, data) = match verdict {
            Verdict::GoOn => return,
            Verdict::Refuse { reason } => (HookResult::Refused, Some(shortened(reason)), None),
            Verdict::Change { data } => (HookResult::Changed, None, Some(data.clone())),
            Verdict::Supply { data } => (HookResult::Supplied, None, Some(data.clone())),
        };
        self.note(at, installed, result, why, data).await;
    }

    fn event(&self, hook: HookName, at: At<'_>, data: Value) -> HookEvent {
        HookEvent {
            hook,
            session: at.session.clone(),
            tenant: at.scope.tenant.clone(),
            by: at.scope.principal.clone(),
            at: self.clock.now(),
            turn: at.turn,
            depth: self.depth,
            rehearsal: false,
            data,
        }
    }

    /// What a hook did, for whoever follows the session. One that takes no entries has the program's own log.
    async fn note(
        &self,
        at: At<'_>,
        installed: &Installed,
        result: HookResult,
        why: Option<String>,
        data: Option<Value>,
    ) {
        let note = HookNote { by: installed.name.clone(), hook: installed.on, result, why, data };
        self.write_note(at, &note).await;
    }

    pub(crate) async fn write_note(&self, at: At<'_>, note: &HookNote) {
        let now = self.clock.now();
        let draft = Draft { turn: at.turn, ..Draft::new(now, note.to_info()) };
        let appended = self.append(at.scope, Append::new(at.session.clone(), now, vec![draft])).await;
        if let Err(error) = appended {
            tracing::debug!(session = %at.session, %note, %error, "what a hook did is not in the session");
        }
    }
}

/// One hook, within its time; an answer it may not give is a failure.
async fn ask(installed: &Installed, event: &HookEvent) -> Result<HookAnswer, HookError> {
    let after_ms = u64::try_from(installed.timeout.as_millis()).unwrap_or(u64::MAX);
    let called = tokio::time::timeout(installed.timeout, installed.hook.call(event)).await;
    let answer = called.unwrap_or(Err(HookError::TimedOut { after_ms }))?;
    event.hook.check(&answer)?;
    Ok(answer)
}

fn refused(installed: &Installed, reason: &str) -> EngineError {
    EngineError::HookRefused { hook: installed.name.clone(), on: installed.on, reason: shortened(reason) }
}

fn shortened(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).collect()
}

/// The fields of a change, over those that were there: the next hook sees them, and so does whoever asked.
fn put_into(data: &mut Value, change: Value) {
    if let (Some(fields), Value::Object(changed)) = (data.as_object_mut(), change) {
        fields.extend(changed);
    }
}

/// Text of a change, if the hook gave one.
pub(crate) fn text_of(data: &Value, field: &str) -> Option<String> {
    data[field].as_str().map(str::to_owned)
}

/// How long hooks may take at most, whatever they are set to.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(300);
