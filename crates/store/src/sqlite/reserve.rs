//! Disk space that a process keeps for a full disk. Erasing needs some space, because SQLite writes to the write-ahead log
//! first. Without a reserve, an erasure could not free any space.
//!
//! The reserve is a file without a name that this process holds open. It therefore never remains beside the store, and
//! a store that is closed has none.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, openat, statvfs};

/// Size of the reserve. Erasing a session needs about as much as the session's size.
const RESERVE_BYTES: u64 = 4 << 20;
/// The smallest reserve that is worth a file.
const RESERVE_BYTES_MIN: u64 = 128 << 10;
/// A reserve is first created only if the disk has this much free space.
const FREE_BYTES_MIN: u64 = 256 << 20;

pub(super) struct SpaceReserve {
    dir: PathBuf,
    file: Mutex<Option<OwnedFd>>,
}

impl SpaceReserve {
    /// Reserve space in the directory of a store, if its disk has much free space.
    pub fn create(store: &Path) -> Self {
        let parent = store.parent().filter(|dir| !dir.as_os_str().is_empty());
        let reserve = Self { dir: parent.unwrap_or(Path::new(".")).to_owned(), file: Mutex::default() };
        if reserve.free_bytes().is_some_and(|free| free >= FREE_BYTES_MIN) {
            reserve.refill();
        }
        reserve
    }

    /// Free the reserved space.
    pub fn release(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Reserve as much of the remaining space as possible. Failures are ignored: without a reserve, the store works like
    /// any other program.
    pub fn refill(&self) {
        let mut bytes = RESERVE_BYTES;
        let mut file = None;
        while file.is_none() && bytes >= RESERVE_BYTES_MIN {
            file = allocate(&self.dir, bytes);
            bytes /= 2;
        }
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = statvfs(&self.dir).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

/// Allocate a file without a name. File systems that cannot do this have no reserve.
#[cfg(target_os = "linux")]
fn allocate(dir: &Path, bytes: u64) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR).ok()?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).ok().map(|()| file)
}
#[cfg(not(target_os = "linux"))]
fn allocate(_: &Path, _: u64) -> Option<OwnedFd> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_occupies_space_without_a_name_until_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = SpaceReserve::create(&dir.path().join("s.db"));
        reserve.refill();
        let bytes = || {
            let file = reserve.file.lock().unwrap();
            file.as_ref().map(|file| rustix::fs::fstat(file).unwrap().st_blocks.cast_unsigned() * 512)
        };
        assert!(bytes().is_none_or(|bytes| bytes >= RESERVE_BYTES), "{:?}", bytes());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        reserve.release();
        assert_eq!(bytes(), None);
    }
}
