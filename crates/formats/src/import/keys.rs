//! A hash table from record keys to tree positions. The key of an entry is part of its id, which is stored in its
//! row, so an entry needs only a slot in this table. A record without an entry needs 12 more bytes. No other state
//! grows with the source.

use std::hash::BuildHasher;

use super::entry_table::{Index, Pieces, Rows};
use super::steps::RecordKey;

/// A position in the tree: a row, or `None` before the first entry.
pub(super) type KeySlot = Option<Index>;

/// The result of a key lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Entry(Index),
    /// A record without an entry, and the position it maps to.
    StandIn(KeySlot),
}

/// Initial number of slots.
const SLOTS: usize = 64;
/// The top bit of a slot marks an alias. The other bits are the index of the alias or row, plus one.
const STANDS_IN: u32 = 1 << 31;
/// Maximum number of aliases.
pub(super) const STAND_INS_MAX: usize = STANDS_IN as usize - 2;

#[derive(Clone, Copy)]
struct StandIn {
    key: [u8; 8],
    place: [u8; 4],
}

/// A hash table with open addressing and linear probing.
pub(super) struct Keys {
    slots: Vec<u32>,
    taken: usize,
    stand_ins: Pieces<StandIn>,
    /// Unpredictable, so that no file can force all keys into the same slot.
    seed: u64,
}

impl Default for Keys {
    fn default() -> Self {
        let seed = foldhash::fast::RandomState::default().hash_one(0);
        Self { slots: vec![0; SLOTS], taken: 0, stand_ins: Pieces::default(), seed }
    }
}

impl Keys {
    pub(super) fn stand_ins(&self) -> usize {
        self.stand_ins.len()
    }

    pub(super) fn find(&self, key: RecordKey, rows: &Rows) -> Option<Met> {
        self.met(self.slots[self.slot_of(key.bits(), rows)])
    }

    /// Add a row under the key of its id.
    pub(super) fn put_entry(&mut self, index: Index, rows: &Rows) {
        let slot = self.slot_of(RecordKey::of_id(rows.id(index)).bits(), rows);
        self.fill(slot, index + 1, rows);
    }

    /// Map a record without an entry to a position. Has no effect if the record has an entry.
    pub(super) fn put_stand_in(&mut self, key: RecordKey, place: KeySlot, rows: &Rows) {
        let stand_in = StandIn { key: key.bits(), place: place.map_or(0, |index| index + 1).to_le_bytes() };
        let slot = self.slot_of(stand_in.key, rows);
        match self.slots[slot] {
            taken if taken & STANDS_IN != 0 => self.stand_ins.set((taken & !STANDS_IN) - 1, stand_in),
            0 => {
                self.stand_ins.push(stand_in);
                self.fill(slot, self.stand_ins.len() as u32 | STANDS_IN, rows);
            }
            _ => {}
        }
    }

    fn met(&self, slot: u32) -> Option<Met> {
        let index = (slot & !STANDS_IN).checked_sub(1)?;
        Some(match slot & STANDS_IN {
            0 => Met::Entry(index),
            _ => Met::StandIn(u32::from_le_bytes(self.stand_ins.get(index).place).checked_sub(1)),
        })
    }

    fn fill(&mut self, slot: usize, value: u32, rows: &Rows) {
        self.taken += usize::from(self.slots[slot] == 0);
        self.slots[slot] = value;
        if self.taken > self.slots.len() / 8 * 7 {
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
    fn slot_of(&self, key: [u8; 8], rows: &Rows) -> usize {
        let mask = self.slots.len() - 1;
        let wide = u128::from(u64::from_le_bytes(key) ^ self.seed) * 0x9e37_79b9_7f4a_7c15;
        let mut slot = ((wide as u64) ^ (wide >> 64) as u64) as usize & mask;
        while self.slots[slot] != 0 && self.key_of(self.slots[slot], rows) != key {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn key_of(&self, value: u32, rows: &Rows) -> [u8; 8] {
        let index = (value & !STANDS_IN) - 1;
        match value & STANDS_IN {
            0 => RecordKey::of_id(rows.id(index)).bits(),
            _ => self.stand_ins.get(index).key,
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
        let (mut rows, mut keys) = (Rows::default(), Keys::default());
        for number in 0..20_000_u32 {
            assert_eq!(keys.find(key(number), &rows), None);
            if number % 3 == 0 {
                keys.put_stand_in(key(number), number.checked_sub(1), &rows);
            } else {
                rows.push(key(number).id_at(TimestampMs(i64::from(number))), None, Stance::InTree);
                keys.put_entry(rows.len() as u32 - 1, &rows);
            }
        }
        let mut entries = 0;
        for number in 0..20_000_u32 {
            let expected = match number % 3 {
                0 => Met::StandIn(number.checked_sub(1)),
                _ => {
                    entries += 1;
                    Met::Entry(entries - 1)
                }
            };
            assert_eq!(keys.find(key(number), &rows), Some(expected), "{number}");
        }
        assert_eq!(keys.find(key(20_000), &rows), None);
    }

    #[test]
    fn an_alias_moves_in_place_and_is_replaced_by_its_entry() {
        let (mut rows, mut keys) = (Rows::default(), Keys::default());
        for place in 0..1_000 {
            keys.put_stand_in(key(1), Some(place), &rows);
        }
        assert_eq!((keys.find(key(1), &rows), keys.stand_ins()), (Some(Met::StandIn(Some(999))), 1));
        rows.push(key(1).id_at(TimestampMs(5)), None, Stance::InTree);
        keys.put_entry(0, &rows);
        keys.put_stand_in(key(1), None, &rows);
        assert_eq!(keys.find(key(1), &rows), Some(Met::Entry(0)));
    }
}
