//! Full-text search without an index: words, phrases and prefixes, and the snippet a hit is shown with. Pure.
//!
//! A word is a run of letters and digits, in lower case. The memory and JSONL stores match with [`Query::matches`];
//! the databases keep the words of each text in an index ([`crate::words`]), and match what they find by them where words have to stand
//! together.

use std::collections::VecDeque;
use std::ops::Range;

use sapwood_core::entry::codec;
use sapwood_core::port::store::BODY_BYTES_MAX;
use sapwood_core::{Body, Kind};

use crate::compression::with_unpacked;

/// Most words a query may hold; the rest is ignored.
pub const QUERY_WORDS_MAX: usize = 64;
/// Characters of a snippet, and how many of them may stand before the first match.
const SNIPPET_CHARS_MAX: usize = 160;
const SNIPPET_CHARS_BEFORE: usize = 60;

/// Longest text that is indexed, in bytes; what is beyond is not found.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The text a body is found by; `None` for kinds that searches do not look through.
pub fn text_of(body: &Body) -> Option<String> {
    if !is_searched(body.kind()) {
        return None;
    }
    let mut text = body.search_text();
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    Some(text)
}

/// The same of a stored body. One that cannot be read is found by nothing: `doctor` reports it.
pub fn stored_text(kind: u8, version: u32, packing: u8, packed: &[u8]) -> Option<String> {
    let kind = Kind::from_code(kind).filter(|kind| is_searched(*kind))?;
    let decoded = with_unpacked(packing, packed, BODY_BYTES_MAX, |json| codec::decode(version, kind, json));
    Some(decoded.ok().and_then(Result::ok).and_then(|body| text_of(&body)).unwrap_or_default())
}

/// Entries a full-text search looks through.
pub fn is_searched(kind: Kind) -> bool {
    kind.is_message() || matches!(kind, Kind::Compaction | Kind::SessionNamed)
}

/// Words that must occur next to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub words: Vec<String>,
    /// The last word may go on.
    pub prefix: bool,
}

/// Terms that must all occur.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    pub terms: Vec<Term>,
}

/// Where the words of a text are, in bytes.
pub(crate) fn spans_of(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = skip(text, rest, false);
        let end = skip(text, start, true);
        rest = end;
        (start < end).then_some(start..end)
    })
}

/// The end of a run of letters and digits, or of what is between such runs. Most text is ASCII, and this is much of the
/// work of indexing it: bytes first, characters where they must be.
fn skip(text: &str, mut at: usize, words: bool) -> usize {
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        if byte.is_ascii() {
            if IS_WORD[usize::from(*byte)] != words {
                break;
            }
            at += 1;
            continue;
        }
        let Some(char) = text[at..].chars().next().filter(|char| char.is_alphanumeric() == words) else {
            break;
        };
        at += char.len_utf8();
    }
    at
}

/// Which bytes are letters or digits in ASCII.
const IS_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

/// Whether a word of a text is the wanted one, which is in lower case.
fn is_word(word: &str, wanted: &str, prefix: bool) -> bool {
    if word.is_ascii() {
        let head = word.as_bytes().get(..wanted.len());
        return head.is_some_and(|head| head.eq_ignore_ascii_case(wanted.as_bytes()))
            && (prefix || word.len() == wanted.len());
    }
    let word = word.to_lowercase();
    word == wanted || (prefix && word.starts_with(wanted))
}

impl Query {
    /// Reads what a person typed. Nothing is an error: signs that mean nothing are space.
    pub fn parse(text: &str) -> Self {
        let mut query = Query::default();
        let mut words_left = QUERY_WORDS_MAX;
        for (piece, prefix) in pieces_of(text) {
            let mut words: Vec<String> = spans_of(piece).map(|span| piece[span].to_lowercase()).collect();
            words.truncate(words_left);
            words_left -= words.len();
            if !words.is_empty() {
                query.terms.push(Term { words, prefix });
            }
        }
        query
    }

    /// A query without words finds nothing.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn matches(&self, text: &str) -> bool {
        !self.is_empty() && self.terms.iter().all(|term| term.find(text).is_some())
    }

    /// Whether an index that has words without their places, and cuts long ones, can tell that a text matches.
    pub fn is_settled_by(&self, word_bytes_max: usize) -> bool {
        let is_whole = |word: &String| word.len() <= word_bytes_max;
        self.terms.iter().all(|term| term.words.len() == 1 && term.words.iter().all(is_whole))
    }

    /// A line of the text around the first match; from the beginning if nothing matches.
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

impl Term {
    /// Where in the text this term first occurs, in bytes.
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

/// Cuts a query at spaces and quotes. The second half of a pair says whether a `*` stood at the end.
fn pieces_of(text: &str) -> Vec<(&str, bool)> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (piece, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => {
                let end = rest.find(|char: char| char.is_whitespace() || char == '"').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        let starred = piece.strip_suffix('*');
        let after_star = after.strip_prefix('*');
        pieces.push((starred.unwrap_or(piece), starred.is_some() || after_star.is_some()));
        rest = after_star.unwrap_or(after).trim_start();
    }
    pieces
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
            assert_eq!(Query::parse(query).matches(text), expected, "{query}");
        }
    }

    #[test]
    fn a_snippet_is_one_line_around_the_match() {
        let text = format!("{}\nthe needle is\n  here {}", "é".repeat(500), "x ".repeat(500));
        let snippet = Query::parse("needle").snippet(&text);
        assert!(snippet.starts_with('…') && snippet.ends_with('…') && snippet.contains("the needle is here"));
        assert!(snippet.chars().count() <= SNIPPET_CHARS_MAX + 2);
        assert_eq!(Query::parse("b").snippet("a b"), "a b");
    }

    #[test]
    fn a_query_has_a_limit_of_words() {
        let many = "w ".repeat(10 * QUERY_WORDS_MAX);
        assert_eq!(Query::parse(&many).terms.len(), QUERY_WORDS_MAX);
    }
}
