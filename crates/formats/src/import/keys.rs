//! Where the records of a source are, by their keys. An entry's key is the end of its id, which its row has already, so it
//! takes only a slot here; a record that has no entry takes 12 bytes more. Nothing else grows with the source.

use std::hash::BuildHasher;

use super::entry_table::{Index, Pieces, Rows};
use super::steps::RecordKey;

/// A place in the tree: a row, or before the first entry.
pub(super) type KeySlot = Option<Index>;

/// What stands behind a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Entry(Index),
    /// A record without an entry, and the place it stands for.
    StandIn(KeySlot),
}

/// Slots at first.
const SLOTS: usize = 64;
/// The top bit of a slot says that it leads to a stand-in; the rest is where that, or the row, is, plus one.
const STANDS_IN: u32 = 1 << 31;
/// Most stand-ins.
pub(super) const STAND_INS_MAX: usize = STANDS_IN as usize - 2;

#[derive(Clone, Copy)]
struct StandIn {
    key: [u8; 8],
    place: [u8; 4],
}

/// Open addressing: whoever finds his slot taken goes on to the next.
pub(super) struct Keys {
    slots: Vec<u32>,
    taken: usize,
    stand_ins: Pieces<StandIn>,
    /// Not to be foreseen, so that no file can be made whose keys all want the same slot.
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

    /// The key is that of a row's id.
    pub(super) fn put_entry(&mut self, index: Index, rows: &Rows) {
        let slot = self.slot_of(RecordKey::of_id(rows.id(index)).bits(), rows);
        self.fill(slot, index + 1, rows);
    }

    /// A record that has an entry needs nobody to stand in for it.
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

    /// The slot of a key, or the empty one it would take.
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
    fn what_was_put_is_found_while_the_table_grows() {
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
    fn a_stand_in_moves_without_taking_more_room_and_gives_way_to_its_entry() {
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
