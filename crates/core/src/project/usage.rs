//! Usage of a session's model calls, in total and per model. Each call is counted once, in the session that made it.
//! Usage that became known later is counted in a separate [`UsageReported`] entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entry::{Body, EngineRecord, Usage, UsageReported, WrittenBy};

/// The usage of several model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Total {
    /// Number of model calls.
    pub calls: u64,
    /// The tokens of the calls.
    #[serde(flatten)]
    pub usage: Usage,
    /// The cost of the calls with a known price, in billionths of a US dollar.
    pub cost_nano_usd: u64,
    /// Calls of unknown price. They are not included in the cost, but are not free.
    pub unpriced_calls: u64,
}

/// Totals per model. The session's total is computed as the sum of the rows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spend {
    /// The totals by model name. Calls without a model are under `unknown`.
    pub models: BTreeMap<String, Total>,
}

impl Spend {
    /// Add the calls that an entry reports: an answer, a summary or a usage entry.
    pub fn apply(&mut self, body: &Body) {
        match body {
            Body::AssistantMessage(message) => {
                let Some(usage) = message.usage else { return };
                let model = message.model.as_deref().unwrap_or("unknown");
                self.add(model, 1, usage, message.cost_nano_usd);
            }
            Body::Compaction(compaction) => self.add_summary(compaction.written_by.as_ref()),
            Body::BranchSummary(summary) => self.add_summary(summary.written_by.as_ref()),
            Body::UsageReported(_) => {
                self.add_summary(UsageReported::read::<WrittenBy>(body).as_ref());
            }
            _ => {}
        }
    }

    fn add_summary(&mut self, by: Option<&WrittenBy>) {
        if let Some(by) = by {
            self.add(&by.model, u64::from(by.calls), by.usage, by.cost_nano_usd);
        }
    }

    fn add(&mut self, model: &str, calls: u64, usage: Usage, cost_nano_usd: Option<u64>) {
        let row = self.models.entry(model.to_owned()).or_default();
        row.calls += calls;
        row.usage += usage;
        match cost_nano_usd {
            Some(cost) => row.cost_nano_usd = row.cost_nano_usd.saturating_add(cost),
            None => row.unpriced_calls += calls,
        }
    }

    /// The sum over all models.
    pub fn total(&self) -> Total {
        let mut total = Total::default();
        for row in self.models.values() {
            total.calls += row.calls;
            total.usage += row.usage;
            total.cost_nano_usd = total.cost_nano_usd.saturating_add(row.cost_nano_usd);
            total.unpriced_calls += row.unpriced_calls;
        }
        total
    }
}
