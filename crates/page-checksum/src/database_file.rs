//! The database file: checksums are written with each page, and verified when a page is read.

use std::os::raw::c_int;
use std::time::Duration;

use rusqlite::ffi;

use crate::damage::{self, Damage};
use crate::page::{self, PAGE_BYTES};
use crate::raw_file::RawFile;

/// The header of the file. SQLite reads parts of it without a lock, and reads the whole page before it relies on them.
const HEADER_BYTES: u64 = 100;
/// How often a page is read before it counts as damaged. SQLite reads the first page of a file before it knows whether the
/// file has a write-ahead log, while another process may be copying that page from its log.
const READS_MAX: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// What is known about an open database file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatabaseFile {
    /// Whether the pages have checksums, by the first page in the file. The first page in the write-ahead log may differ
    /// until it is copied.
    is_sealed: Option<bool>,
}

impl DatabaseFile {
    pub fn read(&mut self, raw: RawFile, buffer: &mut [u8], offset: u64) -> c_int {
        let end = offset + buffer.len() as u64;
        if end <= HEADER_BYTES {
            return raw.read(buffer, offset);
        }
        match <&mut [u8; PAGE_BYTES]>::try_from(&mut *buffer) {
            Ok(page) if offset.is_multiple_of(PAGE_BYTES as u64) => self.read_page(raw, page, offset),
            _ if self.is_sealed(raw) => self.read_parts(raw, buffer, offset),
            _ => raw.read(buffer, offset),
        }
    }

    /// Reads and verifies all pages that contain a part of the requested bytes.
    fn read_parts(&mut self, raw: RawFile, buffer: &mut [u8], offset: u64) -> c_int {
        let mut page = [0; PAGE_BYTES];
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            let start = at - at % PAGE_BYTES as u64;
            let code = self.read_page(raw, &mut page, start);
            if code != ffi::SQLITE_OK && code != ffi::SQLITE_IOERR_SHORT_READ {
                return code;
            }
            let skipped = usize::try_from(at - start).unwrap_or(0);
            let len = (PAGE_BYTES - skipped).min(buffer.len() - filled);
            buffer[filled..filled + len].copy_from_slice(&page[skipped..skipped + len]);
            filled += len;
            if code == ffi::SQLITE_IOERR_SHORT_READ {
                buffer[filled..].fill(0);
                return code;
            }
        }
        ffi::SQLITE_OK
    }

    fn read_page(&mut self, raw: RawFile, page: &mut [u8; PAGE_BYTES], offset: u64) -> c_int {
        let number = page::number_at(offset);
        for attempt in 0..READS_MAX {
            if attempt > 0 {
                std::thread::sleep(RETRY_DELAY);
            }
            let code = raw.read(page, offset);
            let is_short = code == ffi::SQLITE_IOERR_SHORT_READ;
            if code != ffi::SQLITE_OK && (!is_short || raw.size() <= offset) {
                return code;
            }
            if number == 1 && !is_short {
                self.is_sealed = Some(page::is_sealed(page));
            }
            // A page with a missing end does not match either.
            if !self.is_sealed(raw) || page::matches(number, page) {
                return code;
            }
        }
        damage::report(Damage::Page(number));
        ffi::SQLITE_IOERR_DATA
    }

    /// Returns whether mapped bytes are a page that matches its checksum, or the file has no checksums.
    pub fn matches(&mut self, raw: RawFile, bytes: &[u8], offset: u64) -> bool {
        let page = <&[u8; PAGE_BYTES]>::try_from(bytes);
        !self.is_sealed(raw)
            || page.is_ok_and(|page| {
                offset.is_multiple_of(PAGE_BYTES as u64) && page::matches(page::number_at(offset), page)
            })
    }

    pub fn write(&mut self, raw: RawFile, bytes: &[u8], offset: u64) -> c_int {
        let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(bytes) else { return raw.write(bytes, offset) };
        let number = page::number_at(offset);
        if number == 1 {
            // A checkpoint writes this page first, so it decides how the other pages are written.
            self.is_sealed = Some(page::reserves_checksums(page));
        }
        if !offset.is_multiple_of(PAGE_BYTES as u64) || !self.is_sealed(raw) {
            return raw.write(bytes, offset);
        }
        let mut stamped = *page;
        page::stamp(number, &mut stamped);
        raw.write(&stamped, offset)
    }

    /// Reads the state of the file again, because another process may have added checksums to it.
    pub fn forget(&mut self) {
        self.is_sealed = None;
    }

    /// Returns whether the pages of the file have checksums.
    pub fn is_sealed(&mut self, raw: RawFile) -> bool {
        *self.is_sealed.get_or_insert_with(|| {
            let mut first = [0; PAGE_BYTES];
            raw.read(&mut first, 0) == ffi::SQLITE_OK && page::is_sealed(&first)
        })
    }
}
