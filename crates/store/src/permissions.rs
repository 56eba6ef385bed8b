//! Files and directories for their owner alone: a session store is nobody else's to read.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;

/// Options that make a new file readable by its owner only.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a directory, and those above it, for its owner only. One that is there stays as it is.
pub fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
