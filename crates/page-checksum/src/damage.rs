//! What a failed check found. SQLite passes only an error code to its caller, so the place is kept in the thread that
//! called SQLite.

use std::cell::Cell;
use std::fmt;

thread_local! {
    static DAMAGE: Cell<Option<Damage>> = const { Cell::new(None) };
    static TORN: Cell<Option<TornEnd>> = const { Cell::new(None) };
}

/// Damage that a read detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A page of the database file does not match its checksum.
    Page(u32),
    /// A frame of the write-ahead log does not match its checksum.
    Frame(u32),
    /// A damaged write-ahead log that was about to be recovered.
    Log {
        /// The first bad frame. Zero is the header of the log.
        frame: u32,
        /// The number of committed transactions that begin at this frame or later.
        commits: u32,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Page(number) => write!(f, "page {number} does not match its checksum"),
            Damage::Frame(number) => {
                write!(f, "frame {number} of the write-ahead log does not match its checksum")
            }
            Damage::Log { frame: 0, commits } => {
                write!(
                    f,
                    "the header of the write-ahead log is damaged, and {commits} committed transactions follow it"
                )
            }
            Damage::Log { frame, commits } => write!(
                f,
                "frame {frame} of the write-ahead log is damaged, and {commits} committed transactions end after it"
            ),
        }
    }
}

/// An incomplete write at the end of a write-ahead log, which SQLite ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornEnd {
    /// The number of frames before it.
    pub frames: u32,
    /// Committed transactions after the first bad frame. They are ignored as well.
    pub commits: u32,
}

pub(crate) fn report(damage: Damage) {
    DAMAGE.set(Some(damage));
}

pub(crate) fn note_torn_end(torn: TornEnd) {
    TORN.set(Some(torn));
}

/// Returns the last damage that a call of this thread detected, once.
pub fn take_damage() -> Option<Damage> {
    DAMAGE.take()
}

/// Returns the torn end that a recovery in this thread found, once.
pub fn take_torn_end() -> Option<TornEnd> {
    TORN.take()
}
