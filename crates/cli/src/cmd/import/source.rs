//! Where an import reads from: a file, compressed or not, every session file under a directory, or stdin.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sapwood::formats::import::Format;
use sapwood::formats::import::detect::{PEEK_BYTES, detect};

use crate::failure::{Failure, Result};
use crate::lines::read_line;
use crate::render::Format as Output;

/// From this size in all on there is a progress bar.
const BAR_BYTES_MIN: u64 = 4 << 20;
/// How deep directories are searched, and how many files are taken from them.
const DEPTH_MAX: usize = 12;
const FILES_MAX: usize = 1_000_000;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A file for each path, and for a directory the session files under it, by name.
pub fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut found = Vec::new();
            search(path, 0, &mut found).map_err(|error| Failure::file(path, &error))?;
            found.sort();
            files.append(&mut found);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn search(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        // A link could lead in a circle; what it points to is found where it is.
        if kind.is_dir() && depth < DEPTH_MAX {
            search(&path, depth + 1, found)?;
        } else if kind.is_file() && is_session_file(&path) && found.len() < FILES_MAX {
            found.push(path);
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
    /// Its first bytes, decompressed.
    pub beginning: Vec<u8>,
    reader: BufReader<Box<dyn Read + Send>>,
    line: Vec<u8>,
    number: u64,
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
        let is_zstd = magic == ZSTD_MAGIC;
        let whole: Box<dyn Read + Send> = Box::new(Cursor::new(magic).chain(raw));
        let mut reader: Box<dyn Read + Send> = match is_zstd {
            true => Box::new(Zstd::new(whole).map_err(failed)?),
            false => whole,
        };
        let mut beginning = Vec::new();
        reader.by_ref().take(PEEK_BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
        let whole: Box<dyn Read + Send> = Box::new(Cursor::new(beginning.clone()).chain(reader));
        Ok(Self {
            name: path.display().to_string(),
            path: path.to_owned(),
            beginning,
            reader: BufReader::with_capacity(1 << 18, whole),
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

    /// The next line with its number, or none at the end.
    pub fn next_line(&mut self, limit_bytes: usize) -> Result<Option<(&[u8], u64)>> {
        let read = read_line(&mut self.reader, &mut self.line, limit_bytes);
        if !read.map_err(|error| Failure::file(Path::new(&self.name), &error))? {
            return Ok(None);
        }
        self.number += 1;
        self.bar.inc(self.line.len() as u64);
        Ok(Some((&self.line, self.number)))
    }

    /// All of it, or none if it is longer than the limit.
    pub fn read_all(&mut self, limit_bytes: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(limit_bytes as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::file(Path::new(&self.name), &error))?;
        self.bar.inc(bytes.len() as u64);
        Ok(Some(bytes).filter(|bytes| bytes.len() <= limit_bytes))
    }
}

/// Decompresses as it is read. Every frame of the file is taken, one behind the other.
struct Zstd(ruzstd::decoding::StreamingDecoder<Box<dyn Read + Send>, ruzstd::decoding::FrameDecoder>);

impl Zstd {
    fn new(from: Box<dyn Read + Send>) -> std::io::Result<Self> {
        let decoder = ruzstd::decoding::StreamingDecoder::new(from);
        decoder
            .map(Self)
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()))
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

/// A bar for all files together, drawn on stderr, and only if that is a terminal.
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
