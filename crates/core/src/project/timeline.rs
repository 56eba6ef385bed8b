//! The context size of a session over time: one point per answer, as counted by the provider, and one per compaction,
//! with the resulting size.

use serde::Serialize;

use crate::entry::{Body, Entry, Strategy, Trigger};
use crate::id::{Seq, TimestampMs};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimelinePoint {
    pub seq: Seq,
    pub at: TimestampMs,
    /// The context's tokens at this point; `None` if unknown.
    pub tokens: Option<u64>,
    #[serde(flatten)]
    pub what: PointKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum PointKind {
    Answer { model: Option<String>, cost_nano_usd: Option<u64> },
    Compaction { tokens_before: Option<u64>, strategy: Strategy, trigger: Trigger },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    pub points: Vec<TimelinePoint>,
}

impl Timeline {
    pub fn apply(&mut self, entry: &Entry) {
        let (tokens, what) = match &entry.body {
            Body::AssistantMessage(message) => {
                let Some(usage) = message.usage else { return };
                let (model, cost_nano_usd) = (message.model.clone(), message.cost_nano_usd);
                (Some(usage.total()), PointKind::Answer { model, cost_nano_usd })
            }
            Body::Compaction(compaction) => {
                let (strategy, trigger) = (compaction.strategy, compaction.trigger);
                (
                    compaction.tokens_after,
                    PointKind::Compaction { tokens_before: compaction.tokens_before, strategy, trigger },
                )
            }
            _ => return,
        };
        self.points.push(TimelinePoint { seq: entry.meta.seq, at: entry.meta.at, tokens, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{AssistantMessage, Compaction, Meta, Stop, Usage};
    use crate::id::EntryId;
    use crate::scope::Principal;

    fn entry(seq: u32, body: impl Into<Body>) -> Entry {
        let body = body.into();
        let (at, kind) = (TimestampMs(i64::from(seq)), body.kind());
        let id = EntryId::mint(at, u128::from(seq));
        Entry {
            meta: Meta { seq: Seq(seq), id, parent: None, at, by: Principal::System, turn: None, kind },
            body,
        }
    }

    fn answer(usage: Option<Usage>) -> AssistantMessage {
        AssistantMessage { parts: Vec::new(), model: None, usage, cost_nano_usd: None, stop: Stop::Stop }
    }

    #[test]
    fn an_answer_shows_its_usage_and_a_compaction_shows_the_tokens_after_it() {
        let usage = Usage { input: 5, output: 3, cache_read: 90, ..Usage::default() };
        let compaction = Compaction {
            tokens_before: Some(98),
            tokens_after: Some(20),
            ..Compaction::new(Strategy::Truncate, Trigger::Manual)
        };
        let mut timeline = Timeline::default();
        timeline.apply(&entry(1, answer(Some(usage))));
        timeline.apply(&entry(2, answer(None)));
        timeline.apply(&entry(3, compaction));
        let tokens: Vec<(u32, Option<u64>)> =
            timeline.points.iter().map(|point| (point.seq.0, point.tokens)).collect();
        assert_eq!(tokens, [(1, Some(98)), (3, Some(20))]);
    }
}
