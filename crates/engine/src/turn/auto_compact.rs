//! Keep the context within the model's window while a turn runs: compact before a call if the window is nearly full,
//! after a provider's overflow error, and after the turn.

use std::sync::Arc;

use sapwood_core::entry::{Body, Trigger};
use sapwood_core::pressure::{Moment, Pressure, PressureAction};
use sapwood_core::project::context::Context;
use sapwood_core::tokens::{Count, count_in_use};
use sapwood_core::turn::Input;

use super::TurnContext;
use crate::Result;
use crate::compact::Writing;
use crate::fragments::FragmentKind;
use crate::model_chain::budget_tokens;
use crate::pressure::PressureOptions;
use crate::summarise::ModelSummariser;

impl TurnContext {
    /// Whether to compact before calling the model. A compaction is tried once per answer: one that gained nothing is
    /// not retried before the next answer.
    pub(super) async fn check_pressure(&self, context: &Context) -> Option<Input> {
        let counter = self.engine.tokens.counter(Some(&self.chain.first()?.model));
        let used = count_in_use(context, counter.text(&self.schemas()), &counter);
        let pressure = Pressure::measure(used, self.budget_tokens(), self.thresholds())?;
        let is_due = pressure.action_at(Moment::BeforeCall) != PressureAction::Nothing;
        let has_tried =
            self.with_progress(|progress| std::mem::replace(&mut progress.has_tried_compaction, is_due));
        let is_compacting = is_due && !has_tried;
        let note = if is_compacting { self.note_of(&pressure) } else { None };
        if self.is_new_level(&pressure) {
            // Followers also receive the note, so a fragment would report the level twice.
            if note.is_none() {
                self.send_fragment(FragmentKind::Pressure {
                    level: pressure.level.as_str().to_owned(),
                    used_tokens: pressure.used_tokens,
                    window_tokens: pressure.budget_tokens,
                });
            }
            self.notify_pressure(&pressure).await;
        }
        is_compacting.then_some(Input::TooFull { trigger: Trigger::Pressure, note })
    }

    /// The entry for a level that differs from the latest one in the log. The caller must append it.
    fn note_of(&self, pressure: &Pressure) -> Option<Body> {
        let before =
            self.with_progress(|progress| std::mem::replace(&mut progress.recorded_level, pressure.level));
        (before != pressure.level).then(|| pressure.to_body(before))
    }

    /// Whether the level differs from the one last reported to followers. The caller must report it.
    fn is_new_level(&self, pressure: &Pressure) -> bool {
        self.with_progress(|progress| {
            std::mem::replace(&mut progress.level, pressure.level) != pressure.level
        })
    }

    /// Plan a compaction; the state machine appends it like any other entry.
    pub(super) async fn compact(&self, trigger: Trigger) -> Result<Input> {
        self.send_fragment(FragmentKind::Compacting);
        let pressure_options = self.pressure_options(Writing::DryRun);
        let (engine, scope, session) = (&self.engine, &self.scope, &self.session);
        if trigger == Trigger::Overflow {
            let done = engine.compaction().relieve_overflow(scope, session, &pressure_options).await?;
            return Ok(Input::Compacted { trigger, compaction: done.compaction });
        }
        let relieved =
            engine.compaction().relieve(scope, session, Moment::BeforeCall, &pressure_options).await?;
        let compaction = relieved.compacted.and_then(|done| done.compaction);
        Ok(Input::Compacted { trigger, compaction })
    }

    /// Compact after the turn, while the lease is still held. A failure here does not fail the turn.
    pub(super) async fn compact_after_turn(&self) {
        let pressure_options = self.pressure_options(Writing::Write);
        let done = self
            .engine
            .compaction()
            .relieve(&self.scope, &self.session, Moment::AfterTurn, &pressure_options)
            .await;
        match done {
            Ok(relieved) => {
                if let Some(pressure) = relieved.pressure.filter(|pressure| self.is_new_level(pressure)) {
                    self.notify_pressure(&pressure).await;
                }
            }
            Err(error) => {
                tracing::warn!(session = %self.session, %error, "failed to compact the session after its turn");
            }
        }
    }

    fn pressure_options(&self, writing: Writing) -> PressureOptions {
        let model = self.chain.first().map(|link| link.model.clone()).unwrap_or_default();
        PressureOptions {
            budget_tokens: self.budget_tokens(),
            model: Some(model.clone()),
            thresholds: self.thresholds(),
            tools: self.schemas(),
            summariser: Some(Arc::new(ModelSummariser::new(self.backends.model.clone(), model))),
            hook: None,
            fence: Some(self.fence),
            turn: (writing == Writing::DryRun).then_some(self.turn),
            last_level: Some(self.with_progress(|progress| progress.recorded_level)),
            writing,
        }
    }

    fn thresholds(&self) -> sapwood_core::pressure::Thresholds {
        self.agent.pressure.unwrap_or(self.engine.config.thresholds)
    }

    fn budget_tokens(&self) -> Option<u64> {
        budget_tokens(&self.backends, &self.agent, &self.chain.first()?.model, self.token_budget)
    }

    fn schemas(&self) -> String {
        self.specs.iter().map(|spec| spec.input_schema.get()).collect()
    }
}
