//! Entries that this process has appended and that are not in the search index yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Maximum number of texts per transaction when catching up: enough to be fast, few enough not to
/// block other writers.
pub(super) const CATCH_UP_TEXTS: usize = 2_000;
/// Maximum bytes per transaction when catching up.
pub(super) const CATCH_UP_BYTES: usize = 4 << 20;
/// Maximum number of texts that are held in memory until they are indexed. Beyond that, they are
/// dropped and later read from their rows.
const UNINDEXED_TEXTS_MAX: usize = 8_192;
/// Maximum total bytes of the texts held in memory.
const UNINDEXED_BYTES_MAX: usize = 16 << 20;

/// An entry's number, and its text if it has one.
pub(super) type ArrivedEntry = (i64, Option<UnindexedText>);

/// A text to index, with its tenant and session.
pub(super) struct UnindexedText {
    pub tenant: i64,
    pub session: i64,
    pub text: String,
}

/// Entries that this process has appended and that are not in the index yet. They mirror the newest
/// rows, so that indexing does not have to read and decompress them.
#[derive(Default)]
pub(super) struct UnindexedTexts {
    texts: RefCell<VecDeque<ArrivedEntry>>,
    bytes: Cell<usize>,
    clear_count: Cell<u64>,
}

impl UnindexedTexts {
    /// Adds an entry. Every entry is added in order, with or without text: a gap means that another
    /// process has written.
    pub fn push(&self, arrival: i64, text: Option<UnindexedText>) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() >= UNINDEXED_TEXTS_MAX || self.bytes.get() >= UNINDEXED_BYTES_MAX {
            texts.clear();
            self.bytes.set(0);
        }
        let arrived = (arrival, text);
        self.bytes.set(self.bytes.get() + bytes_of(&arrived));
        texts.push_back(arrived);
    }

    /// Returns how often `clear` was called. Texts taken before the last call may belong to erased
    /// sessions.
    pub fn clear_count(&self) -> u64 {
        self.clear_count.get()
    }

    /// Returns whether there is enough text for a segment.
    pub fn has_full_batch(&self) -> bool {
        self.texts.borrow().len() >= CATCH_UP_TEXTS || self.bytes.get() >= CATCH_UP_BYTES
    }

    /// Returns whether indexing is urgent, because half of the limit is used.
    pub fn is_near_limit(&self) -> bool {
        self.texts.borrow().len() >= UNINDEXED_TEXTS_MAX / 2 || self.bytes.get() >= UNINDEXED_BYTES_MAX / 2
    }

    pub fn first(&self) -> Option<i64> {
        self.texts.borrow().front().map(|(arrival, _)| *arrival)
    }

    /// Removes and returns up to `limit` consecutive texts, starting at `next`. Drops texts with
    /// lower numbers, which are already indexed.
    pub fn take_from(&self, mut next: i64, limit: usize) -> Vec<ArrivedEntry> {
        let mut texts = self.texts.borrow_mut();
        let subtract =
            |arrived: &ArrivedEntry| self.bytes.set(self.bytes.get().saturating_sub(bytes_of(arrived)));
        while let Some(below) = texts.pop_front_if(|(arrival, _)| *arrival < next) {
            subtract(&below);
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(text) = texts.pop_front_if(|(arrival, _)| *arrival == next)
        {
            subtract(&text);
            taken.push(text);
            next += 1;
        }
        taken
    }

    pub fn clear(&self) {
        self.texts.borrow_mut().clear();
        self.bytes.set(0);
        self.clear_count.set(self.clear_count.get() + 1);
    }
}

pub(super) fn bytes_of((_, text): &ArrivedEntry) -> usize {
    text.as_ref().map_or(0, |text| text.text.len())
}
