//! Token pressure: how much of its token budget a session uses, and the resulting action. Pure: the turn loop measures,
//! calls [`Pressure::action_at`], and performs the action.

use serde::{Deserialize, Serialize};

use crate::entry::{Body, EngineRecord, PressureChanged};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Green,
    Yellow,
    Orange,
    Red,
}

impl Level {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    pub level: Level,
    pub used_tokens: u64,
    pub budget_tokens: u64,
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
    /// Mask old tool output, the cheap strategy.
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

    /// The entry that notifies followers of a new level. It is outside the tree, so it does not change the context.
    pub fn to_body(&self) -> Body {
        PressureChanged::of(self).into()
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
