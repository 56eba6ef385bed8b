//! A segment of the search index: the words of a range of texts, each with the numbers of the texts
//! that contain it. Pure.
//!
//! Words are sorted and split into blocks of about a page. In a block each word is stored as the
//! length of the prefix it shares with the previous word and the rest, followed by its texts as
//! deltas. A directory contains the first word of each block, so that a lookup reads the directory
//! and one block.

use std::collections::HashSet;
use std::ops::Range;

use crate::database::search::truncate_word;
use crate::tokenize::WordHash;

/// A block is closed once it has this many bytes: its row then fills a page of the file.
const BLOCK_BYTES: usize = 3_900;
/// Maximum length of a word; longer words are truncated.
pub(in crate::sqlite) const WORD_BYTES_MAX: usize = 256;

/// The index of a range of texts, ready to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::sqlite) struct Segment {
    /// The base that the texts' numbers are relative to.
    pub first: i64,
    /// The last number in the range, even if that entry has no text.
    pub last: i64,
    pub texts: u32,
    pub directory: Vec<u8>,
    pub blocks: Vec<Vec<u8>>,
}

/// The error for stored bytes that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sqlite) struct CorruptSegment;

/// Initial number of slots in the hash table of words.
const WORD_SLOTS: usize = 1 << 12;

/// Collects the words of a range of texts, one text after the other, in ascending order of their
/// numbers.
pub(in crate::sqlite) struct SegmentBuilder {
    hash: WordHash,
    first: i64,
    texts: u32,
    /// The number of the current text, relative to `first`.
    number: u64,
    /// The bytes of all words, concatenated.
    letters: Vec<u8>,
    words: Vec<WordEntry>,
    /// Hash table with open addressing, at most half full. A slot contains the word's index plus
    /// one; zero is an empty slot.
    slots: Vec<u32>,
}

struct WordEntry {
    hash: u64,
    letters: Range<usize>,
    numbers: Numbers,
}

impl SegmentBuilder {
    pub fn new(first: i64, hash: WordHash) -> Self {
        let (letters, words) = (Vec::new(), Vec::new());
        Self { hash, first, texts: 0, number: 0, letters, words, slots: vec![0; WORD_SLOTS] }
    }

    pub fn begin_text(&mut self, number: i64) {
        self.texts += 1;
        self.number = u64::try_from(number - self.first).unwrap_or(0);
    }

    /// Adds a word of the current text with its hash. Repeated words are allowed.
    pub fn add(&mut self, word: &str, hash: u64) {
        let (word, hash) = match truncate_word(word, WORD_BYTES_MAX) {
            kept if kept.len() < word.len() => (kept, self.hash.of(kept)),
            _ => (word, hash),
        };
        let last = self.slots.len() - 1;
        let mut slot = hash as usize >> 1 & last;
        while let Some(index) = self.slots[slot].checked_sub(1) {
            let entry = &mut self.words[index as usize];
            if entry.hash == hash {
                // A collision of randomly seeded 64-bit hashes within one text is negligible.
                if entry.numbers.end_with(self.number) {
                    return;
                }
                if self.letters[entry.letters.clone()] == *word.as_bytes() {
                    return entry.numbers.push(self.number);
                }
            }
            slot = (slot + 1) & last;
        }
        self.add_new(word, hash, slot);
    }

    fn add_new(&mut self, word: &str, hash: u64, slot: usize) {
        let start = self.letters.len();
        self.letters.extend_from_slice(word.as_bytes());
        let mut numbers = Numbers::default();
        numbers.push(self.number);
        self.words.push(WordEntry { hash, letters: start..self.letters.len(), numbers });
        self.slots[slot] = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        if self.words.len() * 2 > self.slots.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 4];
        let last = self.slots.len() - 1;
        for (index, word) in (1..).zip(&self.words) {
            let mut slot = word.hash as usize >> 1 & last;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & last;
            }
            self.slots[slot] = index;
        }
    }

    /// Builds the segment. `last` is the last number in the range, even if that entry has no text.
    pub fn finish(self, last: i64) -> Segment {
        let letters_of = |word: &WordEntry| &self.letters[word.letters.clone()];
        let mut sorted: Vec<&WordEntry> = self.words.iter().collect();
        sorted.sort_unstable_by_key(|word| letters_of(word));
        let mut writer = SegmentWriter::default();
        for word in sorted {
            writer.add(letters_of(word), &word.numbers.bytes);
        }
        writer.finish(self.first, last, self.texts)
    }
}

/// Merges consecutive segments into one. Leaves out the texts for which `keeps` returns false.
pub(in crate::sqlite) fn merge(
    parts: &[Segment],
    keeps: impl Fn(i64) -> bool,
) -> Result<Segment, CorruptSegment> {
    let first = parts.first().map_or(0, |part| part.first);
    let last = parts.last().map_or(0, |part| part.last);
    let mut streams = Vec::with_capacity(parts.len());
    for part in parts {
        streams.push(SegmentWords::open(part)?);
    }
    let mut writer = SegmentWriter::default();
    let mut removed = HashSet::new();
    let mut word = Vec::new();
    while let Some(next) = streams.iter().filter_map(SegmentWords::word).min() {
        word.clear();
        word.extend_from_slice(next);
        let mut numbers = Numbers::default();
        for stream in &mut streams {
            if stream.word() != Some(&word[..]) {
                continue;
            }
            for number in numbers_in(stream.numbers) {
                let number = i64::try_from(number?).ok().and_then(|number| stream.first.checked_add(number));
                let number = number.ok_or(CorruptSegment)?;
                if keeps(number) {
                    numbers.push(u64::try_from(number - first).map_err(|_| CorruptSegment)?);
                } else {
                    removed.insert(number);
                }
            }
            stream.advance()?;
        }
        if !numbers.bytes.is_empty() {
            writer.add(&word, &numbers.bytes);
        }
    }
    // Each text has at least its marker words, so every removed text was visited.
    let texts = parts.iter().map(|part| part.texts).fold(0, u32::saturating_add);
    let removed = u32::try_from(removed.len()).unwrap_or(u32::MAX);
    Ok(writer.finish(first, last, texts.saturating_sub(removed)))
}

/// Returns the range of blocks that may contain `from`, or words that begin with it, as the first
/// block and the number of blocks.
pub(in crate::sqlite) fn blocks_of(
    directory: &[u8],
    from: &str,
    is_prefix: bool,
) -> Result<(usize, usize), CorruptSegment> {
    let (mut rest, mut number) = (directory, 0);
    let (mut start, mut end) = (0, 0);
    while !rest.is_empty() {
        let length = take_length(&mut rest)?;
        let word = take(&mut rest, length)?;
        if word <= from.as_bytes() {
            start = number;
        } else if !(is_prefix && word.starts_with(from.as_bytes())) {
            break;
        }
        number += 1;
        end = number;
    }
    Ok((start, end - start))
}

/// Adds the numbers of the texts in a block that contain the word, or a word that begins with it,
/// to `found`. The numbers are relative to the segment's `first`.
pub(in crate::sqlite) fn find_in(
    block: &[u8],
    wanted: &str,
    is_prefix: bool,
    found: &mut Vec<u64>,
) -> Result<(), CorruptSegment> {
    let mut words = BlockWords::of(block);
    while words.advance()? {
        let is_match = match is_prefix {
            true => words.word.starts_with(wanted.as_bytes()),
            false => words.word == wanted.as_bytes(),
        };
        if is_match {
            for number in numbers_in(words.numbers) {
                found.push(number?);
            }
        } else if words.word.as_slice() > wanted.as_bytes() {
            break;
        }
    }
    Ok(())
}

/// Validates the bytes of a segment: words are sorted, and each word has ascending numbers within
/// the segment's range.
pub(in crate::sqlite) fn check(segment: &Segment) -> Result<(), CorruptSegment> {
    let mut stream = SegmentWords::open(segment)?;
    let span = u64::try_from(segment.last - segment.first).map_err(|_| CorruptSegment)?;
    let mut previous: Vec<u8> = Vec::new();
    while let Some(word) = stream.word() {
        if word <= &previous[..] {
            return Err(CorruptSegment);
        }
        previous = word.to_vec();
        let numbers = numbers_in(stream.numbers).collect::<Result<Vec<u64>, CorruptSegment>>()?;
        let grows = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        if numbers.is_empty() || !grows || numbers.last().is_some_and(|last| *last > span) {
            return Err(CorruptSegment);
        }
        stream.advance()?;
    }
    Ok(())
}

/// Ascending numbers, stored as deltas. Each number is increased by one first, so that no delta is
/// zero.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    bytes: Vec<u8>,
}

impl Numbers {
    fn push(&mut self, number: u64) {
        if number + 1 > self.last {
            put_number(&mut self.bytes, number + 1 - self.last);
            self.last = number + 1;
        }
    }

    fn end_with(&self, number: u64) -> bool {
        self.last == number + 1
    }
}

/// Decodes the numbers. Stops after the first error.
fn numbers_in(mut bytes: &[u8]) -> impl Iterator<Item = Result<u64, CorruptSegment>> {
    let mut last = 0_u64;
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let delta = take_number(&mut bytes);
        let number = delta.and_then(|delta| last.checked_add(delta).ok_or(CorruptSegment));
        match number {
            Ok(number) => last = number,
            Err(CorruptSegment) => bytes = &[],
        }
        Some(number.and_then(|number| number.checked_sub(1).ok_or(CorruptSegment)))
    })
}

#[derive(Default)]
struct SegmentWriter {
    directory: Vec<u8>,
    blocks: Vec<Vec<u8>>,
    block: Vec<u8>,
    previous: Vec<u8>,
}

impl SegmentWriter {
    fn add(&mut self, word: &[u8], numbers: &[u8]) {
        if self.block.len() >= BLOCK_BYTES {
            self.blocks.push(std::mem::take(&mut self.block));
        }
        if self.block.is_empty() {
            put_number(&mut self.directory, word.len() as u64);
            self.directory.extend_from_slice(word);
            self.previous.clear();
        }
        let shared = self.previous.iter().zip(word).take_while(|(previous, now)| previous == now).count();
        put_number(&mut self.block, shared as u64);
        put_number(&mut self.block, (word.len() - shared) as u64);
        self.block.extend_from_slice(&word[shared..]);
        put_number(&mut self.block, numbers.len() as u64);
        self.block.extend_from_slice(numbers);
        self.previous.truncate(shared);
        self.previous.extend_from_slice(&word[shared..]);
    }

    fn finish(mut self, first: i64, last: i64, texts: u32) -> Segment {
        if !self.block.is_empty() {
            self.blocks.push(self.block);
        }
        Segment { first, last, texts, directory: self.directory, blocks: self.blocks }
    }
}

/// Iterates over the words of one block.
struct BlockWords<'b> {
    rest: &'b [u8],
    word: Vec<u8>,
    numbers: &'b [u8],
}

impl<'b> BlockWords<'b> {
    fn of(block: &'b [u8]) -> Self {
        Self { rest: block, word: Vec::new(), numbers: &[] }
    }

    /// Moves to the next word, if there is one.
    fn advance(&mut self) -> Result<bool, CorruptSegment> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        let shared = take_length(&mut self.rest)?;
        let length = take_length(&mut self.rest)?;
        if shared > self.word.len() {
            return Err(CorruptSegment);
        }
        self.word.truncate(shared);
        self.word.extend_from_slice(take(&mut self.rest, length)?);
        let length = take_length(&mut self.rest)?;
        self.numbers = take(&mut self.rest, length)?;
        Ok(true)
    }
}

/// Iterates over the words of a whole segment.
struct SegmentWords<'s> {
    first: i64,
    blocks: std::slice::Iter<'s, Vec<u8>>,
    words: Option<BlockWords<'s>>,
    numbers: &'s [u8],
}

impl<'s> SegmentWords<'s> {
    fn open(segment: &'s Segment) -> Result<Self, CorruptSegment> {
        let mut stream =
            Self { first: segment.first, blocks: segment.blocks.iter(), words: None, numbers: &[] };
        stream.words = stream.blocks.next().map(|block| BlockWords::of(block));
        stream.advance()?;
        Ok(stream)
    }

    fn word(&self) -> Option<&[u8]> {
        self.words.as_ref().map(|words| words.word.as_slice())
    }

    fn advance(&mut self) -> Result<(), CorruptSegment> {
        while let Some(words) = &mut self.words {
            if words.advance()? {
                self.numbers = words.numbers;
                return Ok(());
            }
            self.words = self.blocks.next().map(|block| BlockWords::of(block));
        }
        Ok(())
    }
}

/// Writes a variable-length integer: seven bits per byte, lowest first. The highest bit is set if
/// more bytes follow.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, CorruptSegment> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(CorruptSegment)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(CorruptSegment)
}

fn take_length(bytes: &mut &[u8]) -> Result<usize, CorruptSegment> {
    usize::try_from(take_number(bytes)?).map_err(|_| CorruptSegment)
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Result<&'b [u8], CorruptSegment> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(CorruptSegment)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::tokenize::Tokenizer;

    fn build(first: i64, last: i64, texts: &[(i64, Option<String>)]) -> Segment {
        let mut tokenizer = Tokenizer::default();
        let mut builder = SegmentBuilder::new(first, tokenizer.hash);
        for (number, text) in texts {
            let Some(text) = text else { continue };
            builder.begin_text(*number);
            tokenizer.tokenize(text, |word, hash| builder.add(word, hash));
        }
        builder.finish(last)
    }

    fn find(segment: &Segment, wanted: &str, is_prefix: bool) -> BTreeSet<i64> {
        let (start, count) = blocks_of(&segment.directory, wanted, is_prefix).unwrap();
        let mut found = Vec::new();
        for block in &segment.blocks[start..start + count] {
            find_in(block, wanted, is_prefix, &mut found).unwrap();
        }
        found.into_iter().map(|number| segment.first + i64::try_from(number).unwrap()).collect()
    }

    fn texts() -> impl Strategy<Value = Vec<(i64, Option<String>)>> {
        let word = "[a-c]{1,3}|[a-z]{1,8}|é[a-b]{0,2}";
        let text =
            proptest::option::of(proptest::collection::vec(word, 0..20).prop_map(|words| words.join(" ")));
        proptest::collection::vec(text, 1..40).prop_map(|texts| {
            texts.into_iter().enumerate().map(|(at, text)| (10 + at as i64, text)).collect()
        })
    }

    /// Returns the expected search result, computed by brute force.
    fn expected(texts: &[(i64, Option<String>)], wanted: &str, is_prefix: bool) -> BTreeSet<i64> {
        let is_match = |word: &str| if is_prefix { word.starts_with(wanted) } else { word == wanted };
        let contains =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.split(' ').any(is_match));
        texts.iter().filter(|(_, text)| contains(text)).map(|(number, _)| *number).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_segment_finds_the_words_of_its_texts(texts in texts(), wanted in "[a-z]{1,3}|é", cut in 0_usize..40) {
            let last = texts.last().unwrap().0;
            let whole = build(10, last, &texts);
            check(&whole).unwrap();
            let cut = cut.min(texts.len() - 1);
            let (older, newer) = texts.split_at(cut);
            let parts = [build(10, 9 + cut as i64, older), build(10 + cut as i64, last, newer)];
            let merged = merge(&parts, |_| true).unwrap();
            prop_assert_eq!(&merged.blocks, &whole.blocks);
            for is_prefix in [false, true] {
                prop_assert_eq!(find(&whole, &wanted, is_prefix), expected(&texts, &wanted, is_prefix));
            }
        }

        #[test]
        fn removed_texts_leave_no_trace(texts in texts(), removed in proptest::collection::btree_set(10_i64..50, 0..30)) {
            let last = texts.last().unwrap().0;
            let keeps = |number: i64| !removed.contains(&number);
            let kept: Vec<_> = texts.iter().map(|(number, text)| (*number, text.clone().filter(|_| keeps(*number)))).collect();
            let merged = merge(&[build(10, last, &texts)], keeps).unwrap();
            prop_assert_eq!(merged.blocks, build(10, last, &kept).blocks);
        }

        #[test]
        fn corrupt_bytes_never_cause_a_panic(texts in texts(), at in any::<usize>(), bit in 0_u32..8) {
            let mut segment = build(10, texts.last().unwrap().0, &texts);
            prop_assume!(!segment.blocks.is_empty());
            let block = &mut segment.blocks[0];
            let at = at % block.len();
            block[at] ^= 1 << bit;
            // Any result is fine as long as nothing panics.
            let _ = check(&segment);
            let _ = merge(&[segment], |_| true);
        }
    }

    #[test]
    fn long_words_with_the_same_prefix_are_one_word() {
        let long = "x".repeat(WORD_BYTES_MAX);
        let texts = [(0, Some(format!("{long}a {long}b {long}"))), (1, Some(format!("{long}c")))];
        let segment = build(0, 1, &texts);
        check(&segment).unwrap();
        assert_eq!(find(&segment, &long, false), BTreeSet::from([0, 1]));
    }

    #[test]
    fn many_words_span_many_blocks_and_are_all_found() {
        let words: Vec<String> = (0..20_000).map(|n| format!("word{n}")).collect();
        let texts: Vec<(i64, Option<String>)> =
            words.chunks(100).enumerate().map(|(at, words)| (at as i64, Some(words.join(" ")))).collect();
        let segment = build(0, 199, &texts);
        assert!(segment.blocks.len() > 20, "{}", segment.blocks.len());
        let mut numbers: BTreeMap<&str, i64> = BTreeMap::new();
        for (number, chunk) in words.chunks(100).enumerate() {
            numbers.extend(chunk.iter().map(|word| (word.as_str(), number as i64)));
        }
        for (word, number) in numbers {
            assert_eq!(find(&segment, word, false), BTreeSet::from([number]), "{word}");
        }
        assert_eq!(find(&segment, "word", true).len(), 200);
        assert!(find(&segment, "nowhere", false).is_empty() && find(&segment, "a", true).is_empty());
    }
}
