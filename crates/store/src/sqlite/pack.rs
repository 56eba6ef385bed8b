//! Bodies on disk: JSON, compressed where that pays.

use std::cell::RefCell;

use sapwood_core::StoreError;
use sapwood_core::entry::codec;
use sapwood_core::port::store::{BODY_BYTES_MAX, Result};
use sapwood_core::Body;

use super::search;

/// Bodies shorter than this are kept as they are: the frame would eat what is won.
const PACK_BYTES_MIN: usize = 192;
/// Fast enough to vanish beside the commit; higher levels win little on single messages.
const LEVEL: i32 = 1;

/// How a stored body is packed. The numbers are on disk.
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

pub(super) struct Packed {
    pub packing: u8,
    pub bytes: Vec<u8>,
}

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// A body ready to be written: packed, and the words it is found by.
pub(super) struct PackedBody {
    pub packed: Packed,
    pub words: Option<String>,
}

/// Encodes and packs a body; refuses one that is too large. This is most of an append's work, and needs no connection:
/// the caller does it before it asks for the writer.
pub(super) fn pack_body(body: &Body) -> Result<PackedBody> {
    let json = codec::encode(body);
    if json.len() > BODY_BYTES_MAX {
        return Err(StoreError::TooLarge { what: "an entry's body, in bytes,", limit: BODY_BYTES_MAX });
    }
    Ok(PackedBody { packed: pack(json), words: search::words_of(body) })
}

pub(super) fn pack(bytes: Vec<u8>) -> Packed {
    if bytes.len() >= PACK_BYTES_MIN
        && let Ok(small) = compress(&bytes)
        && small.len() + small.len() / 8 < bytes.len()
    {
        return Packed { packing: ZSTD, bytes: small };
    }
    Packed { packing: PLAIN, bytes }
}

fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(zstd::bulk::Compressor::new(LEVEL)?),
        };
        compressor.compress(bytes)
    })
}

/// Unpacks what [`pack`] made. `limit` bounds what a damaged frame may claim.
pub(super) fn unpack(packing: u8, bytes: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    match packing {
        PLAIN => Ok(bytes.to_vec()),
        ZSTD => {
            let claimed = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
            let size = claimed.and_then(|size| usize::try_from(size).ok()).filter(|size| *size <= limit);
            let size = size.ok_or("its compressed frame has no valid size")?;
            decompress(bytes, size).map_err(|error| format!("its compressed frame is damaged: {error}"))
        }
        other => Err(format!("packing {other} is not known")),
    }
}

fn decompress(bytes: &[u8], size: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        decompressor.decompress(bytes, size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_unpacks_to_the_same_bytes() {
        for bytes in [Vec::new(), b"short".to_vec(), b"again and again ".repeat(100)] {
            let packed = pack(bytes.clone());
            assert_eq!(unpack(packed.packing, &packed.bytes, 1 << 20).unwrap(), bytes);
        }
    }

    #[test]
    fn a_damaged_frame_is_an_error_and_not_a_huge_allocation() {
        let mut packed = pack(b"again and again ".repeat(100));
        assert!(unpack(packed.packing, &packed.bytes, 10).is_err());
        packed.bytes.truncate(12);
        assert!(unpack(packed.packing, &packed.bytes, 1 << 20).is_err());
        assert!(unpack(77, b"", 10).is_err());
    }
}
