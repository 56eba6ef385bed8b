//! Full-text search. Entries are numbered in order of arrival. The index lags behind the log and is
//! brought up to date before a search, or by the writer when the lag is large. Hits are returned in
//! descending order of that number, newest first.
//!
//! The index adds two marker words to each text, one for the tenant and one for the session. No
//! text can contain them, because they start with a private-use character, which is not a letter.
//! So the index itself separates tenants (I9), and a search within one session does not scan other
//! sessions.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{Hit, Page, Result, SearchQuery};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Record, Right, Scope};

use super::connection::StoreConnection;
use super::error::AtPath;
use super::index::{self, Segment, TermMatches, TermQuery, WORD_BYTES_MAX};
use super::log::LogRows;
use super::session::find;
use super::visibility::{read_in_session, read_visible};
use crate::match_text::{TextQuery, is_searched, stored_text};
use crate::tokenize::Tokenizer;
use crate::validate;

/// First character of the marker words for a text's tenant and session.
const MARKER: char = '\u{E000}';
/// Texts per transaction when catching up: enough to be fast, few enough not to block other
/// writers.
const CATCH_UP_TEXTS: usize = 2_000;
/// Maximum bytes per transaction when catching up.
const CATCH_UP_BYTES: usize = 4 << 20;
/// Maximum number of texts that are held in memory until they are indexed. Beyond that, they are
/// dropped and later read from their rows.
const UNINDEXED_TEXTS_MAX: usize = 8_192;
/// Maximum total bytes of the texts held in memory.
const UNINDEXED_BYTES_MAX: usize = 16 << 20;
/// Maximum number of matches that one search skips because they are not hits or the caller may not
/// see them.
const SKIPPED_MATCHES_MAX: usize = 100_000;

/// Returns how many entries the index has not processed yet.
pub(super) fn lag(db: &StoreConnection) -> Result<i64> {
    let mut select = db.prepare(
        "SELECT coalesce((SELECT max(arrival) FROM entries), 0) - (SELECT value FROM counters WHERE name = 'indexed')",
    )?;
    select.query_row([], |row| row.get(0)).at(&db.path)
}

/// Indexes all remaining texts, in separate transactions.
pub(super) fn catch_up(db: &StoreConnection) -> Result<()> {
    while lag(db)? > 0 {
        db.in_transaction(|| index_batch(db))?;
    }
    Ok(())
}

/// Indexes the next batch of texts: from memory or, if the next text is not in memory, from its
/// row.
fn index_batch(db: &StoreConnection) -> Result<()> {
    db.append_cache.refresh(db)?;
    let indexed = indexed(db)?;
    let mut arrived = db.unindexed.take_from(indexed + 1, CATCH_UP_TEXTS);
    if arrived.is_empty() {
        let up_to = db.unindexed.first().unwrap_or(i64::MAX);
        arrived = stored_texts(db, indexed, up_to)?;
    }
    let last = match arrived.last() {
        Some((arrival, _)) => *arrival,
        // All remaining rows of this range were erased.
        None => db.unindexed.first().map_or_else(|| last_arrival(db), |first| Ok(first - 1))?,
    };
    add_segment(db, &segment_of(indexed + 1, last, &arrived))
}

fn add_segment(db: &StoreConnection, segment: &Segment) -> Result<()> {
    index::add(db, segment)?;
    let sql = "UPDATE counters SET value = ?1 WHERE name = 'indexed'";
    db.prepare(sql)?.execute([segment.last]).at(&db.path)?;
    Ok(())
}

/// Returns the number of the last text in the next batch, and a job that builds its segment on
/// another thread. Returns `None` if this process has too few unindexed texts. `queued` is the last
/// text of the batches that are already being indexed.
pub(super) fn next_segment(
    db: &StoreConnection,
    queued: Option<i64>,
) -> Result<Option<(i64, impl FnOnce() -> Segment + Send + use<>)>> {
    if !db.unindexed.has_full_batch() {
        return Ok(None);
    }
    let first = 1 + match queued {
        Some(queued) => queued,
        None => indexed(db)?,
    };
    let arrived = db.unindexed.take_from(first, CATCH_UP_TEXTS);
    let last = arrived.last().map(|(last, _)| *last);
    Ok(last.map(|last| (last, move || segment_of(first, last, &arrived))))
}

fn segment_of(first: i64, last: i64, arrived: &[ArrivedEntry]) -> Segment {
    let mut tokenizer = Tokenizer::default();
    let mut builder = index::SegmentBuilder::new(first, tokenizer.hash);
    for (number, text) in arrived {
        let Some(UnindexedText { tenant, session, text }) = text else { continue };
        builder.begin_text(*number);
        for marker in [tenant_marker(*tenant), session_marker(*session)] {
            builder.add(&marker, tokenizer.hash.of(&marker));
        }
        tokenizer.tokenize(text, |word, hash| builder.add(word, hash));
    }
    builder.finish(last)
}

/// Adds a segment built on another thread, unless another process has indexed its texts, or some of
/// them may have been erased in the meantime.
pub(super) fn add_indexed(db: &StoreConnection, segment: &Segment, clear_count: u64) -> Result<()> {
    db.in_transaction(|| {
        db.append_cache.refresh(db)?;
        let is_next = indexed(db)? + 1 == segment.first;
        match is_next && db.unindexed.clear_count.get() == clear_count {
            true => add_segment(db, segment),
            false => Ok(()),
        }
    })
}

fn indexed(db: &StoreConnection) -> Result<i64> {
    let mut select = db.prepare("SELECT value FROM counters WHERE name = 'indexed'")?;
    select.query_row([], |row| row.get(0)).at(&db.path)
}

fn last_arrival(db: &StoreConnection) -> Result<i64> {
    let mut select = db.prepare("SELECT coalesce(max(arrival), 0) FROM entries")?;
    select.query_row([], |row| row.get(0)).at(&db.path)
}

/// An entry's number, and its text if it has one.
type ArrivedEntry = (i64, Option<UnindexedText>);

/// A text to index, with its tenant and session.
pub(super) struct UnindexedText {
    pub tenant: i64,
    pub session: i64,
    pub text: String,
}

/// Reads the texts of rows between two numbers, both exclusive.
fn stored_texts(db: &StoreConnection, after: i64, before: i64) -> Result<Vec<ArrivedEntry>> {
    let path = &db.path;
    let sql = "SELECT arrival, key >> 32, tenant, kind, version, packing, body
               FROM entries JOIN sessions ON sessions.pk = key >> 32
               WHERE arrival > ?1 AND arrival < ?2 ORDER BY arrival LIMIT ?3";
    let mut select = db.prepare(sql)?;
    let mut rows =
        select.query(params![after, before, i64::try_from(CATCH_UP_TEXTS).unwrap_or(i64::MAX)]).at(path)?;
    let (mut texts, mut bytes) = (Vec::new(), 0);
    while bytes < CATCH_UP_BYTES
        && let Some(row) = rows.next().at(path)?
    {
        let packed = row.get_ref(6).at(path)?.as_blob().unwrap_or_default();
        let text = stored_text(row.get(3).at(path)?, row.get(4).at(path)?, row.get(5).at(path)?, packed);
        let (session, tenant) = (row.get(1).at(path)?, row.get(2).at(path)?);
        let arrived = (row.get(0).at(path)?, text.map(|text| UnindexedText { tenant, session, text }));
        bytes += bytes_of(&arrived);
        texts.push(arrived);
    }
    Ok(texts)
}

/// Entries that this process has appended and that are not in the index yet. They mirror the newest
/// rows, so that indexing does not have to read and decompress them.
#[derive(Default)]
pub(super) struct UnindexedTexts {
    texts: RefCell<VecDeque<ArrivedEntry>>,
    bytes: Cell<usize>,
    /// How often `clear` was called.
    clear_count: Cell<u64>,
}

impl UnindexedTexts {
    /// Adds an entry. Every entry is added in order, with or without text: a gap means that another
    /// process has written.
    pub fn push(&self, arrival: i64, text: Option<UnindexedText>) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() >= UNINDEXED_TEXTS_MAX || self.bytes.get() >= UNINDEXED_BYTES_MAX {
            texts.clear();
            self.bytes.set(0);
        }
        let arrived = (arrival, text);
        self.bytes.set(self.bytes.get() + bytes_of(&arrived));
        texts.push_back(arrived);
    }

    /// Returns how often `clear` was called. Texts taken before the last call may belong to erased
    /// sessions.
    pub fn clear_count(&self) -> u64 {
        self.clear_count.get()
    }

    /// Returns whether there is enough text for a segment.
    fn has_full_batch(&self) -> bool {
        self.texts.borrow().len() >= CATCH_UP_TEXTS || self.bytes.get() >= CATCH_UP_BYTES
    }

    /// Returns whether indexing is urgent, because half of the limit is used.
    pub fn is_near_limit(&self) -> bool {
        self.texts.borrow().len() >= UNINDEXED_TEXTS_MAX / 2 || self.bytes.get() >= UNINDEXED_BYTES_MAX / 2
    }

    fn first(&self) -> Option<i64> {
        self.texts.borrow().front().map(|(arrival, _)| *arrival)
    }

    /// Removes and returns up to `limit` consecutive texts, starting at `next`. Drops texts with
    /// lower numbers, which are already indexed.
    fn take_from(&self, mut next: i64, limit: usize) -> Vec<ArrivedEntry> {
        let mut texts = self.texts.borrow_mut();
        let subtract =
            |arrived: &ArrivedEntry| self.bytes.set(self.bytes.get().saturating_sub(bytes_of(arrived)));
        while let Some(below) = texts.pop_front_if(|(arrival, _)| *arrival < next) {
            subtract(&below);
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(text) = texts.pop_front_if(|(arrival, _)| *arrival == next)
        {
            subtract(&text);
            taken.push(text);
            next += 1;
        }
        taken
    }

    pub fn clear(&self) {
        self.texts.borrow_mut().clear();
        self.bytes.set(0);
        self.clear_count.set(self.clear_count.get() + 1);
    }
}

fn bytes_of((_, text): &ArrivedEntry) -> usize {
    text.as_ref().map_or(0, |text| text.text.len())
}

fn tenant_marker(tenant: i64) -> String {
    format!("{MARKER}t{tenant}")
}

fn session_marker(session: i64) -> String {
    format!("{MARKER}s{session}")
}

/// Runs `work`, which deletes entries and collects their numbers, then removes their texts from the index.
pub(super) fn delete_with_index(
    db: &StoreConnection,
    work: impl FnOnce(&mut HashSet<i64>) -> Result<()>,
) -> Result<()> {
    let mut deleted = HashSet::new();
    work(&mut deleted)?;
    index::remove_texts(db, &deleted)?;
    // Numbers above the last remaining entry will be reused.
    let sql = "UPDATE counters SET value = min(value, coalesce((SELECT max(arrival) FROM entries), 0)) WHERE name = 'indexed'";
    db.prepare(sql)?.execute([]).at(&db.path)?;
    db.unindexed.clear();
    Ok(())
}

/// Returns how many of a tenant's texts are missing from the index. Each text contains at least its
/// tenant's marker.
pub(super) fn count_missing(db: &StoreConnection, scope: &Scope) -> Result<usize> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(0) };
    let mut indexed_texts = HashSet::new();
    let mut found = TermMatches::new(db, vec![TermQuery::Word(tenant_marker(tenant))], i64::MAX)?;
    while let Some(arrival) = found.next()? {
        indexed_texts.insert(arrival);
    }
    let searched: Vec<String> =
        Kind::ALL.iter().filter(|kind| is_searched(**kind)).map(|kind| kind.code().to_string()).collect();
    let sql = format!(
        "SELECT arrival FROM entries JOIN sessions ON sessions.pk = key >> 32
         WHERE tenant = ?1 AND kind IN ({}) AND arrival <= ?2",
        searched.join(", ")
    );
    let mut select = db.prepare(&sql)?;
    let mut rows = select.query([tenant, indexed(db)?]).at(&db.path)?;
    let mut missing = 0;
    while let Some(row) = rows.next().at(&db.path)? {
        missing += usize::from(!indexed_texts.contains(&row.get(0).at(&db.path)?));
    }
    Ok(missing)
}

/// Rebuilds the whole index.
pub(super) fn rebuild(db: &StoreConnection) -> Result<()> {
    let empty = "UPDATE counters SET value = 0 WHERE name = 'indexed'";
    db.in_transaction(|| {
        index::clear(db)?;
        db.conn.execute_batch(empty).at(&db.path)
    })?;
    catch_up(db)
}

pub(super) fn search(db: &StoreConnection, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
    let mut page = Page { items: Vec::new(), next: None };
    let before = read_cursor(query.cursor.as_deref())?;
    let session = query.session.as_ref().map(|id| find(db, scope, id, Right::Read)).transpose()?;
    let words = TextQuery::parse(&query.text);
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(page) };
    if words.is_empty() {
        return Ok(page);
    }
    let mut log = session.as_ref().map(|row| LogRows::open(db, row.pk)).transpose()?;
    let mut terms = index_terms(&words);
    terms.push(match &log {
        Some(log) => TermQuery::OneOf(log.lineage().into_iter().map(session_marker).collect()),
        None => TermQuery::Word(tenant_marker(tenant)),
    });
    let mut found = TermMatches::new(db, terms, before)?;
    let mut select = db.prepare("SELECT key FROM entries WHERE arrival = ?1")?;
    let limit = validate::page_limit(query.limit);
    let (mut last, mut skipped) = (before, 0);
    while let Some(arrival) = found.next()? {
        if page.items.len() == limit || skipped > SKIPPED_MATCHES_MAX {
            page.next = Some(last.to_string());
            break;
        }
        last = arrival;
        let Some(key) = select.query_row([arrival], |row| row.get(0)).optional().at(&db.path)? else {
            continue;
        };
        let visible = match (&mut log, &session) {
            (Some(log), Some(row)) => read_in_session(log, key)?.map(|record| (row.summary.clone(), record)),
            _ => read_visible(db, scope, key)?,
        };
        let hit = visible.map(|(summary, record)| hit_for(db, summary, record, &words)).transpose()?;
        match hit.flatten() {
            Some(hit) => page.items.push(hit),
            None => skipped += 1,
        }
    }
    Ok(page)
}

/// Returns the terms that the index searches for. The caller checks on the text whether words are
/// complete and adjacent.
fn index_terms(words: &TextQuery) -> Vec<TermQuery> {
    let mut terms = Vec::new();
    for term in &words.terms {
        let last = term.words.len().saturating_sub(1);
        terms.extend(term.words.iter().enumerate().map(|(at, word)| {
            let truncated = index::truncate_word(word).to_owned();
            match truncated.len() < word.len() || term.prefix && at == last {
                true => TermQuery::Prefix(truncated),
                false => TermQuery::Word(truncated),
            }
        }));
    }
    terms
}

fn read_cursor(cursor: Option<&str>) -> Result<i64> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    text.parse().map_err(|_| validate::bad_cursor(text))
}

/// Returns the hit for an entry, or `None` if a word matches only in truncated form or the words of
/// a phrase are not adjacent.
fn hit_for(db: &StoreConnection, summary: Summary, record: Record, words: &TextQuery) -> Result<Option<Hit>> {
    let body = record.decode().map_err(|error| db.damaged(error.to_string()))?;
    let text = body.search_text();
    let is_match = words.is_decided_by_index(WORD_BYTES_MAX) || words.matches(&text);
    Ok(is_match.then(|| validate::hit_of(&summary, &record.meta, words, &text)))
}
