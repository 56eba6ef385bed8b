//! The frames of a write-ahead log, and whether a log is intact. Pure, except for the reads of the caller.
//!
//! A log is a header of 32 bytes and frames. A frame is a header of 24 bytes and a page. The checksum in a frame continues
//! the checksum of the frame before it, and the salts of a frame are those of the header. After all frames were copied into
//! the database, SQLite writes a new header with new salts and overwrites the frames from the beginning. So the frames of
//! earlier rounds, with other salts, may follow the current ones.
//!
//! When SQLite recovers a log, it stops at the first frame that does not match. This is right if a process died or the
//! power failed while it wrote the last transaction. If committed transactions follow, the log is damaged.

use std::collections::HashSet;

use crate::page::PAGE_BYTES;

pub const HEADER_BYTES: usize = 32;
pub const FRAME_HEADER_BYTES: usize = 24;
pub const FRAME_BYTES: usize = FRAME_HEADER_BYTES + PAGE_BYTES;

/// Frames that are read at a time.
const CHUNK_FRAMES: usize = 64;
/// A transaction of at least this many frames may have been larger than SQLite's page cache. Then SQLite overwrites frames
/// of the transaction, and corrects their checksums only after it has written the last one.
const OVERWRITTEN_FRAMES_MIN: u32 = 3_000;
/// The magic number of a log, without the lowest bit, which tells the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;

/// The byte order in which a checksum reads its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    /// The order that SQLite uses for new logs on this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };
    pub const OTHER: Self = if cfg!(target_endian = "big") { Order::Little } else { Order::Big };
}

/// A checksum of SQLite's log, which each frame continues.
pub type Sum = [u32; 2];

/// Continues a checksum over bytes, whose number is a multiple of 8.
pub fn continue_sum(order: Order, sum: Sum, bytes: &[u8]) -> Sum {
    let word = |bytes: &[u8]| {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if order == Order::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    };
    let [mut first, mut second] = sum;
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(word(&pair[..4])).wrapping_add(second);
        second = second.wrapping_add(word(&pair[4..])).wrapping_add(first);
    }
    [first, second]
}

/// Reads a stored checksum.
pub fn stored_sum(bytes: &[u8]) -> Sum {
    [number(bytes, 0), number(bytes, 4)]
}

/// Returns the checksum of a frame that follows a frame with the checksum `before`.
pub fn frame_sum(order: Order, before: Sum, frame: &[u8; FRAME_BYTES]) -> Sum {
    let head = continue_sum(order, before, &frame[..8]);
    continue_sum(order, head, &frame[FRAME_HEADER_BYTES..])
}

/// Returns the checksum that a frame contains.
pub fn sum_in(frame: &[u8; FRAME_BYTES]) -> Sum {
    stored_sum(&frame[16..FRAME_HEADER_BYTES])
}

/// Returns the offset of a frame. The first frame is 1.
pub fn offset_of(frame: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(frame.saturating_sub(1)) * FRAME_BYTES as u64
}

/// Returns the frame at an offset, and the position within the frame.
pub fn frame_at(offset: u64) -> Option<(u32, usize)> {
    let from_first = offset.checked_sub(HEADER_BYTES as u64)?;
    let frame = u32::try_from(from_first / FRAME_BYTES as u64).ok()?.checked_add(1)?;
    Some((frame, usize::try_from(from_first % FRAME_BYTES as u64).ok()?))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The state of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogState {
    /// The number of frames up to the end of the last transaction that SQLite recovers.
    pub committed: u32,
    /// The first frame that SQLite ignores although it was written after the last restart of the log. Zero is the header.
    pub bad: Option<u32>,
    /// The number of committed transactions that end after the bad frame.
    pub commits_after: u32,
    /// Whether a process can have left the log like this when it died, without damage.
    pub is_torn_end: bool,
    /// The pages in the transactions that SQLite recovers.
    pub pages: HashSet<u32>,
}

/// Examines a log of `size` bytes. `read` fills a buffer from an offset, and returns false if it cannot. Returns `None` if
/// the log is empty, is not readable, or has another page size.
pub fn examine(size: u64, mut read: impl FnMut(&mut [u8], u64) -> bool) -> Option<LogState> {
    let count = u32::try_from(size.checked_sub(HEADER_BYTES as u64)? / FRAME_BYTES as u64).ok()?;
    let mut header = [0; HEADER_BYTES];
    if !read(&mut header, 0) {
        return None;
    }
    let mut examination = Examination::of(&header)?;
    let mut chunk = vec![0; CHUNK_FRAMES * FRAME_BYTES];
    let mut next = 1;
    while next <= count {
        let frames = usize::try_from(count - next + 1).map_or(CHUNK_FRAMES, |left| left.min(CHUNK_FRAMES));
        let bytes = &mut chunk[..frames * FRAME_BYTES];
        if !read(bytes, offset_of(next)) {
            return None;
        }
        for frame in bytes.as_chunks().0 {
            examination.add(next, frame);
            next += 1;
        }
    }
    let mut rest = [0; FRAME_HEADER_BYTES];
    let has_partial_frame = size >= offset_of(next) + rest.len() as u64 && read(&mut rest, offset_of(next));
    Some(examination.finish(next, has_partial_frame.then_some(&rest)))
}

/// Why the intact part of a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndCause {
    /// The header is damaged.
    Header,
    /// The checksum of a current frame does not match.
    Checksum,
    /// The checksum of a frame matches, but its salts do not. Only damage can cause this.
    Salts,
    /// A frame of an earlier round.
    EarlierRound,
}

struct Examination {
    order: Order,
    /// The salts of the current frames. Unknown if the header is damaged, until the first frame is read.
    salts: Option<[u8; 8]>,
    /// The checksum that the previous frame contains.
    stored: Sum,
    /// The checksum that the previous frame should contain.
    computed: Sum,
    /// The pages of the transaction that has not ended yet.
    open_pages: Vec<u32>,
    /// The first frame after the intact part.
    end: Option<(u32, EndCause)>,
    /// The end of the first transaction that ends after the intact part.
    first_commit_after: Option<u32>,
    state: LogState,
}

impl Examination {
    fn of(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = number(header, 0);
        let named = if magic == MAGIC { Order::Little } else { Order::Big };
        let stored = stored_sum(&header[24..]);
        let is_valid = magic | 1 == MAGIC | 1 && continue_sum(named, [0, 0], &header[..24]) == stored;
        // A damaged header may name the wrong order.
        let order = if is_valid { named } else { Order::NATIVE };
        let computed = continue_sum(order, [0, 0], &header[..24]);
        if is_valid && number(header, 8) as usize != PAGE_BYTES {
            return None;
        }
        Some(Self {
            order,
            salts: is_valid.then(|| salts_of(&header[16..])),
            stored,
            computed,
            open_pages: Vec::new(),
            end: (!is_valid).then_some((0, EndCause::Header)),
            first_commit_after: None,
            state: LogState::default(),
        })
    }

    fn add(&mut self, at: u32, frame: &[u8; FRAME_BYTES]) {
        let salts = salts_of(&frame[8..]);
        let (is_current, stored) = (*self.salts.get_or_insert(salts) == salts, sum_in(frame));
        if !is_current && self.end.is_some() {
            (self.stored, self.computed) = (stored, stored);
            return;
        }
        let computed = frame_sum(self.order, self.stored, frame);
        let continues = computed == stored || frame_sum(self.order, self.computed, frame) == stored;
        if self.end.is_none() && is_current && computed == stored {
            self.accept(at, frame);
        } else {
            let cause = match (is_current, continues) {
                (true, _) => EndCause::Checksum,
                (false, true) => EndCause::Salts,
                (false, false) => EndCause::EarlierRound,
            };
            self.end.get_or_insert((at, cause));
            if continues && is_commit(frame) {
                self.state.commits_after += 1;
                self.first_commit_after.get_or_insert(at);
            }
        }
        (self.stored, self.computed) = (stored, computed);
    }

    /// Adds a frame that SQLite recovers.
    fn accept(&mut self, at: u32, frame: &[u8; FRAME_BYTES]) {
        self.open_pages.push(number(frame, 0));
        if is_commit(frame) {
            self.state.pages.extend(self.open_pages.drain(..));
            self.state.committed = at;
        }
    }

    /// `next` is the frame after the last one, of which only the header may exist.
    fn finish(mut self, next: u32, partial: Option<&[u8; FRAME_HEADER_BYTES]>) -> LogState {
        let is_current = |head: &[u8; FRAME_HEADER_BYTES]| Some(salts_of(&head[8..])) == self.salts;
        if self.end.is_none() && partial.is_some_and(is_current) {
            self.end = Some((next, EndCause::Checksum));
        }
        let (at, cause) = self.end.unwrap_or((next, EndCause::EarlierRound));
        let commits = self.state.commits_after;
        let is_bad = match cause {
            EndCause::Checksum | EndCause::Salts => true,
            EndCause::Header | EndCause::EarlierRound => commits > 0,
        };
        let first = self.state.committed + 1;
        let is_large =
            self.first_commit_after.is_some_and(|end| end.saturating_sub(first) >= OVERWRITTEN_FRAMES_MIN);
        self.state.bad = is_bad.then_some(at);
        self.state.is_torn_end =
            is_bad && cause != EndCause::Salts && (commits == 0 || commits == 1 && is_large);
        self.state
    }
}

fn is_commit(frame: &[u8; FRAME_BYTES]) -> bool {
    number(frame, 4) != 0
}

fn salts_of(bytes: &[u8]) -> [u8; 8] {
    let mut salts = [0; 8];
    salts.copy_from_slice(&bytes[..8]);
    salts
}
