//! Recognizes protected files by their identity (device and inode), whatever they are called: a hard link or a bind mount
//! gives a protected file a second name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cap_fs_ext::{DirExt, MetadataExt};
use cap_std::fs::Dir;

use super::protected::is_protected;

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// Maximum number of entries and depth of the scan for protected files.
const SCANNED_ENTRIES_MAX: usize = 200_000;
const SCANNED_DEPTH_MAX: usize = 64;
/// Maximum number of mounts below a directory that are examined.
const MOUNTS_MAX: usize = 256;

/// Find every protected file below a directory. `None` if the scan fails or reaches a limit.
pub fn find_protected_files(dir: &Dir) -> Option<HashSet<FileId>> {
    let mut found = ProtectedFiles { files: HashSet::new(), entries_scanned: 0 };
    found.collect_from(dir, Protection::None, SCANNED_DEPTH_MAX)?;
    Some(found.files)
}

/// Devices that are mounted several times at or below a directory. Their files may have several names with one link.
pub fn shared_devices(dir: &Path) -> HashSet<u64> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = mount_points(&mounts).filter(|point| point != dir && point.starts_with(dir));
    let places = std::iter::once(dir.to_owned()).chain(below.take(MOUNTS_MAX));
    let devices = places.filter_map(|place| Some(std::fs::metadata(place).ok()?.dev()));
    let (mut once, mut several) = (HashSet::new(), HashSet::new());
    for device in devices {
        if !once.insert(device) {
            several.insert(device);
        }
    }
    several
}

/// The mount points in `/proc/self/mountinfo`, the fifth field of each line.
fn mount_points(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)))
}

/// Replace the octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

/// Whether files are protected because a parent directory is protected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protection {
    None,
    Protected,
}

struct ProtectedFiles {
    files: HashSet<FileId>,
    entries_scanned: usize,
}

impl ProtectedFiles {
    /// Collect protected files recursively. Keeps one handle open per nested directory, so the depth is limited.
    fn collect_from(&mut self, dir: &Dir, inherited: Protection, depth_left: usize) -> Option<()> {
        for entry in dir.entries().ok()? {
            let entry = entry.ok()?;
            self.entries_scanned += 1;
            if self.entries_scanned > SCANNED_ENTRIES_MAX || depth_left == 0 {
                return None;
            }
            let name = entry.file_name();
            let here = if is_protected(Path::new(&name)) { Protection::Protected } else { inherited };
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                if let Ok(dir) = dir.open_dir_nofollow(&name) {
                    self.collect_from(&dir, here, depth_left - 1)?;
                }
            } else if kind.is_file() && here == Protection::Protected {
                let metadata = entry.metadata().ok()?;
                self.files.insert((metadata.dev(), metadata.ino()));
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        let mounts = "31 23 0:28 / /a\\040b rw - tmpfs tmpfs rw\n32 31 0:29 / /c rw - cgroup cgroup rw\n";
        assert_eq!(mount_points(mounts).collect::<Vec<_>>(), [PathBuf::from("/a b"), PathBuf::from("/c")]);
    }
}
