//! Pages of lists and logs, and their size limits.

use crate::entry::Record;

/// Maximum number of rows in one page of any list.
pub const PAGE_ROWS_MAX: usize = 10_000;
/// Approximate number of body bytes in a page of a log. The page ends with the record that reaches this size, so a page
/// holds at most this many bytes plus one record.
pub const PAGE_BYTES: usize = 256 << 10;

/// One page of a list, with the cursor of the next page.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows of the page.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// Whether a page of a log, read with this limit, is full. Only then can more records follow.
pub fn is_full_page(page: &[Record], limit: usize) -> bool {
    page.len() >= limit.min(PAGE_ROWS_MAX) || bytes_of_page(page) >= PAGE_BYTES
}

/// Total size of a page's encoded bodies, in bytes.
pub fn bytes_of_page(page: &[Record]) -> usize {
    page.iter().map(|record| record.body.len()).sum()
}
