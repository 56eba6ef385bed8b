//! The machine's baseline: plain file operations on the same bytes, in the same directory, in the same run.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Append the lines and sync after every `per_sync` lines.
pub fn append_synced(path: &Path, lines: &[Vec<u8>], per_sync: usize) -> std::io::Result<Duration> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    file.sync_all()?;
    let mut batch = Vec::new();
    let start = Instant::now();
    for group in lines.chunks(per_sync.max(1)) {
        batch.clear();
        group.iter().for_each(|line| batch.extend_from_slice(line));
        file.write_all(&batch)?;
        file.sync_data()?;
    }
    Ok(start.elapsed())
}

/// Append to a preallocated file, so that a sync does not have to write a new file length.
pub fn append_preallocated(path: &Path, lines: &[Vec<u8>]) -> std::io::Result<Duration> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    let total: usize = lines.iter().map(Vec::len).sum();
    let zeros = vec![0u8; 1 << 20];
    for from in (0..total).step_by(zeros.len()) {
        file.write_all(&zeros[..zeros.len().min(total - from)])?;
    }
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let start = Instant::now();
    for line in lines {
        file.write_all(line)?;
        file.sync_data()?;
    }
    Ok(start.elapsed())
}

/// Write lines without syncing. Other baselines read them.
pub fn write_lines(path: &Path, lines: impl Iterator<Item = Vec<u8>>) -> std::io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut bytes = 0;
    for line in lines {
        bytes += line.len() as u64;
        out.write_all(&line)?;
    }
    out.flush()?;
    Ok(bytes)
}

/// Parse every line and keep all values: the minimum cost of loading a whole session.
pub fn parse_all(path: &Path) -> anyhow::Result<Vec<serde_json::Value>> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut values = Vec::new();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        values.push(serde_json::from_slice(&line)?);
        line.clear();
    }
    Ok(values)
}

/// Parse the last `count` lines, reading from the end of the file.
pub fn parse_last(path: &Path, count: usize) -> anyhow::Result<Vec<serde_json::Value>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut window = 64u64 << 10;
    loop {
        let from = length.saturating_sub(window);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::with_capacity(window as usize);
        file.read_to_end(&mut tail)?;
        let lines: Vec<&[u8]> = tail.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        if lines.len() > count || from == 0 {
            let last = &lines[lines.len().saturating_sub(count)..];
            return last.iter().map(|line| Ok(serde_json::from_slice(line)?)).collect();
        }
        window *= 2;
    }
}
