//! Connect the installed hooks to a compaction.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::compact::Archive;
use sapwood_core::entry::{Compaction, Details, Trigger};
use sapwood_core::port::hook::{HookName, Verdict, event_text};
use sapwood_core::port::summariser::{BeforeCompact, CompactHook};
use sapwood_core::{Scope, SessionId, TurnId};
use serde_json::{Value, json};

use super::{EventLocation, HookDecision, text_of};
use crate::compact::{Compacting, Compactions, Writing};
use crate::{Engine, EngineError};

struct HookedCompaction {
    engine: Engine,
    scope: Scope,
    session: SessionId,
    turn: Option<TurnId>,
    trigger: Trigger,
    writing: Writing,
}

impl Compactions<'_> {
    /// Add the installed hooks to a compaction, unless the compaction already has a hook.
    pub(crate) fn add_hooks(self, scope: &Scope, session: &SessionId, how: Compacting) -> Compacting {
        let listens = self.engine.hooks().has(HookName::BeforeCompact)
            || self.engine.hooks().has(HookName::AfterCompact);
        if how.hook.is_some() || !listens {
            return how;
        }
        let hook = HookedCompaction {
            engine: self.engine.clone(),
            scope: scope.clone(),
            session: session.clone(),
            turn: how.turn,
            trigger: how.trigger,
            // A turn plans with a dry run but appends the compaction itself, so hooks must not treat it as a dry run.
            writing: if how.turn.is_some() { Writing::Write } else { how.writing },
        };
        Compacting { hook: Some(Arc::new(hook)), ..how }
    }
}

#[async_trait]
impl CompactHook for HookedCompaction {
    async fn before_compact(&self, archive: &Archive<'_>) -> BeforeCompact {
        let at = EventLocation { scope: &self.scope, session: &self.session, turn: self.turn };
        let data =
            || json!({"trigger": self.trigger, "archived": archive.archived, "text": archived_text(archive)});
        if self.writing == Writing::DryRun {
            return self.dry_run(data()).await;
        }
        match self.engine.hooks().ask(HookName::BeforeCompact, at, data).await {
            Ok(HookDecision::Continue) => BeforeCompact::GoOn,
            Ok(HookDecision::Changed(data) | HookDecision::Supplied { data, .. }) => supplied(&data),
            Err(EngineError::HookRefused { hook, reason, .. }) => {
                BeforeCompact::Cancel { reason: format!("{hook}: {reason}") }
            }
            Err(error) => BeforeCompact::Cancel { reason: error.to_string() },
        }
    }

    async fn after_compact(&self, compaction: &Compaction) {
        let (engine, turn) = (&self.engine, self.turn);
        let data = || compacted(compaction);
        engine.hooks().fire(HookName::AfterCompact, &self.scope, &self.session, turn, data).await;
    }
}

impl HookedCompaction {
    /// Call the hooks without recording anything, for a dry run.
    async fn dry_run(&self, data: Value) -> BeforeCompact {
        let name = HookName::BeforeCompact;
        let mut answer = BeforeCompact::GoOn;
        for one in self.engine.hooks().dry_run(name, &self.scope, &self.session, data).await {
            match one.verdict {
                Some(Verdict::Refuse { reason }) => {
                    return BeforeCompact::Cancel { reason: format!("{}: {reason}", one.by) };
                }
                Some(Verdict::Change { data } | Verdict::Supply { data }) => answer = supplied(&data),
                Some(Verdict::GoOn) => {}
                None if one.goes_on => {}
                None => {
                    let why = one.failure.unwrap_or_default();
                    return BeforeCompact::Cancel { reason: format!("{}: {why}", one.by) };
                }
            }
        }
        answer
    }
}

fn supplied(data: &Value) -> BeforeCompact {
    match text_of(data, "summary") {
        Some(summary) => BeforeCompact::Supply { summary, details: Details::default() },
        None => BeforeCompact::GoOn,
    }
}

pub(crate) fn compacted(compaction: &Compaction) -> Value {
    let summary = compaction.summary.as_deref().map(event_text);
    json!({
        "trigger": compaction.trigger, "summary": summary, "archived": compaction.archived,
        "tokens_before": compaction.tokens_before, "tokens_after": compaction.tokens_after,
    })
}

/// The archived messages as text, each with its role.
fn archived_text(archive: &Archive<'_>) -> String {
    let messages = archive.opening.iter().chain(archive.story).chain(archive.turn);
    let lines: Vec<String> =
        messages.map(|message| format!("{}: {}", message.role.as_str(), message.text())).collect();
    event_text(&lines.join("\n"))
}
