//! A compact table of imported entries. A row has 20 bytes. Rows are stored in fixed-size chunks, so that growing the
//! table never copies them.

use sapwood_core::EntryId;
use sapwood_core::entry::Stance;

/// The position of an entry in the table.
pub(super) type RowIndex = u32;

const CHUNK_ROWS: usize = 4_096;
/// The top bit of a link marks an entry outside the tree. The other bits are the parent's index plus one.
const OUTSIDE_TREE: u32 = 1 << 31;
/// Maximum number of entries in one file.
pub(super) const ENTRIES_MAX: usize = OUTSIDE_TREE as usize - 1;

/// A list that grows chunk by chunk.
pub(super) struct ChunkedList<T> {
    /// Every chunk except the last is full.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T: Copy> ChunkedList<T> {
    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK_ROWS + last.len())
    }

    pub(super) fn push(&mut self, item: T) {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK_ROWS) {
            self.chunks.push(Vec::with_capacity(CHUNK_ROWS));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(item);
        }
    }

    pub(super) fn get(&self, index: RowIndex) -> T {
        self.chunks[index as usize / CHUNK_ROWS][index as usize % CHUNK_ROWS]
    }

    pub(super) fn set(&mut self, index: RowIndex, item: T) {
        self.chunks[index as usize / CHUNK_ROWS][index as usize % CHUNK_ROWS] = item;
    }
}

#[derive(Clone, Copy)]
struct EntryRow {
    id: [u8; 16],
    link: [u8; 4],
}

#[derive(Default)]
pub(super) struct EntryTable(ChunkedList<EntryRow>);

impl EntryTable {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Add a row. Ids must be in ascending order (I13). For an entry outside the tree, `parent` is the leaf
    /// when it was written.
    pub(super) fn push(&mut self, id: EntryId, parent: Option<RowIndex>, stance: Stance) {
        let parent = parent.map_or(0, |index| index + 1);
        let link = if stance == Stance::OutsideTree { parent | OUTSIDE_TREE } else { parent };
        self.0.push(EntryRow { id: *id.as_bytes(), link: link.to_le_bytes() });
    }

    pub(super) fn last_id(&self) -> Option<EntryId> {
        self.0.chunks.last()?.last().map(|row| EntryId::from_bytes(row.id))
    }

    pub(super) fn find(&self, id: EntryId) -> Option<RowIndex> {
        let chunks = &self.0.chunks;
        let chunk = chunks.partition_point(|chunk| chunk.first().is_some_and(|row| row.id <= *id.as_bytes()));
        let chunk = chunk.checked_sub(1)?;
        let offset = chunks[chunk].binary_search_by(|row| row.id.cmp(id.as_bytes())).ok()?;
        RowIndex::try_from(chunk * CHUNK_ROWS + offset).ok()
    }

    pub(super) fn id(&self, index: RowIndex) -> EntryId {
        EntryId::from_bytes(self.row(index).id)
    }

    pub(super) fn parent(&self, index: RowIndex) -> Option<RowIndex> {
        (u32::from_le_bytes(self.row(index).link) & !OUTSIDE_TREE).checked_sub(1)
    }

    pub(super) fn stance(&self, index: RowIndex) -> Stance {
        if u32::from_le_bytes(self.row(index).link) & OUTSIDE_TREE == 0 {
            Stance::InTree
        } else {
            Stance::OutsideTree
        }
    }

    fn row(&self, index: RowIndex) -> EntryRow {
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
        let mut rows = EntryTable::default();
        assert_eq!((rows.len(), rows.last_id(), rows.find(id(0))), (0, None, None));
        let count = CHUNK_ROWS as u32 * 2 + 5;
        for number in 0..count {
            let stance = if number % 3 == 0 { Stance::OutsideTree } else { Stance::InTree };
            rows.push(id(number), number.checked_sub(1), stance);
        }
        assert_eq!((rows.len(), rows.last_id()), (count as usize, Some(id(count - 1))));
        for number in [0, 1, 4_095, 4_096, 4_097, 8_191, 8_192, count - 1] {
            assert_eq!(rows.find(id(number)), Some(number));
            assert_eq!((rows.id(number), rows.parent(number)), (id(number), number.checked_sub(1)));
            assert_eq!(rows.stance(number) == Stance::OutsideTree, number % 3 == 0);
        }
        assert_eq!(rows.find(EntryId::mint(TimestampMs(3), 0)), None);
        assert_eq!(rows.find(id(count)), None);
    }
}
