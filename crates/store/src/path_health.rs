//! Health check of a store's path: the file or directory has not been moved or replaced, and its
//! directory is writable and has free disk space. The check never opens the database files, because
//! closing them would release the process's POSIX locks.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use uuid::Uuid;

use crate::permissions;

/// Size of the probe file that is written to check for disk space: a few pages.
const PROBE_BYTES: usize = 16 << 10;

pub struct PathHealth {
    /// The file or directory that contains all data.
    path: PathBuf,
    /// The identity of the file or directory at the first check.
    identity: OnceLock<Identity>,
}

/// Device and inode, which distinguish a file from another file at the same path.
type Identity = (u64, u64);

impl PathHealth {
    pub fn new(path: &Path) -> Self {
        let health = Self { path: path.to_owned(), identity: OnceLock::new() };
        // If the file does not exist yet, a later check records its identity.
        let _ = health.check_identity();
        health
    }

    /// Checks that the path has not been moved or replaced, and that it is writable.
    pub fn check(&self) -> Result<()> {
        self.check_identity()?;
        match write_probe(&self.probe_path()) {
            // A process that may not create files in the directory may still be able to write to
            // the store's file.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && self.is_writable_file() => Ok(()),
            Err(error) => Err(io_error(&self.path, error)),
            Ok(()) => Ok(()),
        }
    }

    /// Checks that the path has not been moved or replaced. Takes about a microsecond.
    pub fn check_identity(&self) -> Result<()> {
        let found = match fs::metadata(&self.path) {
            Ok(found) => identity_of(&found),
            Err(error) if error.kind() == ErrorKind::NotFound && self.identity.get().is_none() => {
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(self.moved()),
            Err(error) => return Err(io_error(&self.path, error)),
        };
        if *self.identity.get_or_init(|| found) != found {
            return Err(self.moved());
        }
        Ok(())
    }

    /// Returns the error for a path that was moved or replaced.
    pub fn moved(&self) -> StoreError {
        let why = "it was moved, deleted or replaced while in use".to_owned();
        StoreError::Unreachable { place: self.path.display().to_string(), why }
    }

    fn is_writable_file(&self) -> bool {
        self.path.metadata().is_ok_and(|found| found.is_file() && !found.permissions().readonly())
    }

    /// Returns the path of a new probe file: in the store's directory or, if the path is a file or
    /// does not exist yet, in its nearest existing ancestor.
    fn probe_path(&self) -> PathBuf {
        let dir = nearest(&self.path, Path::is_dir);
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        // The random name is unique among processes, and no symlink can be planted there in
        // advance.
        dir.join(format!(".{name}.tried-{}", Uuid::new_v4().simple()))
    }
}

/// Returns the path itself or its nearest existing ancestor, or else the working directory.
fn nearest(path: &Path, exists: impl Fn(&Path) -> bool) -> &Path {
    let found = path.ancestors().find(|above| !above.as_os_str().is_empty() && exists(above));
    found.unwrap_or(Path::new("."))
}

fn write_probe(path: &Path) -> std::io::Result<()> {
    let mut file = permissions::file_options().write(true).create_new(true).open(path)?;
    let written = file.write_all(&[0; PROBE_BYTES]);
    drop(file);
    // If the process is killed here, the small file stays. That is rare, so there is no cleanup.
    match fs::remove_file(path) {
        // Another process removed the probe file.
        Err(error) if error.kind() == ErrorKind::NotFound => written,
        removed => written.and(removed),
    }
}

#[cfg(unix)]
fn identity_of(found: &fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn identity_of(_: &fs::Metadata) -> Identity {
    (0, 0)
}

/// Converts an I/O error and adds its path.
pub fn io_error(path: &Path, source: std::io::Error) -> StoreError {
    let place = path.display().to_string();
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::DiskFull { place },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { place, why: source.to_string() }
        }
        _ => StoreError::Io { place, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_or_replaced_file_is_detected_and_no_probe_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join("s.db"), dir.path().join("away"));
        let early = PathHealth::new(&path);
        assert!(early.check().is_ok(), "a missing file may still be created");
        fs::write(&path, "one").unwrap();
        let health = PathHealth::new(&path);
        assert!(health.check().is_ok() && early.check().is_ok());
        fs::rename(&path, &away).unwrap();
        for health in [&health, &early] {
            assert_eq!(health.check().unwrap_err().code(), "store.unreachable");
        }
        fs::write(&path, "two").unwrap();
        assert_eq!(health.check().unwrap_err().code(), "store.unreachable", "it is another file");
        fs::rename(&away, &path).unwrap();
        assert!(health.check().is_ok());
        let remaining: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(remaining, ["s.db"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_symlink_at_a_guessed_probe_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("s.db"), dir.path().join("other"));
        fs::write(&path, "one").unwrap();
        fs::write(&other, "another process's").unwrap();
        let health = PathHealth::new(&path);
        let guessed = dir.path().join(format!(".s.db.tried-{}", std::process::id()));
        std::os::unix::fs::symlink(&other, &guessed).unwrap();
        assert!(health.check().is_ok());
        assert_eq!(fs::read_to_string(&other).unwrap(), "another process's");
        assert!(guessed.is_symlink(), "another process's probe file is left alone");
        assert_ne!(health.probe_path(), health.probe_path());
        assert_eq!(write_probe(&guessed).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_search_ends_when_not_even_the_working_directory_exists() {
        for path in ["s.db", "deep/er/s.db", "/deep/s.db", ""] {
            assert_eq!(nearest(Path::new(path), |_| false), Path::new("."));
        }
        assert_eq!(nearest(Path::new("deep/er/s.db"), |dir| dir == Path::new("deep")), Path::new("deep"));
    }

    #[test]
    fn a_directory_is_probed_from_the_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/store");
        let health = PathHealth::new(&root);
        assert!(health.check().is_ok() && !root.exists());
        fs::create_dir_all(&root).unwrap();
        assert!(health.check().is_ok());
        fs::remove_dir(&root).unwrap();
        assert_eq!(health.check().unwrap_err().code(), "store.unreachable");
    }
}
