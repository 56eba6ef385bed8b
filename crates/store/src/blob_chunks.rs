//! Splits blobs into pieces, hashes them, and enforces the size limit, for every store.

use sapwood_core::port::store::{BLOB_BYTES_MAX, PIECE_BYTES_MAX, Result};
use sapwood_core::{BlobHash, StoreError};

use crate::compression::{Packed, pack, unpack};

/// Idle timeout of an upload, in seconds. An upload that is idle for longer fails, and its pieces
/// are deleted.
pub(crate) const UPLOAD_IDLE_S_MAX: i64 = 3_600;

/// Returns the error for an upload that expired because it was idle.
pub(crate) fn idle() -> StoreError {
    let why = format!("it was idle for more than {UPLOAD_IDLE_S_MAX} s and has been deleted");
    StoreError::Invalid { what: "the upload", why }
}

/// Cuts bytes into pieces. The last piece is held back until the end, so that a blob that fits into
/// one piece is never cut.
pub(crate) struct Cutter {
    hasher: blake3::Hasher,
    bytes: u64,
    /// The number of pieces returned so far.
    pub pieces: u32,
    rest: Vec<u8>,
    /// Whether the caller still has to confirm that the last returned piece is stored.
    is_owed: bool,
}

/// The hash, the size and the last piece of a complete blob.
pub(crate) struct End {
    pub hash: BlobHash,
    pub bytes: u64,
    pub rest: Vec<u8>,
}

impl Cutter {
    pub fn new() -> Self {
        Self { hasher: blake3::Hasher::new(), bytes: 0, pieces: 0, rest: Vec::new(), is_owed: false }
    }

    /// Consumes the bytes that fit into the current piece. Returns the piece when it is full and
    /// more input follows.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_whole()?;
        let full = (self.rest.len() == PIECE_BYTES_MAX && !bytes.is_empty())
            .then(|| std::mem::replace(&mut self.rest, Vec::with_capacity(PIECE_BYTES_MAX)));
        let (fits, more) = bytes.split_at(bytes.len().min(PIECE_BYTES_MAX - self.rest.len()));
        self.bytes += fits.len() as u64;
        if self.bytes > BLOB_BYTES_MAX as u64 {
            return Err(StoreError::TooLarge { what: "a blob", limit: BLOB_BYTES_MAX });
        }
        self.hasher.update(fits);
        self.rest.extend_from_slice(fits);
        *bytes = more;
        self.pieces += u32::from(full.is_some());
        self.is_owed = full.is_some();
        Ok(full)
    }

    /// Confirms that the returned piece is stored.
    pub fn kept(&mut self) {
        self.is_owed = false;
    }

    pub fn end(&mut self) -> Result<End> {
        self.check_whole()?;
        let hash = BlobHash::from_bytes(*self.hasher.finalize().as_bytes());
        Ok(End { hash, bytes: self.bytes, rest: std::mem::take(&mut self.rest) })
    }

    /// Rejects an upload that lacks a piece.
    fn check_whole(&self) -> Result<()> {
        let why = || "a piece of it could not be stored; start the upload again".to_owned();
        if self.is_owed { Err(StoreError::Invalid { what: "the upload", why: why() }) } else { Ok(()) }
    }
}

/// A piece as databases store it: compressed, with the hash of its bytes, so that damage is
/// detected.
pub(crate) struct Piece {
    pub packed: Packed,
    pub hash: BlobHash,
}

impl Piece {
    pub fn of(bytes: Vec<u8>) -> Self {
        let hash = BlobHash::of(&bytes);
        Self { packed: pack(bytes), hash }
    }

    /// Cuts bytes in memory into pieces.
    pub fn all_of(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks(PIECE_BYTES_MAX).map(|piece| Self::of(piece.to_vec())).collect()
    }

    /// Decompresses a stored piece and verifies its hash.
    pub fn read(packing: u8, packed: &[u8], hash: &[u8]) -> Result<Vec<u8>, String> {
        let bytes = unpack(packing, packed, PIECE_BYTES_MAX)?;
        match BlobHash::of(&bytes).as_bytes() == hash {
            true => Ok(bytes),
            false => Err("its bytes do not match their hash".to_owned()),
        }
    }
}

/// Returns the pieces that cover a byte range: the number of each piece, and the range within the
/// piece.
pub(crate) fn span(
    from: u64,
    limit: usize,
    size: u64,
) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> {
    const PIECE: u64 = PIECE_BYTES_MAX as u64;
    let end = from.saturating_add(limit.min(PIECE_BYTES_MAX) as u64).min(size);
    let numbers = if from < end { from / PIECE..end.div_ceil(PIECE) } else { 0..0 };
    numbers.map(move |number| {
        let inside = |at: u64| at.saturating_sub(number * PIECE).min(PIECE) as usize;
        (u32::try_from(number).unwrap_or(u32::MAX), inside(from)..inside(end))
    })
}

/// Returns the requested part of bytes in memory.
pub(crate) fn slice(bytes: &[u8], from: u64, limit: usize) -> &[u8] {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    let end = from.saturating_add(limit.min(PIECE_BYTES_MAX)).min(bytes.len());
    &bytes[from..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(writes: &[&[u8]]) -> (Vec<Vec<u8>>, End) {
        let mut cutter = Cutter::new();
        let mut pieces = Vec::new();
        for mut bytes in writes.iter().copied() {
            while !bytes.is_empty() {
                pieces.extend(cutter.take(&mut bytes).unwrap());
                cutter.kept();
            }
        }
        assert_eq!(pieces.len(), cutter.pieces as usize);
        (pieces, cutter.end().unwrap())
    }

    #[test]
    fn an_upload_that_lacks_a_piece_fails() {
        let mut cutter = Cutter::new();
        let more = vec![1; PIECE_BYTES_MAX + 1];
        let mut rest = &more[..];
        while cutter.take(&mut rest).unwrap().is_none() {}
        assert!(cutter.take(&mut &b"more"[..]).is_err() && cutter.end().is_err());
        cutter.kept();
        assert!(cutter.end().is_ok());
    }

    #[test]
    fn all_pieces_but_the_last_are_full_and_none_is_empty() {
        for (size, full) in
            [(0, 0), (1, 0), (PIECE_BYTES_MAX, 0), (PIECE_BYTES_MAX + 1, 1), (3 * PIECE_BYTES_MAX, 2)]
        {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            for width in [size.max(1), 1_000_003, 65_536] {
                let writes: Vec<&[u8]> = bytes.chunks(width).collect();
                let (pieces, end) = cut(&writes);
                assert_eq!((pieces.len(), end.bytes, end.hash), (full, size as u64, BlobHash::of(&bytes)));
                assert!(pieces.iter().all(|piece| piece.len() == PIECE_BYTES_MAX));
                assert_eq!(end.rest.is_empty(), size == 0);
                assert_eq!([pieces.concat(), end.rest].concat(), bytes);
            }
        }
    }

    #[test]
    fn a_blob_is_rejected_as_soon_as_it_exceeds_the_limit() {
        let mut cutter = Cutter::new();
        let piece = vec![0; PIECE_BYTES_MAX];
        for _ in 0..BLOB_BYTES_MAX / PIECE_BYTES_MAX {
            cutter.take(&mut piece.as_slice()).unwrap();
            cutter.kept();
        }
        assert_eq!(cutter.take(&mut [0].as_slice()).unwrap_err().code(), "input.too_large");
    }

    #[test]
    fn a_piece_reads_back_and_a_damaged_one_does_not() {
        let piece = Piece::of(b"again and again ".repeat(1_000));
        let read = |hash: &[u8]| Piece::read(piece.packed.packing, &piece.packed.bytes, hash);
        assert_eq!(read(piece.hash.as_bytes()).unwrap(), b"again and again ".repeat(1_000));
        assert!(read(BlobHash::of(b"other").as_bytes()).is_err());
        assert!(read(b"").is_err());
    }

    proptest! {
        #[test]
        fn a_span_covers_the_same_bytes_as_the_slice(from in 0..5_000_000_u64, limit in 0..2_000_000_usize, size in 0..4_000_000_u64) {
            let end = from.saturating_add(limit.min(PIECE_BYTES_MAX) as u64).min(size);
            let mut at = from;
            for (number, inside) in span(from, limit, size) {
                prop_assert!(!inside.is_empty());
                prop_assert_eq!(u64::from(number) * PIECE_BYTES_MAX as u64 + inside.start as u64, at);
                at += inside.len() as u64;
            }
            prop_assert_eq!(at, end.max(from));
        }
    }
}
