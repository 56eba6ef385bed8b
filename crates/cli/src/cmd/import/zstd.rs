//! Streaming Zstandard decompression of all frames of a file, except skippable frames. A truncated or damaged file
//! yields its valid part and then ends. Callers detect this with [`TornFlag`].

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const MAGIC: u32 = 0xfd2f_b528;
const MAGICS_SKIPPED: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
/// An empty last block and a checksum that is not verified. Appending it ends a truncated frame, so that the decoder
/// releases its buffered data.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Set if the source was truncated or damaged.
pub type TornFlag = Arc<AtomicBool>;

/// Reports whether a file with these first bytes is compressed.
pub fn is_frame(beginning: &[u8]) -> bool {
    <[u8; 4]>::try_from(beginning).is_ok_and(|magic| {
        let magic = u32::from_le_bytes(magic);
        magic == MAGIC || MAGICS_SKIPPED.contains(&magic)
    })
}

pub struct FrameReader {
    source: Box<dyn Read + Send>,
    decoder: FrameDecoder,
    state: ReaderState,
    torn: TornFlag,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    BeforeFrame,
    InFrame,
    /// The source is exhausted; only decoded data remains.
    Finished,
}

impl FrameReader {
    pub fn new(source: Box<dyn Read + Send>, torn: TornFlag) -> Self {
        Self { source, decoder: FrameDecoder::new(), state: ReaderState::BeforeFrame, torn }
    }

    fn mark_torn(&mut self) {
        self.torn.store(true, Ordering::Relaxed);
        self.state = ReaderState::Finished;
    }

    /// Reads the header of the next frame, or skips a skippable frame.
    fn begin_frame(&mut self) -> std::io::Result<()> {
        let mut magic = Vec::new();
        self.source.by_ref().take(4).read_to_end(&mut magic)?;
        if magic.is_empty() {
            self.state = ReaderState::Finished;
            return Ok(());
        }
        let number = <[u8; 4]>::try_from(&magic[..]).map(u32::from_le_bytes);
        let is_started = match number {
            Ok(MAGIC) => {
                self.state = ReaderState::InFrame;
                self.decoder.init(Cursor::new(magic).chain(&mut self.source)).is_ok()
            }
            Ok(number) if MAGICS_SKIPPED.contains(&number) => self.skip_frame()?,
            Ok(_) | Err(_) => false,
        };
        if !is_started {
            self.mark_torn();
        }
        Ok(())
    }

    fn skip_frame(&mut self) -> std::io::Result<bool> {
        let mut length = Vec::new();
        self.source.by_ref().take(4).read_to_end(&mut length)?;
        let Ok(length) = <[u8; 4]>::try_from(&length[..]) else { return Ok(false) };
        let length = u64::from(u32::from_le_bytes(length));
        let skipped = std::io::copy(&mut self.source.by_ref().take(length), &mut std::io::sink())?;
        Ok(skipped == length)
    }

    /// Decodes until `wanted` bytes are available or the frame ends.
    fn decode(&mut self, wanted: usize) {
        while self.decoder.can_collect() < wanted && !self.decoder.is_finished() {
            let missing = BlockDecodingStrategy::UptoBytes(wanted - self.decoder.can_collect());
            if self.decoder.decode_blocks(&mut self.source, missing).is_err() {
                // Best effort: if this fails, the buffered data is lost.
                let _ = self.decoder.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All);
                return self.mark_torn();
            }
        }
    }
}

impl Read for FrameReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.state {
                ReaderState::BeforeFrame => {
                    self.begin_frame()?;
                    continue;
                }
                ReaderState::InFrame => self.decode(buffer.len()),
                ReaderState::Finished => {}
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.state == ReaderState::Finished {
                return Ok(read);
            }
            self.state = ReaderState::BeforeFrame;
        }
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(packed: Vec<u8>) -> (Vec<u8>, bool) {
        let torn = TornFlag::default();
        let mut frames = FrameReader::new(Box::new(Cursor::new(packed)), torn.clone());
        let mut bytes = Vec::new();
        frames.read_to_end(&mut bytes).unwrap();
        (bytes, torn.load(Ordering::Relaxed))
    }

    fn pack(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    #[test]
    fn reads_every_frame_and_skips_skippable_frames() {
        let skipped = [&0x184d_2a53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"12345"].concat();
        let packed = [&skipped[..], &pack(b"one "), &skipped, &pack(b""), &pack(b"two")].concat();
        assert!(is_frame(&packed[..4]));
        assert_eq!(read(packed), (b"one two".to_vec(), false));
    }

    #[test]
    fn a_truncated_file_yields_its_valid_part_and_is_reported_as_torn() {
        let text: Vec<u8> = (0..600_000_u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
        let packed = pack(&text);
        let (half, torn) = read(packed[..packed.len() / 2].to_vec());
        assert!(torn && half.len() > text.len() / 4 && text.starts_with(&half), "{} bytes", half.len());
        let (whole, torn) = read([&packed[..], b"rubbish"].concat());
        assert_eq!((whole.len(), torn), (text.len(), true));
        assert_eq!(read(packed[..6].to_vec()), (Vec::new(), true));
    }
}
