//! Zstandard, decompressed as it is read: every frame of a file, one behind the other, without those that are to be
//! skipped. A file that was cut off or damaged gives what is good of it and then ends; whoever reads can ask whether it
//! did.

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const MAGIC: u32 = 0xfd2f_b528;
const MAGICS_SKIPPED: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
/// An empty block that is the frame's last, and a checksum, which nobody compares. It ends a frame that was cut off, so that
/// the decoder gives out what it keeps back for the blocks to come.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Whether the source ended too early.
pub type Torn = Arc<AtomicBool>;

/// Whether a file that begins so is compressed.
pub fn is_frame(beginning: &[u8]) -> bool {
    <[u8; 4]>::try_from(beginning).is_ok_and(|magic| {
        let magic = u32::from_le_bytes(magic);
        magic == MAGIC || MAGICS_SKIPPED.contains(&magic)
    })
}

pub struct Frames {
    source: Box<dyn Read + Send>,
    decoder: FrameDecoder,
    state: State,
    torn: Torn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    BeforeFrame,
    InFrame,
    /// Nothing is read any more; what was decoded is given out.
    Over,
}

impl Frames {
    pub fn new(source: Box<dyn Read + Send>, torn: Torn) -> Self {
        Self { source, decoder: FrameDecoder::new(), state: State::BeforeFrame, torn }
    }

    fn tear(&mut self) {
        self.torn.store(true, Ordering::Relaxed);
        self.state = State::Over;
    }

    /// Goes to the beginning of the next frame's blocks, or over a frame that is to be skipped.
    fn begin_frame(&mut self) -> std::io::Result<()> {
        let mut magic = Vec::new();
        self.source.by_ref().take(4).read_to_end(&mut magic)?;
        if magic.is_empty() {
            self.state = State::Over;
            return Ok(());
        }
        let number = <[u8; 4]>::try_from(&magic[..]).map(u32::from_le_bytes);
        let begun = match number {
            Ok(MAGIC) => {
                self.state = State::InFrame;
                self.decoder.init(Cursor::new(magic).chain(&mut self.source)).is_ok()
            }
            Ok(number) if MAGICS_SKIPPED.contains(&number) => self.skip_frame()?,
            Ok(_) | Err(_) => false,
        };
        if !begun {
            self.tear();
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

    /// Decodes until `wanted` bytes can be given out, or the frame ends.
    fn decode(&mut self, wanted: usize) {
        while self.decoder.can_collect() < wanted && !self.decoder.is_finished() {
            let missing = BlockDecodingStrategy::UptoBytes(wanted - self.decoder.can_collect());
            if self.decoder.decode_blocks(&mut self.source, missing).is_err() {
                // A decoder that cannot even be ended keeps what it has.
                let _ = self.decoder.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All);
                return self.tear();
            }
        }
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.state {
                State::BeforeFrame => {
                    self.begin_frame()?;
                    continue;
                }
                State::InFrame => self.decode(buffer.len()),
                State::Over => {}
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.state == State::Over {
                return Ok(read);
            }
            self.state = State::BeforeFrame;
        }
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(packed: Vec<u8>) -> (Vec<u8>, bool) {
        let torn = Torn::default();
        let mut frames = Frames::new(Box::new(Cursor::new(packed)), torn.clone());
        let mut bytes = Vec::new();
        frames.read_to_end(&mut bytes).unwrap();
        (bytes, torn.load(Ordering::Relaxed))
    }

    fn pack(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    #[test]
    fn every_frame_is_read_and_what_is_to_be_skipped_is_skipped() {
        let skipped = [&0x184d_2a53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"12345"].concat();
        let packed = [&skipped[..], &pack(b"one "), &skipped, &pack(b""), &pack(b"two")].concat();
        assert!(is_frame(&packed[..4]));
        assert_eq!(read(packed), (b"one two".to_vec(), false));
    }

    #[test]
    fn a_file_that_is_cut_off_gives_what_came_before_and_says_so() {
        let text: Vec<u8> = (0..600_000_u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
        let packed = pack(&text);
        let (half, torn) = read(packed[..packed.len() / 2].to_vec());
        assert!(torn && half.len() > text.len() / 4 && text.starts_with(&half), "{} bytes", half.len());
        let (whole, torn) = read([&packed[..], b"rubbish"].concat());
        assert_eq!((whole.len(), torn), (text.len(), true));
        assert_eq!(read(packed[..6].to_vec()), (Vec::new(), true));
    }
}
