//! A hash table from record keys to tree positions. An entry needs only a slot of four bytes, because its key is part
//! of the id in its row. A record without an entry needs 12 more bytes, for an alias. No other state grows with the
//! source.

use std::hash::BuildHasher;

use super::entry_table::{ChunkedList, EntryTable, RowIndex};
use super::steps::RecordKey;

/// A position in the tree: a row, or `None` before the first entry.
pub(super) type TreePosition = Option<RowIndex>;

/// The result of a key lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyLookup {
    Entry(RowIndex),
    /// A record without an entry, and the position it maps to.
    Alias(TreePosition),
}

const SLOTS_INITIAL: usize = 64;
/// The top bit of a slot marks an alias. The other bits are the index of the alias or row, plus one.
const ALIAS_BIT: u32 = 1 << 31;
pub(super) const ALIASES_MAX: usize = ALIAS_BIT as usize - 2;

#[derive(Clone, Copy)]
struct Alias {
    key: [u8; 8],
    position: [u8; 4],
}

/// A hash table with open addressing and linear probing.
pub(super) struct KeyTable {
    slots: Vec<u32>,
    used: usize,
    aliases: ChunkedList<Alias>,
    /// Random, so that no file can force all keys into the same slot.
    seed: u64,
}

impl Default for KeyTable {
    fn default() -> Self {
        let seed = foldhash::fast::RandomState::default().hash_one(0);
        Self { slots: vec![0; SLOTS_INITIAL], used: 0, aliases: ChunkedList::default(), seed }
    }
}

impl KeyTable {
    pub(super) fn aliases(&self) -> usize {
        self.aliases.len()
    }

    pub(super) fn find(&self, key: RecordKey, rows: &EntryTable) -> Option<KeyLookup> {
        self.decode_slot(self.slots[self.slot_of(key.bits(), rows)])
    }

    /// Add a row under the key of its id.
    pub(super) fn put_entry(&mut self, index: RowIndex, rows: &EntryTable) {
        let slot = self.slot_of(RecordKey::of_id(rows.id(index)).bits(), rows);
        self.fill(slot, index + 1, rows);
    }

    /// Map a record without an entry to a position. Has no effect if the record has an entry.
    pub(super) fn put_alias(&mut self, key: RecordKey, position: TreePosition, rows: &EntryTable) {
        let alias = Alias { key: key.bits(), position: position.map_or(0, |index| index + 1).to_le_bytes() };
        let slot = self.slot_of(alias.key, rows);
        match self.slots[slot] {
            used if used & ALIAS_BIT != 0 => self.aliases.set((used & !ALIAS_BIT) - 1, alias),
            0 => {
                self.aliases.push(alias);
                self.fill(slot, self.aliases.len() as u32 | ALIAS_BIT, rows);
            }
            _ => {}
        }
    }

    fn decode_slot(&self, slot: u32) -> Option<KeyLookup> {
        let index = (slot & !ALIAS_BIT).checked_sub(1)?;
        Some(match slot & ALIAS_BIT {
            0 => KeyLookup::Entry(index),
            _ => KeyLookup::Alias(u32::from_le_bytes(self.aliases.get(index).position).checked_sub(1)),
        })
    }

    fn fill(&mut self, slot: usize, value: u32, rows: &EntryTable) {
        self.used += usize::from(self.slots[slot] == 0);
        self.slots[slot] = value;
        if self.used > self.slots.len() / 8 * 7 {
            let larger = vec![0; self.slots.len() * 2];
            for value in std::mem::replace(&mut self.slots, larger) {
                if value != 0 {
                    let slot = self.slot_of(self.key_of(value, rows), rows);
                    self.slots[slot] = value;
                }
            }
        }
    }

    /// Return the slot of a key, or the empty slot for it.
    fn slot_of(&self, key: [u8; 8], rows: &EntryTable) -> usize {
        let mask = self.slots.len() - 1;
        let wide = u128::from(u64::from_le_bytes(key) ^ self.seed) * 0x9e37_79b9_7f4a_7c15;
        let mut slot = ((wide as u64) ^ (wide >> 64) as u64) as usize & mask;
        while self.slots[slot] != 0 && self.key_of(self.slots[slot], rows) != key {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn key_of(&self, value: u32, rows: &EntryTable) -> [u8; 8] {
        let index = (value & !ALIAS_BIT) - 1;
        match value & ALIAS_BIT {
            0 => RecordKey::of_id(rows.id(index)).bits(),
            _ => self.aliases.get(index).key,
        }
    }
}

#[cfg(test)]
mod tests {
    use sapwood_core::TimestampMs;
    use sapwood_core::entry::Stance;

    use super::*;

    fn key(number: u32) -> RecordKey {
        RecordKey::of(&format!("record {number}"))
    }

    #[test]
    fn keys_are_found_while_the_table_grows() {
        let (mut rows, mut keys) = (EntryTable::default(), KeyTable::default());
        for number in 0..20_000_u32 {
            assert_eq!(keys.find(key(number), &rows), None);
            if number % 3 == 0 {
                keys.put_alias(key(number), number.checked_sub(1), &rows);
            } else {
                rows.push(key(number).id_at(TimestampMs(i64::from(number))), None, Stance::InTree);
                keys.put_entry(rows.len() as u32 - 1, &rows);
            }
        }
        let mut entries = 0;
        for number in 0..20_000_u32 {
            let expected = match number % 3 {
                0 => KeyLookup::Alias(number.checked_sub(1)),
                _ => {
                    entries += 1;
                    KeyLookup::Entry(entries - 1)
                }
            };
            assert_eq!(keys.find(key(number), &rows), Some(expected), "{number}");
        }
        assert_eq!(keys.find(key(20_000), &rows), None);
    }

    #[test]
    fn an_alias_is_overwritten_and_is_replaced_by_its_entry() {
        let (mut rows, mut keys) = (EntryTable::default(), KeyTable::default());
        for position in 0..1_000 {
            keys.put_alias(key(1), Some(position), &rows);
        }
        assert_eq!((keys.find(key(1), &rows), keys.aliases()), (Some(KeyLookup::Alias(Some(999))), 1));
        rows.push(key(1).id_at(TimestampMs(5)), None, Stance::InTree);
        keys.put_entry(0, &rows);
        keys.put_alias(key(1), None, &rows);
        assert_eq!(keys.find(key(1), &rows), Some(KeyLookup::Entry(0)));
    }
}
