//! Messages that a source rewrites under the same id. Every version becomes a separate entry, identified by the
//! message's key and the version number. Versions differ by parent or content. Usage is counted once, with the
//! first version that reports it. A later increase is recorded in a separate entry.
//!
//! Memory: about 150 bytes per version, only for formats that rewrite messages.

use std::collections::HashMap;

use sapwood_core::entry::{Usage, WrittenBy, codec};
use sapwood_core::project::usage::USAGE_INFO;
use sapwood_core::{BlobHash, Body};

use super::entry_table::Index;
use super::keys::KeySlot;
use super::steps::{RecordKey, believable, usage_beyond};

/// Hash of a body's content.
pub(super) type Says = u64;

/// Token usage and cost. The cost is `None` if the price is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bill {
    usage: Usage,
    cost_nano_usd: Option<u64>,
}

/// The versions of a message that are in the log.
#[derive(Default)]
struct Message {
    versions: usize,
    /// Number of usage entries for versions that were already in the log.
    late: usize,
    /// `None` until a version reports usage.
    bill: Option<Bill>,
}

/// A version in the log: its row, its parent, and the row of its additional usage.
pub(super) struct Version {
    pub row: Index,
    pub place: KeySlot,
    pub note: Option<Index>,
}

#[derive(Default)]
pub(super) struct Versions {
    /// Content hashes of log entries whose message has not been read yet.
    told: HashMap<Index, (Says, Option<Bill>)>,
    messages: HashMap<RecordKey, Message>,
    rows: HashMap<(RecordKey, KeySlot, Says), Index>,
}

pub(super) enum Meeting {
    /// The log has this version in this row. `late` is usage not reported before, with the number of its
    /// usage entry.
    Known { row: Index, late: Option<(usize, WrittenBy)> },
    /// A new version of the message. `rest` is its additional usage if usage was counted before.
    New { number: usize, says: Says, rest: Option<WrittenBy> },
}

impl Versions {
    pub(super) fn know(&mut self, row: Index, body: &Body) {
        self.told.insert(row, (says(body), bill_of(body)));
    }

    /// Compare a message with the log. `version` finds a version by its number, and `late` a usage entry.
    pub(super) fn meet(
        &mut self,
        key: RecordKey,
        place: KeySlot,
        body: &mut Body,
        version: impl Fn(usize) -> Option<Version>,
        late: impl Fn(usize) -> Option<Index>,
    ) -> Meeting {
        let says = says(body);
        let Self { told, messages, rows } = self;
        let message = messages.entry(key).or_insert_with(|| {
            let mut message = Message::default();
            while let Some(known) = version(message.versions + 1) {
                message.versions += 1;
                if let Some((says, bill)) = told.remove(&known.row) {
                    rows.insert((key, known.place, says), known.row);
                    message.count(bill);
                }
                let note = known.note.and_then(|note| told.remove(&note));
                message.count(note.and_then(|(_, bill)| bill));
            }
            while let Some(note) = late(message.late) {
                message.late += 1;
                message.count(told.remove(&note).and_then(|(_, bill)| bill));
            }
            message
        });
        if let Some(row) = rows.get(&(key, place, says)) {
            let late = message.owe(body).map(|by| (message.late, by));
            message.late += usize::from(late.is_some());
            return Meeting::Known { row: *row, late };
        }
        let rest = message.charge(body);
        Meeting::New { number: message.versions + 1, says, rest }
    }

    /// Record that the new version is now in the log.
    pub(super) fn keep(&mut self, key: RecordKey, place: KeySlot, says: Says, row: KeySlot) {
        let Some(row) = row else { return };
        self.messages.entry(key).or_default().versions += 1;
        self.rows.insert((key, place, says), row);
    }
}

impl Message {
    fn count(&mut self, bill: Option<Bill>) {
        let Some(more) = bill else { return };
        let counted = self.bill.get_or_insert_default();
        counted.usage += more.usage;
        if let Some(cost) = more.cost_nano_usd {
            counted.cost_nano_usd = Some(counted.cost_nano_usd.unwrap_or(0).saturating_add(cost));
        }
    }

    /// Return the usage of a version already in the log that was not counted before.
    fn owe(&mut self, body: &mut Body) -> Option<WrittenBy> {
        let bill = bill_of(body)?;
        if self.bill.is_some() {
            return self.charge(body);
        }
        self.count(Some(bill));
        let Bill { usage, cost_nano_usd } = bill;
        Some(WrittenBy { model: take_bill(body), calls: 1, usage, cost_nano_usd })
    }

    /// Keep the usage in the body if no other version reported any. Otherwise move the difference out and
    /// return it.
    fn charge(&mut self, body: &mut Body) -> Option<WrittenBy> {
        let bill = bill_of(body)?;
        let Some(counted) = self.bill else {
            self.count(Some(bill));
            return None;
        };
        let rest = bill.beyond(counted);
        let by = WrittenBy {
            model: take_bill(body),
            calls: 0,
            usage: believable(rest.usage)?,
            cost_nano_usd: rest.cost_nano_usd,
        };
        self.count(Some(rest));
        Some(by)
    }
}

impl Bill {
    fn beyond(self, counted: Bill) -> Bill {
        let usage = usage_beyond(self.usage, counted.usage);
        let before = counted.cost_nano_usd.unwrap_or(0);
        Bill { usage, cost_nano_usd: self.cost_nano_usd.map(|cost| cost.saturating_sub(before)) }
    }
}

fn bill_of(body: &Body) -> Option<Bill> {
    let of_writer = |by: &WrittenBy| Bill { usage: by.usage, cost_nano_usd: by.cost_nano_usd };
    match body {
        Body::AssistantMessage(message) => {
            message.usage.map(|usage| Bill { usage, cost_nano_usd: message.cost_nano_usd })
        }
        Body::Compaction(compaction) => compaction.written_by.as_ref().map(of_writer),
        Body::CustomInfo(info) if info.custom_type == USAGE_INFO => {
            serde_json::from_str::<WrittenBy>(info.data.get()).ok().as_ref().map(of_writer)
        }
        _ => None,
    }
}

/// Remove the usage from a body, and return the model.
fn take_bill(body: &mut Body) -> String {
    let model = match body {
        Body::AssistantMessage(message) => {
            (message.usage, message.cost_nano_usd) = (None, None);
            message.model.clone()
        }
        Body::Compaction(compaction) => compaction.written_by.take().map(|by| by.model),
        _ => None,
    };
    model.unwrap_or_else(|| "unknown".to_owned())
}

/// Hash the content without usage, which may become known later, and without fields that the log fills in.
fn says(body: &Body) -> Says {
    let mut said = body.clone();
    match &mut said {
        Body::AssistantMessage(message) => (message.usage, message.cost_nano_usd) = (None, None),
        Body::Compaction(compaction) => (compaction.written_by, compaction.first_kept) = (None, None),
        _ => {}
    }
    let mut hash = [0; 8];
    hash.copy_from_slice(&BlobHash::of(&without_layout(codec::encode(&said))).as_bytes()[..8]);
    Says::from_le_bytes(hash)
}

/// Remove whitespace between JSON values, because a store may not keep the whitespace of a tool's input.
fn without_layout(mut json: Vec<u8>) -> Vec<u8> {
    let (mut in_string, mut is_escaped) = (false, false);
    json.retain(|byte| {
        let kept = in_string || !byte.is_ascii_whitespace();
        match byte {
            b'"' if !is_escaped => in_string = !in_string,
            _ => {}
        }
        is_escaped = in_string && *byte == b'\\' && !is_escaped;
        kept
    });
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_is_removed_except_in_strings() {
        let json = br#"{ "a b" : [ 1 , "x \" y" ], "c\\" : " " }"#.to_vec();
        assert_eq!(without_layout(json), br#"{"a b":[1,"x \" y"],"c\\":" "}"#);
    }
}
