//! Creates files and directories that, on Unix, only their owner can access: sessions are private.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;

/// Returns options that create a file readable by its owner only.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a directory and its missing ancestors for the owner only. Existing directories are not
/// changed.
pub fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
