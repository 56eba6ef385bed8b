//! A cache of summaries, so that a list reads names and lengths and not every log. One line per session and length; the
//! last one counts, and none counts when the file's length is another. It can be deleted at any time.

use std::collections::HashMap;
use std::io::Write;

use sapwood_core::Authority;
use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use serde::{Deserialize, Serialize};

use super::disk::{self, At};
use super::layout::Layout;
use crate::Durability;

/// Lines the file may have beyond twice the number of sessions before it is written anew.
const SPARE_LINES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct IndexLine {
    file: String,
    len: u64,
    summary: Summary,
    /// The summary's record, which the summary does not print.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authority: Option<Authority>,
}

#[derive(Default)]
pub struct Index {
    lines: HashMap<String, IndexLine>,
    is_loaded: bool,
    lines_on_disk: usize,
    fresh: Vec<String>,
}

impl Index {
    pub fn load(&mut self, layout: &Layout) -> Result<()> {
        if self.is_loaded {
            return Ok(());
        }
        self.is_loaded = true;
        let bytes = disk::read_if_there(&layout.index())?.unwrap_or_default();
        for raw in bytes.split(|byte| *byte == b'\n') {
            // A line that cannot be read is one that is not there: this is a cache.
            if let Ok(mut line) = serde_json::from_slice::<IndexLine>(raw) {
                line.summary.authority.clone_from(&line.authority);
                self.lines_on_disk += 1;
                self.lines.insert(line.file.clone(), line);
            }
        }
        Ok(())
    }

    /// The summary of a log that has this length.
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
        self.fresh.push(stem.to_owned());
    }

    pub fn remove(&mut self, stem: &str) {
        self.lines.remove(stem);
    }

    /// Whether there is something that its file does not say.
    pub fn is_ahead(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Writes what is new; all of it anew when old lines have piled up. The caller holds the store's lock, so that what
    /// somebody erases does not come back.
    pub fn save(&mut self, layout: &Layout) -> Result<()> {
        let fresh = std::mem::take(&mut self.fresh);
        let fresh: Vec<&String> = fresh.iter().filter(|stem| layout.log(stem).exists()).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        if self.lines_on_disk + fresh.len() > 2 * self.lines.len() + SPARE_LINES_MAX {
            return self.rewrite(layout);
        }
        let mut out = Vec::new();
        for line in fresh.into_iter().filter_map(|stem| self.lines.get(stem)) {
            write_line(line, &mut out);
            self.lines_on_disk += 1;
        }
        let path = layout.index();
        disk::open_to_append(&path)?.write_all(&out).at(&path)
    }

    /// Writes the whole file anew, with the sessions that are there.
    pub fn rewrite(&mut self, layout: &Layout) -> Result<()> {
        self.fresh.clear();
        self.lines.retain(|stem, _| layout.log(stem).exists());
        self.lines_on_disk = self.lines.len();
        let mut out = Vec::new();
        for line in self.lines.values() {
            write_line(line, &mut out);
        }
        // A cache does not have to outlast the power.
        disk::replace(&layout.index(), &out, Durability::Normal)
    }
}

fn write_line(line: &IndexLine, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, line).expect("a summary holds strings and numbers only");
    out.push(b'\n');
}
