//! Versions of messages that a source rewrites under the same id. Every version becomes a separate entry, identified
//! by the message's key and the version number. Versions differ by parent or content. Usage is counted once, with the
//! first version that reports it. A later increase is recorded in a separate entry.
//!
//! Memory: about 150 bytes per version, only for formats that rewrite messages.

use std::collections::HashMap;

use sapwood_core::entry::{EngineRecord, Usage, UsageReported, WrittenBy, codec};
use sapwood_core::{BlobHash, Body};

use super::entry_table::RowIndex;
use super::keys::TreePosition;
use super::steps::{RecordKey, plausible_usage, usage_since};

/// Hash of a body's content.
pub(super) type ContentHash = u64;

/// Token usage and cost. The cost is `None` if the price is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UsageCost {
    usage: Usage,
    cost_nano_usd: Option<u64>,
}

/// The versions of a message that are in the log.
#[derive(Default)]
struct MessageVersions {
    versions: usize,
    /// Number of separate usage entries, for usage that was reported after its version was imported.
    late: usize,
    /// `None` until a version reports usage.
    usage_cost: Option<UsageCost>,
}

/// A version in the log: its row, its parent, and the row of the entry with its additional usage.
pub(super) struct LoggedVersion {
    pub row: RowIndex,
    pub parent: TreePosition,
    pub usage_row: Option<RowIndex>,
}

#[derive(Default)]
pub(super) struct Versions {
    /// Content hashes of log entries whose message has not been read yet.
    unread: HashMap<RowIndex, (ContentHash, Option<UsageCost>)>,
    messages: HashMap<RecordKey, MessageVersions>,
    rows: HashMap<(RecordKey, TreePosition, ContentHash), RowIndex>,
}

/// The result of comparing a message with the versions in the log.
pub(super) enum Comparison {
    /// The log has this version, in `row`. `late` is usage that was not reported before, with the number for its
    /// usage entry.
    Known { row: RowIndex, late: Option<(usize, WrittenBy)> },
    /// A new version of the message. `additional` is the increase in usage, if usage was counted before.
    New { number: usize, content_hash: ContentHash, additional: Option<WrittenBy> },
}

impl Versions {
    pub(super) fn register(&mut self, row: RowIndex, body: &Body) {
        self.unread.insert(row, (content_hash(body), usage_cost_of(body)));
    }

    /// Compare a message with the log. `version` returns the version with a number, and `late` the usage entry with a
    /// number.
    pub(super) fn compare(
        &mut self,
        key: RecordKey,
        parent: TreePosition,
        body: &mut Body,
        version: impl Fn(usize) -> Option<LoggedVersion>,
        late: impl Fn(usize) -> Option<RowIndex>,
    ) -> Comparison {
        let content_hash = content_hash(body);
        let Self { unread, messages, rows } = self;
        let message = messages.entry(key).or_insert_with(|| {
            let mut message = MessageVersions::default();
            while let Some(known) = version(message.versions + 1) {
                message.versions += 1;
                if let Some((content_hash, usage_cost)) = unread.remove(&known.row) {
                    rows.insert((key, known.parent, content_hash), known.row);
                    message.count(usage_cost);
                }
                let usage_row = known.usage_row.and_then(|usage_row| unread.remove(&usage_row));
                message.count(usage_row.and_then(|(_, usage_cost)| usage_cost));
            }
            while let Some(usage_row) = late(message.late) {
                message.late += 1;
                message.count(unread.remove(&usage_row).and_then(|(_, usage_cost)| usage_cost));
            }
            message
        });
        if let Some(row) = rows.get(&(key, parent, content_hash)) {
            let late = message.take_uncounted(body).map(|by| (message.late, by));
            message.late += usize::from(late.is_some());
            return Comparison::Known { row: *row, late };
        }
        let additional = message.take_increase(body);
        Comparison::New { number: message.versions + 1, content_hash, additional }
    }

    /// Record that the new version is now in the log.
    pub(super) fn record_version(
        &mut self,
        key: RecordKey,
        parent: TreePosition,
        content_hash: ContentHash,
        row: TreePosition,
    ) {
        let Some(row) = row else { return };
        self.messages.entry(key).or_default().versions += 1;
        self.rows.insert((key, parent, content_hash), row);
    }
}

impl MessageVersions {
    fn count(&mut self, usage_cost: Option<UsageCost>) {
        let Some(more) = usage_cost else { return };
        let counted = self.usage_cost.get_or_insert_default();
        counted.usage += more.usage;
        if let Some(cost) = more.cost_nano_usd {
            counted.cost_nano_usd = Some(counted.cost_nano_usd.unwrap_or(0).saturating_add(cost));
        }
    }

    /// Return the usage that has not been counted yet, for a version that is already in the log.
    fn take_uncounted(&mut self, body: &mut Body) -> Option<WrittenBy> {
        let usage_cost = usage_cost_of(body)?;
        if self.usage_cost.is_some() {
            return self.take_increase(body);
        }
        self.count(Some(usage_cost));
        let UsageCost { usage, cost_nano_usd } = usage_cost;
        Some(WrittenBy { model: remove_usage(body), calls: 1, usage, cost_nano_usd })
    }

    /// Leave the usage in the body if no other version reported usage. Otherwise remove it, and return the increase.
    fn take_increase(&mut self, body: &mut Body) -> Option<WrittenBy> {
        let usage_cost = usage_cost_of(body)?;
        let Some(counted) = self.usage_cost else {
            self.count(Some(usage_cost));
            return None;
        };
        let additional = usage_cost.minus(counted);
        let by = WrittenBy {
            model: remove_usage(body),
            calls: 0,
            usage: plausible_usage(additional.usage)?,
            cost_nano_usd: additional.cost_nano_usd,
        };
        self.count(Some(additional));
        Some(by)
    }
}

impl UsageCost {
    fn minus(self, counted: UsageCost) -> UsageCost {
        let usage = usage_since(self.usage, counted.usage);
        let before = counted.cost_nano_usd.unwrap_or(0);
        UsageCost { usage, cost_nano_usd: self.cost_nano_usd.map(|cost| cost.saturating_sub(before)) }
    }
}

fn usage_cost_of(body: &Body) -> Option<UsageCost> {
    let of_writer = |by: &WrittenBy| UsageCost { usage: by.usage, cost_nano_usd: by.cost_nano_usd };
    match body {
        Body::AssistantMessage(message) => {
            message.usage.map(|usage| UsageCost { usage, cost_nano_usd: message.cost_nano_usd })
        }
        Body::Compaction(compaction) => compaction.written_by.as_ref().map(of_writer),
        Body::UsageReported(_) => UsageReported::read::<WrittenBy>(body).as_ref().map(of_writer),
        _ => None,
    }
}

/// Remove the usage from a body, and return the name of the model.
fn remove_usage(body: &mut Body) -> String {
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

/// Hash the content. Usage is excluded because it may be reported later, and `first_kept` because the reconciler sets
/// it.
fn content_hash(body: &Body) -> ContentHash {
    let mut content = body.clone();
    match &mut content {
        Body::AssistantMessage(message) => (message.usage, message.cost_nano_usd) = (None, None),
        Body::Compaction(compaction) => (compaction.written_by, compaction.first_kept) = (None, None),
        _ => {}
    }
    let mut hash = [0; 8];
    hash.copy_from_slice(&BlobHash::of(&without_whitespace(codec::encode(&content))).as_bytes()[..8]);
    ContentHash::from_le_bytes(hash)
}

/// Remove whitespace between JSON values, because a store may not preserve the whitespace of a tool's input.
fn without_whitespace(mut json: Vec<u8>) -> Vec<u8> {
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
        assert_eq!(without_whitespace(json), br#"{"a b":[1,"x \" y"],"c\\":" "}"#);
    }
}
