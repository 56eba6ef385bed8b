//! Sapwood's own JSONL, lossless: a header, then an entry a line in the order of their seqs. A fork's file holds the
//! entries it shares too, so every file stands alone.
//!
//! Media stands before the first entry that names it, in lines of type `blob`: its hash, and its bytes in base64, in
//! pieces of at most [`PIECE_BYTES_MAX`].
//!
//! Memory: constant, but for 32 bytes for each blob. A line names its parent by id, and the parent of every entry is the leaf, which the entries before
//! it tell: the last one in the tree, unless a `leaf_moved` named another. So no table from seq to id is needed.

use std::collections::HashSet;
use std::io::Write;

use sapwood_core::entry::{LOG_VERSION, Stance, codec, jsonl};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Body, EntryId, Kind, Record, Seq};

use super::ExportError;
use crate::header::Header;
use crate::import::text::encode_base64;

/// Most bytes of a blob in one line.
pub const PIECE_BYTES_MAX: usize = 3 << 20;

/// Into how many lines a blob of this size goes.
pub fn pieces_of(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE_BYTES_MAX as u64).max(1)
}

/// Writes one session. What it writes to should be buffered.
pub struct Exporter<W> {
    out: W,
    buffer: Vec<u8>,
    last: Seq,
    leaf: Leaf,
    blobs: HashSet<BlobHash>,
}

/// The leaf as the entries so far leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    None,
    At(Seq, EntryId),
    /// Where a `leaf_moved` put it; its seq shows when something hangs from it.
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

    /// The blobs that have to be written before a record.
    pub fn missing_blobs(&self, record: &Record) -> Result<Vec<BlobHash>, ExportError> {
        // Most bodies have none, and are not read for it.
        if !names_blob(&record.body) {
            return Ok(Vec::new());
        }
        let body =
            record.decode().map_err(|source| ExportError::Unreadable { seq: record.meta.seq, source })?;
        let mut missing = body.blobs();
        let mut named = HashSet::new();
        missing.retain(|blob| !self.blobs.contains(blob) && named.insert(*blob));
        Ok(missing)
    }

    /// A piece of a blob that the next record names. They come in order, numbered from one, each but the last of
    /// [`PIECE_BYTES_MAX`]; an empty blob has one, too.
    pub fn blob_piece(
        &mut self,
        blob: BlobHash,
        (piece, pieces): (u64, u64),
        bytes: &[u8],
    ) -> Result<(), ExportError> {
        let data = encode_base64(bytes);
        let line = format!(
            "{{\"type\":\"blob\",\"blob\":\"{blob}\",\"piece\":{piece},\"pieces\":{pieces},\"data\":\"{data}\"}}\n"
        );
        self.out.write_all(line.as_bytes())?;
        if piece == pieces {
            self.blobs.insert(blob);
        }
        Ok(())
    }

    /// The next record; they must come in order and without gaps, beginning with seq 1.
    pub fn line(&mut self, record: &Record) -> Result<(), ExportError> {
        let meta = &record.meta;
        if meta.seq != self.last.next() {
            return Err(ExportError::OutOfOrder { expected: self.last.next(), found: meta.seq });
        }
        let parent_id = self.parent_of(record)?;
        self.buffer.clear();
        // A membership's body says whether it counts here, and a file tells it to nobody.
        if record.version == LOG_VERSION && meta.kind != Kind::MemberChanged {
            jsonl::write_line(record, parent_id, &mut self.buffer);
        } else {
            jsonl::write_line(&renewed(record)?, parent_id, &mut self.buffer);
        }
        self.out.write_all(&self.buffer)?;
        self.last = meta.seq;
        self.move_leaf(record)
    }

    /// Gives back what was written to, flushed.
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

/// A record of an older format, as today's, and a membership without where it counts.
fn renewed(record: &Record) -> Result<Record, ExportError> {
    let unreadable = |source| ExportError::Unreadable { seq: record.meta.seq, source };
    let mut body = record.decode().map_err(unreadable)?;
    if let Body::MemberChanged(changed) = &mut body {
        changed.elsewhere = false;
    }
    Ok(Record { meta: record.meta.clone(), version: LOG_VERSION, body: codec::encode(&body) })
}

fn names_blob(body: &[u8]) -> bool {
    body.windows(7).any(|window| window == b"\"blob\":")
}
