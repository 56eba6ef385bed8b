//! Splits text into words: runs of letters and digits, in lower case. This code runs for every
//! indexed byte, so it processes 64 bytes at a time and decodes only the characters that are not
//! ASCII. Pure.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use crate::match_text::spans_of;

/// Odd multiplier with irregular bits, for hashing words.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Padding, so that the last word can also be read eight bytes at a time.
const PADDING: &str = "\0\0\0\0\0\0\0\0";
/// Bytes that are classified together, one bit of a mask each.
const BLOCK: usize = 64;

/// Splits texts into words and reuses its buffer for the next text.
#[derive(Default)]
pub struct Tokenizer {
    pub hash: WordHash,
    folded: String,
}

impl Tokenizer {
    /// Passes the words of a text to `take`, each with its hash.
    pub fn tokenize(&mut self, text: &str, mut take: impl FnMut(&str, u64)) {
        let Self { hash, folded } = self;
        folded.clear();
        folded.push_str(text);
        folded.make_ascii_lowercase();
        folded.push_str(PADDING);
        let all_ascii = folded.is_ascii();
        let mut runs = Runs { bytes: folded.as_bytes(), block: usize::MAX, mask: 0 };
        let mut at = 0;
        while let Some(run) = runs.next_from(at) {
            at = run.end;
            let word = &folded[run.clone()];
            if all_ascii || word.is_ascii() {
                take(word, hash.within(folded.as_bytes(), run));
                continue;
            }
            for span in spans_of(word) {
                let word = word[span].to_lowercase();
                take(&word, hash.of(&word));
            }
        }
    }
}

/// Returns each distinct word of a text once, separated by spaces: the input for an index without
/// positions.
pub fn distinct_words(text: &str) -> String {
    let mut words = String::with_capacity(text.len() / 2 + 1);
    let mut seen = HashSet::new();
    Tokenizer::default().tokenize(text, |word, hash| {
        // A collision of randomly seeded 64-bit hashes within one text is negligible.
        if seen.insert(hash) {
            words.push_str(word);
            words.push(' ');
        }
    });
    words
}

/// Finds runs of bytes that are letters, digits or not ASCII.
struct Runs<'t> {
    bytes: &'t [u8],
    /// The block that the mask belongs to.
    block: usize,
    mask: u64,
}

impl Runs<'_> {
    fn next_from(&mut self, at: usize) -> Option<Range<usize>> {
        let start = self.find(at, true)?;
        let end = self.find(start, false).unwrap_or(self.bytes.len());
        Some(start..end)
    }

    /// Returns the position of the next byte that is in a run or, if `in_run` is false, outside of
    /// all runs.
    fn find(&mut self, mut at: usize, in_run: bool) -> Option<usize> {
        while at < self.bytes.len() {
            let mask = self.mask_of(at / BLOCK);
            let wanted = if in_run { mask } else { !mask } >> (at % BLOCK);
            if wanted != 0 {
                let found = at + wanted.trailing_zeros() as usize;
                return (found < self.bytes.len()).then_some(found);
            }
            at = (at / BLOCK + 1) * BLOCK;
        }
        None
    }

    fn mask_of(&mut self, block: usize) -> u64 {
        if self.block != block {
            self.block = block;
            let rest = &self.bytes[block * BLOCK..];
            self.mask = match rest.first_chunk::<BLOCK>() {
                Some(whole) => block_mask(whole),
                None => {
                    let mut padded = [0; BLOCK];
                    padded[..rest.len()].copy_from_slice(rest);
                    block_mask(&padded)
                }
            };
        }
        self.mask
    }
}

fn block_mask(block: &[u8; BLOCK]) -> u64 {
    let (eights, _) = block.as_chunks::<8>();
    let bits = |(at, eight): (usize, &[u8; 8])| eight_mask(u64::from_le_bytes(*eight)) << (8 * at);
    eights.iter().enumerate().map(bits).fold(0, |mask, bits| mask | bits)
}

/// Returns one bit for each of eight bytes. It is set for `0`–`9`, `a`–`z` and bytes that are not
/// ASCII. Each sum carries into the highest bit of its byte if the byte reaches the bound, and
/// never further, as the operands have seven bits. The product collects these bits in the highest
/// byte.
fn eight_mask(bytes: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = 0x80 * ONES;
    let low = bytes & !HIGHEST;
    let at_least = |bound: u8| low + u64::from(0x80 - bound) * ONES;
    let digits = at_least(b'0') & !at_least(b'9' + 1);
    let letters = at_least(b'a') & !at_least(b'z' + 1);
    let marked = (digits | letters | bytes) & HIGHEST;
    (marked >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The hash function for words. It is seeded randomly, so that an attacker cannot force collisions.
#[derive(Debug, Clone, Copy)]
pub struct WordHash(u64);

impl Default for WordHash {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl WordHash {
    pub fn of(self, word: &str) -> u64 {
        let mut hash = self.0 ^ word.len() as u64;
        for part in word.as_bytes().chunks(8) {
            let mut eight = [0; 8];
            eight[8 - part.len()..].copy_from_slice(part);
            hash = fold(hash, u64::from_le_bytes(eight));
        }
        hash | 1
    }

    /// Hashes a word of a text that has at least eight bytes after the word. Never returns zero.
    fn within(self, text: &[u8], word: Range<usize>) -> u64 {
        let mut hash = self.0 ^ word.len() as u64;
        let (eights, _) = text[word.start..].as_chunks::<8>();
        let mut left = word.len();
        for eight in eights {
            let eight = u64::from_le_bytes(*eight);
            if left <= 8 {
                // Bytes after the word are shifted out.
                return fold(hash, eight.checked_shl(8 * (8 - left as u32)).unwrap_or(0)) | 1;
            }
            hash = fold(hash, eight);
            left -= 8;
        }
        hash | 1
    }
}

fn fold(hash: u64, bytes: u64) -> u64 {
    let wide = u128::from(hash ^ bytes) * u128::from(HASH_FACTOR);
    (wide as u64) ^ (wide >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_word_occurs_once_in_lower_case() {
        assert_eq!(distinct_words("The end, the END; Über uns_uns"), "the end über uns ");
        assert_eq!(distinct_words("a_b a-b (A)"), "a b ");
        assert_eq!(distinct_words("  "), "");
        assert_eq!(distinct_words(""), "");
    }

    proptest! {
        #[test]
        fn words_are_found_at_every_offset(
            text in "([a-zA-Z0-9]{1,20}|[ -~]{0,9}|\\PC{0,3}|[a-z]é[a-z]|→){0,60}",
        ) {
            let expected: BTreeSet<String> =
                spans_of(&text.to_ascii_lowercase()).map(|span| text.to_ascii_lowercase()[span].to_lowercase()).collect();
            let mut tokenizer = Tokenizer::default();
            // A reused tokenizer returns no words of the previous text.
            tokenizer.tokenize("every word of another text", |_, _| {});
            let mut found = Vec::new();
            tokenizer.tokenize(&text, |word, hash| found.push((word.to_owned(), hash)));
            for (word, hash) in &found {
                prop_assert_eq!(tokenizer.hash.of(word), *hash, "{}", word);
            }
            let words: BTreeSet<String> = found.into_iter().map(|(word, _)| word).collect();
            prop_assert_eq!(&words, &expected);
            prop_assert_eq!(distinct_words(&text).split_terminator(' ').count(), expected.len());
        }
    }
}
