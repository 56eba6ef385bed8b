//! The file of one session: reads bodies and appends batches.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sapwood_core::entry::jsonl::{read_line, type_head};
use sapwood_core::port::store::Result;
use sapwood_core::{Kind, StoreError};

use super::disk::{At, io_error, sync};
use super::line_sum::{self, BadSum, LineState};
use crate::Durability;
use crate::mem_log::StoredBody;
use crate::validate::damaged;

#[derive(Debug)]
pub struct LogFile {
    pub path: PathBuf,
    /// The file name without its extension. Forks reference the file by this name.
    pub stem: String,
    writable: bool,
    /// Stays open while any row references a body in the file, so that the body stays readable.
    file: Mutex<File>,
}

impl LogFile {
    /// Opens an existing file. Returns `None` if it does not exist.
    pub fn open(path: PathBuf, stem: &str) -> Result<Option<Self>> {
        let mut writable = true;
        let opened = match OpenOptions::new().read(true).append(true).open(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
            {
                writable = false;
                File::open(&path)
            }
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(Self { path, stem: stem.to_owned(), writable, file: Mutex::new(file) })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error(&path, source)),
        }
    }

    pub fn place(&self) -> String {
        self.path.display().to_string()
    }

    pub fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a second handle that shares the lock of the first.
    pub fn handle(&self) -> Result<File> {
        self.file().try_clone().at(&self.path)
    }

    /// Returns the length of the file, or `None` if its path no longer refers to this file.
    pub fn length_if_current(&self) -> Result<Option<u64>> {
        match std::fs::metadata(&self.path) {
            Ok(named) => {
                let opened = self.file().metadata().at(&self.path)?;
                Ok(is_same_file(&named, &opened).then_some(named.len()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(io_error(&self.path, source)),
        }
    }

    pub fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset)).at(&self.path)?;
        match file.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(damaged(self.place(), format!("bytes at offset {offset} are missing")))
            }
            Err(source) => Err(io_error(&self.path, source)),
        }
    }

    /// Appends a batch in one write. If the write fails, truncates the file to its previous length
    /// `end`, so that the batch is written completely or not at all (I4).
    pub fn append(&self, end: u64, bytes: &[u8], durability: Durability) -> Result<()> {
        if !self.writable {
            return Err(StoreError::ReadOnly { place: self.place(), why: "it is read-only".to_owned() });
        }
        let mut file = self.file();
        let written = file.write_all(bytes).at(&self.path).and_then(|()| sync(&file, &self.path, durability));
        if written.is_err() {
            // If truncating fails, too, the next reader cuts off the torn batch.
            let _ = file.set_len(end);
        }
        written
    }

    /// Truncates the file at byte `end`, after copying the rest to `torn`. Returns the size of the
    /// rest.
    pub fn cut(&self, end: u64, torn: &Path, durability: Durability) -> Result<usize> {
        let length = self.file().metadata().at(&self.path)?.len();
        let tail = self.read_at(end, usize::try_from(length.saturating_sub(end)).unwrap_or(0))?;
        let mut torn_file = super::disk::open_to_append(torn)?;
        torn_file.write_all(&tail).at(torn)?;
        torn_file.write_all(b"\n").at(torn)?;
        sync(&torn_file, torn, durability)?;
        let file = self.file();
        file.set_len(end).at(&self.path)?;
        sync(&file, &self.path, durability)?;
        Ok(tail.len())
    }
}

#[cfg(unix)]
fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// The location of a body: in memory until its session is written, then in the file.
#[derive(Debug, Clone)]
pub enum BodyHandle {
    Memory(Arc<[u8]>),
    /// A line that this version wrote. The body's fields begin at `fields`, as the codec wrote them.
    Fields {
        line: LineRange,
        fields: u32,
    },
    /// A line that this version would write differently: it comes from an older version or a text
    /// editor.
    Line {
        line: LineRange,
        version: u32,
    },
}

/// A line of a file, without its line break.
#[derive(Debug, Clone)]
pub struct LineRange {
    pub file: Arc<LogFile>,
    pub offset: u64,
    pub len: u32,
    pub state: LineState,
}

impl LineRange {
    /// Reads the line and checks it again: it may have been damaged since it was first read.
    fn read(&self) -> Result<Vec<u8>> {
        let line = self.file.read_at(self.offset, self.len as usize)?;
        match line_sum::check(&line) {
            Ok(state) if state == self.state => Ok(line),
            _ => Err(self.damaged(BadSum)),
        }
    }

    fn damaged(&self, what: impl ToString) -> StoreError {
        let before = self.file.read_at(0, usize::try_from(self.offset).unwrap_or(0)).unwrap_or_default();
        let number = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        damaged(format!("{}:{number}", self.file.place()), what)
    }
}

impl BodyHandle {
    pub fn file(&self) -> Option<&Arc<LogFile>> {
        match self {
            BodyHandle::Memory(_) => None,
            BodyHandle::Fields { line, .. } | BodyHandle::Line { line, .. } => Some(&line.file),
        }
    }
}

impl StoredBody for BodyHandle {
    fn load(&self, kind: Kind) -> Result<Vec<u8>, StoreError> {
        match self {
            BodyHandle::Memory(bytes) => Ok(bytes.to_vec()),
            BodyHandle::Fields { line, fields } => {
                let bytes = line.read()?;
                let mut body = type_head(kind).into_bytes();
                match line.state {
                    LineState::Unproven => body.extend(&bytes[*fields as usize..]),
                    LineState::Proven => {
                        body.extend(&bytes[*fields as usize..line_sum::content_end(bytes.len())]);
                        body.push(b'}');
                    }
                }
                Ok(body)
            }
            BodyHandle::Line { line, version } => {
                let bytes = line.read()?;
                let read = read_line(*version, &bytes).map_err(|error| line.damaged(error))?;
                Ok(read.encoded())
            }
        }
    }
}
