//! Run hooks in priority order, each with a timeout; answers are validated before they take effect. Callers
//! use [`Hooks::ask`](Hooks) or [`Hooks::fire`]. If no hook is installed for an event, both return at once
//! without building the event.

mod actions;
mod compact;
mod dry_run;
mod registry;

pub(crate) use compact::compacted;
pub use dry_run::HookDryRun;
pub use registry::{Closure, HookRegistry, InstalledHook, OnFailure, TIMEOUT_DEFAULT};

use sapwood_core::entry::Draft;
use sapwood_core::port::hook::{
    HookAnswer, HookError, HookEvent, HookName, HookNote, HookResult, REASON_CHARS_MAX, Verdict,
};
use sapwood_core::port::store::Append;
use sapwood_core::{Scope, SessionId, TurnId};
use serde_json::Value;

use crate::{EngineError, Result, service};

/// Maximum nesting of hooks: a hook at this depth cannot run actions.
pub const DEPTH_MAX: u8 = 3;

/// The location of an event: scope, session and turn.
#[derive(Clone, Copy)]
pub(crate) struct EventLocation<'a> {
    pub scope: &'a Scope,
    pub session: &'a SessionId,
    pub turn: Option<TurnId>,
}

impl<'a> EventLocation<'a> {
    pub fn new(scope: &'a Scope, session: &'a SessionId) -> Self {
        Self { scope, session, turn: None }
    }
}

/// The combined answer of the hooks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HookDecision {
    Continue,
    /// Continue with this data.
    Changed(Value),
    /// A hook supplied this result instead.
    Supplied {
        by: String,
        data: Value,
    },
}

service! {
    /// Calling the installed hooks.
    pub struct Hooks;
    hooks
}

impl Hooks<'_> {
    pub(crate) fn has(self, name: HookName) -> bool {
        self.engine.config.hooks.listens(name)
    }

    /// Notify the hooks of an event. Failures do not affect the caller.
    pub async fn fire(
        self,
        name: HookName,
        scope: &Scope,
        session: &SessionId,
        turn: Option<TurnId>,
        data: impl FnOnce() -> Value,
    ) {
        if self.has(name) {
            // A notified hook cannot refuse, so ignore errors.
            let _ = Box::pin(self.ask_each(name, EventLocation { scope, session, turn }, data())).await;
        }
    }

    /// Ask the hooks about an event. A refusal is returned as an error with the hook's reason.
    pub(crate) async fn ask(
        self,
        name: HookName,
        at: EventLocation<'_>,
        data: impl FnOnce() -> Value,
    ) -> Result<HookDecision> {
        if !self.has(name) {
            return Ok(HookDecision::Continue);
        }
        Box::pin(self.ask_each(name, at, data())).await
    }

    async fn ask_each(self, name: HookName, at: EventLocation<'_>, data: Value) -> Result<HookDecision> {
        let mut event = self.event(name, at, data);
        let mut decision = HookDecision::Continue;
        for installed in self.engine.config.hooks.of(name) {
            if !installed.listens_to(&event) {
                continue;
            }
            let Some(answer) = self.call_hook(at, installed, &event).await? else { continue };
            self.spawn_actions(&event, installed, answer.actions);
            self.note_verdict(at, installed, &answer.verdict).await;
            match answer.verdict {
                Verdict::GoOn => {}
                Verdict::Refuse { reason } => return Err(refused(installed, &reason)),
                Verdict::Supply { data } => {
                    return Ok(HookDecision::Supplied { by: installed.name.clone(), data });
                }
                Verdict::Change { data } => {
                    merge_fields(&mut event.data, data);
                    decision = HookDecision::Changed(event.data.clone());
                }
            }
        }
        Ok(decision)
    }

    /// The answer of one hook; `None` if it failed and failures are ignored.
    async fn call_hook(
        self,
        at: EventLocation<'_>,
        installed: &InstalledHook,
        event: &HookEvent,
    ) -> Result<Option<HookAnswer>> {
        let error = match call_checked(installed, event).await {
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

    async fn note_verdict(self, at: EventLocation<'_>, installed: &InstalledHook, verdict: &Verdict) {
        let (result, why, data) = match verdict {
            Verdict::GoOn => return,
            Verdict::Refuse { reason } => (HookResult::Refused, Some(shortened(reason)), None),
            Verdict::Change { data } => (HookResult::Changed, None, Some(data.clone())),
            Verdict::Supply { data } => (HookResult::Supplied, None, Some(data.clone())),
        };
        self.note(at, installed, result, why, data).await;
    }

    fn event(self, hook: HookName, at: EventLocation<'_>, data: Value) -> HookEvent {
        HookEvent {
            hook,
            session: at.session.clone(),
            tenant: at.scope.tenant.clone(),
            by: at.scope.principal.clone(),
            at: self.engine.clock.now(),
            turn: at.turn,
            depth: self.engine.depth,
            rehearsal: false,
            data,
        }
    }

    /// Append a note about a hook's answer for followers of the session. If the session accepts no entries, the
    /// note is logged instead.
    async fn note(
        self,
        at: EventLocation<'_>,
        installed: &InstalledHook,
        result: HookResult,
        why: Option<String>,
        data: Option<Value>,
    ) {
        let note = HookNote { by: installed.name.clone(), hook: installed.on, result, why, data };
        self.write_note(at, &note).await;
    }

    pub(crate) async fn write_note(self, at: EventLocation<'_>, note: &HookNote) {
        let now = self.engine.clock.now();
        let draft = Draft { turn: at.turn, ..Draft::new(now, note.to_body()) };
        let appended =
            self.engine.log().append(at.scope, Append::new(at.session.clone(), now, vec![draft])).await;
        if let Err(error) = appended {
            tracing::debug!(session = %at.session, %note, %error, "failed to append a hook note to the session");
        }
    }
}

/// Call one hook with its timeout, and validate its answer.
async fn call_checked(installed: &InstalledHook, event: &HookEvent) -> Result<HookAnswer, HookError> {
    let after_ms = u64::try_from(installed.timeout.as_millis()).unwrap_or(u64::MAX);
    let called = tokio::time::timeout(installed.timeout, installed.hook.call(event)).await;
    let answer = called.unwrap_or(Err(HookError::TimedOut { after_ms }))?;
    event.hook.check(&answer)?;
    Ok(answer)
}

fn refused(installed: &InstalledHook, reason: &str) -> EngineError {
    EngineError::HookRefused { hook: installed.name.clone(), on: installed.on, reason: shortened(reason) }
}

fn shortened(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).collect()
}

/// Merge the changed fields into the event data, for the next hook and the caller.
fn merge_fields(data: &mut Value, change: Value) {
    if let (Some(fields), Value::Object(changed)) = (data.as_object_mut(), change) {
        fields.extend(changed);
    }
}

/// A text field of the event data that hooks changed.
pub(crate) fn text_of(data: &Value, field: &str) -> Option<String> {
    data[field].as_str().map(str::to_owned)
}
