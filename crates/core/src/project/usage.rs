//! What a session's model calls took: in all, and per model. Each call is counted once, where it was made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entry::{Body, Usage};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Total {
    pub calls: u64,
    #[serde(flatten)]
    pub usage: Usage,
    pub cost_nano_usd: u64,
    /// Calls whose price is not known: they are not in the cost, and are not free.
    pub unpriced_calls: u64,
}

/// Totals per model. The sum of the rows is the session's total, because it is computed from them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spend {
    pub models: BTreeMap<String, Total>,
}

impl Spend {
    pub fn apply(&mut self, body: &Body) {
        let Body::AssistantMessage(message) = body else { return };
        let Some(usage) = message.usage else { return };
        let model = message.model.clone().unwrap_or_else(|| "unknown".to_owned());
        let row = self.models.entry(model).or_default();
        row.calls += 1;
        row.usage += usage;
        match message.cost_nano_usd {
            Some(cost) => row.cost_nano_usd = row.cost_nano_usd.saturating_add(cost),
            None => row.unpriced_calls += 1,
        }
    }

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
