//! Disk space that is kept for a full disk: a file beside the store. Opening and erasing need some space, because SQLite
//! writes to the write-ahead log first. Without a reserve, an erasure could not free any space.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

/// Size of the reserve. Erasing a session needs about as much as the session's size.
const RESERVE_BYTES: u64 = 4 << 20;
/// The smallest reserve that is worth a file.
const RESERVE_BYTES_MIN: u64 = 128 << 10;
/// A reserve is first created only if the disk has this much free space.
const FREE_BYTES_MIN: u64 = 256 << 20;

pub(super) struct SpaceReserve {
    file: PathBuf,
}

impl SpaceReserve {
    /// The reserve of a store. Creates nothing.
    pub fn of(store: &Path) -> Self {
        let mut file = OsString::from(store);
        file.push("-reserve");
        Self { file: file.into() }
    }

    /// Create the reserve if the disk has much free space.
    pub fn create(&self) {
        let is_complete = std::fs::metadata(&self.file).is_ok_and(|found| found.len() >= RESERVE_BYTES);
        if !is_complete && self.free_bytes().is_some_and(|free| free >= FREE_BYTES_MIN) {
            self.allocate(RESERVE_BYTES);
        }
    }

    /// Run work again with the reserve's space if it found the disk full. Then keep what is left of that space.
    pub fn use_if_full<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(StoreError::DiskFull { .. }) if self.release() => {
                let done = work();
                self.refill();
                done
            }
            done => done,
        }
    }

    /// Free the reserved space. `false` if there is none.
    pub fn release(&self) -> bool {
        std::fs::remove_file(&self.file).is_ok()
    }

    /// Reserve as much of the remaining space as possible.
    pub fn refill(&self) {
        let mut bytes = RESERVE_BYTES;
        while bytes >= RESERVE_BYTES_MIN && !self.allocate(bytes) {
            bytes /= 2;
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = statvfs(self.file.parent().filter(|dir| !dir.as_os_str().is_empty())?).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Allocate the file. Failures are ignored: without a reserve, the store works like any other program.
    fn allocate(&self, bytes: u64) -> bool {
        let allocated = create_private(&self.file).is_ok_and(|file| {
            // A file system without this call has no reserve: writing zeros would be slow on every new store.
            fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok()
        });
        if !allocated {
            let _ = std::fs::remove_file(&self.file);
        }
        allocated
    }
}

fn create_private(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> StoreError {
        StoreError::DiskFull { place: "here".to_owned() }
    }

    #[test]
    fn work_that_finds_the_disk_full_runs_again_without_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = SpaceReserve::of(&dir.path().join("s.db"));
        let file = dir.path().join("s.db-reserve");
        let mut runs = 0;
        // Without a reserve there is no second run.
        let failed = reserve.use_if_full::<()>(|| {
            runs += 1;
            Err(full())
        });
        assert!(failed.is_err() && runs == 1);
        reserve.refill();
        if !file.exists() {
            return;
        }
        let mut was_there = Vec::new();
        let done = reserve.use_if_full(|| {
            was_there.push(file.exists());
            if file.exists() { Err(full()) } else { Ok(()) }
        });
        assert!(done.is_ok() && was_there == [true, false]);
        assert_eq!(std::fs::metadata(&file).unwrap().len(), RESERVE_BYTES);
        // Another failure is returned at once.
        let busy =
            reserve.use_if_full::<()>(|| Err(StoreError::Busy { place: "here".to_owned(), waited_ms: 1 }));
        assert!(busy.is_err() && file.exists());
    }
}
