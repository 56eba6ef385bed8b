//! Verifies the pages of a SQLite database when they are read.
//!
//! SQLite has no checksums in its database file, and it verifies those of its write-ahead log only after a crash. This
//! crate registers a VFS, a layer between SQLite and its files, that passes every call to SQLite's default VFS and adds
//! three checks:
//!
//! - Database file: the last 8 bytes of each page, which SQLite reserves for this purpose, hold a checksum. It is written
//!   with the page and verified when the page is read ([`page`]). A file without these bytes is read as before.
//! - Write-ahead log: a frame that is read must match the checksum that SQLite stored in it ([`log_file`]).
//! - Recovery: SQLite silently ignores all frames after a bad one. Before it does so, the whole log is examined
//!   ([`frames`]). If a committed transaction follows a bad frame, the recovery fails.
//!
//! A mismatch is `SQLITE_IOERR_DATA`. [`take_damage`] tells where it is.
//!
//! This is the only crate of the workspace with unsafe code. All of it is in [`vfs`], [`methods`], [`raw_file`] and
//! [`connection`]; the checks themselves are safe code.

mod connection;
mod damage;
mod database_file;
pub mod frames;
mod log_file;
mod methods;
pub mod page;
mod raw_file;
mod vfs;

pub use connection::{find_damaged_pages, reserve_bytes, reserved_bytes};
pub use damage::{Damage, TornEnd, take_damage, take_torn_end};
pub use vfs::{ACCEPT_TORN, NAME, register};
