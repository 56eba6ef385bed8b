//! Files of lines with checksums that hold the data beside the logs: keys, memories, audit log, uploaders.

use std::path::Path;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::line_sum::{self, LineState};
use crate::validate::damaged;

/// The complete lines of a file.
pub struct SealedLines<T> {
    pub lines: Vec<(T, LineState)>,
    /// The number of bytes of complete lines. An append that a crash interrupted may follow.
    pub whole: u64,
}

impl<T> SealedLines<T> {
    pub fn into_values(self) -> Vec<T> {
        self.lines.into_iter().map(|(value, _)| value).collect()
    }
}

/// Reads and checks all lines. An incomplete last line was never acknowledged and is left out.
pub fn read<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<SealedLines<T>> {
    let mut read = SealedLines { lines: Vec::new(), whole: 0 };
    for (index, raw) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        if is_torn(raw, read.whole + raw.len() as u64 == bytes.len() as u64) {
            break;
        }
        if !raw.trim_ascii().is_empty() {
            read.lines.push(parse(path, number, raw)?);
        }
        read.whole += raw.len() as u64;
    }
    Ok(read)
}

/// Parses one line.
pub fn parse<T: DeserializeOwned>(path: &Path, number: usize, raw: &[u8]) -> Result<(T, LineState)> {
    let state = line_sum::check(raw).map_err(|error| bad_line(path, number, error))?;
    let value = serde_json::from_slice(raw).map_err(|error| bad_line(path, number, error))?;
    Ok((value, state))
}

pub fn bad_line(path: &Path, number: usize, what: impl ToString) -> StoreError {
    damaged(format!("{}:{number}", path.display()), what)
}

/// Returns whether a line is what a crash left of an append: it lacks its end, or a power failure left a hole in the last
/// line. A complete line whose line break has changed is damaged instead.
pub fn is_torn(raw: &[u8], is_last: bool) -> bool {
    match raw.split_last() {
        Some((b'\n', _)) => is_last && has_hole(raw),
        // A power failure left a hole instead of the line break. One changed bit cannot make a zero of it.
        Some((0, _)) => true,
        Some((_, line)) => line_sum::check(line) != Ok(LineState::Proven),
        None => true,
    }
}

/// Returns whether a line contains zeros that a power failure left: no valid line contains a zero. A zero that a single
/// changed bit explains is damage instead.
pub fn has_hole(raw: &[u8]) -> bool {
    raw.contains(&0) && line_sum::correct(raw.strip_suffix(b"\n").unwrap_or(raw)).is_none()
}

/// Encodes a value as a line with its checksum.
pub fn to_line(value: &impl Serialize) -> Vec<u8> {
    line_sum::to_line(serde_json::to_vec(value).expect("the value contains only strings and numbers"))
}
