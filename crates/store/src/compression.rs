//! Compression of entry bodies and blob chunks. Bytes that would shrink by less than a ninth are
//! stored uncompressed.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use lz4_flex::block;
use sapwood_core::entry::{codec, encode_in};
use sapwood_core::port::store::{BODY_BYTES_MAX, Result};
use sapwood_core::{Body, Draft, Kind, StoreError};

/// Minimum size for compression, in bytes. Shorter bodies hardly shrink.
const PACK_BYTES_MIN: usize = 128;

/// Batches of at least this many bodies (imports) are compressed on two threads.
const PARALLEL_BODIES_MIN: usize = 256;
/// Bodies per work unit. Small units keep a slow thread from delaying the batch.
const UNIT_BODIES: usize = 32;

/// Not compressed. The numbers of the formats are stored on disk.
const PLAIN: u8 = 0;
/// Four bytes with the uncompressed length, followed by an LZ4 block.
const LZ4: u8 = 1;
/// Like [`LZ4`], but the block may refer to [`DICTIONARY`].
const LZ4_WITH_DICTIONARY: u8 = 2;

/// Bodies of at least this size are compressed without the dictionary, which is faster and
/// sufficient for them.
const DICTIONARY_FOR_BYTES_MAX: usize = 4096;

/// An LZ4 dictionary of text that is common in messages of coding agents: the envelope of our JSON,
/// and fragments of code and conversation. A single message is too short to compress well without
/// it. The dictionary is part of the format and never changes: another dictionary gets a new format
/// number.
const DICTIONARY: &[u8] = include_bytes!("dictionary-1.txt");

pub(crate) struct Packed {
    pub packing: u8,
    pub bytes: Vec<u8>,
}

/// Encodes a body and checks its size limit.
pub(crate) fn encode_body(body: &Body) -> Result<Vec<u8>> {
    checked(codec::encode(body))
}

fn checked(json: Vec<u8>) -> Result<Vec<u8>> {
    if json.len() > BODY_BYTES_MAX {
        return Err(StoreError::TooLarge { what: "the size of an entry, in bytes,", limit: BODY_BYTES_MAX });
    }
    Ok(json)
}

/// Like [`encode_body`], in a format version that may be older. Also returns the kind of the row.
pub(crate) fn encode_body_in(version: u32, body: &Body) -> Result<(Kind, Vec<u8>)> {
    let (kind, json) = encode_in(version, body);
    Ok((kind, checked(json)?))
}

/// Applies `pack` to the index and the content of each draft and returns the results in the order of
/// the drafts. Packing is a large part of the work of an append and needs no connection, so the caller
/// packs before it acquires the writer. Large batches (imports) use two threads.
pub(crate) fn pack_drafts<T: Send>(
    drafts: &[Draft],
    pack: impl Fn(usize, &Draft) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if drafts.len() < PARALLEL_BODIES_MIN {
        return drafts.iter().enumerate().map(|(index, draft)| pack(index, draft)).collect();
    }
    let next = AtomicUsize::new(0);
    let pack_units = || -> Result<Vec<(usize, Vec<T>)>> {
        let mut packed = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = drafts.chunks(UNIT_BODIES).nth(at) else { return Ok(packed) };
            let indexed = unit.iter().enumerate();
            let packed_unit = indexed.map(|(index, draft)| pack(at * UNIT_BODIES + index, draft));
            packed.push((at, packed_unit.collect::<Result<Vec<T>>>()?));
        }
    };
    std::thread::scope(|scope| {
        let packer = std::thread::Builder::new().name("sapwood-packer".to_owned());
        // If the second thread cannot be started, this thread packs all bodies.
        let helper = packer.spawn_scoped(scope, pack_units);
        let mut packed = pack_units()?;
        if let Ok(helper) = helper {
            packed.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        packed.sort_unstable_by_key(|(at, _)| *at);
        Ok(packed.into_iter().flat_map(|(_, unit)| unit).collect())
    })
}

pub(crate) fn pack(bytes: Vec<u8>) -> Packed {
    let (packing, compressed) = match bytes.len() {
        0..PACK_BYTES_MIN => return Packed { packing: PLAIN, bytes },
        PACK_BYTES_MIN..DICTIONARY_FOR_BYTES_MAX => {
            (LZ4_WITH_DICTIONARY, block::compress_prepend_size_with_dict(&bytes, DICTIONARY))
        }
        _ => (LZ4, block::compress_prepend_size(&bytes)),
    };
    match compressed.len() + compressed.len() / 8 < bytes.len() {
        true => Packed { packing, bytes: compressed },
        false => Packed { packing: PLAIN, bytes },
    }
}

/// Decompresses the output of [`pack`]. Fails if the bytes declare a size above `limit`, so that
/// damaged bytes cannot cause a huge allocation.
pub(crate) fn unpack(packing: u8, bytes: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    with_unpacked(packing, bytes, limit, <[u8]>::to_vec)
}

/// Returns the decompressed length, given the stored length and the first four stored bytes.
pub(crate) fn unpacked_len(packing: u8, packed_len: u64, head: &[u8]) -> Result<u64, String> {
    match packing {
        PLAIN => Ok(packed_len),
        _ => block::uncompressed_size(head).map(|(size, _)| size as u64).map_err(|error| damaged(&error)),
    }
}

thread_local! {
    /// Reused buffer for decompressed bytes.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Maximum size of the scratch buffer that is retained between calls.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// Decompresses into a reused buffer and returns the result of `read` on it.
pub(crate) fn with_unpacked<T>(
    packing: u8,
    bytes: &[u8],
    limit: usize,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, String> {
    let dictionary = match packing {
        PLAIN => return Ok(read(bytes)),
        LZ4 => None,
        LZ4_WITH_DICTIONARY => Some(DICTIONARY),
        other => return Err(format!("unknown compression format {other}")),
    };
    let (size, block) = block::uncompressed_size(bytes).map_err(|error| damaged(&error))?;
    if size > limit {
        return Err(format!("its compressed bytes declare a size of {size} bytes, but the limit is {limit}"));
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < size {
            scratch.resize(size, 0);
        }
        let target = &mut scratch[..size];
        let unpacked = match dictionary {
            Some(dictionary) => block::decompress_into_with_dict(block, target, dictionary),
            None => block::decompress_into(block, target),
        };
        let length = unpacked.map_err(|error| damaged(&error))?;
        let result = read(&scratch[..length]);
        if scratch.len() > SCRATCH_BYTES_KEPT {
            *scratch = Vec::new();
        }
        Ok(result)
    })
}

fn damaged(error: &block::DecompressError) -> String {
    format!("its compressed bytes are damaged: {error}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packed_bytes_unpack_to_the_same_bytes() {
        for bytes in
            [Vec::new(), b"short".to_vec(), b"again and again ".repeat(100), b"and on and on ".repeat(1_000)]
        {
            let packed = pack(bytes.clone());
            let head = &packed.bytes[..packed.bytes.len().min(4)];
            let len = unpacked_len(packed.packing, packed.bytes.len() as u64, head);
            assert_eq!(len, Ok(bytes.len() as u64));
            assert_eq!(unpack(packed.packing, &packed.bytes, 1 << 20).unwrap(), bytes);
        }
    }

    proptest! {
        /// The encoder runs without bounds checks and blobs are arbitrary bytes, so the test covers
        /// repeated, incompressible and long input.
        #[test]
        fn any_bytes_round_trip(seed in proptest::collection::vec(any::<u8>(), 0..700), times in 0_usize..40, more in 0_usize..9) {
            let mut bytes = seed.repeat(times);
            bytes.extend((0..more * 1_000).map(|at| ((at * at) >> 3) as u8));
            let packed = pack(bytes.clone());
            prop_assert_eq!(unpack(packed.packing, &packed.bytes, 1 << 20).unwrap(), bytes);
        }
    }

    #[test]
    fn many_bodies_are_packed_in_order_and_one_too_large_fails_the_batch() {
        let draft = |text: String| {
            let parts = vec![sapwood_core::Part::text(text)];
            Draft::new(Default::default(), sapwood_core::entry::UserMessage { parts, origin: None })
        };
        let pack_body = |body: &Body| Ok(pack(encode_body(body)?));
        let pack_all =
            |drafts: &[Draft]| pack_drafts(drafts, |index, draft| Ok((index, pack_body(&draft.body)?)));
        let mut drafts: Vec<Draft> =
            (0..PARALLEL_BODIES_MIN + 7).map(|number| draft(format!("text {number}"))).collect();
        let packed = pack_all(&drafts).unwrap();
        assert_eq!(packed.len(), drafts.len());
        for (expected, ((index, packed), draft)) in packed.iter().zip(&drafts).enumerate() {
            let body: Result<Packed> = pack_body(&draft.body);
            assert_eq!((*index, &packed.bytes), (expected, &body.unwrap().bytes));
        }
        for index in [0, drafts.len() - 1] {
            let large = draft("x".repeat(sapwood_core::port::store::BODY_BYTES_MAX));
            let small = std::mem::replace(&mut drafts[index], large);
            assert!(pack_all(&drafts).is_err());
            drafts[index] = small;
        }
    }

    #[test]
    fn damaged_bytes_fail_without_a_huge_allocation() {
        let mut packed = pack(b"again and again ".repeat(100));
        assert!(unpack(packed.packing, &packed.bytes, 10).is_err());
        packed.bytes.truncate(12);
        assert!(unpack(packed.packing, &packed.bytes, 1 << 20).is_err());
        assert!(unpack(packed.packing, b"x", 1 << 20).is_err());
        assert!(unpack(77, b"", 10).is_err());
    }
}
