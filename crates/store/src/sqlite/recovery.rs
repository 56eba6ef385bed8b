//! Opens the first connection of a store, which recovers the write-ahead log of a process that died.
//!
//! SQLite ignores everything after the first bad frame of the log. [`sapwood_page_checksum`] refuses
//! such a recovery if committed transactions follow the bad frame, with one exception: after
//! a power failure, transactions that were never acknowledged may be on disk without their
//! predecessors. Therefore a log from an earlier boot of the machine is recovered as SQLite does it.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sapwood_core::StoreError;
use sapwood_core::port::store::{Finding, Result};
use sapwood_page_checksum::frames::{self, LogState};
use sapwood_page_checksum::{TornEnd, take_torn_end};

use super::connection::{StoreConnection, TornLog, wal_path};
use super::error::AtPath;
use super::head::{self, StoredHead};
use crate::lease::boot_id;
use crate::path_health::io_error;
use crate::{DamagedLog, Key, permissions};

/// Maximum number of copies of damaged logs.
const COPIES_MAX: u32 = 1_000;

/// Opens the first connection. A damaged log is refused, or copied and ignored from the damage on.
pub(super) fn open_first(
    path: &Path,
    key: Option<&Key>,
    damaged: DamagedLog,
) -> Result<(StoreConnection, Vec<Finding>)> {
    let mut findings = Vec::new();
    take_torn_end();
    let db = match StoreConnection::open_first(path, key, torn_log(path)) {
        Err(StoreError::Damaged { place, what })
            if damaged == DamagedLog::SetAside && is_log_damaged(path) =>
        {
            let copy = copy_log(path)?;
            let what = format!("{what}; the whole log was copied to {}", copy.display());
            findings.push(Finding { rule: "log", place, what, repaired: true });
            StoreConnection::open_first(path, key, TornLog::Accept)?
        }
        opened => opened?,
    };
    if let Some(torn) = take_torn_end() {
        if findings.is_empty() {
            keep_torn_end(path, torn);
        }
        // Frames after the bad one must not be taken for damage when the store is opened again.
        if torn.commits > 0 {
            db.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).at(path)?;
        }
    }
    if let Some(boot) = boot_id() {
        head::note_boot(path, &boot);
    }
    Ok((db, findings))
}

/// A log is only torn by a power failure if the machine was restarted since it was written.
fn torn_log(path: &Path) -> TornLog {
    match (head::read(path), boot_id()) {
        (StoredHead::Valid(head), Some(boot)) if head.boot.as_ref() == Some(&boot) => TornLog::Refuse,
        _ => TornLog::Accept,
    }
}

/// Other processes cannot be using the store, because it cannot be opened.
fn is_log_damaged(path: &Path) -> bool {
    examine_log(path).is_some_and(|state| state.bad.is_some() && !state.is_torn_end)
}

/// Examines the write-ahead log of a store.
pub(super) fn examine_log(path: &Path) -> Option<LogState> {
    let mut file = fs::File::open(wal_path(path)).ok()?;
    let size = file.metadata().ok()?.len();
    frames::examine(size, |buffer: &mut [u8], offset| {
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer)).is_ok()
    })
}

/// Copies the log to a new file and syncs the copy.
fn copy_log(path: &Path) -> Result<PathBuf> {
    let failed = |source| io_error(path, source);
    let bytes = fs::read(wal_path(path)).map_err(failed)?;
    for number in 1..=COPIES_MAX {
        let copy = beside(path, &format!(".damaged-wal-{number}"));
        match permissions::file_options().write(true).create_new(true).open(&copy) {
            Ok(mut file) => {
                file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
                return Ok(copy);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(std::io::ErrorKind::AlreadyExists.into()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn torn_path(path: &Path) -> PathBuf {
    beside(path, ".torn")
}

/// Keeps the bytes of the log that are ignored. A failure is not reported: they were never
/// acknowledged, and the store may be read-only.
fn keep_torn_end(path: &Path, torn: TornEnd) {
    let mut bytes = Vec::new();
    let kept = fs::File::open(wal_path(path)).and_then(|mut log| {
        log.seek(SeekFrom::Start(frames::offset_of(torn.frames + 1)))?;
        log.read_to_end(&mut bytes)?;
        let mut file =
            permissions::file_options().write(true).create(true).truncate(true).open(torn_path(path))?;
        file.write_all(&bytes)
    });
    let _ = kept;
}

/// Reports an unfinished write that was ignored when the store was opened.
pub(super) fn find_torn_end(path: &Path) -> Option<Finding> {
    let torn = torn_path(path);
    let bytes = fs::metadata(&torn).ok()?.len();
    let what = format!("{bytes} bytes of an unfinished write at the end of the write-ahead log were ignored");
    Some(Finding { rule: "torn", place: torn.display().to_string(), what, repaired: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_damaged_log_is_copied_to_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        fs::write(wal_path(&path), "log").unwrap();
        let copies = [copy_log(&path).unwrap(), copy_log(&path).unwrap()];
        assert_ne!(copies[0], copies[1]);
        assert!(copies.iter().all(|copy| fs::read(copy).unwrap() == b"log"));
    }
}
