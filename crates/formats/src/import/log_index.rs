//! An index of the entries and records of a log: lookups by record key, and walks up the tree.

use sapwood_core::entry::Stance;
use sapwood_core::{EntryId, TimestampMs};

use super::entry_table::{ENTRIES_MAX, EntryTable, RowIndex};
use super::keys::{ALIASES_MAX, KeyLookup, KeyTable, TreePosition};
use super::steps::{RecordKey, RecordRef};

/// Maximum total number of entries visited when walking up paths. Only a malicious file needs more.
const WALK_STEPS_MAX: u64 = 1 << 30;
/// The latest time that an id can encode, minus a margin for increments.
const ID_MS_MAX: i64 = (1 << 48) - (1 << 32);

#[derive(Default)]
pub(super) struct LogIndex {
    pub(super) rows: EntryTable,
    keys: KeyTable,
    walked: u64,
}

impl LogIndex {
    pub(super) fn find(&self, key: RecordKey) -> Option<KeyLookup> {
        self.keys.find(key, &self.rows)
    }

    /// Map a record without an entry to a position. Has no effect if the record has an entry.
    pub(super) fn put_alias(&mut self, key: RecordKey, position: TreePosition) {
        self.keys.put_alias(key, position, &self.rows);
    }

    /// Whether no more entries or aliases fit.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= ENTRIES_MAX || self.keys.aliases() >= ALIASES_MAX
    }

    /// Return the position of the entry with this seq, if the index has it. Seqs begin with 1.
    pub(super) fn position_of_seq(&self, seq: Option<u32>) -> TreePosition {
        seq?.checked_sub(1).filter(|row| (*row as usize) < self.rows.len())
    }

    /// Whether the log has an entry for this record.
    pub(super) fn has(&self, key: RecordKey) -> bool {
        matches!(self.find(key), Some(KeyLookup::Entry(_)))
    }

    pub(super) fn is_of_source(&self, row: RowIndex) -> bool {
        RecordKey::of_id(self.rows.id(row)).is_of_source()
    }

    /// Return a key that the log does not have, for a value that was replaced and is set again.
    pub(super) fn fresh_key(&self, key: RecordKey) -> RecordKey {
        let mut keys = (0..).map(|number| key.part(number));
        keys.find(|key| !self.has(*key)).unwrap_or(key)
    }

    pub(super) fn position_of(&self, lookup: KeyLookup) -> TreePosition {
        match lookup {
            KeyLookup::Alias(position) => position,
            KeyLookup::Entry(row) => match self.rows.stance(row) {
                Stance::InTree => Some(row),
                Stance::OutsideTree => self.rows.parent(row),
            },
        }
    }

    fn row(&self, key: RecordKey) -> TreePosition {
        self.position_of(self.find(key)?)
    }

    pub(super) fn entry(&self, key: RecordKey) -> Option<EntryId> {
        self.row(key).map(|row| self.rows.id(row))
    }

    pub(super) fn resolves(&self, target: RecordRef) -> bool {
        match target {
            RecordRef::Entry(key) => self.row(key).is_some(),
            RecordRef::Record(key) => self.find(key).is_some(),
        }
    }

    /// Return the first entry kept by a compaction after `from`, if that entry is on the path. A record without an
    /// entry maps to its parent, which is not kept.
    pub(super) fn first_kept(&mut self, target: RecordRef, from: TreePosition) -> TreePosition {
        match (target, self.find(target.key())?) {
            (RecordRef::Record(_), KeyLookup::Alias(position)) => self.child_on_path(position, from),
            (_, lookup) => self.position_of(lookup).filter(|row| self.is_on_path(Some(*row), from)),
        }
    }

    /// Return the entry after a position on the path down to `from`, or the first entry of the path for
    /// `None`.
    fn child_on_path(&mut self, position: TreePosition, from: TreePosition) -> TreePosition {
        let mut child = from?;
        while self.rows.parent(child) != position {
            self.walked += 1;
            child = self.rows.parent(child).filter(|_| self.walked <= WALK_STEPS_MAX)?;
        }
        Some(child)
    }

    /// Whether a position is `from` or an ancestor of it. Parents have smaller indexes than their children.
    pub(super) fn is_on_path(&mut self, wanted: TreePosition, from: TreePosition) -> bool {
        let Some(wanted) = wanted else { return true };
        let mut at = from;
        while let Some(row) = at.filter(|row| *row > wanted) {
            self.walked += 1;
            if self.walked > WALK_STEPS_MAX {
                return false;
            }
            at = self.rows.parent(row);
        }
        at == Some(wanted)
    }

    pub(super) fn push(&mut self, id: EntryId, parent: TreePosition, stance: Stance) -> RowIndex {
        self.rows.push(id, parent, stance);
        let row = self.rows.len() as RowIndex - 1;
        // Ids minted by the store do not identify records and are never looked up.
        if RecordKey::of_id(id).is_of_source() {
            self.keys.put_entry(row, &self.rows);
        }
        row
    }

    /// Build the next id. If time does not advance, the id's time is one millisecond after the previous id. The entry's
    /// time does not change.
    pub(super) fn next_id(&self, key: RecordKey, at: TimestampMs) -> EntryId {
        let at = TimestampMs(at.0.clamp(0, ID_MS_MAX));
        let fresh = key.id_at(at);
        match self.rows.last_id() {
            Some(last) if fresh <= last => key.id_at(TimestampMs(millis(last) + 1)),
            _ => fresh,
        }
    }
}

fn millis(id: EntryId) -> i64 {
    id.as_bytes()[..6].iter().fold(0, |millis, byte| (millis << 8) | i64::from(*byte))
}
