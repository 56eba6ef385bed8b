//! Usage that becomes known, or grows, after its response was imported.

use sapwood_core::Body;
use sapwood_core::entry::{Usage, WrittenBy};

use super::steps::{RecordKey, plausible_usage, usage_since};

/// The part number of the key for late usage of a response.
const USAGE_PART: usize = usize::MAX;

/// Return the key for usage that became known after its response was imported.
pub(super) fn usage_key(response: RecordKey) -> RecordKey {
    response.part(USAGE_PART)
}

/// Remove the usage from a body and return it.
pub(super) fn take_usage(body: &mut Body) -> Option<WrittenBy> {
    match body {
        Body::AssistantMessage(answer) => {
            let (usage, cost_nano_usd) = (answer.usage.take(), answer.cost_nano_usd.take());
            let model = answer.model.clone().unwrap_or_else(|| "unknown".to_owned());
            usage.map(|usage| WrittenBy { model, calls: 1, usage, cost_nano_usd })
        }
        Body::Compaction(compaction) => compaction.written_by.take(),
        _ => None,
    }
}

/// Return the usage that has not been counted yet.
pub(super) fn uncounted_usage(by: WrittenBy, counted: Option<Usage>) -> Option<WrittenBy> {
    let Some(before) = counted else { return Some(by) };
    let usage = plausible_usage(usage_since(by.usage, before))?;
    Some(WrittenBy { calls: 0, usage, cost_nano_usd: None, ..by })
}
