//! Full-text search. Entries are numbered in order of arrival. The index lags behind the log and is
//! brought up to date before a search, or by the writer when the lag is large. Hits are returned
//! newest first, by that number.
//!
//! Each indexed text begins with two marker words that no text can contain, because they start with
//! a private-use character, which is not a letter: one for the tenant, one for the session.
//! Therefore the index itself separates tenants (I9), and a search within one session does not scan
//! other sessions.

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
use super::visibility::{seen_by, seen_from};
use crate::match_text::{Query, is_searched, stored_text};
use crate::tokenize::Cutter;
use crate::validate;

/// First character of the words that mark a text's tenant and session.
const MARK: char = '\u{E000}';
/// Texts per transaction when catching up: enough to be fast, few enough not to block other
/// writers.
const CATCH_UP_TEXTS: usize = 2_000;
/// Maximum bytes per transaction when catching up.
const CATCH_UP_BYTES: usize = 4 << 20;
/// Maximum number of texts kept in memory until they are indexed. Beyond that, they are read from
/// their rows again.
const FRESH_TEXTS_MAX: usize = 8_192;
/// Maximum bytes of these texts.
const FRESH_BYTES_MAX: usize = 16 << 20;
/// Maximum number of hits that one search skips because the caller may not see them.
const PASSED_OVER_MAX: usize = 100_000;

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
        db.in_transaction(|| index_some(db))?;
    }
    Ok(())
}

/// Indexes the next texts: first from rows that other processes wrote, then from memory.
fn index_some(db: &StoreConnection) -> Result<()> {
    db.append_cache.refresh(db)?;
    let indexed = indexed(db)?;
    let mut arrived = db.fresh.take_from(indexed + 1, CATCH_UP_TEXTS);
    if arrived.is_empty() {
        let up_to = db.fresh.first().unwrap_or(i64::MAX);
        arrived = stored_texts(db, indexed, up_to)?;
    }
    let last = match arrived.last() {
        Some((arrival, _)) => *arrival,
        // Only a gap is left, where sessions were erased.
        None => db.fresh.first().map_or_else(|| last_arrival(db), |fresh| Ok(fresh - 1))?,
    };
    add_segment(db, &segment_of(indexed + 1, last, &arrived))
}

fn add_segment(db: &StoreConnection, segment: &Segment) -> Result<()> {
    index::add(db, segment)?;
    let sql = "UPDATE counters SET value = ?1 WHERE name = 'indexed'";
    db.prepare(sql)?.execute([segment.last]).at(&db.path)?;
    Ok(())
}

/// Returns a job that indexes the next texts of this process on another thread, if there are enough
/// of them, and the number of the last text. `given` is the last text that is already being
/// indexed.
pub(super) fn next_segment(
    db: &StoreConnection,
    given: Option<i64>,
) -> Result<Option<(i64, impl FnOnce() -> Segment + Send + use<>)>> {
    if !db.fresh.is_plenty() {
        return Ok(None);
    }
    let first = 1 + match given {
        Some(given) => given,
        None => indexed(db)?,
    };
    let arrived = db.fresh.take_from(first, CATCH_UP_TEXTS);
    let last = arrived.last().map(|(last, _)| *last);
    Ok(last.map(|last| (last, move || segment_of(first, last, &arrived))))
}

fn segment_of(first: i64, last: i64, arrived: &[Arrived]) -> Segment {
    let mut cutter = Cutter::default();
    let mut builder = index::Builder::new(first, cutter.hash);
    for (number, text) in arrived {
        let Some(Text { tenant, session, text }) = text else { continue };
        builder.begin_text(*number);
        for mark in [tenant_mark(*tenant), session_mark(*session)] {
            builder.add(&mark, cutter.hash.of(&mark));
        }
        cutter.cut(text, |word, hash| builder.add(word, hash));
    }
    builder.finish(last)
}

/// Adds a segment built on another thread, unless another process has indexed these texts, or some
/// may have been erased since.
pub(super) fn add_indexed(db: &StoreConnection, segment: &Segment, forgotten: u64) -> Result<()> {
    db.in_transaction(|| {
        db.append_cache.refresh(db)?;
        let is_next = indexed(db)? + 1 == segment.first;
        match is_next && db.fresh.forgotten.get() == forgotten {
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
type Arrived = (i64, Option<Text>);

/// A text to index, with its tenant and session.
pub(super) struct Text {
    pub tenant: i64,
    pub session: i64,
    pub text: String,
}

/// Reads the texts of rows between two numbers, both exclusive.
fn stored_texts(db: &StoreConnection, after: i64, before: i64) -> Result<Vec<Arrived>> {
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
        let arrived = (row.get(0).at(path)?, text.map(|text| Text { tenant, session, text }));
        bytes += bytes_of(&arrived);
        texts.push(arrived);
    }
    Ok(texts)
}

/// Entries that this process has appended and that are not in the index yet. They mirror the newest
/// rows, so that indexing does not have to read and decompress them.
#[derive(Default)]
pub(super) struct Fresh {
    texts: RefCell<VecDeque<Arrived>>,
    bytes: Cell<usize>,
    /// How often `forget_all` ran.
    forgotten: Cell<u64>,
}

impl Fresh {
    /// Adds an entry. Every entry is added in order, with or without text: a gap means that another
    /// process has written.
    pub fn push(&self, arrival: i64, text: Option<Text>) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() >= FRESH_TEXTS_MAX || self.bytes.get() >= FRESH_BYTES_MAX {
            texts.clear();
            self.bytes.set(0);
        }
        let arrived = (arrival, text);
        self.bytes.set(self.bytes.get() + bytes_of(&arrived));
        texts.push_back(arrived);
    }

    /// Returns how often `forget_all` ran. Texts taken before the count changed may belong to
    /// erased sessions.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.get()
    }

    /// Returns whether there is enough text for a segment.
    fn is_plenty(&self) -> bool {
        self.texts.borrow().len() >= CATCH_UP_TEXTS || self.bytes.get() >= CATCH_UP_BYTES
    }

    /// Returns whether indexing should not be delayed any longer, because half of the limit is
    /// used.
    pub fn is_too_much(&self) -> bool {
        self.texts.borrow().len() >= FRESH_TEXTS_MAX / 2 || self.bytes.get() >= FRESH_BYTES_MAX / 2
    }

    fn first(&self) -> Option<i64> {
        self.texts.borrow().front().map(|(arrival, _)| *arrival)
    }

    /// Returns consecutive texts from `next` on. Texts with lower numbers are already indexed.
    fn take_from(&self, mut next: i64, limit: usize) -> Vec<Arrived> {
        let mut texts = self.texts.borrow_mut();
        let gone = |arrived: &Arrived| self.bytes.set(self.bytes.get().saturating_sub(bytes_of(arrived)));
        while let Some(below) = texts.pop_front_if(|(arrival, _)| *arrival < next) {
            gone(&below);
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(text) = texts.pop_front_if(|(arrival, _)| *arrival == next)
        {
            gone(&text);
            taken.push(text);
            next += 1;
        }
        taken
    }

    pub fn forget_all(&self) {
        self.texts.borrow_mut().clear();
        self.bytes.set(0);
        self.forgotten.set(self.forgotten.get() + 1);
    }
}

fn bytes_of((_, text): &Arrived) -> usize {
    text.as_ref().map_or(0, |text| text.text.len())
}

fn tenant_mark(tenant: i64) -> String {
    format!("{MARK}t{tenant}")
}

fn session_mark(session: i64) -> String {
    format!("{MARK}s{session}")
}

/// Runs `work`, which deletes entries and collects their numbers, then removes their texts from the index.
pub(super) fn really_forgetting(
    db: &StoreConnection,
    work: impl FnOnce(&mut HashSet<i64>) -> Result<()>,
) -> Result<()> {
    let mut gone = HashSet::new();
    work(&mut gone)?;
    index::forget(db, &gone)?;
    // Numbers above the last remaining entry will be reused.
    let sql = "UPDATE counters SET value = min(value, coalesce((SELECT max(arrival) FROM entries), 0)) WHERE name = 'indexed'";
    db.prepare(sql)?.execute([]).at(&db.path)?;
    db.fresh.forget_all();
    Ok(())
}

/// Returns how many of a tenant's texts are missing from the index. Each text contains at least its
/// tenant's marker.
pub(super) fn count_missing(db: &StoreConnection, scope: &Scope) -> Result<usize> {
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(0) };
    let mut held = HashSet::new();
    let mut found = TermMatches::new(db, vec![TermQuery::Word(tenant_mark(tenant))], i64::MAX)?;
    while let Some(arrival) = found.next()? {
        held.insert(arrival);
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
        missing += usize::from(!held.contains(&row.get(0).at(&db.path)?));
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
    let words = Query::parse(&query.text);
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(page) };
    if words.is_empty() {
        return Ok(page);
    }
    let mut log = session.as_ref().map(|row| LogRows::open(db, row.pk)).transpose()?;
    let mut wanted = wanted_by(&words);
    wanted.push(match &log {
        Some(log) => TermQuery::OneOf(log.lineage().into_iter().map(session_mark).collect()),
        None => TermQuery::Word(tenant_mark(tenant)),
    });
    let mut found = TermMatches::new(db, wanted, before)?;
    let mut select = db.prepare("SELECT key FROM entries WHERE arrival = ?1")?;
    let limit = validate::page_limit(query.limit);
    let (mut last, mut passed_over) = (before, 0);
    while let Some(arrival) = found.next()? {
        if page.items.len() == limit || passed_over > PASSED_OVER_MAX {
            page.next = Some(last.to_string());
            break;
        }
        last = arrival;
        let Some(key) = select.query_row([arrival], |row| row.get(0)).optional().at(&db.path)? else {
            continue;
        };
        let seen = match (&mut log, &session) {
            (Some(log), Some(row)) => seen_from(log, key)?.map(|record| (row.summary.clone(), record)),
            _ => seen_by(db, scope, key)?,
        };
        let hit = seen.map(|(summary, record)| hit(db, summary, record, &words)).transpose()?;
        match hit.flatten() {
            Some(hit) => page.items.push(hit),
            None => passed_over += 1,
        }
    }
    Ok(page)
}

/// Returns the terms of a query for the index. Whether words are complete and adjacent is checked
/// on the text.
fn wanted_by(words: &Query) -> Vec<TermQuery> {
    let mut wanted = Vec::new();
    for term in &words.terms {
        let last = term.words.len().saturating_sub(1);
        wanted.extend(term.words.iter().enumerate().map(|(at, word)| {
            let cut = index::cut(word).to_owned();
            match cut.len() < word.len() || term.prefix && at == last {
                true => TermQuery::Prefix(cut),
                false => TermQuery::Word(cut),
            }
        }));
    }
    wanted
}

fn read_cursor(cursor: Option<&str>) -> Result<i64> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    text.parse().map_err(|_| validate::bad_cursor(text))
}

/// Returns `None` if a word matches only in truncated form, or the words of a phrase are not
/// adjacent.
fn hit(db: &StoreConnection, summary: Summary, record: Record, words: &Query) -> Result<Option<Hit>> {
    let body = record.decode().map_err(|error| db.damaged(error.to_string()))?;
    let text = body.search_text();
    let is_it = words.is_settled_by(WORD_BYTES_MAX) || words.matches(&text);
    Ok(is_it.then(|| validate::hit_of(&summary, &record.meta, words, &text)))
}
