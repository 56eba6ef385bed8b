//! The checksum of a page. Pure.
//!
//! The last 8 bytes of a page are the CRC-32 of the rest of the page and of the page number, little-endian, and a tag. The
//! page number is included so that a page that was written to the wrong place is detected. A CRC detects every change of up
//! to three bits and every burst of up to 32 bits.

/// The page size of all stores.
pub const PAGE_BYTES: usize = 4096;
/// The number of bytes at the end of each page that SQLite does not use.
pub const RESERVED_BYTES: u8 = 8;

/// SQLite never uses the page that contains this byte, because other processes lock it.
const LOCK_BYTE: u64 = 0x4000_0000;
const CONTENT_BYTES: usize = PAGE_BYTES - RESERVED_BYTES as usize;
const CRC_END: usize = CONTENT_BYTES + 4;
/// Marks a page with a checksum.
const TAG: &[u8] = b"swp1";
/// The first bytes of a SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Offset of the page size in the header of the file.
const PAGE_SIZE_AT: usize = 16;
/// Offset of the number of reserved bytes. The next three bytes are constants.
const RESERVED_AT: usize = 20;
const RESERVED_AND_CONSTANTS: [u8; 4] = [RESERVED_BYTES, 64, 32, 32];

/// Returns the number of the page at an offset. The first page is 1.
pub fn number_at(offset: u64) -> u32 {
    u32::try_from(offset / PAGE_BYTES as u64 + 1).unwrap_or(u32::MAX)
}

/// Returns whether SQLite never writes this page.
pub fn is_lock_page(number: u32) -> bool {
    number == number_at(LOCK_BYTE)
}

/// Writes the checksum into a page.
pub fn stamp(number: u32, page: &mut [u8; PAGE_BYTES]) {
    let crc = crc_of(number, page);
    page[CONTENT_BYTES..CRC_END].copy_from_slice(&crc.to_le_bytes());
    page[CRC_END..].copy_from_slice(TAG);
}

/// Returns whether a page matches its checksum.
pub fn matches(number: u32, page: &[u8; PAGE_BYTES]) -> bool {
    page[CRC_END..] == *TAG && page[CONTENT_BYTES..CRC_END] == crc_of(number, page).to_le_bytes()
}

fn crc_of(number: u32, page: &[u8; PAGE_BYTES]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&page[..CONTENT_BYTES]);
    crc.update(&number.to_le_bytes());
    crc.finalize()
}

/// Returns whether the header in a file's first page reserves space for checksums.
pub fn reserves_checksums(first: &[u8; PAGE_BYTES]) -> bool {
    first.starts_with(MAGIC)
        && first[PAGE_SIZE_AT..PAGE_SIZE_AT + 2] == page_size_field()
        && first[RESERVED_AT] == RESERVED_BYTES
}

/// Returns whether the pages of a file have checksums, by its first page. If the bytes of the header that tell this are
/// damaged, the page's own checksum still shows what they were.
pub fn is_sealed(first: &[u8; PAGE_BYTES]) -> bool {
    if reserves_checksums(first) {
        return true;
    }
    if first[CRC_END..] != *TAG {
        return false;
    }
    let mut restored = *first;
    restored[..MAGIC.len()].copy_from_slice(MAGIC);
    restored[PAGE_SIZE_AT..PAGE_SIZE_AT + 2].copy_from_slice(&page_size_field());
    restored[RESERVED_AT..RESERVED_AT + 4].copy_from_slice(&RESERVED_AND_CONSTANTS);
    matches(1, &restored)
}

/// The page size as the header stores it, big-endian.
fn page_size_field() -> [u8; 2] {
    u16::try_from(PAGE_BYTES).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_page() -> [u8; PAGE_BYTES] {
        let mut page = [7; PAGE_BYTES];
        page[..16].copy_from_slice(MAGIC);
        page[16..24].copy_from_slice(&[16, 0, 2, 2, 8, 64, 32, 32]);
        stamp(1, &mut page);
        page
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let page = first_page();
        assert!(matches(1, &page) && !matches(2, &page), "a page at another place does not match");
        for bit in 0..PAGE_BYTES * 8 {
            let mut flipped = page;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches(1, &flipped), "bit {bit}");
            assert!(is_sealed(&flipped), "bit {bit} hides that the file has checksums");
        }
    }

    #[test]
    fn an_empty_page_and_a_file_without_reserved_bytes_have_no_checksum() {
        assert!(!matches(1, &[0; PAGE_BYTES]));
        let mut plain = first_page();
        plain[RESERVED_AT] = 0;
        plain[CONTENT_BYTES..].fill(7);
        assert!(!is_sealed(&plain));
        assert!(!is_sealed(&[0; PAGE_BYTES]));
    }
}
