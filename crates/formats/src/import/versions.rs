//! Messages that a source writes anew under their ids. Every version is an entry of its own, known by the message's key
//! and the version's number; what tells versions apart is where they hang and what they say. What the model calls took
//! counts once: a version has only what it took more than the ones before it.
//!
//! Memory: some 150 bytes for each version, of the formats that have them.

use std::collections::HashMap;

use sapwood_core::entry::{Usage, codec};
use sapwood_core::{BlobHash, Body};

use super::harvest::Key;
use super::keys::Place;
use super::rows::Index;

/// What a body says, as a hash.
pub(super) type Says = u64;

/// What calls took; no cost where the price is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bill {
    usage: Usage,
    cost_nano_usd: Option<u64>,
}

/// A message, as far as the log has it.
#[derive(Default)]
struct Message {
    versions: usize,
    bill: Bill,
}

#[derive(Default)]
pub(super) struct Versions {
    /// What the log's entries say, until their message is met.
    told: HashMap<Index, (Says, Option<Bill>)>,
    messages: HashMap<Key, Message>,
    rows: HashMap<(Key, Place, Says), Index>,
}

pub(super) enum Meeting {
    /// The log has it just so, in this row.
    Known(Index),
    /// It is new, as this version of its message, and its bill is what it adds.
    New { number: usize, says: Says },
}

impl Versions {
    pub(super) fn know(&mut self, row: Index, body: &Body) {
        self.told.insert(row, (says(body), bill_of(body)));
    }

    /// Compares a message with what the log has of it. `version` finds the row of a version and the place it hangs from.
    pub(super) fn meet(
        &mut self,
        key: Key,
        place: Place,
        body: &mut Body,
        version: impl Fn(usize) -> Option<(Index, Place)>,
    ) -> Meeting {
        let says = says(body);
        let Self { told, messages, rows } = self;
        let message = messages.entry(key).or_insert_with(|| {
            let mut message = Message::default();
            while let Some((row, place)) = version(message.versions + 1) {
                message.versions += 1;
                if let Some((says, bill)) = told.remove(&row) {
                    rows.insert((key, place, says), row);
                    message.bill.add(bill.unwrap_or_default());
                }
            }
            message
        });
        if let Some(row) = rows.get(&(key, place, says)) {
            return Meeting::Known(*row);
        }
        if let Some(bill) = bill_of(body) {
            let more = bill.beyond(message.bill);
            message.bill.add(more);
            charge(body, more);
        }
        Meeting::New { number: message.versions + 1, says }
    }

    /// The version that was met last is in the log.
    pub(super) fn keep(&mut self, key: Key, place: Place, says: Says, row: Place) {
        let Some(row) = row else { return };
        self.messages.entry(key).or_default().versions += 1;
        self.rows.insert((key, place, says), row);
    }
}

impl Bill {
    fn add(&mut self, more: Bill) {
        self.usage += more.usage;
        if let Some(cost) = more.cost_nano_usd {
            self.cost_nano_usd = Some(self.cost_nano_usd.unwrap_or(0).saturating_add(cost));
        }
    }

    /// What of it was not counted yet.
    fn beyond(self, counted: Bill) -> Bill {
        let (all, counted_usage) = (self.usage, counted.usage);
        Bill {
            usage: Usage {
                input: all.input.saturating_sub(counted_usage.input),
                output: all.output.saturating_sub(counted_usage.output),
                cache_read: all.cache_read.saturating_sub(counted_usage.cache_read),
                cache_write: all.cache_write.saturating_sub(counted_usage.cache_write),
                reasoning: all.reasoning.saturating_sub(counted_usage.reasoning),
            },
            cost_nano_usd: self
                .cost_nano_usd
                .map(|cost| cost.saturating_sub(counted.cost_nano_usd.unwrap_or(0))),
        }
    }

    fn is_nothing(self) -> bool {
        self.usage == Usage::default() && self.cost_nano_usd.unwrap_or(0) == 0
    }
}

fn bill_of(body: &Body) -> Option<Bill> {
    match body {
        Body::AssistantMessage(message) => {
            message.usage.map(|usage| Bill { usage, cost_nano_usd: message.cost_nano_usd })
        }
        Body::Compaction(compaction) => {
            compaction.written_by.as_ref().map(|by| Bill { usage: by.usage, cost_nano_usd: by.cost_nano_usd })
        }
        _ => None,
    }
}

/// Has a body that took something take this instead.
fn charge(body: &mut Body, bill: Bill) {
    let kept = Some(bill).filter(|bill| !bill.is_nothing());
    match body {
        Body::AssistantMessage(message) => {
            message.usage = kept.map(|bill| bill.usage);
            message.cost_nano_usd = kept.and_then(|bill| bill.cost_nano_usd);
        }
        Body::Compaction(compaction) => match (&mut compaction.written_by, kept) {
            (Some(by), Some(bill)) => (by.usage, by.cost_nano_usd) = (bill.usage, bill.cost_nano_usd),
            (by, _) => *by = None,
        },
        _ => {}
    }
}

/// Without what it took, which may become known later, and without what the log itself puts in.
fn says(body: &Body) -> Says {
    let mut said = body.clone();
    match &mut said {
        Body::AssistantMessage(message) => (message.usage, message.cost_nano_usd) = (None, None),
        Body::Compaction(compaction) => (compaction.written_by, compaction.first_kept) = (None, None),
        _ => {}
    }
    let mut hash = [0; 8];
    hash.copy_from_slice(&BlobHash::of(&codec::encode(&said)).as_bytes()[..8]);
    Says::from_le_bytes(hash)
}
