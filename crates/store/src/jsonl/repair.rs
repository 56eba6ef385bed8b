//! Checks the lines of all files of a directory, and restores lines in which a single bit changed.
//!
//! A repair never removes a line: it replaces a damaged line only by the line that its checksum proves, and keeps the damaged
//! bytes in a file with the ending `.damaged`. Other damage is reported and left as it is.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sapwood_core::port::store::{Finding, Repair, Result};

use super::disk::{self, At};
use super::layout::{AUTHORITY_EXTENSION, Layout};
use super::line_sum::{self, BadSum, LineState};
use super::sealed_lines;
use crate::Durability;

/// Maximum number of findings per file. The first few are enough for a diagnosis.
const FINDINGS_MAX: usize = 20;
/// The endings of files whose lines have checksums. The index is a cache with its own check.
const ENDINGS: [&str; 6] = ["jsonl", "erased", AUTHORITY_EXTENSION, "lease", "head", "by"];

/// Returns where the damaged lines of a file are kept.
pub fn path_of_damage(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".damaged");
    PathBuf::from(name)
}

/// Returns the files of a directory whose lines have checksums.
pub fn line_files(layout: &Layout) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for dir in [layout.dir.clone(), layout.blobs()] {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.at(&dir)?.path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            let is_temporary = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if ENDINGS.contains(&ending) && path != layout.index() && !is_temporary {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Checks the lines of a file.
pub fn check_file(path: &Path, repair: Repair, durability: Durability) -> Result<Vec<Finding>> {
    let bytes = disk::read_if_exists(path)?.unwrap_or_default();
    let mut scan = Scan { path, findings: Vec::new(), restored: Vec::new(), damage: Vec::new() };
    let mut end = 0;
    for (index, raw) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        end += raw.len();
        scan.add(index + 1, raw, end == bytes.len(), repair);
    }
    if !scan.damage.is_empty() {
        let kept = path_of_damage(path);
        let mut file = disk::open_to_append(&kept)?;
        file.write_all(&scan.damage).at(&kept)?;
        disk::sync(&file, &kept, durability)?;
        disk::replace(path, &scan.restored, durability)?;
    }
    Ok(scan.findings)
}

/// The lines of a file that have been checked.
struct Scan<'p> {
    path: &'p Path,
    findings: Vec<Finding>,
    /// The file after the repair.
    restored: Vec<u8>,
    /// The damaged lines that were restored.
    damage: Vec<u8>,
}

impl Scan<'_> {
    fn add(&mut self, number: usize, raw: &[u8], is_last: bool, repair: Repair) {
        // A file of one line that is always replaced as a whole may lack its line break.
        let is_torn =
            is_last && sealed_lines::is_torn(raw, is_last) && line_sum::check(raw) != Ok(LineState::Proven);
        // Whether a hole is damage or a torn append depends on the other lines of the append, and is decided when the log is
        // read.
        if is_torn || !is_damaged(raw) || sealed_lines::has_hole(raw) {
            self.restored.extend_from_slice(raw);
            return;
        }
        let correct = (repair == Repair::Yes).then(|| restore(raw)).flatten();
        let repaired = correct.is_some();
        self.restored.extend_from_slice(correct.as_deref().unwrap_or(raw));
        if repaired {
            self.damage.extend_from_slice(raw);
            self.damage.extend_from_slice(if raw.ends_with(b"\n") { b"" } else { b"\n" });
        }
        if self.findings.len() < FINDINGS_MAX {
            let what = match repaired {
                true => format!(
                    "one bit of it had changed; the line is as its checksum proves again, and the damaged line is in {}",
                    path_of_damage(self.path).display()
                ),
                false => BadSum.to_string(),
            };
            let place = format!("{}:{number}", self.path.display());
            self.findings.push(Finding { rule: "damaged", place, what, repaired });
        }
    }
}

fn is_damaged(raw: &[u8]) -> bool {
    let lacks_break = !raw.ends_with(b"\n");
    line_sum::check(raw).is_err()
        || (lacks_break
            && raw.split_last().is_some_and(|(_, line)| line_sum::check(line) == Ok(LineState::Proven)))
}

/// Returns the line, or the two lines, that the checksums prove, if a single bit changed.
fn restore(raw: &[u8]) -> Option<Vec<u8>> {
    let line = raw.strip_suffix(b"\n").unwrap_or(raw);
    let is_proven = |line: &[u8]| line_sum::check(line) == Ok(LineState::Proven);
    // A changed line break joins two lines, or adds a character to the last line.
    let joined = (0..line.len()).filter(|at| line[..*at].ends_with(b"\"}") && is_proven(&line[..*at]));
    for at in joined {
        let rest = &line[at + 1..];
        if rest.is_empty() || is_proven(rest) {
            let end: &[u8] = if rest.is_empty() { b"" } else { b"\n" };
            return Some([&line[..at], b"\n", rest, end].concat());
        }
    }
    let mut corrected = line_sum::correct(line)?;
    corrected.extend_from_slice(&raw[line.len()..]);
    Some(corrected)
}
