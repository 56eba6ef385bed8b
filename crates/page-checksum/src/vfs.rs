//! The VFS. It opens each file with SQLite's default VFS, and puts [`crate::methods`] in front of the database file and
//! the write-ahead log. All other files and operations are those of the default VFS.

use std::ffi::CStr;
use std::mem::size_of;
use std::os::raw::c_int;
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi;

use crate::database_file::DatabaseFile;
use crate::log_file::{LogFile, TornLog};
use crate::methods::{FileKind, METHODS, WrappedFile};
use crate::raw_file::RawFile;

/// The name of the VFS, for opening connections.
pub const NAME: &CStr = c"sapwood-page-checksum";
/// The URI parameter `torn=accept`: recover a write-ahead log even if committed transactions follow a bad frame.
pub const ACCEPT_TORN: &str = "torn=accept";
const TORN: &CStr = c"torn";

/// The default VFS and this one. Both exist until the process ends.
struct Registered {
    default: *mut ffi::sqlite3_vfs,
    result: c_int,
}

// SAFETY: SQLite's VFS objects may be used by all threads, and the pointer is never changed.
unsafe impl Send for Registered {}
// SAFETY: see above.
unsafe impl Sync for Registered {}

static REGISTERED: OnceLock<Registered> = OnceLock::new();

/// Registers the VFS, once per process. Returns whether it is registered. It does not become the default VFS.
pub fn register() -> bool {
    REGISTERED.get_or_init(register_now).result == ffi::SQLITE_OK
}

fn register_now() -> Registered {
    // SAFETY: a null name requests the default VFS. SQLite initializes itself first.
    let default = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    // SAFETY: SQLite returned null or a registered VFS, which is never removed.
    let Some(original) = (unsafe { default.as_ref() }) else {
        return Registered { default, result: ffi::SQLITE_ERROR };
    };
    let header_bytes = c_int::try_from(size_of::<WrappedFile>()).unwrap_or(c_int::MAX);
    let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
        szOsFile: original.szOsFile.saturating_add(header_bytes),
        pNext: ptr::null_mut(),
        zName: NAME.as_ptr(),
        xOpen: Some(open),
        ..*original
    }));
    // SAFETY: the object is complete and is never freed. Its other functions are those of the default VFS, and its
    // application data, which they may use, is the default VFS's.
    let result = unsafe { ffi::sqlite3_vfs_register(vfs, 0) };
    Registered { default, result }
}

/// Opens a file.
///
/// # Safety
///
/// SQLite calls it with a name of its own (or null), and with `szOsFile` bytes for the file.
unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let Some(registered) = REGISTERED.get() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: the default VFS exists until the process ends.
    let Some(open) = (unsafe { (*registered.default).xOpen }) else { return ffi::SQLITE_CANTOPEN };
    if flags & (ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_WAL) == 0 {
        // SAFETY: the arguments are SQLite's. The memory is large enough for a file of the default VFS.
        return unsafe { open(registered.default, name, file, flags, out_flags) };
    }
    let kind = match flags & ffi::SQLITE_OPEN_WAL {
        0 => FileKind::Database(DatabaseFile::default()),
        // SAFETY: SQLite passes the name of a write-ahead log, which carries the URI parameters of its database.
        _ => FileKind::Log(LogFile::new(unsafe { torn_log(name) })),
    };
    let wrapped: *mut WrappedFile = file.cast();
    // SAFETY: `file` has room for the wrapper and, after it, for a file of the default VFS.
    unsafe {
        let raw = WrappedFile::raw_behind(wrapped);
        (*raw).pMethods = ptr::null();
        let code = open(registered.default, name, raw, flags, out_flags);
        let methods = if RawFile::new(raw).methods().is_some() { &raw const METHODS } else { ptr::null() };
        wrapped.write(WrappedFile { base: ffi::sqlite3_file { pMethods: methods }, kind });
        code
    }
}

/// Reads the URI parameter of a connection.
///
/// # Safety
///
/// `name` must be null or a name that SQLite passed to `open`.
unsafe fn torn_log(name: ffi::sqlite3_filename) -> TornLog {
    if name.is_null() {
        return TornLog::Refuse;
    }
    // SAFETY: the caller guarantees the name.
    let value = unsafe { ffi::sqlite3_uri_parameter(name, TORN.as_ptr()) };
    // SAFETY: SQLite returns null or a string that lives as long as the name.
    let is_accepted = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"accept";
    if is_accepted { TornLog::Accept } else { TornLog::Refuse }
}
