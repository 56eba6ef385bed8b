//! Lossless export as Sapwood's JSONL: a header, then one line per entry in seq order. The file of a fork
//! includes its shared entries, so every file is self-contained.
//!
//! Media is written before the first entry that refers to it, in lines of type `blob`. Each line contains the hash
//! and up to [`CHUNK_BYTES_MAX`] bytes in base64.
//!
//! Memory: constant, plus 32 bytes per blob. A line references its parent by id, and the parent of every entry is
//! the current leaf. The leaf is the last entry in the tree, unless a `leaf_moved` set another leaf. Therefore the
//! exporter needs no table from seq to id.

use std::collections::HashSet;
use std::io::Write;

use sapwood_core::entry::{LOG_VERSION, Stance, codec, jsonl};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Body, EntryId, Kind, Record, Seq};

use super::ExportError;
use crate::header::Header;
use crate::import::text::encode_base64;

/// Maximum number of blob bytes in one line.
pub const CHUNK_BYTES_MAX: usize = 3 << 20;

/// Return the number of chunks, and thus lines, of a blob of this size.
pub fn chunk_count(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES_MAX as u64).max(1)
}

/// Writes one session. The writer should be buffered.
pub struct Exporter<W> {
    out: W,
    buffer: Vec<u8>,
    last: Seq,
    leaf: Leaf,
    blobs: HashSet<BlobHash>,
}

/// The leaf after the entries so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    None,
    At(Seq, EntryId),
    /// The target of a `leaf_moved`. Its seq becomes known with the next entry.
    Moved(EntryId),
}

impl<W: Write> Exporter<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(4 << 10),
            last: Seq::ZERO,
            leaf: Leaf::None,
            blobs: HashSet::new(),
        }
    }

    pub fn header(&mut self, summary: &Summary) -> Result<(), ExportError> {
        self.buffer.clear();
        serde_json::to_writer(&mut self.buffer, &Header::of(summary)).map_err(std::io::Error::from)?;
        self.buffer.push(b'\n');
        self.out.write_all(&self.buffer)?;
        Ok(())
    }

    /// Return the blobs that must be written before a record.
    pub fn missing_blobs(&self, record: &Record) -> Result<Vec<BlobHash>, ExportError> {
        // Most bodies reference no blob, so skip decoding them.
        if !mentions_blob(&record.body) {
            return Ok(Vec::new());
        }
        let body =
            record.decode().map_err(|source| ExportError::Unreadable { seq: record.meta.seq, source })?;
        let mut missing = body.blobs();
        let mut named = HashSet::new();
        missing.retain(|blob| !self.blobs.contains(blob) && named.insert(*blob));
        Ok(missing)
    }

    /// Write one chunk of a blob that the next record refers to. Chunks are written in order and numbered
    /// from 1. Each chunk except the last has [`CHUNK_BYTES_MAX`] bytes. An empty blob also has one chunk.
    pub fn blob_chunk(
        &mut self,
        blob: BlobHash,
        (number, count): (u64, u64),
        bytes: &[u8],
    ) -> Result<(), ExportError> {
        let data = encode_base64(bytes);
        let line = format!(
            "{{\"type\":\"blob\",\"blob\":\"{blob}\",\"piece\":{number},\"pieces\":{count},\"data\":\"{data}\"}}\n"
        );
        self.out.write_all(line.as_bytes())?;
        if number == count {
            self.blobs.insert(blob);
        }
        Ok(())
    }

    /// Write the next record. Records must be in order and without gaps, beginning with seq 1.
    pub fn line(&mut self, record: &Record) -> Result<(), ExportError> {
        let meta = &record.meta;
        if meta.seq != self.last.next() {
            return Err(ExportError::OutOfOrder { expected: self.last.next(), found: meta.seq });
        }
        let parent_id = self.parent_of(record)?;
        self.buffer.clear();
        // The body of a membership records whether the membership is valid in this store. An export must not
        // contain that field.
        if record.version == LOG_VERSION && meta.kind != Kind::MemberChanged {
            jsonl::write_line(record, parent_id, &mut self.buffer);
        } else {
            jsonl::write_line(&upgraded(record)?, parent_id, &mut self.buffer);
        }
        self.out.write_all(&self.buffer)?;
        self.last = meta.seq;
        self.move_leaf(record)
    }

    /// Flush and return the writer.
    pub fn finish(mut self) -> Result<W, ExportError> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn parent_of(&self, record: &Record) -> Result<Option<EntryId>, ExportError> {
        match (self.leaf, record.meta.parent) {
            (Leaf::None, None) => Ok(None),
            (Leaf::At(seq, id), Some(parent)) if seq == parent => Ok(Some(id)),
            (Leaf::Moved(id), Some(_)) => Ok(Some(id)),
            _ => Err(ExportError::OffLeaf { seq: record.meta.seq }),
        }
    }

    fn move_leaf(&mut self, record: &Record) -> Result<(), ExportError> {
        let meta = &record.meta;
        if meta.kind.stance() == Stance::InTree {
            self.leaf = Leaf::At(meta.seq, meta.id);
        } else if let (Leaf::Moved(id), Some(parent)) = (self.leaf, meta.parent) {
            self.leaf = Leaf::At(parent, id);
        }
        if meta.kind == Kind::LeafMoved {
            let body = record.decode().map_err(|source| ExportError::Unreadable { seq: meta.seq, source })?;
            if let Body::LeafMoved(moved) = body {
                self.leaf = moved.to.map_or(Leaf::None, Leaf::Moved);
            }
        }
        Ok(())
    }
}

/// Convert a record to the current format version. In a membership, clear the field that is local to this store.
fn upgraded(record: &Record) -> Result<Record, ExportError> {
    let unreadable = |source| ExportError::Unreadable { seq: record.meta.seq, source };
    let mut body = record.decode().map_err(unreadable)?;
    if let Body::MemberChanged(changed) = &mut body {
        changed.elsewhere = false;
    }
    Ok(Record { meta: record.meta.clone(), version: LOG_VERSION, body: codec::encode(&body) })
}

fn mentions_blob(body: &[u8]) -> bool {
    body.windows(7).any(|window| window == b"\"blob\":")
}
