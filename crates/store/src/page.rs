//! Pages of log records with a limit on their total bytes.

use std::collections::VecDeque;

use sapwood_core::Record;
use sapwood_core::port::store::PAGE_BYTES;

/// A page that is filled from its end to its beginning. The newest records are dropped as soon as
/// older records fill the page, so the result is the same as reading forwards, and the buffer never
/// grows far beyond one page.
#[derive(Default)]
pub(crate) struct BackwardPage {
    /// Oldest first.
    records: VecDeque<Record>,
    bytes: usize,
}

impl BackwardPage {
    pub fn add_older(&mut self, record: Record) {
        self.bytes += record.body.len();
        self.records.push_front(record);
        while let Some(newest) = self.records.back()
            && self.bytes - newest.body.len() >= PAGE_BYTES
        {
            self.bytes -= newest.body.len();
            self.records.pop_back();
        }
    }

    pub fn into_records(self) -> Vec<Record> {
        self.records.into()
    }
}
