//! Full-text search: the words of the index, and the page of hits.
//!
//! The index adds two marker words to each text, one for the tenant and one for the session. No
//! text can contain them, because they start with a private-use character, which is not a letter.
//! So the index itself separates tenants (I9), and a search within one session does not scan other
//! sessions.

use std::fmt::Display;

use sapwood_core::port::store::{Hit, Page, Result, SearchQuery};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Record};

use super::NamedDatabase;
use crate::match_text::{TextQuery, is_searched};
use crate::validate::{hit_of, page_limit};

/// First character of the marker words for a text's tenant and session.
const MARKER: char = '\u{E000}';
/// Maximum number of matches that one search skips because they are not hits or the caller may not
/// see them.
const SKIPPED_MATCHES_MAX: usize = 100_000;

pub(crate) fn tenant_marker(tenant: impl Display) -> String {
    format!("{MARKER}t{tenant}")
}

pub(crate) fn session_marker(session: i64) -> String {
    format!("{MARKER}s{session}")
}

/// Truncates a word to the length that an index stores.
#[inline]
pub(crate) fn truncate_word(word: &str, bytes_max: usize) -> &str {
    &word[..word.floor_char_boundary(bytes_max)]
}

/// Returns the words to look up in an index that stores at most `bytes_max` bytes of a word, and
/// whether each is a prefix. The texts found may include texts that do not match the query.
pub(crate) fn index_words(query: &TextQuery, bytes_max: usize) -> impl Iterator<Item = (&str, bool)> {
    query.terms.iter().flat_map(move |term| {
        (1..).zip(&term.words).map(move |(number, word)| {
            let truncated = truncate_word(word, bytes_max);
            (truncated, truncated.len() < word.len() || term.prefix && number == term.words.len())
        })
    })
}

/// Returns the kinds of entries that are in the index.
pub(crate) fn searched_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.iter().copied().filter(|kind| is_searched(*kind))
}

/// A page of hits, filled with the matches of an index, newest first.
pub(crate) struct HitPage<'q> {
    words: &'q TextQuery,
    word_bytes_max: usize,
    limit: usize,
    skipped: usize,
    hits: Vec<Hit>,
}

impl<'q> HitPage<'q> {
    pub fn new(query: &SearchQuery, words: &'q TextQuery, word_bytes_max: usize) -> Self {
        Self { words, word_bytes_max, limit: page_limit(query.limit), skipped: 0, hits: Vec::new() }
    }

    pub fn is_full(&self) -> bool {
        self.hits.len() == self.limit || self.skipped > SKIPPED_MATCHES_MAX
    }

    /// Adds a match of the index. `visible` is the entry and the session in which the caller sees it,
    /// or `None` if the caller may not see the entry. A match is not a hit if a word matches only in
    /// truncated form or the words of a phrase are not adjacent.
    pub fn add(&mut self, db: &impl NamedDatabase, visible: Option<(Summary, Record)>) -> Result<()> {
        if let Some((summary, record)) = visible {
            let text = record.decode().map_err(|error| db.damaged(error))?.search_text();
            if self.words.is_decided_by_index(self.word_bytes_max) || self.words.matches(&text) {
                self.hits.push(hit_of(&summary, &record.meta, self.words, &text));
                return Ok(());
            }
        }
        self.skipped += 1;
        Ok(())
    }

    pub fn finish(self, next: Option<String>) -> Page<Hit> {
        Page { items: self.hits, next }
    }
}
