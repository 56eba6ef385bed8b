//! Keep the context within the model's window: measure how full the window is, report the level to followers, and
//! compact when needed. [`Compactions::relieve_overflow`] handles a provider's "context too large" error.

use std::sync::Arc;

use sapwood_core::compact::{CompactOptions, Detail, Method, Snap, find_cut, maskable_tokens};
use sapwood_core::entry::{Body, Draft, Trigger};
use sapwood_core::port::store::{Append, Until};
use sapwood_core::port::summariser::{CompactHook, Summariser};
use sapwood_core::pressure::{Level, Moment, Pressure, PressureAction, Thresholds};
use sapwood_core::project::context::Context;
use sapwood_core::tokens::{Count, count_in_use, count_messages};
use sapwood_core::{Scope, SessionId, TurnId};

use crate::compact::{Compacted, Compacting, Compactions, Writing};
use crate::model_chain::budget_tokens;
use crate::summarise::ModelSummariser;
use crate::{EngineError, Result};

/// Maximum length of a tool result that is not shortened when the context is nearly full, in characters.
const TIGHT_OUTPUT_CHARS: u32 = 8_000;
/// Divisors of the budget: the share for recent messages, and for the whole context, when it is nearly full.
const TIGHT_RECENT_DIVISOR: u64 = 4;
const TIGHT_LIMIT_DIVISOR: u64 = 2;

/// Parameters for measuring a session's context and for compacting it.
#[derive(Clone, Default)]
pub struct PressureOptions {
    /// The number of tokens that the context may have: see
    /// [`ContextLimits`](sapwood_core::pressure::ContextLimits). If `None`, only an overflow causes a compaction.
    pub budget_tokens: Option<u64>,
    /// The model that answers next, whose tokenizer is used. If `None`, that of the context's model is used.
    pub model: Option<String>,
    pub thresholds: Thresholds,
    /// The tools' schemas, as sent to the model.
    pub tools: String,
    /// Writes summaries. If `None`, summaries are written without a model.
    pub summariser: Option<Arc<dyn Summariser>>,
    pub hook: Option<Arc<dyn CompactHook>>,
    pub fence: Option<u64>,
    pub turn: Option<TurnId>,
    /// The latest recorded level. Only a different level is recorded; `None` means green.
    pub last_level: Option<Level>,
    /// With [`Writing::DryRun`] nothing is appended: the caller takes the compaction and the note from
    /// [`ReliefReport`] and appends them itself.
    pub writing: Writing,
}

/// Token counts of a context, by its model's tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextTokens {
    pub system: u64,
    /// In message order.
    pub messages: Vec<u64>,
}

impl ContextTokens {
    pub fn total(&self) -> u64 {
        self.system + self.messages.iter().sum::<u64>()
    }
}

/// The measured pressure and the action taken.
#[derive(Debug, Clone, PartialEq)]
pub struct ReliefReport {
    /// Before any compaction; `None` if the budget is unknown.
    pub pressure: Option<Pressure>,
    pub compacted: Option<Compacted>,
    /// The entry that records the level, if the level has changed.
    pub note: Option<Body>,
    /// Whether to warn the user that the context is nearly full.
    pub warns: bool,
}

impl Compactions<'_> {
    /// Measure how much of its budget a session uses.
    pub async fn pressure(
        self,
        scope: &Scope,
        session: &SessionId,
        pressure_options: &PressureOptions,
    ) -> Result<Option<Pressure>> {
        Ok(self.measure(scope, session, pressure_options).await?.map(|(_, pressure)| pressure))
    }

    /// Measure the pressure of a session, and return the context that was measured.
    async fn measure(
        self,
        scope: &Scope,
        session: &SessionId,
        options: &PressureOptions,
    ) -> Result<Option<(Context, Pressure)>> {
        let slice = self.engine.configuration().read_path(scope, session, None, Until::ContextStart).await?;
        let context = self.engine.grafts().context_with_grafts(scope, slice).await?;
        let counter = self.engine.tokens.counter(options.model.as_deref().or(context.model.as_deref()));
        let used = count_in_use(&context, counter.text(&options.tools), &counter);
        let pressure = Pressure::measure(used, options.budget_tokens, options.thresholds);
        Ok(pressure.map(|pressure| (context, pressure)))
    }

    pub fn count_context(self, context: &Context) -> ContextTokens {
        let counter = self.engine.tokens.counter(context.model.as_deref());
        ContextTokens {
            system: context.system.as_deref().map_or(0, |system| counter.text(system)),
            messages: context.messages.iter().map(|message| counter.message(message)).collect(),
        }
    }

    /// Measure the pressure, record a change of level, and compact if needed.
    pub async fn relieve(
        self,
        scope: &Scope,
        session: &SessionId,
        moment: Moment,
        pressure_options: &PressureOptions,
    ) -> Result<ReliefReport> {
        let Some((context, pressure)) = self.measure(scope, session, pressure_options).await? else {
            return Ok(ReliefReport { pressure: None, compacted: None, note: None, warns: false });
        };
        let before = pressure_options.last_level.unwrap_or_default();
        let note = (pressure.level != before).then(|| pressure.to_body(before));
        if let Some(note) = note.clone().filter(|_| pressure_options.writing == Writing::Write) {
            self.append_note(scope, session, note, pressure_options).await?;
        }
        let relief = pressure.action_at(moment);
        let compacted = match relief {
            PressureAction::Nothing => None,
            PressureAction::Mask => Some(self.cheap_options(&context, &pressure, pressure_options)),
            PressureAction::Summarise | PressureAction::SummariseAndWarn => {
                Some(tight_options(&pressure, pressure_options))
            }
        };
        let compacted = match compacted {
            Some(options) => Some(
                self.compact_automatically(scope, session, options, Trigger::Pressure, pressure_options)
                    .await?,
            ),
            None => None,
        };
        let warns = relief == PressureAction::SummariseAndWarn;
        Ok(ReliefReport { pressure: Some(pressure), compacted, note, warns })
    }

    /// The options of a compaction without a model: mask old tool output if that ends the pressure, and otherwise
    /// shorten the oldest half of the messages to a line each.
    fn cheap_options(
        self,
        context: &Context,
        pressure: &Pressure,
        options: &PressureOptions,
    ) -> CompactOptions {
        let counter = self.engine.tokens.counter(options.model.as_deref().or(context.model.as_deref()));
        let mask = CompactOptions { compact_strategy: Method::ObservationMask, ..CompactOptions::default() };
        let cut = find_cut(context, mask.keep(), Snap::ToUser, &counter);
        let masked = cut.map_or(0, |cut| maskable_tokens(&context.messages[cut.start..cut.cut], &counter));
        if pressure.used_tokens.saturating_sub(masked) < pressure.yellow_tokens(options.thresholds) {
            return mask;
        }
        let tokens = count_messages(&context.messages[context.summaries()..], &counter);
        CompactOptions {
            keep_recent_tokens: Some(tokens / 2),
            compact_strategy: Method::Truncate,
            ..CompactOptions::default()
        }
    }

    /// Compact the context to about half its size after the provider rejected it as too large. If the result has no
    /// compaction, a retry would fail again.
    pub async fn relieve_overflow(
        self,
        scope: &Scope,
        session: &SessionId,
        pressure_options: &PressureOptions,
    ) -> Result<Compacted> {
        let used = match self.pressure(scope, session, pressure_options).await? {
            Some(pressure) => pressure.used_tokens.min(pressure.budget_tokens),
            None => self.engine.views().context(scope, session, None).await?.tokens,
        };
        let full = Pressure { level: Level::Red, used_tokens: used, budget_tokens: used.max(1) };
        let options = tight_options(&full, pressure_options);
        self.compact_automatically(scope, session, options, Trigger::Overflow, pressure_options).await
    }

    /// Compact. If the summariser fails, fall back to a summary without a model: a failure must not end the turn.
    async fn compact_automatically(
        self,
        scope: &Scope,
        session: &SessionId,
        options: CompactOptions,
        trigger: Trigger,
        pressure_options: &PressureOptions,
    ) -> Result<Compacted> {
        let how = Compacting {
            summariser: pressure_options.summariser.clone(),
            hook: pressure_options.hook.clone(),
            fence: pressure_options.fence,
            turn: pressure_options.turn,
            writing: pressure_options.writing,
            ..Compacting::new(options, trigger)
        };
        match self.compact(scope, session, how.clone()).await {
            Err(EngineError::Summariser { .. }) => {
                let options =
                    CompactOptions { compact_strategy: Method::ObservationMask, ..how.options.clone() };
                self.compact(scope, session, Compacting { options, ..how }).await
            }
            done => done,
        }
    }

    async fn append_note(
        self,
        scope: &Scope,
        session: &SessionId,
        note: Body,
        pressure_options: &PressureOptions,
    ) -> Result<()> {
        let now = self.engine.clock.now();
        let draft = Draft { turn: pressure_options.turn, ..Draft::new(now, note) };
        let append =
            Append { fence: pressure_options.fence, ..Append::new(session.clone(), now, vec![draft]) };
        self.engine.log().append(scope, append).await?;
        Ok(())
    }

    /// A summariser that uses the named model, or else the session's model.
    pub async fn summariser_of(
        self,
        scope: &Scope,
        session: &SessionId,
        model: Option<String>,
    ) -> Result<ModelSummariser> {
        let backends = self.engine.backends_for(scope)?;
        if let Some(model) = model {
            let name = self.engine.configuration().callable_model(&model)?;
            return Ok(ModelSummariser::new(backends.model, name));
        }
        let (_, chain) = self.engine.configuration().agent_and_chain(scope, session).await?;
        Ok(ModelSummariser::new(backends.model, chain.first()))
    }

    /// The pressure for the model that answers next, not counting the tools' schemas. The model need not be callable
    /// here: the provider of an imported session's model may have no key.
    pub async fn pressure_of(self, scope: &Scope, session: &SessionId) -> Result<Option<Pressure>> {
        let backends = self.engine.backends()?;
        let next = self.engine.configuration().next_model(scope, session, &backends).await?;
        let (agent, Some(model)) = (next.agent, next.model) else { return Ok(None) };
        let budget_tokens = budget_tokens(&backends, &agent, &model, next.token_budget);
        let thresholds = agent.pressure.unwrap_or(self.engine.config.thresholds);
        let model = Some(model);
        let options = PressureOptions { budget_tokens, thresholds, model, ..PressureOptions::default() };
        self.pressure(scope, session, &options).await
    }
}

fn tight_options(pressure: &Pressure, pressure_options: &PressureOptions) -> CompactOptions {
    let strategy = if pressure_options.summariser.is_some() { Method::Llm } else { Method::ObservationMask };
    let recent = pressure.budget_tokens / TIGHT_RECENT_DIVISOR;
    CompactOptions {
        keep_last: Some(sapwood_core::compact::options::KEEP_LAST),
        keep_recent_tokens: Some(recent.min(sapwood_core::compact::options::KEEP_RECENT_TOKENS)),
        tool_output_max_chars: Some(TIGHT_OUTPUT_CHARS),
        compact_strategy: strategy,
        hard_limit_tokens: Some((pressure.budget_tokens / TIGHT_LIMIT_DIVISOR).max(1)),
        detail: Detail::WithoutLowValue,
        ..CompactOptions::default()
    }
}
