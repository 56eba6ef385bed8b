//! Where an import reads from: a file, every .jsonl file of a directory, or stdin.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Result};
use crate::lines::read_line;
use crate::render::Format;

/// Files from this size on get a progress bar.
const BAR_BYTES_MIN: u64 = 4 << 20;

/// A file for each path, and for a directory its .jsonl files by name.
pub fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |error: std::io::Error| Failure::file(path, &error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "jsonl") && file.is_file() {
                found.push(file);
            }
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// A file that is being read.
pub struct Source {
    pub name: String,
    reader: BufReader<Box<dyn Read>>,
    line: Vec<u8>,
    number: u64,
    bar: ProgressBar,
}

impl Source {
    pub fn open(path: &Path, format: Format) -> Result<Self> {
        let (reader, size): (Box<dyn Read>, u64) = if path.as_os_str() == "-" {
            (Box::new(std::io::stdin()), 0)
        } else {
            let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
            let size = file.metadata().map_or(0, |metadata| metadata.len());
            (Box::new(file), size)
        };
        let bar = match format {
            Format::Text if size >= BAR_BYTES_MIN => bar(size),
            _ => ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
        };
        let reader = BufReader::with_capacity(1 << 16, reader);
        Ok(Self { name: path.display().to_string(), reader, line: Vec::new(), number: 0, bar })
    }

    /// The next line with its number, or none at the end.
    pub fn next_line(&mut self, limit_bytes: usize) -> Result<Option<(&[u8], u64)>> {
        let read = read_line(&mut self.reader, &mut self.line, limit_bytes);
        if !read.map_err(|error| Failure::file(Path::new(&self.name), &error))? {
            self.bar.finish_and_clear();
            return Ok(None);
        }
        self.number += 1;
        self.bar.inc(self.line.len() as u64);
        Ok(Some((&self.line, self.number)))
    }
}

/// Drawn on stderr, and only if that is a terminal.
fn bar(size: u64) -> ProgressBar {
    let bar = ProgressBar::new(size);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
