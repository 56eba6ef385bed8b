//! Messages that a source writes anew under their ids. Every version is an entry of its own, known by the message's key
//! and the version's number; what tells versions apart is where they hang and what they say. What the model calls took
//! counts once: with the first version that says it; what a later one took more stands beside it.
//!
//! Memory: some 150 bytes for each version, of the formats that have them.

use std::collections::HashMap;

use sapwood_core::entry::{Usage, WrittenBy, codec};
use sapwood_core::project::usage::USAGE_INFO;
use sapwood_core::{BlobHash, Body};

use super::entry_table::Index;
use super::keys::KeySlot;
use super::steps::{RecordKey, believable, usage_beyond};

/// What a body says, as a hash.
pub(super) type Says = u64;

/// What calls took: no cost where the price is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bill {
    usage: Usage,
    cost_nano_usd: Option<u64>,
}

/// A message, as far as the log has it.
#[derive(Default)]
struct Message {
    versions: usize,
    /// Notes of what a version took that was said after the version was there.
    late: usize,
    /// None while no version says what it took.
    bill: Option<Bill>,
}

/// Where the log has a version: its row, what that hangs from, and the row of what it took more.
pub(super) struct Version {
    pub row: Index,
    pub place: KeySlot,
    pub note: Option<Index>,
}

#[derive(Default)]
pub(super) struct Versions {
    /// What the log's entries say, until their message is met.
    told: HashMap<Index, (Says, Option<Bill>)>,
    messages: HashMap<RecordKey, Message>,
    rows: HashMap<(RecordKey, KeySlot, Says), Index>,
}

pub(super) enum Meeting {
    /// The log has it just so, in this row. `late` is what it took that was not said before, and which such note that is.
    Known { row: Index, late: Option<(usize, WrittenBy)> },
    /// It is new, as this version of its message. `rest` is what it took more, if what it took was counted before.
    New { number: usize, says: Says, rest: Option<WrittenBy> },
}

impl Versions {
    pub(super) fn know(&mut self, row: Index, body: &Body) {
        self.told.insert(row, (says(body), bill_of(body)));
    }

    /// Compares a message with what the log has of it. `version` finds one by its number, `late` what came later.
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

    /// The version that was met last is in the log.
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

    /// What a version that the log has took, as far as nobody said so before.
    fn owe(&mut self, body: &mut Body) -> Option<WrittenBy> {
        let bill = bill_of(body)?;
        if self.bill.is_some() {
            return self.charge(body);
        }
        self.count(Some(bill));
        let Bill { usage, cost_nano_usd } = bill;
        Some(WrittenBy { model: take_bill(body), calls: 1, usage, cost_nano_usd })
    }

    /// Lets a body say what it took if no other version did. Otherwise gives what is more.
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

/// Takes out what a body took. The model that it took it of.
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

/// Without what it took, which may become known later, and without what the log itself puts in.
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

/// JSON without the blanks between its values: a store may keep a tool's input without those its source had.
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
    fn layout_goes_and_what_is_in_strings_stays() {
        let json = br#"{ "a b" : [ 1 , "x \" y" ], "c\\" : " " }"#.to_vec();
        assert_eq!(without_layout(json), br#"{"a b":[1,"x \" y"],"c\\":" "}"#);
    }
}
