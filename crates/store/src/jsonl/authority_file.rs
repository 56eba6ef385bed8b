//! The file of a session's authority record, next to the session's log. Every change replaces the
//! whole file. Writers hold the lock on the log or, before the log exists, the store's lock.

use std::path::{Path, PathBuf};

use sapwood_core::Authority;
use sapwood_core::port::store::Result;

use super::disk;
use super::layout::AUTHORITY_EXTENSION;
use crate::Durability;
use crate::validate::{damaged, parse_authority, print_json};

/// Returns the path of the record that belongs to this log.
pub fn path_beside(log: &Path) -> PathBuf {
    log.with_extension(AUTHORITY_EXTENSION)
}

pub fn read(path: &Path) -> Result<Option<Authority>> {
    let Some(bytes) = disk::read_if_exists(path)? else { return Ok(None) };
    let parsed = std::str::from_utf8(&bytes).map_err(|error| damaged(path.display(), error))?;
    parse_authority(parsed).map(Some).map_err(|error| damaged(path.display(), error))
}

pub fn write(path: &Path, authority: &Authority, durability: Durability) -> Result<()> {
    disk::replace(path, print_json(authority).as_bytes(), durability)
}
