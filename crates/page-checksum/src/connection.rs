//! Operations on a connection that was opened with this crate's VFS.

use std::collections::HashSet;
use std::os::raw::c_int;
use std::ptr;

use rusqlite::{Connection, ffi};

use crate::methods::database_of;
use crate::page::{self, PAGE_BYTES, RESERVED_BYTES};

const MAIN: &std::ffi::CStr = c"main";
/// SQLite changes nothing if this number of bytes is requested.
const ONLY_ASK: c_int = -1;

/// Reserves the bytes for checksums. This takes effect on a file without pages, or with the next `VACUUM`.
pub fn reserve_bytes(conn: &Connection) {
    request_reserved(conn, c_int::from(RESERVED_BYTES));
}

/// Returns how many bytes at the end of each page SQLite does not use.
pub fn reserved_bytes(conn: &Connection) -> i32 {
    request_reserved(conn, ONLY_ASK)
}

fn request_reserved(conn: &Connection, mut bytes: c_int) -> c_int {
    // SAFETY: the connection is open, and SQLite reads and writes one integer for this operation.
    unsafe {
        let arg = (&raw mut bytes).cast();
        ffi::sqlite3_file_control(conn.handle(), MAIN.as_ptr(), ffi::SQLITE_FCNTL_RESERVE_BYTES, arg);
    }
    bytes
}

/// Reads all pages of the database file and returns the damaged ones, at most `limit`. Pages in `skipped` are in the
/// write-ahead log, so their copies in the file are not used. Returns `None` if the file has no checksums.
pub fn find_damaged_pages(conn: &Connection, skipped: &HashSet<u32>, limit: usize) -> Option<Vec<u32>> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    // SAFETY: the connection is open, and SQLite writes one pointer for this operation. The file stays open during this
    // function, because the connection is borrowed, and no call of SQLite uses it meanwhile.
    let (database, raw) = unsafe {
        let arg = (&raw mut file).cast();
        ffi::sqlite3_file_control(conn.handle(), MAIN.as_ptr(), ffi::SQLITE_FCNTL_FILE_POINTER, arg);
        database_of(file)?
    };
    database.forget();
    if !database.is_sealed(raw) {
        return None;
    }
    let pages = raw.size().div_ceil(PAGE_BYTES as u64);
    let mut damaged = Vec::new();
    let mut buffer = [0; PAGE_BYTES];
    for index in 0..pages {
        let offset = index * PAGE_BYTES as u64;
        let number = page::number_at(offset);
        if damaged.len() == limit {
            break;
        }
        if page::is_lock_page(number) || skipped.contains(&number) {
            continue;
        }
        if database.read(raw, &mut buffer, offset) == ffi::SQLITE_IOERR_DATA {
            damaged.push(number);
        }
    }
    crate::damage::take_damage();
    Some(damaged)
}
