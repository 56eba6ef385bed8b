//! Full-text search without an index: words, phrases and prefixes, and the snippet of a hit. Pure.
//!
//! A word is a run of letters and digits, in lower case. The memory and JSONL stores match with
//! [`TextQuery::matches`]. The databases index the words of each text ([`crate::tokenize`]), and
//! match only candidates that the index cannot decide: phrases and overlong words.

use std::collections::VecDeque;
use std::ops::Range;

use sapwood_core::entry::codec;
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{Body, Kind};

use crate::compression::with_unpacked;

/// Maximum number of words in a query; further words are ignored.
pub const QUERY_WORDS_MAX: usize = 64;
/// Maximum characters of a snippet, and how many of them may precede the first match.
const SNIPPET_CHARS_MAX: usize = 160;
const SNIPPET_CHARS_BEFORE: usize = 60;

/// Maximum bytes of a text that are indexed. Searches in a database do not find later words.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Returns the text of a body to index, or `None` for kinds that are not searched.
pub fn text_of(body: &Body) -> Option<String> {
    if !is_searched(body.kind()) {
        return None;
    }
    let mut text = body.search_text();
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    Some(text)
}

/// Like [`text_of`], for a stored body. An unreadable body has no text; `doctor` reports it.
pub fn stored_text(kind: u8, version: u32, packing: u8, packed: &[u8]) -> Option<String> {
    let kind = Kind::from_code(kind).filter(|kind| is_searched(*kind))?;
    let decoded = with_unpacked(packing, packed, BODY_BYTES_MAX, |json| codec::decode(version, kind, json));
    Some(decoded.ok().and_then(Result::ok).and_then(|body| text_of(&body)).unwrap_or_default())
}

/// Returns whether full-text search covers entries of this kind.
pub fn is_searched(kind: Kind) -> bool {
    kind.is_message() || matches!(kind, Kind::Compaction | Kind::SessionNamed)
}

/// Words that must occur next to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryTerm {
    pub words: Vec<String>,
    /// Whether the last word is a prefix.
    pub prefix: bool,
}

/// Terms that must all occur.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextQuery {
    pub terms: Vec<QueryTerm>,
}

/// Returns the byte ranges of the words in a text.
pub(crate) fn spans_of(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = skip(text, rest, false);
        let end = skip(text, start, true);
        rest = end;
        (start < end).then_some(start..end)
    })
}

/// Returns the end of the word at `at` or, if `in_word` is false, of the gap between two words.
/// Most text is ASCII and this function dominates matching, so it checks bytes first and decodes
/// characters only where needed.
fn skip(text: &str, mut at: usize, in_word: bool) -> usize {
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        if byte.is_ascii() {
            if IS_WORD[usize::from(*byte)] != in_word {
                break;
            }
            at += 1;
            continue;
        }
        let Some(char) = text[at..].chars().next().filter(|char| char.is_alphanumeric() == in_word) else {
            break;
        };
        at += char.len_utf8();
    }
    at
}

/// Table of the bytes that are ASCII letters or digits.
const IS_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

/// Returns whether a word of a text equals or, if `prefix` is true, begins with `wanted`, which is
/// in lower case.
fn is_word(word: &str, wanted: &str, prefix: bool) -> bool {
    if word.is_ascii() {
        let head = word.as_bytes().get(..wanted.len());
        return head.is_some_and(|head| head.eq_ignore_ascii_case(wanted.as_bytes()))
            && (prefix || word.len() == wanted.len());
    }
    let word = word.to_lowercase();
    word == wanted || (prefix && word.starts_with(wanted))
}

impl TextQuery {
    /// Parses user input. Never fails: apart from quotes and `*`, characters that are not part of a
    /// word only separate words.
    pub fn parse(text: &str) -> Self {
        let mut query = TextQuery::default();
        let mut words_left = QUERY_WORDS_MAX;
        for (part, prefix) in split_query(text) {
            let mut words: Vec<String> = spans_of(part).map(|span| part[span].to_lowercase()).collect();
            words.truncate(words_left);
            words_left -= words.len();
            if !words.is_empty() {
                query.terms.push(QueryTerm { words, prefix });
            }
        }
        query
    }

    /// An empty query matches nothing.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn matches(&self, text: &str) -> bool {
        !self.is_empty() && self.terms.iter().all(|term| term.find(text).is_some())
    }

    /// Returns whether an index lookup is sufficient to decide that a text matches. The index has
    /// no word positions and truncates words to `word_bytes_max`.
    pub fn is_decided_by_index(&self, word_bytes_max: usize) -> bool {
        let is_whole = |word: &String| word.len() <= word_bytes_max;
        self.terms.iter().all(|term| term.words.len() == 1 && term.words.iter().all(is_whole))
    }

    /// Returns one line of text around the first match, or from the beginning if nothing matches.
    pub fn snippet(&self, text: &str) -> String {
        let at = self.terms.iter().filter_map(|term| term.find(text)).min().unwrap_or(0);
        let start =
            text[..at].char_indices().rev().take(SNIPPET_CHARS_BEFORE).last().map_or(at, |(at, _)| at);
        let mut snippet = String::from(if start > 0 { "…" } else { "" });
        let cut = &text[start..];
        let end = cut.char_indices().nth(SNIPPET_CHARS_MAX).map_or(cut.len(), |(at, _)| at);
        let line: Vec<&str> = cut[..end].split_whitespace().collect();
        snippet.push_str(&line.join(" "));
        if end < cut.len() {
            snippet.push('…');
        }
        snippet
    }
}

impl QueryTerm {
    /// Returns the byte offset of the first occurrence of this term.
    fn find(&self, text: &str) -> Option<usize> {
        let last = self.words.len() - 1;
        let mut window: VecDeque<Range<usize>> = VecDeque::with_capacity(self.words.len());
        for span in spans_of(text) {
            if window.len() == self.words.len() {
                window.pop_front();
            }
            window.push_back(span);
            let fits = |(at, span): (usize, &Range<usize>)| {
                is_word(&text[span.clone()], &self.words[at], self.prefix && at == last)
            };
            if window.len() == self.words.len() && window.iter().enumerate().all(fits) {
                return window.front().map(|first| first.start);
            }
        }
        None
    }
}

/// Splits a query at spaces and quotes. The second element of each pair is true if the part is
/// followed by `*`.
fn split_query(text: &str) -> Vec<(&str, bool)> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => {
                let end = rest.find(|char: char| char.is_whitespace() || char == '"').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        let starred = part.strip_suffix('*');
        let after_star = after.strip_prefix('*');
        parts.push((starred.unwrap_or(part), starred.is_some() || after_star.is_some()));
        rest = after_star.unwrap_or(after).trim_start();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_phrases_and_prefixes_match() {
        let text = "The quick brown fox; it's über-schnell, v2.0";
        let table = [
            ("quick", true),
            ("QUICK fox", true),
            ("quick wolf", false),
            ("\"quick brown\"", true),
            ("\"quick fox\"", false),
            ("bro*", true),
            ("bro", false),
            ("\"quick bro\"*", true),
            ("\"quick bro*\"", true),
            ("über-schnell", true),
            ("v2.0", true),
            ("it's", true),
            ("", false),
            ("***", false),
            ("\"\"", false),
            ("fox OR wolf", false),
            ("fox NEAR it", false),
            ("-fox", true),
            ("\"brown", true),
        ];
        for (query, expected) in table {
            assert_eq!(TextQuery::parse(query).matches(text), expected, "{query}");
        }
    }

    #[test]
    fn a_snippet_is_one_line_around_the_match() {
        let text = format!("{}\nthe needle is\n  here {}", "é".repeat(500), "x ".repeat(500));
        let snippet = TextQuery::parse("needle").snippet(&text);
        assert!(snippet.starts_with('…') && snippet.ends_with('…') && snippet.contains("the needle is here"));
        assert!(snippet.chars().count() <= SNIPPET_CHARS_MAX + 2);
        assert_eq!(TextQuery::parse("b").snippet("a b"), "a b");
    }

    #[test]
    fn the_number_of_words_in_a_query_is_limited() {
        let many = "w ".repeat(10 * QUERY_WORDS_MAX);
        assert_eq!(TextQuery::parse(&many).terms.len(), QUERY_WORDS_MAX);
    }
}
