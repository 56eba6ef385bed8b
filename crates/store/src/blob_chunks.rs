//! Splits blobs into chunks, hashes them and enforces the size limit. Used by every store.

use sapwood_core::port::store::{BLOB_BYTES_MAX, BLOB_CHUNK_BYTES_MAX, Result};
use sapwood_core::{BlobHash, StoreError};

use crate::compression::{Packed, pack, unpack};

/// Idle timeout of an upload, in seconds. An upload that is idle for longer fails, and its chunks
/// are deleted.
pub(crate) const UPLOAD_IDLE_S_MAX: i64 = 3_600;

/// Returns the error for an upload that expired because it was idle.
pub(crate) fn upload_expired() -> StoreError {
    let why = format!("it was idle for more than {UPLOAD_IDLE_S_MAX} s and has been deleted");
    StoreError::Invalid { what: "the upload", why }
}

/// Splits bytes into chunks. Only [`BlobChunker::end`] returns the last chunk, so that a blob that
/// fits into one chunk is never split.
pub(crate) struct BlobChunker {
    hasher: blake3::Hasher,
    bytes: u64,
    /// The number of chunks returned so far.
    pub chunks: u32,
    rest: Vec<u8>,
    /// Whether the caller still has to confirm that the last returned chunk is stored.
    is_unconfirmed: bool,
}

/// The hash, the size and the last chunk of a complete blob.
pub(crate) struct BlobEnd {
    pub hash: BlobHash,
    pub bytes: u64,
    pub rest: Vec<u8>,
}

impl BlobChunker {
    pub fn new() -> Self {
        Self { hasher: blake3::Hasher::new(), bytes: 0, chunks: 0, rest: Vec::new(), is_unconfirmed: false }
    }

    /// Consumes the bytes that fit into the current chunk. Returns the chunk when it is full and
    /// more input follows.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_confirmed()?;
        let full = (self.rest.len() == BLOB_CHUNK_BYTES_MAX && !bytes.is_empty())
            .then(|| std::mem::replace(&mut self.rest, Vec::with_capacity(BLOB_CHUNK_BYTES_MAX)));
        let (fits, more) = bytes.split_at(bytes.len().min(BLOB_CHUNK_BYTES_MAX - self.rest.len()));
        self.bytes += fits.len() as u64;
        if self.bytes > BLOB_BYTES_MAX as u64 {
            return Err(StoreError::TooLarge {
                what: "the size of a blob, in bytes,",
                limit: BLOB_BYTES_MAX,
            });
        }
        self.hasher.update(fits);
        self.rest.extend_from_slice(fits);
        *bytes = more;
        self.chunks += u32::from(full.is_some());
        self.is_unconfirmed = full.is_some();
        Ok(full)
    }

    /// Confirms that the returned chunk is stored.
    pub fn confirm_stored(&mut self) {
        self.is_unconfirmed = false;
    }

    pub fn end(&mut self) -> Result<BlobEnd> {
        self.check_confirmed()?;
        let hash = BlobHash::from_bytes(*self.hasher.finalize().as_bytes());
        Ok(BlobEnd { hash, bytes: self.bytes, rest: std::mem::take(&mut self.rest) })
    }

    /// Fails if the last returned chunk has not been confirmed as stored.
    fn check_confirmed(&self) -> Result<()> {
        let why = || "one of its chunks could not be stored; start the upload again".to_owned();
        if self.is_unconfirmed { Err(StoreError::Invalid { what: "the upload", why: why() }) } else { Ok(()) }
    }
}

/// A chunk as the databases store it: compressed, with the hash of its uncompressed bytes, so that
/// damage is detected.
pub(crate) struct BlobChunk {
    pub packed: Packed,
    pub hash: BlobHash,
}

impl BlobChunk {
    pub fn of(bytes: Vec<u8>) -> Self {
        let hash = BlobHash::of(&bytes);
        Self { packed: pack(bytes), hash }
    }

    /// Splits bytes in memory into chunks.
    pub fn all_of(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks(BLOB_CHUNK_BYTES_MAX).map(|chunk| Self::of(chunk.to_vec())).collect()
    }

    /// Decompresses a stored chunk and verifies its hash.
    pub fn read(packing: u8, packed: &[u8], hash: &[u8]) -> Result<Vec<u8>, String> {
        let bytes = unpack(packing, packed, BLOB_CHUNK_BYTES_MAX)?;
        match BlobHash::of(&bytes).as_bytes() == hash {
            true => Ok(bytes),
            false => Err("its bytes do not match their hash".to_owned()),
        }
    }
}

/// The result of a finished upload to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadResult {
    /// The uploaded chunks are now a blob.
    Created,
    /// The blob already existed, so the uploaded chunks are unused.
    Duplicate,
}

/// The result of reading from a blob in a database.
pub(crate) enum BlobRead {
    /// The requested span.
    Span(Vec<u8>),
    /// The whole blob. An older version stored it in its row although it is larger than a chunk.
    Unsplit(Vec<u8>),
}

impl BlobRead {
    /// Returns the span of a blob that is stored in its row, or the whole blob if it must be split.
    pub fn of_row(bytes: Vec<u8>, from: u64, limit: usize) -> Self {
        match bytes.len() > BLOB_CHUNK_BYTES_MAX {
            true => Self::Unsplit(bytes),
            false => Self::Span(slice(&bytes, from, limit).to_vec()),
        }
    }
}

/// Decompresses a blob that is stored in its row and verifies its hash.
pub(crate) fn read_row(blob: BlobHash, packing: u8, packed: &[u8]) -> Result<Vec<u8>, String> {
    let bytes = unpack(packing, packed, BLOB_BYTES_MAX).map_err(|what| format!("blob {blob}: {what}"))?;
    check_hash(blob, BlobHash::of(&bytes)).map(|()| bytes)
}

/// Checks that the hash computed from a blob's bytes is the blob's hash.
pub(crate) fn check_hash(blob: BlobHash, actual: BlobHash) -> Result<(), String> {
    match actual == blob {
        true => Ok(()),
        false => Err(format!("the content of blob {blob} does not match its hash")),
    }
}

/// The number of a chunk, and a range of bytes within it.
pub(crate) type ChunkSpan = (u32, std::ops::Range<usize>);

/// Returns the chunks that cover a byte range: the number of each chunk, and the range within the
/// chunk.
pub(crate) fn span(from: u64, limit: usize, size: u64) -> impl Iterator<Item = ChunkSpan> {
    const CHUNK: u64 = BLOB_CHUNK_BYTES_MAX as u64;
    let end = from.saturating_add(limit.min(BLOB_CHUNK_BYTES_MAX) as u64).min(size);
    let numbers = if from < end { from / CHUNK..end.div_ceil(CHUNK) } else { 0..0 };
    numbers.map(move |number| {
        let inside = |at: u64| at.saturating_sub(number * CHUNK).min(CHUNK) as usize;
        (u32::try_from(number).unwrap_or(u32::MAX), inside(from)..inside(end))
    })
}

/// Returns the bytes of a blob in memory from `from` on: at most `limit`, and at most
/// [`BLOB_CHUNK_BYTES_MAX`].
pub(crate) fn slice(bytes: &[u8], from: u64, limit: usize) -> &[u8] {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    let end = from.saturating_add(limit.min(BLOB_CHUNK_BYTES_MAX)).min(bytes.len());
    &bytes[from..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(writes: &[&[u8]]) -> (Vec<Vec<u8>>, BlobEnd) {
        let mut chunker = BlobChunker::new();
        let mut chunks = Vec::new();
        for mut bytes in writes.iter().copied() {
            while !bytes.is_empty() {
                chunks.extend(chunker.take(&mut bytes).unwrap());
                chunker.confirm_stored();
            }
        }
        assert_eq!(chunks.len(), chunker.chunks as usize);
        (chunks, chunker.end().unwrap())
    }

    #[test]
    fn an_upload_with_an_unconfirmed_chunk_fails() {
        let mut chunker = BlobChunker::new();
        let more = vec![1; BLOB_CHUNK_BYTES_MAX + 1];
        let mut rest = &more[..];
        while chunker.take(&mut rest).unwrap().is_none() {}
        assert!(chunker.take(&mut &b"more"[..]).is_err() && chunker.end().is_err());
        chunker.confirm_stored();
        assert!(chunker.end().is_ok());
    }

    #[test]
    fn all_chunks_but_the_last_are_full_and_none_is_empty() {
        for (size, full) in [
            (0, 0),
            (1, 0),
            (BLOB_CHUNK_BYTES_MAX, 0),
            (BLOB_CHUNK_BYTES_MAX + 1, 1),
            (3 * BLOB_CHUNK_BYTES_MAX, 2),
        ] {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            for width in [size.max(1), 1_000_003, 65_536] {
                let writes: Vec<&[u8]> = bytes.chunks(width).collect();
                let (chunks, end) = split(&writes);
                assert_eq!((chunks.len(), end.bytes, end.hash), (full, size as u64, BlobHash::of(&bytes)));
                assert!(chunks.iter().all(|chunk| chunk.len() == BLOB_CHUNK_BYTES_MAX));
                assert_eq!(end.rest.is_empty(), size == 0);
                assert_eq!([chunks.concat(), end.rest].concat(), bytes);
            }
        }
    }

    #[test]
    fn a_blob_is_rejected_as_soon_as_it_exceeds_the_limit() {
        let mut chunker = BlobChunker::new();
        let chunk = vec![0; BLOB_CHUNK_BYTES_MAX];
        for _ in 0..BLOB_BYTES_MAX / BLOB_CHUNK_BYTES_MAX {
            chunker.take(&mut chunk.as_slice()).unwrap();
            chunker.confirm_stored();
        }
        assert_eq!(chunker.take(&mut [0].as_slice()).unwrap_err().code(), "input.too_large");
    }

    #[test]
    fn a_chunk_is_read_back_and_a_damaged_chunk_is_rejected() {
        let chunk = BlobChunk::of(b"again and again ".repeat(1_000));
        let read = |hash: &[u8]| BlobChunk::read(chunk.packed.packing, &chunk.packed.bytes, hash);
        assert_eq!(read(chunk.hash.as_bytes()).unwrap(), b"again and again ".repeat(1_000));
        assert!(read(BlobHash::of(b"other").as_bytes()).is_err());
        assert!(read(b"").is_err());
    }

    proptest! {
        #[test]
        fn a_span_covers_the_same_bytes_as_the_slice(from in 0..5_000_000_u64, limit in 0..2_000_000_usize, size in 0..4_000_000_u64) {
            let end = from.saturating_add(limit.min(BLOB_CHUNK_BYTES_MAX) as u64).min(size);
            let mut at = from;
            for (number, inside) in span(from, limit, size) {
                prop_assert!(!inside.is_empty());
                prop_assert_eq!(u64::from(number) * BLOB_CHUNK_BYTES_MAX as u64 + inside.start as u64, at);
                at += inside.len() as u64;
            }
            prop_assert_eq!(at, end.max(from));
        }
    }
}
