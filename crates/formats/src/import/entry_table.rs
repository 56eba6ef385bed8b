//! A compact table of imported entries: 20 bytes each, stored in fixed-size chunks so that growing never
//! copies.

use sapwood_core::EntryId;
use sapwood_core::entry::Stance;

/// The position of an entry in the table.
pub(super) type Index = u32;

/// Rows per chunk.
const PIECE: usize = 4_096;
/// The top bit of a link marks an entry outside the tree. The other bits are the parent's index plus one.
const BESIDE: u32 = 1 << 31;
/// Maximum number of entries in one file.
pub(super) const ENTRIES_MAX: usize = BESIDE as usize - 1;

/// A list that grows chunk by chunk.
pub(super) struct Pieces<T> {
    /// Every chunk except the last is full.
    pieces: Vec<Vec<T>>,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T: Copy> Pieces<T> {
    pub(super) fn len(&self) -> usize {
        self.pieces.last().map_or(0, |last| (self.pieces.len() - 1) * PIECE + last.len())
    }

    pub(super) fn push(&mut self, item: T) {
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        if let Some(last) = self.pieces.last_mut() {
            last.push(item);
        }
    }

    pub(super) fn get(&self, index: Index) -> T {
        self.pieces[index as usize / PIECE][index as usize % PIECE]
    }

    pub(super) fn set(&mut self, index: Index, item: T) {
        self.pieces[index as usize / PIECE][index as usize % PIECE] = item;
    }
}

#[derive(Clone, Copy)]
struct Row {
    id: [u8; 16],
    link: [u8; 4],
}

#[derive(Default)]
pub(super) struct Rows(Pieces<Row>);

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Add a row. Ids must be in ascending order (I13). For an entry outside the tree, `parent` is the leaf
    /// when it was written.
    pub(super) fn push(&mut self, id: EntryId, parent: Option<Index>, stance: Stance) {
        let parent = parent.map_or(0, |index| index + 1);
        let link = if stance == Stance::Beside { parent | BESIDE } else { parent };
        self.0.push(Row { id: *id.as_bytes(), link: link.to_le_bytes() });
    }

    pub(super) fn last_id(&self) -> Option<EntryId> {
        self.0.pieces.last()?.last().map(|row| EntryId::from_bytes(row.id))
    }

    pub(super) fn find(&self, id: EntryId) -> Option<Index> {
        let pieces = &self.0.pieces;
        let piece = pieces.partition_point(|piece| piece.first().is_some_and(|row| row.id <= *id.as_bytes()));
        let piece = piece.checked_sub(1)?;
        let place = pieces[piece].binary_search_by(|row| row.id.cmp(id.as_bytes())).ok()?;
        Index::try_from(piece * PIECE + place).ok()
    }

    pub(super) fn id(&self, index: Index) -> EntryId {
        EntryId::from_bytes(self.row(index).id)
    }

    pub(super) fn parent(&self, index: Index) -> Option<Index> {
        (u32::from_le_bytes(self.row(index).link) & !BESIDE).checked_sub(1)
    }

    pub(super) fn stance(&self, index: Index) -> Stance {
        if u32::from_le_bytes(self.row(index).link) & BESIDE == 0 { Stance::InTree } else { Stance::Beside }
    }

    fn row(&self, index: Index) -> Row {
        self.0.get(index)
    }
}

#[cfg(test)]
mod tests {
    use sapwood_core::TimestampMs;

    use super::*;

    #[test]
    fn rows_are_found_by_id_across_chunks() {
        let id = |number: u32| EntryId::mint(TimestampMs(i64::from(number) * 2), 0);
        let mut rows = Rows::default();
        assert_eq!((rows.len(), rows.last_id(), rows.find(id(0))), (0, None, None));
        let count = PIECE as u32 * 2 + 5;
        for number in 0..count {
            let stance = if number % 3 == 0 { Stance::Beside } else { Stance::InTree };
            rows.push(id(number), number.checked_sub(1), stance);
        }
        assert_eq!((rows.len(), rows.last_id()), (count as usize, Some(id(count - 1))));
        for number in [0, 1, 4_095, 4_096, 4_097, 8_191, 8_192, count - 1] {
            assert_eq!(rows.find(id(number)), Some(number));
            assert_eq!((rows.id(number), rows.parent(number)), (id(number), number.checked_sub(1)));
            assert_eq!(rows.stance(number) == Stance::Beside, number % 3 == 0);
        }
        assert_eq!(rows.find(EntryId::mint(TimestampMs(3), 0)), None);
        assert_eq!(rows.find(id(count)), None);
    }
}
