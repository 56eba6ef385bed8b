//! The write-ahead log: a frame is verified when its page is read, and the whole log before SQLite recovers it.

use std::os::raw::c_int;
use std::time::Duration;

use rusqlite::ffi;

use crate::damage::{self, Damage, TornEnd};
use crate::frames::{
    self, FRAME_BYTES, FRAME_HEADER_BYTES, HEADER_BYTES, LogState, Order, frame_at, frame_sum, stored_sum,
    sum_in,
};
use crate::page::PAGE_BYTES;
use crate::raw_file::RawFile;

/// How often a frame is read before it counts as damaged.
const READS_MAX: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// What to do with committed transactions that follow a bad frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TornLog {
    Refuse,
    /// Ignore them, as SQLite does: after a power failure, later writes may have reached the disk before earlier ones.
    Accept,
}

/// What is known about an open write-ahead log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogFile {
    torn: TornLog,
    /// The offset of the last frame header that was written, whose page follows.
    header_written: Option<u64>,
    /// The first frame that the current transaction has overwritten. Until the transaction ends, its checksum and those of
    /// the following frames do not match.
    overwritten_from: Option<u32>,
}

impl LogFile {
    pub fn new(torn: TornLog) -> Self {
        Self { torn, header_written: None, overwritten_from: None }
    }

    pub fn read(&mut self, raw: RawFile, buffer: &mut [u8], offset: u64) -> c_int {
        if offset == 0 && buffer.len() == HEADER_BYTES {
            // SQLite reads the header only to recover the log. It holds locks that exclude all other users of the log.
            return match self.examine(raw) {
                ffi::SQLITE_OK => raw.read(buffer, offset),
                code => code,
            };
        }
        match (<&mut [u8; PAGE_BYTES]>::try_from(&mut *buffer), frame_at(offset)) {
            (Ok(page), Some((frame, FRAME_HEADER_BYTES))) if self.is_complete(frame) => {
                read_frame(raw, page, frame)
            }
            _ => raw.read(buffer, offset),
        }
    }

    fn is_complete(&self, frame: u32) -> bool {
        self.overwritten_from.is_none_or(|first| frame < first)
    }

    fn examine(&self, raw: RawFile) -> c_int {
        let read = |buffer: &mut [u8], offset| raw.read(buffer, offset) == ffi::SQLITE_OK;
        let Some(state) = frames::examine(raw.size(), read) else { return ffi::SQLITE_OK };
        let LogState { committed, bad: Some(frame), commits_after: commits, is_torn_end, .. } = state else {
            return ffi::SQLITE_OK;
        };
        if is_torn_end || self.torn == TornLog::Accept {
            damage::note_torn_end(TornEnd { frames: committed, commits });
            return ffi::SQLITE_OK;
        }
        damage::report(Damage::Log { frame, commits });
        ffi::SQLITE_IOERR_DATA
    }

    pub fn write(&mut self, raw: RawFile, bytes: &[u8], offset: u64) -> c_int {
        match (bytes.len(), frame_at(offset)) {
            (HEADER_BYTES, None) => self.overwritten_from = None,
            (FRAME_HEADER_BYTES, Some((frame, 0))) => {
                // SQLite corrects the checksums from the first overwritten frame on, or it begins another transaction.
                self.overwritten_from = self.overwritten_from.filter(|first| *first < frame);
                self.header_written = Some(offset);
            }
            (PAGE_BYTES, Some((frame, FRAME_HEADER_BYTES))) => {
                let is_new = self.header_written.take() == Some(offset - FRAME_HEADER_BYTES as u64);
                if !is_new {
                    self.overwritten_from =
                        Some(self.overwritten_from.map_or(frame, |first| first.min(frame)));
                }
            }
            _ => {}
        }
        raw.write(bytes, offset)
    }
}

fn read_frame(raw: RawFile, page: &mut [u8; PAGE_BYTES], frame: u32) -> c_int {
    let mut whole = [0; FRAME_BYTES];
    let mut before = [0; 8];
    // The checksum of the frame before, or of the header.
    let before_at = if frame == 1 { 24 } else { frames::offset_of(frame - 1) + 16 };
    for attempt in 0..READS_MAX {
        if attempt > 0 {
            std::thread::sleep(RETRY_DELAY);
        }
        let code = raw.read(&mut whole, frames::offset_of(frame));
        page.copy_from_slice(&whole[FRAME_HEADER_BYTES..]);
        if code != ffi::SQLITE_OK {
            return code;
        }
        let code = raw.read(&mut before, before_at);
        if code != ffi::SQLITE_OK {
            return code;
        }
        // A log from a machine with the other byte order is read in that order.
        let expected = |order| frame_sum(order, stored_sum(&before), &whole) == sum_in(&whole);
        if expected(Order::NATIVE) || expected(Order::OTHER) {
            return ffi::SQLITE_OK;
        }
    }
    damage::report(Damage::Frame(frame));
    ffi::SQLITE_IOERR_DATA
}
