//! Full-text search without an index: words, phrases and prefixes, and the snippet a hit is shown with. Pure.
//!
//! A word is a run of letters and digits, in lower case. The memory and JSONL stores match with [`Query::matches`];
//! SQLite asks its index with [`Query::to_fts5`], whose tokens are quoted, so that nothing a person types is an
//! operator there. Its tokenizer has to be `unicode61 remove_diacritics 0` for both to agree.

use std::ops::Range;

/// Most words a query may hold; the rest is ignored.
pub const QUERY_WORDS_MAX: usize = 64;
/// Characters of a snippet, and how many of them may stand before the first match.
const SNIPPET_CHARS_MAX: usize = 160;
const SNIPPET_CHARS_BEFORE: usize = 60;

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

/// One word of a text, with its place in it in bytes.
struct Word {
    text: String,
    span: Range<usize>,
}

fn words_of(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, char) in text.char_indices().chain([(text.len(), ' ')]) {
        match (char.is_alphanumeric(), start) {
            (true, None) => start = Some(at),
            (false, Some(begin)) => {
                words.push(Word { text: text[begin..at].to_lowercase(), span: begin..at });
                start = None;
            }
            _ => {}
        }
    }
    words
}

impl Query {
    /// Reads what a person typed. Nothing is an error: signs that mean nothing are space.
    pub fn parse(text: &str) -> Self {
        let mut query = Query::default();
        let mut words_left = QUERY_WORDS_MAX;
        for (piece, prefix) in pieces_of(text) {
            let mut words: Vec<String> = words_of(piece).into_iter().map(|word| word.text).collect();
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
        let words = words_of(text);
        !self.is_empty() && self.terms.iter().all(|term| term.find(&words).is_some())
    }

    /// The same query for SQLite's FTS5: quoted strings, which it joins with AND. `None` if there is nothing to find.
    pub fn to_fts5(&self) -> Option<String> {
        let print = |term: &Term| format!("\"{}\"{}", term.words.join(" "), if term.prefix { " *" } else { "" });
        let terms: Vec<String> = self.terms.iter().map(print).collect();
        (!terms.is_empty()).then(|| terms.join(" AND "))
    }

    /// A line of the text around the first match; from the beginning if nothing matches.
    pub fn snippet(&self, text: &str) -> String {
        let words = words_of(text);
        let found = self.terms.iter().filter_map(|term| term.find(&words)).min();
        let at = found.map_or(0, |index| words[index].span.start);
        let start = text[..at].char_indices().rev().take(SNIPPET_CHARS_BEFORE).last().map_or(at, |(at, _)| at);
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
    /// The number of the first word of the first place where this term occurs.
    fn find(&self, words: &[Word]) -> Option<usize> {
        words.windows(self.words.len()).position(|window| {
            let last = self.words.len() - 1;
            self.words.iter().zip(window).enumerate().all(|(at, (wanted, word))| {
                *wanted == word.text || (self.prefix && at == last && word.text.starts_with(wanted.as_str()))
            })
        })
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
    fn a_query_for_fts5_is_all_quoted_strings() {
        assert_eq!(Query::parse("a AND b*").to_fts5().unwrap(), r#""a" AND "and" AND "b" *"#);
        assert_eq!(Query::parse("x\"y z\"w").to_fts5().unwrap(), r#""x" AND "y z" AND "w""#);
        assert_eq!(Query::parse("col:val ^a").to_fts5().unwrap(), r#""col val" AND "a""#);
        assert_eq!(Query::parse(" * - ( ").to_fts5(), None);
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
