//! A temporary SQLite file that is removed unless it is kept.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Suffixes of the files that SQLite and the store create next to a database.
const COMPANIONS: [&str; 5] = ["-wal", "-shm", "-journal", ".head", ".torn"];
/// Maximum number of names to try.
const NAMES_MAX: u32 = 100;

/// A temporary file that only its owner can access. It is removed on drop, with the files next to it.
pub struct TempStore {
    path: PathBuf,
    is_kept: bool,
}

impl TempStore {
    /// Creates an empty file in a directory, with a name that begins with `prefix`.
    pub fn create(dir: &Path, prefix: &str) -> io::Result<(Self, File)> {
        let mut failed = None;
        for number in 0..NAMES_MAX {
            let path = dir.join(format!("{prefix}.{}-{number}.tmp", std::process::id()));
            match private_options().create_new(true).write(true).open(&path) {
                Ok(file) => return Ok((Self { path, is_kept: false }, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file. It is then durable under its new name.
    pub fn persist(mut self, path: &Path) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        std::fs::rename(&self.path, path)?;
        self.is_kept = true;
        sync_dir(path)
    }
}

impl Drop for TempStore {
    fn drop(&mut self) {
        // The file may be gone already, and there is no caller to report a failure to.
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
        for companion in COMPANIONS {
            let mut name = self.path.clone().into_os_string();
            name.push(companion);
            let _ = std::fs::remove_file(PathBuf::from(name));
        }
    }
}

fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The directory that contains a file.
pub fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(dir_of(path))?.sync_all()
}

#[cfg(not(unix))]
fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}
