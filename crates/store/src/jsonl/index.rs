//! A cache of summaries, so that a list does not have to read every log. It has one line per
//! session and log length. The last line of a session is valid if the length of its log is still
//! the same. The file can be deleted at any time.

use std::collections::HashMap;
use std::io::Write;

use sapwood_core::Authority;
use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use serde::{Deserialize, Serialize};

use super::disk::{self, At};
use super::layout::Layout;
use super::line_sum::{self, LineState};
use super::sealed_lines;
use crate::Durability;

/// Maximum number of lines beyond twice the number of sessions, before the file is rewritten.
const SPARE_LINES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct IndexLine {
    file: String,
    len: u64,
    summary: Summary,
    /// The summary's authority record, which is not part of its serialization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authority: Option<Authority>,
}

#[derive(Default)]
pub struct Index {
    lines: HashMap<String, IndexLine>,
    is_loaded: bool,
    lines_on_disk: usize,
    /// The number of complete lines in the file that are not valid.
    pub bad_lines: usize,
    /// Whether the file has lines of an earlier version, or an incomplete line that a crash left.
    is_outdated: bool,
    unsaved: Vec<String>,
}

impl Index {
    pub fn load(&mut self, layout: &Layout) -> Result<()> {
        if self.is_loaded {
            return Ok(());
        }
        self.is_loaded = true;
        let bytes = disk::read_if_exists(&layout.index())?.unwrap_or_default();
        for raw in bytes.split_inclusive(|byte| *byte == b'\n') {
            // A line without a valid checksum is ignored, because the index is only a cache.
            let state = line_sum::check(raw);
            if state == Ok(LineState::Proven)
                && let Ok(mut line) = serde_json::from_slice::<IndexLine>(raw)
            {
                line.summary.authority.clone_from(&line.authority);
                self.lines_on_disk += 1;
                self.lines.insert(line.file.clone(), line);
            } else {
                let is_bad = raw.ends_with(b"\n") && state != Ok(LineState::Unproven);
                self.bad_lines += usize::from(is_bad);
                self.is_outdated |= !is_bad;
            }
        }
        Ok(())
    }

    /// Returns the cached summary of a log with this length.
    pub fn get(&self, stem: &str, len: u64) -> Option<&Summary> {
        self.lines.get(stem).filter(|line| line.len == len).map(|line| &line.summary)
    }

    pub fn put(&mut self, stem: &str, len: u64, summary: &Summary) {
        if self.get(stem, len) == Some(summary) {
            return;
        }
        let authority = summary.authority.clone();
        let line = IndexLine { file: stem.to_owned(), len, summary: summary.clone(), authority };
        self.lines.insert(stem.to_owned(), line);
        self.unsaved.push(stem.to_owned());
    }

    pub fn remove(&mut self, stem: &str) {
        self.lines.remove(stem);
    }

    /// Returns whether there are changes that are not in the file.
    pub fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Writes the changes, or rewrites the file if it has too many outdated lines. The caller holds
    /// the store's lock, so that an erased session does not reappear.
    pub fn save(&mut self, layout: &Layout) -> Result<()> {
        let unsaved = std::mem::take(&mut self.unsaved);
        let unsaved: Vec<&String> = unsaved.iter().filter(|stem| layout.log(stem).exists()).collect();
        if unsaved.is_empty() {
            return Ok(());
        }
        if self.is_outdated
            || self.bad_lines > 0
            || self.lines_on_disk + unsaved.len() > 2 * self.lines.len() + SPARE_LINES_MAX
        {
            return self.rewrite(layout);
        }
        let mut out = Vec::new();
        for line in unsaved.into_iter().filter_map(|stem| self.lines.get(stem)) {
            write_line(line, &mut out);
            self.lines_on_disk += 1;
        }
        let path = layout.index();
        disk::open_to_append(&path)?.write_all(&out).at(&path)
    }

    /// Rewrites the whole file with the current sessions.
    pub fn rewrite(&mut self, layout: &Layout) -> Result<()> {
        self.unsaved.clear();
        (self.bad_lines, self.is_outdated) = (0, false);
        self.lines.retain(|stem, _| layout.log(stem).exists());
        self.lines_on_disk = self.lines.len();
        let mut out = Vec::new();
        for line in self.lines.values() {
            write_line(line, &mut out);
        }
        // A cache does not have to survive a power failure.
        disk::replace(&layout.index(), &out, Durability::Normal)
    }
}

fn write_line(line: &IndexLine, out: &mut Vec<u8>) {
    out.extend(sealed_lines::to_line(line));
}
