//! Sources of an import: a plain or compressed file, every session file under a directory, or stdin.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sapwood::core::TimestampMs;
use sapwood::formats::import::detect::{PEEK_BYTES, detect};
use sapwood::formats::import::{Format, LINE_BYTES_MAX};

use super::zstd::{self, FrameReader, TornFlag};
use crate::failure::{Failure, Result};
use crate::lines::read_line;
use crate::render::Format as Output;

/// Minimum total size for a progress bar.
const BAR_BYTES_MIN: u64 = 4 << 20;
/// Maximum depth of the directory search, and maximum number of files.
const DEPTH_MAX: usize = 12;
const FILES_MAX: usize = 1_000_000;
/// Size of the read buffer.
const READ_BYTES: usize = 1 << 18;

/// Files and directories found under the given paths.
#[derive(Default)]
pub struct FoundFiles {
    pub files: Vec<PathBuf>,
    /// Directories that could not be searched completely.
    pub unreadable: Vec<(PathBuf, Failure)>,
    /// Directories from the command line without a session file.
    pub empty: Vec<PathBuf>,
    /// Canonical paths of searched directories, because symbolic links may form a cycle.
    searched: HashSet<PathBuf>,
}

/// Expands directories to the session files under them, sorted by name. Other paths are unchanged.
pub fn expand(paths: &[PathBuf]) -> FoundFiles {
    let mut all = FoundFiles::default();
    for path in paths {
        if path.is_dir() {
            let mut found = FoundFiles::default();
            search(path, 0, &mut found);
            found.files.sort();
            if found.files.is_empty() && found.unreadable.is_empty() {
                all.empty.push(path.clone());
            }
            all.files.append(&mut found.files);
            all.unreadable.append(&mut found.unreadable);
        } else {
            all.files.push(path.clone());
        }
    }
    all
}

fn search(directory: &Path, depth: usize, found: &mut FoundFiles) {
    if let Err(error) = search_entries(directory, depth, found) {
        found.unreadable.push((directory.to_owned(), Failure::file(directory, &error)));
    }
}

fn search_entries(directory: &Path, depth: usize, found: &mut FoundFiles) -> std::io::Result<()> {
    if !found.searched.insert(std::fs::canonicalize(directory)?) {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // Follow symbolic links and ignore broken links.
        let Ok(kind) = path.metadata().map(|metadata| metadata.file_type()) else { continue };
        if kind.is_dir() && depth < DEPTH_MAX {
            search(&path, depth + 1, found);
        } else if kind.is_file() && is_session_file(&path) && found.files.len() < FILES_MAX {
            found.files.push(path);
        }
    }
    Ok(())
}

fn is_session_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let in_chats = || path.parent().is_some_and(|parent| parent.ends_with("chats"));
    name.ends_with(".jsonl")
        || name.ends_with(".jsonl.zst")
        || name == "opencode.db"
        || name == "transcript.json"
        || (name.starts_with("session-") && name.ends_with(".json") && in_chats())
}

/// A file that is being read.
pub struct Source {
    pub name: String,
    pub path: PathBuf,
    /// First bytes of the file, decompressed.
    pub beginning: Vec<u8>,
    /// Modification time of the file, or the current time for stdin.
    pub dated: TimestampMs,
    reader: BufReader<Box<dyn Read + Send>>,
    line: Vec<u8>,
    number: u64,
    /// Set when the decoder detects truncated or damaged data.
    torn: TornFlag,
    bar: ProgressBar,
}

impl Source {
    pub fn open(path: &Path, bar: ProgressBar) -> Result<Self> {
        let failed = |error: std::io::Error| Failure::file(path, &error);
        let mut raw: Box<dyn Read + Send> = match path.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(File::open(path).map_err(failed)?),
        };
        let mut magic = Vec::new();
        raw.by_ref().take(4).read_to_end(&mut magic).map_err(failed)?;
        let is_zstd = zstd::is_frame(&magic);
        let whole: Box<dyn Read + Send> = Box::new(Cursor::new(magic).chain(raw));
        let torn = TornFlag::default();
        let mut reader: Box<dyn Read + Send> = match is_zstd {
            true => Box::new(FrameReader::new(whole, torn.clone())),
            false => whole,
        };
        let mut beginning = Vec::new();
        reader.by_ref().take(PEEK_BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
        let whole: Box<dyn Read + Send> = Box::new(Cursor::new(beginning.clone()).chain(reader));
        Ok(Self {
            name: path.display().to_string(),
            path: path.to_owned(),
            dated: written_at(path),
            beginning,
            torn,
            reader: BufReader::with_capacity(READ_BYTES, whole),
            line: Vec::new(),
            number: 0,
            bar,
        })
    }

    pub fn detect(&self) -> Option<Format> {
        detect(&self.beginning)
    }

    pub fn first_line(&self) -> &[u8] {
        self.beginning.split(|byte| *byte == b'\n').next().unwrap_or_default()
    }

    /// Reports whether the file is a single document. Reads the whole first line, which may be longer than `beginning`.
    pub fn is_document(&mut self, format: Format) -> Result<bool> {
        if !format.is_document(b"") {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        let mut line_start = 0;
        loop {
            let remaining = (LINE_BYTES_MAX + 1).saturating_sub(bytes.len());
            let read = self.reader.by_ref().take(remaining as u64).read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| Failure::file(&self.path, &error))?;
            if read == 0 || !bytes[line_start..].trim_ascii().is_empty() {
                break;
            }
            line_start = bytes.len();
        }
        let is_document = format.is_document(&bytes[line_start..]);
        let nothing: Box<dyn Read + Send> = Box::new(std::io::empty());
        let rest = std::mem::replace(&mut self.reader, BufReader::with_capacity(0, nothing));
        self.reader = BufReader::with_capacity(READ_BYTES, Box::new(Cursor::new(bytes).chain(rest)));
        Ok(is_document)
    }

    /// Reports whether the compressed data read so far was truncated or damaged.
    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Relaxed)
    }

    pub fn line_number(&self) -> u64 {
        self.number
    }

    /// Returns the next line with its number, or `None` at the end.
    pub fn next_line(&mut self, limit_bytes: usize) -> Result<Option<(&[u8], u64)>> {
        let read = read_line(&mut self.reader, &mut self.line, limit_bytes);
        if !read.map_err(|error| Failure::file(Path::new(&self.name), &error))? {
            return Ok(None);
        }
        self.number += 1;
        self.bar.inc(self.line.len() as u64);
        Ok(Some((&self.line, self.number)))
    }

    /// Returns the whole file, or `None` if it exceeds the limit.
    pub fn read_all(&mut self, limit_bytes: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(limit_bytes as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::file(Path::new(&self.name), &error))?;
        self.bar.inc(bytes.len() as u64);
        Ok(Some(bytes).filter(|bytes| bytes.len() <= limit_bytes))
    }
}

fn written_at(path: &Path) -> TimestampMs {
    let written = path.metadata().and_then(|metadata| metadata.modified());
    let since = written.unwrap_or_else(|_| SystemTime::now()).duration_since(SystemTime::UNIX_EPOCH);
    TimestampMs(since.ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0))
}

/// One progress bar for all files, drawn on stderr if stderr is a terminal.
pub fn bar(files: &[PathBuf], output: Output) -> ProgressBar {
    let size: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
    if output != Output::Text || size < BAR_BYTES_MIN {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::new(size);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_directory_is_reported_and_the_others_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.jsonl"), "{}").unwrap();
        let mut found = FoundFiles::default();
        search(&dir.path().join("gone"), 1, &mut found);
        search(dir.path(), 0, &mut found);
        assert_eq!((found.files.len(), found.unreadable.len()), (1, 1));
        assert_eq!(found.unreadable[0].1.code, "file.not_found");
    }

    #[test]
    fn a_first_line_longer_than_the_peek_buffer_is_read_as_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let line = format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(2 * PEEK_BYTES));
        std::fs::write(&path, format!("\n{line}{line}")).unwrap();
        let mut source = Source::open(&path, ProgressBar::hidden()).unwrap();
        assert!(!source.is_document(Format::Messages).unwrap());
        let mut lengths = Vec::new();
        while let Some((line, number)) = source.next_line(LINE_BYTES_MAX).unwrap() {
            lengths.push((number, line.len()));
        }
        assert_eq!(lengths, [(1, 1), (2, line.len()), (3, line.len())], "no bytes are lost");
    }
}
