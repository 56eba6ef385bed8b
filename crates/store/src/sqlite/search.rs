//! Full-text search. Entries are numbered in order of arrival. The index lags behind the log and is
//! brought up to date before a search, or by the writer when the lag is large. Hits are returned in
//! descending order of that number, newest first.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, params};
use sapwood_core::port::store::{Hit, Page, Result, SearchQuery};
use sapwood_core::{Right, Scope};

use super::connection::StoreConnection;
use super::error::AtPath;
use super::index::{self, Segment, TermMatches, TermQuery, WORD_BYTES_MAX};
use super::log::LogRows;
use super::session_table::find;
use super::unindexed::{ArrivedEntry, CATCH_UP_BYTES, CATCH_UP_TEXTS, UnindexedText, bytes_of};
use super::visibility::{read_in_session, read_visible};
use crate::database::search::{HitPage, index_words, searched_kinds, session_marker, tenant_marker};
use crate::match_text::{TextQuery, stored_text};
use crate::tokenize::Tokenizer;
use crate::validate::bad_cursor;

/// Returns how many entries the index has not processed yet.
pub(super) fn lag(db: &StoreConnection) -> Result<i64> {
    db.query_value("SELECT coalesce((SELECT max(arrival) FROM entries), 0) - (SELECT value FROM counters WHERE name = 'indexed')", [])
}

/// Indexes all remaining texts, in separate transactions.
pub(super) fn catch_up(db: &StoreConnection) -> Result<()> {
    while lag(db)? > 0 {
        db.in_transaction(|| index_batch(db))?;
    }
    Ok(())
}

/// Indexes the next batch of texts: from memory or, if the next text is not in memory, from their
/// rows.
fn index_batch(db: &StoreConnection) -> Result<()> {
    db.refresh_caches()?;
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
    db.execute(sql, [segment.last])?;
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
        db.refresh_caches()?;
        let is_next = indexed(db)? + 1 == segment.first;
        match is_next && db.unindexed.clear_count() == clear_count {
            true => add_segment(db, segment),
            false => Ok(()),
        }
    })
}

fn indexed(db: &StoreConnection) -> Result<i64> {
    db.query_value("SELECT value FROM counters WHERE name = 'indexed'", [])
}

fn last_arrival(db: &StoreConnection) -> Result<i64> {
    db.query_value("SELECT coalesce(max(arrival), 0) FROM entries", [])
}

/// Reads the next batch of texts between two row numbers, both exclusive.
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
    db.execute(sql, [])?;
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
    let searched: Vec<String> = searched_kinds().map(|kind| kind.code().to_string()).collect();
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

pub(super) fn rebuild(db: &StoreConnection) -> Result<()> {
    let empty = "UPDATE counters SET value = 0 WHERE name = 'indexed'";
    db.in_transaction(|| {
        index::clear(db)?;
        db.conn.execute_batch(empty).at(&db.path)
    })?;
    catch_up(db)
}

pub(super) fn search(db: &StoreConnection, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
    let words = TextQuery::parse(&query.text);
    let mut page = HitPage::new(query, &words, WORD_BYTES_MAX);
    let before = read_cursor(query.cursor.as_deref())?;
    let session = query.session.as_ref().map(|id| find(db, scope, id, Right::Read)).transpose()?;
    let Some(tenant) = db.tenant(&scope.tenant)? else { return Ok(page.finish(None)) };
    if words.is_empty() {
        return Ok(page.finish(None));
    }
    let mut log = session.as_ref().map(|row| LogRows::open(db, row.pk)).transpose()?;
    let mut terms = index_terms(&words);
    terms.push(match &log {
        Some(log) => TermQuery::OneOf(log.lineage().into_iter().map(session_marker).collect()),
        None => TermQuery::Word(tenant_marker(tenant)),
    });
    let mut found = TermMatches::new(db, terms, before)?;
    let mut select = db.prepare("SELECT key FROM entries WHERE arrival = ?1")?;
    let mut last = before;
    while let Some(arrival) = found.next()? {
        if page.is_full() {
            return Ok(page.finish(Some(last.to_string())));
        }
        last = arrival;
        let Some(key) = select.query_row([arrival], |row| row.get(0)).optional().at(&db.path)? else {
            continue;
        };
        let visible = match (&mut log, &session) {
            (Some(log), Some(row)) => read_in_session(log, key)?.map(|record| (row.summary.clone(), record)),
            _ => read_visible(db, scope, key)?,
        };
        page.add(db, visible)?;
    }
    Ok(page.finish(None))
}

fn index_terms(words: &TextQuery) -> Vec<TermQuery> {
    let term_of = |(word, is_prefix): (&str, bool)| match is_prefix {
        true => TermQuery::Prefix(word.to_owned()),
        false => TermQuery::Word(word.to_owned()),
    };
    index_words(words, WORD_BYTES_MAX).map(term_of).collect()
}

fn read_cursor(cursor: Option<&str>) -> Result<i64> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    text.parse().map_err(|_| bad_cursor(text))
}
