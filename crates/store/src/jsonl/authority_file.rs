//! The file of a session's authority record, next to the session's log. Every change replaces the
//! whole file. Writers hold the lock on the log or, before the log exists, the store's lock.

use std::path::{Path, PathBuf};

use sapwood_core::Authority;
use sapwood_core::port::store::Result;

use super::disk;
use super::layout::AUTHORITY_EXTENSION;
use super::line_sum::{self, LineState};
use super::sealed_lines;
use crate::Durability;
use crate::validate::{parse_authority, print_json};

/// Returns the path of the record that belongs to this log.
pub fn path_beside(log: &Path) -> PathBuf {
    log.with_extension(AUTHORITY_EXTENSION)
}

pub fn read(path: &Path) -> Result<Option<Authority>> {
    let Some(bytes) = disk::read_if_exists(path)? else { return Ok(None) };
    let json = match line_sum::check(&bytes).map_err(|error| sealed_lines::bad_line(path, 1, error))? {
        LineState::Proven => line_sum::strip(&bytes),
        LineState::Unproven => bytes,
    };
    let parsed = std::str::from_utf8(&json).map_err(|error| sealed_lines::bad_line(path, 1, error))?;
    parse_authority(parsed).map(Some).map_err(|error| sealed_lines::bad_line(path, 1, error))
}

pub fn write(path: &Path, authority: &Authority, durability: Durability) -> Result<()> {
    disk::replace(path, &line_sum::to_line(print_json(authority).into_bytes()), durability)
}
