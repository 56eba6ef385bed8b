//! The rollouts that a fork continues.

use super::line::HistoryBase;
use crate::import::late_usage::usage_key;
use crate::import::steps::RecordKey;

/// The offset of the key part for imports in which only some bases were found. The number of bases is added.
const PARTIAL_BASES_PART: usize = 1;

#[derive(Default)]
pub(super) struct Bases {
    /// The rollout that the file itself continues.
    pub(super) base: Option<HistoryBase>,
    /// The number of bases found.
    pub(super) found: usize,
    /// Whether the oldest base found has a missing base itself.
    pub(super) lacks_base: bool,
}

impl Bases {
    /// Return the key of an entry with usage, and the keys under which an import with fewer bases may have counted the
    /// usage. `chained` changes when another base is found, but `own` does not.
    pub(super) fn keys(&self, chained: RecordKey, own: RecordKey) -> (RecordKey, Vec<RecordKey>) {
        if self.base.is_none() {
            return (chained, Vec::new());
        }
        let key_with = |found: usize| if found == 0 { own } else { own.part(PARTIAL_BASES_PART + found) };
        let counted =
            (0..self.found).flat_map(|found| [key_with(found), usage_key(key_with(found))]).collect();
        let is_whole = self.found > 0 && !self.lacks_base;
        (if is_whole { chained } else { key_with(self.found) }, counted)
    }
}
