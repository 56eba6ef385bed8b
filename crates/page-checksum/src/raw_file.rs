//! A file of SQLite's default VFS.

use std::os::raw::c_int;

use rusqlite::ffi;

/// A file that SQLite's default VFS has opened.
#[derive(Clone, Copy)]
pub(crate) struct RawFile(*mut ffi::sqlite3_file);

impl RawFile {
    /// Wraps an open file.
    ///
    /// # Safety
    ///
    /// `file` must be a file that the default VFS has opened, and must not be closed while this value is used.
    pub unsafe fn new(file: *mut ffi::sqlite3_file) -> Self {
        Self(file)
    }

    pub fn as_ptr(self) -> *mut ffi::sqlite3_file {
        self.0
    }

    pub fn methods(self) -> Option<&'static ffi::sqlite3_io_methods> {
        // SAFETY: the file is open, so SQLite has set its methods to a static table or to null.
        unsafe { (*self.0).pMethods.as_ref() }
    }

    /// Fills a buffer. At the end of the file, the rest is zeros and the result is `SQLITE_IOERR_SHORT_READ`.
    pub fn read(self, buffer: &mut [u8], offset: u64) -> c_int {
        let Some(read) = self.methods().and_then(|methods| methods.xRead) else { return ffi::SQLITE_IOERR };
        let (Ok(len), Ok(offset)) = (c_int::try_from(buffer.len()), i64::try_from(offset)) else {
            return ffi::SQLITE_IOERR;
        };
        // SAFETY: the file is open, and the buffer has `len` bytes.
        unsafe { read(self.0, buffer.as_mut_ptr().cast(), len, offset) }
    }

    pub fn write(self, bytes: &[u8], offset: u64) -> c_int {
        let Some(write) = self.methods().and_then(|methods| methods.xWrite) else { return ffi::SQLITE_IOERR };
        let (Ok(len), Ok(offset)) = (c_int::try_from(bytes.len()), i64::try_from(offset)) else {
            return ffi::SQLITE_IOERR;
        };
        // SAFETY: the file is open, and there are `len` bytes.
        unsafe { write(self.0, bytes.as_ptr().cast(), len, offset) }
    }

    /// Returns the size of the file, or zero if it is unknown.
    pub fn size(self) -> u64 {
        let mut size = 0;
        let Some(file_size) = self.methods().and_then(|methods| methods.xFileSize) else { return 0 };
        // SAFETY: the file is open, and `size` is a valid place for the result.
        let code = unsafe { file_size(self.0, &raw mut size) };
        if code == ffi::SQLITE_OK { u64::try_from(size).unwrap_or(0) } else { 0 }
    }
}
