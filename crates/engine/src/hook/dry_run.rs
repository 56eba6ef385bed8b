//! Dry-run hooks: call them with an event without any effect on sessions.

use std::time::Instant;

use sapwood_core::port::hook::{HookAction, HookEvent, HookName, Verdict};
use sapwood_core::{Scope, SessionId};
use serde::Serialize;
use serde_json::Value;

use super::registry::OnFailure;
use super::{EventLocation, Hooks, call_checked, merge_fields};

/// The answer of one hook in a dry run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HookDryRun {
    pub by: String,
    pub took_ms: u64,
    #[serde(flatten)]
    pub verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<HookAction>,
    /// Why the hook failed or its answer is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether the hook lets the operation continue.
    pub goes_on: bool,
}

impl Hooks<'_> {
    /// Call the hooks for an event name with a simulated event. The hooks really run, because their answers cannot
    /// be predicted. A flag marks the event as simulated.
    pub async fn dry_run(
        self,
        name: HookName,
        scope: &Scope,
        session: &SessionId,
        data: Value,
    ) -> Vec<HookDryRun> {
        let hooks = &self.engine.config.hooks;
        let mut event =
            HookEvent { rehearsal: true, ..self.event(name, EventLocation::new(scope, session), data) };
        let mut answers = Vec::new();
        for installed in hooks.of(name) {
            if !installed.listens_to(&event) {
                continue;
            }
            let began = Instant::now();
            let answered = call_checked(installed, &event).await;
            let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let one = HookDryRun {
                by: installed.name.clone(),
                took_ms,
                goes_on: match &answered {
                    Ok(answer) => matches!(answer.verdict, Verdict::GoOn | Verdict::Change { .. }),
                    Err(_) => installed.on_failure == OnFailure::Ignore || !name.asks(),
                },
                failure: answered.as_ref().err().map(ToString::to_string),
                verdict: answered.as_ref().ok().map(|answer| answer.verdict.clone()),
                actions: answered.map(|answer| answer.actions).unwrap_or_default(),
            };
            if let Some(Verdict::Change { data }) = &one.verdict {
                merge_fields(&mut event.data, data.clone());
            }
            let goes_on = one.goes_on;
            answers.push(one);
            if !goes_on {
                break;
            }
        }
        answers
    }
}
