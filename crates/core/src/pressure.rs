//! Token pressure: how much of its token budget a session uses, and the resulting action. Pure: the turn loop measures,
//! calls [`Pressure::action_at`], and performs the action.

use serde::{Deserialize, Serialize};

use crate::entry::{Body, EngineRecord, PressureChanged};

/// Assumed output tokens of an answer if neither the agent nor the model sets a limit.
const ANSWER_TOKENS_ASSUMED: u64 = 8_192;
/// Maximum share of the window that is reserved for the answer, as a divisor.
const ANSWER_SHARE_DIVISOR: u64 = 4;

/// A level of token pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    #[default]
    Green,
    Yellow,
    Orange,
    Red,
}

impl Level {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Green => "green",
            Level::Yellow => "yellow",
            Level::Orange => "orange",
            Level::Red => "red",
        }
    }
}

/// The thresholds of the levels, in percent of the budget: yellow and orange start at their threshold, red starts above
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// From this percentage on, the level is yellow. The default is 50.
    pub yellow_percent: u8,
    /// From this percentage on, the level is orange. The default is 75.
    pub orange_percent: u8,
    /// Above this percentage, the level is red. The default is 90.
    pub red_percent: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { yellow_percent: 50, orange_percent: 75, red_percent: 90 }
    }
}

/// Thresholds that are not increasing, or not between 1 and 100 percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thresholds {yellow}, {orange} and {red} % are not increasing from 1 to 100")]
pub struct ThresholdsError {
    /// The threshold of level yellow, in percent.
    pub yellow: u8,
    /// The threshold of level orange, in percent.
    pub orange: u8,
    /// The threshold of level red, in percent.
    pub red: u8,
}

impl Thresholds {
    /// Check that the thresholds are increasing; otherwise a level could never occur.
    pub fn check(self) -> Result<Self, ThresholdsError> {
        let Self { yellow_percent: yellow, orange_percent: orange, red_percent: red } = self;
        let is_increasing = 0 < yellow && yellow < orange && orange <= red && red <= 100;
        if is_increasing { Ok(self) } else { Err(ThresholdsError { yellow, orange, red }) }
    }
}

/// The limits that determine how many tokens a session's context may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextLimits {
    /// The context window of the model: request and answer together. `None` if it is unknown.
    pub window_tokens: Option<u64>,
    /// The maximum length of an answer, which is reserved in the window. `None` if it is unknown.
    pub answer_tokens: Option<u64>,
    /// The token budget of the session or its agent. It can only lower the limit of the window.
    pub token_budget: Option<u64>,
}

impl ContextLimits {
    /// The number of tokens that the context may have: the window without the reserve for the answer, or the token
    /// budget if that is less. `None` if neither is known; then nothing is compacted automatically.
    pub fn budget_tokens(&self) -> Option<u64> {
        let for_input = self.window_tokens.map(|window| {
            let answer = self.answer_tokens.unwrap_or(ANSWER_TOKENS_ASSUMED);
            window - answer.min(window / ANSWER_SHARE_DIVISOR)
        });
        let budget = self.token_budget.filter(|budget| *budget > 0);
        for_input.into_iter().chain(budget).min()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    pub level: Level,
    pub used_tokens: u64,
    pub budget_tokens: u64,
}

/// The data of an entry that records a change of level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct LevelChange {
    #[serde(flatten)]
    pressure: Pressure,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Level>,
}

/// When the turn loop measures the pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before a model call, including between the rounds of a turn.
    BeforeCall,
    AfterTurn,
}

/// The action for a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PressureAction {
    Nothing,
    /// Compact cheaply, without a model: mask old tool output or, if that frees too little, shorten the oldest half.
    Mask,
    /// Summarise, and skip messages of low value.
    Summarise,
    /// Summarise before the model call, and warn the user.
    SummariseAndWarn,
}

impl Pressure {
    /// Measure the pressure. `None` if the budget is unknown or zero; then no action is taken.
    pub fn measure(used_tokens: u64, budget_tokens: Option<u64>, thresholds: Thresholds) -> Option<Self> {
        let budget_tokens = budget_tokens.filter(|budget| *budget > 0)?;
        // Use integers, so that thresholds are exact.
        let used = u128::from(used_tokens) * 100;
        let threshold = |percent: u8| u128::from(budget_tokens) * u128::from(percent);
        let level = if used > threshold(thresholds.red_percent) {
            Level::Red
        } else if used >= threshold(thresholds.orange_percent) {
            Level::Orange
        } else if used >= threshold(thresholds.yellow_percent) {
            Level::Yellow
        } else {
            Level::Green
        };
        Some(Self { level, used_tokens, budget_tokens })
    }

    /// The used share in percent, for display.
    pub fn percent(&self) -> f64 {
        self.used_tokens as f64 * 100.0 / self.budget_tokens as f64
    }

    pub fn action_at(&self, moment: Moment) -> PressureAction {
        match (self.level, moment) {
            (Level::Red, Moment::BeforeCall) => PressureAction::SummariseAndWarn,
            (Level::Red | Level::Orange, Moment::AfterTurn) => PressureAction::Summarise,
            (Level::Yellow, Moment::AfterTurn) => PressureAction::Mask,
            (Level::Green, _) | (_, Moment::BeforeCall) => PressureAction::Nothing,
        }
    }

    /// The number of tokens from which the level is at least yellow.
    pub fn yellow_tokens(&self, thresholds: Thresholds) -> u64 {
        let tokens = u128::from(self.budget_tokens) * u128::from(thresholds.yellow_percent);
        u64::try_from(tokens.div_ceil(100)).unwrap_or(u64::MAX)
    }

    /// The entry that records a change of level, with the level that was recorded before. It is outside the tree, so it
    /// does not change the context.
    pub fn to_body(&self, previous: Level) -> Body {
        PressureChanged::of(&LevelChange { pressure: *self, previous: Some(previous) }).into()
    }

    /// The new level, if the entry records a change of level. Entries of earlier versions have no previous level: they
    /// recorded the level after every turn, and do not count.
    pub fn recorded_level(body: &Body) -> Option<Level> {
        let change: LevelChange = PressureChanged::read(body)?;
        change.previous.map(|_| change.pressure.level)
    }

    /// The warning for the user; `None` below red.
    pub fn warning(&self) -> Option<String> {
        (self.level == Level::Red).then(|| {
            format!(
                "the context is {:.0} % full ({} of {} tokens): older messages are replaced with a summary",
                self.percent(),
                self.used_tokens,
                self.budget_tokens
            )
        })
    }

    /// Decode a level change; `None` for other entries.
    pub fn of_body(body: &Body) -> Option<Self> {
        PressureChanged::read(body)
    }
}

impl std::fmt::Display for Pressure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (level, used, budget) = (self.level.as_str(), self.used_tokens, self.budget_tokens);
        write!(f, "{level}: {used} of {budget} tokens, {:.0} %", self.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_window_without_an_answer_or_the_token_budget_if_that_is_less() {
        let cases = [
            ((Some(100_000), Some(20_000), None), Some(80_000)),
            ((Some(100_000), Some(64_000), None), Some(75_000)),
            ((Some(100_000), None, None), Some(91_808)),
            ((Some(100_000), Some(20_000), Some(10_000)), Some(10_000)),
            ((Some(100_000), Some(20_000), Some(90_000)), Some(80_000)),
            ((None, None, Some(10_000)), Some(10_000)),
            ((None, Some(20_000), None), None),
            ((None, None, Some(0)), None),
        ];
        for ((window_tokens, answer_tokens, token_budget), expected) in cases {
            let limits = ContextLimits { window_tokens, answer_tokens, token_budget };
            assert_eq!(limits.budget_tokens(), expected, "{limits:?}");
        }
    }

    #[test]
    fn only_an_entry_with_the_previous_level_counts_as_a_recorded_level() {
        let pressure = Pressure { level: Level::Red, used_tokens: 95, budget_tokens: 100 };
        let note = pressure.to_body(Level::Green);
        assert_eq!(Pressure::of_body(&note), Some(pressure));
        assert_eq!(Pressure::recorded_level(&note), Some(Level::Red));
        let earlier = PressureChanged::of(&pressure).into();
        assert_eq!((Pressure::of_body(&earlier), Pressure::recorded_level(&earlier)), (Some(pressure), None));
        assert!(pressure.warning().is_some_and(|text| text.contains("95 of 100 tokens")));
        assert_eq!(Pressure { level: Level::Orange, ..pressure }.warning(), None);
    }
}
