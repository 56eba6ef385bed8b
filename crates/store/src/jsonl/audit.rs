//! A tenant's audit log: `audit.jsonl`, one hash-chained line per action.
//!
//! The audit line of an append is written after the entries. A crash in between loses the line,
//! never the entries.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sapwood_core::port::store::{AuditLine, AuditNote, Result};
use sapwood_core::{Principal, Scope, TimestampMs};

use super::disk::{self, At, sync};
use super::layout::Layout;
use super::{head_file, line_sum, sealed_lines};
use crate::Durability;
use crate::audit_chain::AuditChain;

/// Bytes that are read from the end of the file to find its last line.
const END_BYTES: u64 = 16 << 10;

/// An audit line that is not in the chain yet.
pub struct PendingAuditLine {
    by: Principal,
    note: AuditNote,
    at: TimestampMs,
}

impl PendingAuditLine {
    pub fn of(scope: &Scope, note: AuditNote, at: TimestampMs) -> Self {
        Self { by: scope.principal.clone(), note, at }
    }
}

pub fn write_lines(layout: &Layout, lines: Vec<PendingAuditLine>, durability: Durability) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let path = layout.audit();
    let mut file = disk::open_locked(&path)?;
    let length = file.metadata().at(&path)?.len();
    let (last, whole) = match read_end(&mut file, length).at(&path)? {
        Some(last) => (Some(last), length),
        None => read_chain(layout)?.into_last(),
    };
    if whole < length {
        // A line that a crash left incomplete was never acknowledged.
        file.set_len(whole).at(&path)?;
    }
    let mut out = Vec::new();
    let mut chain = AuditChain::after(last.as_ref());
    for PendingAuditLine { by, note, at } in lines {
        out.extend(sealed_lines::to_line(&chain.add(by, note, at)));
    }
    file.write_all(&out).at(&path)?;
    sync(&file, &path, durability)?;
    if whole == 0 { disk::sync_dir(&path, durability) } else { Ok(()) }
}

/// Records the end of the file. Errors are ignored, see [`head_file`].
pub fn write_head(layout: &Layout, durability: Durability, boot: &str) {
    let path = layout.audit();
    if !path.exists() {
        return;
    }
    // While the lock is held, all lines are synced.
    let Ok(file) = disk::open_locked(&path) else { return };
    if let Ok(metadata) = file.metadata() {
        head_file::write(&path, &file, metadata.len(), durability, boot);
    }
}

/// Reads the whole audit log, and checks that it has not lost its end.
pub fn read_whole(layout: &Layout, boot: &str) -> Result<Chain> {
    let path = layout.audit();
    let head = head_file::read(&path, boot)?;
    let chain = read_chain(layout)?;
    if let Some(file) = disk::open_if_exists(&path)? {
        head_file::check(head.as_ref(), &path, &file, chain.whole)?;
    }
    Ok(chain)
}

/// Returns the last line if it is complete and fits into the last [`END_BYTES`] bytes. Otherwise the
/// caller reads the whole file.
fn read_end(file: &mut File, length: u64) -> std::io::Result<Option<AuditLine>> {
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))?;
    file.take(END_BYTES).read_to_end(&mut end)?;
    let Some(lines) = end.strip_suffix(b"\n") else { return Ok(None) };
    let last = match lines.iter().rposition(|byte| *byte == b'\n') {
        Some(at) => &lines[at + 1..],
        None if length <= END_BYTES => lines,
        None => return Ok(None),
    };
    Ok(serde_json::from_slice(last).ok().filter(|_| line_sum::check(last).is_ok()))
}

/// The whole audit log, and how many of its bytes are complete lines.
pub struct Chain {
    pub lines: Vec<AuditLine>,
    whole: u64,
}

impl Chain {
    fn into_last(mut self) -> (Option<AuditLine>, u64) {
        (self.lines.pop(), self.whole)
    }

    /// Returns the number of the first line that does not match the hash of the previous line.
    pub fn first_break(&self) -> Option<u64> {
        let mut previous = "";
        for (index, line) in self.lines.iter().enumerate() {
            if line.number != index as u64 + 1 || line.hash != line.expected_hash(previous) {
                return Some(line.number);
            }
            previous = &line.hash;
        }
        None
    }
}

pub fn read_chain(layout: &Layout) -> Result<Chain> {
    let path = layout.audit();
    let bytes = disk::read_if_exists(&path)?.unwrap_or_default();
    let read = sealed_lines::read(&path, &bytes)?;
    Ok(Chain { whole: read.whole, lines: read.into_values() })
}

/// Returns the lines since `since`, newest first. The file is read backwards, only as far as
/// needed.
pub fn read_since(layout: &Layout, since: TimestampMs) -> Result<Vec<AuditLine>> {
    let path = layout.audit();
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.at(&path)?,
    };
    let length = file.metadata().at(&path)?.len();
    let mut bytes = END_BYTES;
    loop {
        let mut lines = read_last(&mut file, length, bytes, &path)?;
        if bytes >= length || lines.last().is_some_and(|line| line.at < since) {
            let recent = lines.iter().take_while(|line| line.at >= since).count();
            lines.truncate(recent);
            return Ok(lines);
        }
        bytes = bytes.saturating_mul(4);
    }
}

/// Returns the lines in the last `bytes` bytes, newest first, without a line that begins before them. A damaged line is
/// found by reading the whole file, because its number is not known here.
fn read_last(file: &mut File, length: u64, bytes: u64, path: &Path) -> Result<Vec<AuditLine>> {
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes))).at(path)?;
    file.take(bytes).read_to_end(&mut end).at(path)?;
    let cut = if bytes >= length {
        0
    } else {
        end.iter().position(|byte| *byte == b'\n').map_or(end.len(), |at| at + 1)
    };
    let mut lines = match sealed_lines::read(path, &end[cut..]) {
        Ok(read) => read.into_values(),
        Err(_) => {
            let whole = disk::read_if_exists(path)?.unwrap_or_default();
            sealed_lines::read(path, &whole)?.into_values()
        }
    };
    lines.reverse();
    Ok(lines)
}
