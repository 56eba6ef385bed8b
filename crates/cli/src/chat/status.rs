//! The status line after a turn: model, duration, cost and context use.

use sapwood::SessionId;
use sapwood::core::pressure::{Level, Pressure};
use sapwood::core::project::summary::Summary;
use sapwood::engine::turn::TurnReport;

use super::view::duration;
use crate::app::App;
use crate::failure::Result;
use crate::render::{DIM, GREEN, RED, YELLOW, clean, cost};

/// Width of the gauge in cells.
const GAUGE_CELLS: usize = 10;

pub async fn after_turn(app: &App, session: &SessionId, report: &TurnReport, took_ms: u64) -> Result<String> {
    let summary = app.engine.directory().summary(&app.scope, session).await?;
    let model = model_of(app, session).await?;
    let usage = report.ended.as_ref().and_then(|ended| ended.usage);
    let tokens = usage.map(|usage| usage.input + usage.output + usage.cache_read + usage.cache_write);
    let tokens = tokens.filter(|tokens| *tokens > 0);
    let mut parts = vec![clean(&model).into_owned(), duration(took_ms)];
    parts.extend(tokens.map(|tokens| format!("{} tokens", thousands(tokens))));
    parts.extend(spent(&summary));
    let pressure = app.engine.compaction().pressure_of(&app.scope, session).await?;
    let gauge = pressure.map(|pressure| gauge(&pressure)).unwrap_or_default();
    Ok(format!("  {DIM}{}{DIM:#}{gauge}", parts.join(" · ")))
}

/// The model for the next turn.
pub async fn model_of(app: &App, session: &SessionId) -> Result<String> {
    let model = app.engine.configuration().next_model_name(&app.scope, session).await?;
    Ok(model.unwrap_or_else(|| app.default_model()))
}

fn spent(summary: &Summary) -> Option<String> {
    let total = summary.spend.total();
    match (total.cost_nano_usd, total.unpriced_calls) {
        (0, _) => None,
        (spent, 0) => Some(format!("{} in total", cost(spent))),
        (spent, unpriced) => Some(format!("{} in total and {unpriced} unpriced", cost(spent))),
    }
}

fn gauge(pressure: &Pressure) -> String {
    let percent = pressure.percent();
    let full = ((percent / 100.0 * GAUGE_CELLS as f64).ceil() as usize).min(GAUGE_CELLS);
    let style = match pressure.level {
        Level::Green => GREEN,
        Level::Yellow | Level::Orange => YELLOW,
        Level::Red => RED,
    };
    let (on, off) = ("▰".repeat(full), "▱".repeat(GAUGE_CELLS - full));
    format!("{DIM} · context{DIM:#} {style}{on}{style:#}{DIM}{off} {percent:.0}%{DIM:#}")
}

fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_grouped() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(123_456), "123,456");
    }
}
