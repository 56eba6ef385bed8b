//! The end of a file when it was last closed, in a small file beside it. A file that is shorter, or that has other bytes at
//! this position, has lost lines, even if it ends with a complete line.
//!
//! The head is written after the file is synced, and not synced itself. After a power failure it may be missing or older,
//! never newer: there is no false alarm. With durability `normal` the file is not synced, so the head counts only until the
//! machine is restarted.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sapwood_core::port::store::Result;
use serde::{Deserialize, Serialize};

use super::disk::{self, At};
use super::line_sum::{self, LineState};
use super::sealed_lines;
use crate::Durability;
use crate::validate::damaged;

/// The number of bytes before the end that are compared.
const END_BYTES: u64 = 64;

const LOST_END: &str = "its end is missing";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadLine {
    len: u64,
    /// A hash of the last bytes before `len`.
    end: String,
    /// The boot after which the head counts; `None` if the file was synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// Returns the path of the head of a file.
pub fn path_beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".head");
    PathBuf::from(name)
}

/// Records that the file is complete up to `len`. Errors are ignored: without a head, only the check of the end is missing.
pub fn write(path: &Path, file: &File, len: u64, durability: Durability, boot: &str) {
    let Ok(end) = hash_end(file, len) else { return };
    let boot = (durability == Durability::Normal).then(|| boot.to_owned());
    let line = sealed_lines::to_line(&HeadLine { len, end, boot });
    // Not synced: see above.
    let _ = disk::replace(&path_beside(path), &line, Durability::Normal);
}

/// Fails if the file does not contain what it contained when it was last closed. `whole` is the length of its complete
/// lines.
pub fn check(head: Option<&HeadLine>, path: &Path, file: &File, whole: u64) -> Result<()> {
    let Some(head) = head else { return Ok(()) };
    if whole < head.len {
        let what = format!(
            "{LOST_END}: {whole} of the {} bytes that it had when it was last closed are left",
            head.len
        );
        return Err(damaged(path.display(), what));
    }
    match hash_end(file, head.len).at(path)? == head.end {
        true => Ok(()),
        false => {
            Err(damaged(path.display(), format!("{LOST_END}, or it was replaced, since it was last closed")))
        }
    }
}

/// Reads the head of a file. Call it before the file is read, because another process may append to the file meanwhile.
/// An empty or unreadable head is what a power failure left of it, and is ignored.
pub fn read(path: &Path, boot: &str) -> Result<Option<HeadLine>> {
    let bytes = disk::read_if_exists(&path_beside(path))?.unwrap_or_default();
    if line_sum::check(&bytes) != Ok(LineState::Proven) {
        return Ok(None);
    }
    let head: Option<HeadLine> = serde_json::from_slice(&bytes).ok();
    Ok(head.filter(|head| head.boot.as_deref().is_none_or(|then| then == boot)))
}

/// Moves the head aside, so that the file counts as complete. Returns where it was moved.
pub fn set_aside(path: &Path) -> Result<PathBuf> {
    let (head, mut aside) = (path_beside(path), path_beside(path).into_os_string());
    aside.push(".lost");
    let aside = PathBuf::from(aside);
    std::fs::rename(&head, &aside).at(&head)?;
    Ok(aside)
}

fn hash_end(mut file: &File, len: u64) -> std::io::Result<String> {
    let from = len.saturating_sub(END_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(len - from).read_to_end(&mut end)?;
    Ok(blake3::hash(&end).to_hex()[..16].to_owned())
}

/// Returns whether this description of damage is about the end of a file.
pub fn is_lost_end(what: &str) -> bool {
    what.starts_with(LOST_END)
}
