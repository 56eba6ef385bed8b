//! Watches files by polling. Unlike notifications of the operating system, polling detects changes made while Sapwood
//! was not running, works the same on every machine and on shared disks, and returns the same result on two servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use globset::{Glob, GlobSet, GlobSetBuilder};
use sapwood_core::port::trigger::Watcher;

/// Maximum number of watched files, and of entries scanned to find them.
const FILES_MAX: usize = 1_000;
const ENTRIES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 16;

/// The files of a directory whose relative paths match one of the globs.
#[derive(Debug, Clone)]
pub struct FileWatch {
    directory: PathBuf,
    globs: GlobSet,
    description: String,
}

impl FileWatch {
    pub fn new(directory: impl Into<PathBuf>, globs: &[String]) -> Result<Self, String> {
        let directory = directory.into();
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(Glob::new(glob).map_err(|error| error.to_string())?);
        }
        let description = format!("{} {}", directory.display(), globs.join(" "));
        Ok(Self { directory, globs: set.build().map_err(|error| error.to_string())?, description })
    }

    fn scan(&self) -> Result<BTreeMap<String, String>, String> {
        let (mut found, mut scanned_entries) = (BTreeMap::new(), 0);
        let mut pending = vec![(self.directory.clone(), 0)];
        while let Some((dir, depth)) = pending.pop() {
            // A directory that does not exist has no files.
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.filter_map(Result::ok) {
                scanned_entries += 1;
                if scanned_entries > ENTRIES_MAX {
                    return Err(format!("{} has more than {ENTRIES_MAX} entries", self.directory.display()));
                }
                let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
                if kind.is_dir() && depth < DEPTH_MAX {
                    pending.push((path, depth + 1));
                } else if kind.is_file() {
                    found.extend(self.fingerprint(&path));
                }
            }
            if found.len() > FILES_MAX {
                return Err(format!("more than {FILES_MAX} files match: use narrower globs"));
            }
        }
        Ok(found)
    }

    /// The relative path of a matching file, with its size and modification time. Does not follow links.
    fn fingerprint(&self, path: &Path) -> Option<(String, String)> {
        let name = path.strip_prefix(&self.directory).ok()?;
        if !self.globs.is_match(name) {
            return None;
        }
        let metadata = std::fs::symlink_metadata(path).ok()?;
        let written = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Some((name.to_str()?.to_owned(), format!("{}@{}", metadata.len(), written.as_nanos())))
    }
}

#[async_trait]
impl Watcher for FileWatch {
    async fn fingerprints(&self) -> Result<BTreeMap<String, String>, String> {
        let watch = self.clone();
        let scanned = tokio::task::spawn_blocking(move || watch.scan()).await;
        scanned.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
