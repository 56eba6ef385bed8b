//! A temporary directory for one run, removed on drop. The benchmark never touches the user's store.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Create the directory in `parent`, or in the system's temporary directory.
    pub fn make(parent: Option<&Path>) -> std::io::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = parent.join(format!("sapwood-bench-{}-{nanos}", std::process::id()));
        // Not create_dir_all: the parent must exist, and the directory must not.
        std::fs::create_dir(&path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.file(name).display())
    }

    /// Remove the files of a store or baseline that is no longer needed.
    pub fn remove(&self, name: &str) {
        for ending in ["", "-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(self.path.join(format!("{name}{ending}")));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Errors are ignored: the name of a leftover directory shows that the benchmark created it.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
