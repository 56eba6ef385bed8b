//! File helpers: locks, atomic replacement, error conversion.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

pub use crate::path_health::io_error;
use crate::{Durability, permissions};

/// How long to wait for a lock that another process holds, and how often to retry.
const LOCK_WAIT_MS: u64 = 30_000;
const LOCK_RETRY_MS: u64 = 2;

pub trait At<T> {
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| io_error(path, source))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    Shared,
    Exclusive,
}

/// A lock on a file, held until it is dropped. The operating system releases it when the process
/// dies.
pub struct Locked<'a> {
    file: &'a File,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // An error here is harmless: closing the file releases the lock in any case.
        let _ = self.file.unlock();
    }
}

/// Acquires a lock. Waits up to [`LOCK_WAIT_MS`] while another process holds a conflicting lock.
pub fn lock<'a>(file: &'a File, kind: LockKind, path: &Path) -> Result<Locked<'a>> {
    let start = Instant::now();
    loop {
        if let Some(locked) = try_lock(file, kind, path)? {
            return Ok(locked);
        }
        let waited_ms = start.elapsed().as_millis() as u64;
        if waited_ms > LOCK_WAIT_MS {
            return Err(StoreError::Busy { place: path.display().to_string(), waited_ms });
        }
        std::thread::sleep(Duration::from_millis(LOCK_RETRY_MS));
    }
}

/// Acquires a lock, or returns `None` if another process holds a conflicting lock.
pub fn try_lock<'a>(file: &'a File, kind: LockKind, path: &Path) -> Result<Option<Locked<'a>>> {
    let locked = match kind {
        LockKind::Shared => file.try_lock_shared(),
        LockKind::Exclusive => file.try_lock(),
    };
    match locked {
        Ok(()) => Ok(Some(Locked { file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(io_error(path, source)),
    }
}

/// Creates or replaces a file atomically.
pub fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unique = uuid::Uuid::new_v4().simple();
    let temporary = path.with_file_name(format!(".{name}.{unique}.tmp"));
    let written =
        write_whole(&temporary, bytes, durability).and_then(|()| fs::rename(&temporary, path).at(path));
    if written.is_err() {
        // The caller gets the write error; a leftover temporary file is harmless.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_dir(path, durability)
}

fn write_whole(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let mut file = permissions::file_options().write(true).create_new(true).open(path).at(path)?;
    file.write_all(bytes).at(path)?;
    sync(&file, path, durability)
}

pub fn sync(file: &File, path: &Path, durability: Durability) -> Result<()> {
    match durability {
        Durability::Full => file.sync_data().at(path),
        Durability::Normal => Ok(()),
    }
}

/// Syncs a directory, so that creating, renaming or removing a file is durable (I3).
pub fn sync_dir(path: &Path, durability: Durability) -> Result<()> {
    let Some(dir) = path.parent().filter(|_| durability == Durability::Full) else { return Ok(()) };
    // On platforms where a directory cannot be opened as a file, there is nothing to sync.
    match File::open(dir) {
        Ok(file) => file.sync_all().at(dir),
        Err(_) => Ok(()),
    }
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result.at(path),
    }
}

/// Reads a file if it exists.
pub fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(path, source)),
    }
}

/// Opens a file for appending and creates it if it does not exist.
pub fn open_to_append(path: &Path) -> Result<File> {
    permissions::file_options().read(true).append(true).create(true).open(path).at(path)
}

/// Opens a file for reading if it exists.
pub fn open_if_exists(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(path, source)),
    }
}

/// Opens a file for appending and locks it until it is closed. If another process replaced the file while this one waited
/// for the lock, opens the new file.
pub fn open_locked(path: &Path) -> Result<File> {
    let start = Instant::now();
    loop {
        let file = open_to_append(path)?;
        // The lock belongs to the open file, and closing the file releases it.
        std::mem::forget(lock(&file, LockKind::Exclusive, path)?);
        if is_at(&file, path) || start.elapsed().as_millis() as u64 > LOCK_WAIT_MS {
            return Ok(file);
        }
    }
}

/// Returns whether the path still refers to the open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let opened = file.metadata().map(identity).ok();
    opened.is_some() && opened == fs::metadata(path).map(identity).ok()
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
