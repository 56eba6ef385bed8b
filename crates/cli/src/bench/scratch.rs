//! A directory of its own for one run, gone afterwards. A benchmark never touches the user's own store.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Under `parent`, or under the system's directory for such things.
    pub fn make(parent: Option<&Path>) -> std::io::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = parent.join(format!("sapwood-bench-{}-{nanos}", std::process::id()));
        // Not create_dir_all: the parent must be there, and the directory must not.
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

    /// Removes the files of one store, or one floor, that are not needed any more.
    pub fn remove(&self, name: &str) {
        for ending in ["", "-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(self.path.join(format!("{name}{ending}")));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about what cannot be removed, and it is under a name that says what it is.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
