//! Converts SQLite errors to store errors and adds the file path.

use std::path::Path;

use rusqlite::ErrorCode;
use sapwood_core::StoreError;

/// Busy timeout: how long to wait for another process's transaction.
pub(super) const BUSY_WAIT_MS: u64 = 30_000;

pub(super) trait AtPath<T> {
    /// Converts the error to a store error that names the file.
    fn at(self, path: &Path) -> Result<T, StoreError>;
}

impl<T> AtPath<T> for rusqlite::Result<T> {
    fn at(self, path: &Path) -> Result<T, StoreError> {
        self.map_err(|error| translate(&error, path))
    }
}

pub(super) fn translate(error: &rusqlite::Error, path: &Path) -> StoreError {
    let place = path.display().to_string();
    let what = error.to_string();
    // Without disk space for the index of the write-ahead log, SQLite only reports "I/O error".
    if error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
        return StoreError::DiskFull { place };
    }
    if error.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_IOERR_DATA) {
        let damage = sapwood_page_checksum::take_damage().map(|damage| damage.to_string());
        return StoreError::Damaged { place, what: damage.unwrap_or(what) };
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Busy { place, waited_ms: BUSY_WAIT_MS }
        }
        Some(ErrorCode::DiskFull) => StoreError::DiskFull { place },
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { place, why: "it is read-only".to_owned() },
        Some(ErrorCode::PermissionDenied) => StoreError::ReadOnly { place, why: what },
        Some(ErrorCode::NotADatabase) => StoreError::Locked {
            place,
            why: "the key does not match, or the file is not a SQLite database; it was not changed"
                .to_owned(),
        },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { place, what },
        Some(ErrorCode::CannotOpen) => StoreError::Io { place, source: std::io::Error::other(what) },
        _ => StoreError::Backend { place, what },
    }
}
