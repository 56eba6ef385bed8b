//! The functions that SQLite calls on a wrapped file. Reads and writes are checked; all others are passed on.

use std::os::raw::{c_int, c_void};
use std::ptr;

use rusqlite::ffi;
use rusqlite::ffi::{sqlite3_file, sqlite3_int64};

use crate::database_file::DatabaseFile;
use crate::log_file::LogFile;
use crate::raw_file::RawFile;

/// A file as SQLite sees it. A file of the default VFS follows it in memory. SQLite aligns files to 8 bytes.
#[repr(C, align(8))]
pub(crate) struct WrappedFile {
    pub base: sqlite3_file,
    pub kind: FileKind,
}

pub(crate) enum FileKind {
    Database(DatabaseFile),
    Log(LogFile),
}

impl WrappedFile {
    /// Returns the file of the default VFS.
    ///
    /// # Safety
    ///
    /// `wrapped` must point to memory that this crate's VFS was given to open a file.
    pub unsafe fn raw_behind(wrapped: *mut WrappedFile) -> *mut sqlite3_file {
        // SAFETY: the memory continues after the wrapper, see `szOsFile` of the VFS.
        unsafe { wrapped.add(1).cast() }
    }
}

/// Returns both parts of a wrapped file.
///
/// # Safety
///
/// `file` must be a file that this crate's VFS has opened, and no other reference to it may exist. SQLite guarantees this
/// during a call: a file belongs to one connection, which one thread uses at a time.
unsafe fn parts<'f>(file: *mut sqlite3_file) -> (&'f mut WrappedFile, RawFile) {
    let wrapped: *mut WrappedFile = file.cast();
    // SAFETY: the caller guarantees that the file is ours.
    unsafe { (&mut *wrapped, RawFile::new(WrappedFile::raw_behind(wrapped))) }
}

/// Returns the state of a database file, if this crate's VFS has opened it.
///
/// # Safety
///
/// `file` must be null or an open file, and no other reference to it may exist.
pub(crate) unsafe fn database_of<'f>(file: *mut sqlite3_file) -> Option<(&'f mut DatabaseFile, RawFile)> {
    // SAFETY: the caller guarantees that the file is open.
    if file.is_null() || !ptr::eq(unsafe { (*file).pMethods }, &raw const METHODS) {
        return None;
    }
    // SAFETY: only this crate's VFS uses these methods.
    match unsafe { parts(file) } {
        (WrappedFile { kind: FileKind::Database(database), .. }, raw) => Some((database, raw)),
        _ => None,
    }
}

pub(crate) static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 3,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: Some(fetch),
    xUnfetch: Some(unfetch),
};

/// # Safety
///
/// SQLite calls it with an open file and a buffer of `len` bytes.
unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    buffer: *mut c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else {
        return ffi::SQLITE_IOERR;
    };
    // SAFETY: see above.
    let (wrapped, raw) = unsafe { parts(file) };
    // SAFETY: SQLite's buffer has `len` bytes, and only this call uses it now.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    match &mut wrapped.kind {
        FileKind::Database(database) => database.read(raw, buffer, offset),
        FileKind::Log(log) => log.read(raw, buffer, offset),
    }
}

/// # Safety
///
/// SQLite calls it with an open file and `len` bytes.
unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    bytes: *const c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else {
        return ffi::SQLITE_IOERR;
    };
    // SAFETY: see above.
    let (wrapped, raw) = unsafe { parts(file) };
    // SAFETY: SQLite passes `len` bytes, which do not change during the call.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    match &mut wrapped.kind {
        FileKind::Database(database) => database.write(raw, bytes, offset),
        FileKind::Log(log) => log.write(raw, bytes, offset),
    }
}

/// # Safety
///
/// SQLite calls it with an open file and the argument that belongs to `op`.
unsafe extern "C" fn file_control(file: *mut sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: see above.
    let (wrapped, raw) = unsafe { parts(file) };
    if let (ffi::SQLITE_FCNTL_CKPT_START, FileKind::Database(database)) = (op, &mut wrapped.kind) {
        database.forget();
    }
    match raw.methods().and_then(|methods| methods.xFileControl) {
        // SAFETY: the arguments are SQLite's.
        Some(control) => unsafe { control(raw.as_ptr(), op, arg) },
        None => ffi::SQLITE_NOTFOUND,
    }
}

/// Returns a page in mapped memory, or null if SQLite has to read it. The page is verified each time, because SQLite does not
/// cache mapped pages. A page that does not match is read again by [`read`], which reports the damage.
///
/// # Safety
///
/// SQLite calls it with an open file and a place for the result.
unsafe extern "C" fn fetch(
    file: *mut sqlite3_file,
    offset: sqlite3_int64,
    len: c_int,
    page: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (wrapped, raw) = unsafe { parts(file) };
    // SAFETY: SQLite passes a place for the result.
    unsafe { *page = ptr::null_mut() };
    let (FileKind::Database(database), Some(methods)) = (&mut wrapped.kind, raw.methods()) else {
        return ffi::SQLITE_OK;
    };
    let (Some(fetch), Some(unfetch)) = (methods.xFetch, methods.xUnfetch) else { return ffi::SQLITE_OK };
    // SAFETY: the arguments are SQLite's.
    let code = unsafe { fetch(raw.as_ptr(), offset, len, page) };
    // SAFETY: the default VFS has set the result.
    let mapped = unsafe { *page };
    let (Ok(len), Ok(at)) = (usize::try_from(len), u64::try_from(offset)) else { return code };
    if code != ffi::SQLITE_OK || mapped.is_null() {
        return code;
    }
    // SAFETY: the default VFS has mapped `len` bytes, and keeps them mapped until `unfetch`. No process writes to a page
    // that SQLite reads from the file.
    let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), len) };
    if database.matches(raw, bytes, at) {
        return code;
    }
    // SAFETY: the page was just fetched, and SQLite does not get it.
    unsafe {
        *page = ptr::null_mut();
        unfetch(raw.as_ptr(), offset, mapped)
    }
}

/// Defines functions that only call the function of the default VFS.
macro_rules! pass_on {
    ($($name:ident = $field:ident ($($arg:ident: $type:ty),*) or $missing:expr;)*) => {$(
        /// # Safety
        ///
        /// SQLite calls it with an open file and the arguments of this function.
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $arg: $type)*) -> c_int {
            // SAFETY: see above.
            let (_, raw) = unsafe { parts(file) };
            match raw.methods().and_then(|methods| methods.$field) {
                // SAFETY: the arguments are SQLite's.
                Some(original) => unsafe { original(raw.as_ptr() $(, $arg)*) },
                None => $missing,
            }
        }
    )*};
}

pass_on! {
    close = xClose() or ffi::SQLITE_OK;
    truncate = xTruncate(size: sqlite3_int64) or ffi::SQLITE_IOERR;
    sync = xSync(flags: c_int) or ffi::SQLITE_IOERR;
    file_size = xFileSize(size: *mut sqlite3_int64) or ffi::SQLITE_IOERR;
    lock = xLock(level: c_int) or ffi::SQLITE_IOERR;
    unlock = xUnlock(level: c_int) or ffi::SQLITE_IOERR;
    check_reserved_lock = xCheckReservedLock(is_locked: *mut c_int) or ffi::SQLITE_IOERR;
    sector_size = xSectorSize() or 0;
    device_characteristics = xDeviceCharacteristics() or 0;
    shm_map = xShmMap(page: c_int, bytes: c_int, extend: c_int, memory: *mut *mut c_void) or ffi::SQLITE_IOERR;
    shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int) or ffi::SQLITE_IOERR;
    shm_unmap = xShmUnmap(delete: c_int) or ffi::SQLITE_OK;
    unfetch = xUnfetch(offset: sqlite3_int64, page: *mut c_void) or ffi::SQLITE_OK;
}

/// # Safety
///
/// SQLite calls it with an open file.
unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: see above.
    let (_, raw) = unsafe { parts(file) };
    if let Some(barrier) = raw.methods().and_then(|methods| methods.xShmBarrier) {
        // SAFETY: the file is open.
        unsafe { barrier(raw.as_ptr()) };
    }
}
