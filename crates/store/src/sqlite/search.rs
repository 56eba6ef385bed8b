//! Full text. Entries are numbered as they arrive; the index trails behind and is brought up to date before a search, or by
//! the writer when it has fallen far behind. Hits come newest first, by that number.
//!
//! Each indexed text begins with two words that no text can contain (they start with a private-use character, which is no
//! letter to us): one for the tenant, one for the session. So the index itself keeps tenants apart (I9), and a search
//! within one session does not wade through the others.

use std::cell::RefCell;
use std::collections::VecDeque;

use rusqlite::{OptionalExtension, params};
use sapwood_core::entry::codec;
use sapwood_core::port::store::{BODY_BYTES_MAX, Hit, Page, Result, SearchQuery};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Record, Right, Scope, StoreError};

use super::desk::Desk;
use super::fault::Fault;
use super::log::{LogRows, pk_of};
use super::session::find;
use super::sight::{seen_by, seen_from};
use crate::match_text::{Query, is_searched, words_of};
use crate::pack::with_unpacked;
use crate::rules;

/// Begins the words that mark a text's tenant and session. FTS5 takes private-use characters for letters.
const MARK: char = '\u{E000}';
/// Texts per transaction when catching up: long enough to be quick, short enough not to hold others up.
const CATCH_UP_TEXTS: usize = 2_000;
/// Texts kept in memory until they are indexed; over that they are read from their rows again.
const FRESH_TEXTS_MAX: usize = 4_096;
/// Hits that a caller may not see are passed over; so many at most in one search.
const PASSED_OVER_MAX: usize = 100_000;

/// How many entries the index has not seen yet.
pub(super) fn lag(desk: &Desk) -> Result<i64> {
    let mut select = desk.prepare(
        "SELECT coalesce((SELECT max(arrival) FROM entries), 0) - (SELECT value FROM counters WHERE name = 'indexed')",
    )?;
    select.query_row([], |row| row.get(0)).at(&desk.path)
}

/// Indexes everything that is not yet, in transactions of its own.
pub(super) fn catch_up(desk: &Desk) -> Result<()> {
    while lag(desk)? > 0 {
        desk.in_transaction(|| index_some(desk))?;
    }
    Ok(())
}

/// Indexes the next texts: from the rows, or, once those are done that other processes wrote, from memory.
fn index_some(desk: &Desk) -> Result<()> {
    let path = &desk.path;
    let indexed: i64 = desk
        .prepare("SELECT value FROM counters WHERE name = 'indexed'")?
        .query_row([], |row| row.get(0))
        .at(path)?;
    let mut arrived = desk.fresh.take_from(indexed + 1, CATCH_UP_TEXTS);
    if arrived.is_empty() {
        let up_to = desk.fresh.first().unwrap_or(i64::MAX);
        arrived = stored_texts(desk, indexed, up_to)?;
    }
    let mut insert = desk.prepare("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?;
    for (arrival, text) in &arrived {
        if let Some(text) = text {
            insert.execute(params![arrival, text]).at(path)?;
        }
    }
    let last = match arrived.last() {
        Some((arrival, _)) => *arrival,
        // Only a gap is left, where sessions were erased.
        None => desk.fresh.first().map_or_else(|| last_arrival(desk), |fresh| Ok(fresh - 1))?,
    };
    desk.prepare("UPDATE counters SET value = ?1 WHERE name = 'indexed'")?.execute([last]).at(path)?;
    Ok(())
}

fn last_arrival(desk: &Desk) -> Result<i64> {
    let mut select = desk.prepare("SELECT coalesce(max(arrival), 0) FROM entries")?;
    select.query_row([], |row| row.get(0)).at(&desk.path)
}

/// An entry's number, and its text if it has one.
type Arrived = (i64, Option<String>);

/// The texts of rows between two numbers, both excluded.
fn stored_texts(desk: &Desk, after: i64, before: i64) -> Result<Vec<Arrived>> {
    let path = &desk.path;
    let sql = "SELECT arrival, key >> 32, tenant, kind, version, packing, body
               FROM entries JOIN sessions ON sessions.pk = key >> 32
               WHERE arrival > ?1 AND arrival < ?2 ORDER BY arrival LIMIT ?3";
    let mut select = desk.prepare(sql)?;
    let mut rows =
        select.query(params![after, before, i64::try_from(CATCH_UP_TEXTS).unwrap_or(i64::MAX)]).at(path)?;
    let mut texts = Vec::new();
    while let Some(row) = rows.next().at(path)? {
        let packed = row.get_ref(6).at(path)?.as_blob().unwrap_or_default();
        let words = stored_words(row.get(3).at(path)?, row.get(4).at(path)?, row.get(5).at(path)?, packed);
        let (session, tenant) = (row.get(1).at(path)?, row.get(2).at(path)?);
        texts.push((row.get(0).at(path)?, words.map(|words| marked(tenant, session, &words))));
    }
    Ok(texts)
}

/// The words of a row's body, if searches look through its kind. A body that cannot be read is found by nothing: `doctor`
/// reports it.
fn stored_words(kind: u8, version: u32, packing: u8, packed: &[u8]) -> Option<String> {
    let kind = Kind::from_code(kind).filter(|kind| is_searched(*kind))?;
    let decoded = with_unpacked(packing, packed, BODY_BYTES_MAX, |json| codec::decode(version, kind, json));
    Some(decoded.ok().and_then(Result::ok).and_then(|body| words_of(&body)).unwrap_or_default())
}

/// Entries that this process has appended and that are not in the index yet: a mirror of the newest rows, so that indexing
/// does not have to read and unpack what was in memory a moment ago.
#[derive(Default)]
pub(super) struct Fresh(RefCell<VecDeque<Arrived>>);

impl Fresh {
    /// Every entry is told of, in order, whether it has a text or not: a gap means that somebody else has written.
    pub fn push(&self, arrival: i64, text: Option<String>) {
        let mut texts = self.0.borrow_mut();
        if texts.len() >= FRESH_TEXTS_MAX {
            texts.clear();
        }
        texts.push_back((arrival, text));
    }

    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    fn first(&self) -> Option<i64> {
        self.0.borrow().front().map(|(arrival, _)| *arrival)
    }

    /// Takes the texts that are numbered from `next` on without a gap. Those below are indexed already.
    fn take_from(&self, mut next: i64, limit: usize) -> Vec<Arrived> {
        let mut texts = self.0.borrow_mut();
        while texts.front().is_some_and(|(arrival, _)| *arrival < next) {
            texts.pop_front();
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(text) = texts.pop_front_if(|(arrival, _)| *arrival == next)
        {
            taken.push(text);
            next += 1;
        }
        taken
    }

    pub fn forget_all(&self) {
        self.0.borrow_mut().clear();
    }
}

pub(super) fn marked(tenant: i64, session: i64, text: &str) -> String {
    format!("{} {} {text}", tenant_mark(tenant), session_mark(session))
}

fn tenant_mark(tenant: i64) -> String {
    format!("{MARK}t{tenant}")
}

fn session_mark(session: i64) -> String {
    format!("{MARK}s{session}")
}

/// Takes an entry out of the index, if it is in it. The row must still be there.
pub(super) fn forget(desk: &Desk, key: i64) -> Result<()> {
    let path = &desk.path;
    let sql = "SELECT arrival, tenant, kind, version, packing, body FROM entries JOIN sessions ON sessions.pk = key >> 32
               WHERE key = ?1";
    let mut select = desk.prepare(sql)?;
    let found = select.query_row([key], |row| {
        let packed = row.get_ref(5)?.as_blob().unwrap_or_default();
        let words = stored_words(row.get(2)?, row.get(3)?, row.get(4)?, packed);
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, words))
    });
    let Some((arrival, tenant, Some(words))) = found.optional().at(path)? else { return Ok(()) };
    let sql = "INSERT INTO texts (texts, rowid, text) SELECT 'delete', ?1, ?2
               WHERE ?1 <= (SELECT value FROM counters WHERE name = 'indexed')";
    desk.prepare(sql)?.execute(params![arrival, marked(tenant, pk_of(key), &words)]).at(path)?;
    Ok(())
}

/// Runs what takes texts out such that no trace of them stays in the index. FTS5 would otherwise only mark them, and a
/// later merge would drop them; but being ready for that slows every other write, so it is on only here.
pub(super) fn really_forgetting(desk: &Desk, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let switch = "INSERT INTO texts (texts, rank) VALUES ('secure-delete', ?1)";
    desk.prepare(switch)?.execute([1]).at(&desk.path)?;
    work()?;
    desk.prepare(switch)?.execute([0]).at(&desk.path)?;
    // Numbers at the end will be given again.
    let sql = "UPDATE counters SET value = min(value, coalesce((SELECT max(arrival) FROM entries), 0)) WHERE name = 'indexed'";
    desk.prepare(sql)?.execute([]).at(&desk.path)?;
    desk.fresh.forget_all();
    Ok(())
}

/// How many of a tenant's texts the index should hold and does not. Each is there at least by its tenant's mark.
pub(super) fn count_missing(desk: &Desk, scope: &Scope) -> Result<i64> {
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(0) };
    let searched: Vec<String> =
        Kind::ALL.iter().filter(|kind| is_searched(**kind)).map(|kind| kind.code().to_string()).collect();
    let sql = format!(
        "SELECT count(*) FROM entries JOIN sessions ON sessions.pk = key >> 32
         WHERE tenant = ?1 AND kind IN ({}) AND arrival <= (SELECT value FROM counters WHERE name = 'indexed')
         AND arrival NOT IN (SELECT rowid FROM texts WHERE texts MATCH ?2)",
        searched.join(", ")
    );
    let mark = format!("\"{}\"", tenant_mark(tenant));
    desk.conn.query_row(&sql, params![tenant, mark], |row| row.get(0)).at(&desk.path)
}

/// Builds the whole index anew.
pub(super) fn rebuild(desk: &Desk) -> Result<()> {
    let empty = "INSERT INTO texts (texts) VALUES ('delete-all');
                 UPDATE counters SET value = 0 WHERE name = 'indexed';";
    desk.in_transaction(|| desk.conn.execute_batch(empty).at(&desk.path))?;
    catch_up(desk)
}

pub(super) fn search(desk: &Desk, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
    let mut page = Page { items: Vec::new(), next: None };
    let before = read_cursor(query.cursor.as_deref())?;
    let session = query.session.as_ref().map(|id| find(desk, scope, id, Right::Read)).transpose()?;
    let words = Query::parse(&query.text);
    let Some(tenant) = desk.tenant(&scope.tenant)? else { return Ok(page) };
    let Some(wanted) = words.to_fts5() else { return Ok(page) };
    let mut log = session.as_ref().map(|row| LogRows::open(desk, row.pk)).transpose()?;
    let expression = match &log {
        Some(log) => {
            let marks: Vec<String> =
                log.lineage().iter().map(|pk| format!("\"{}\"", session_mark(*pk))).collect();
            format!("({}) AND ({wanted})", marks.join(" OR "))
        }
        None => format!("\"{}\" AND ({wanted})", tenant_mark(tenant)),
    };
    let sql = "SELECT texts.rowid, key FROM texts JOIN entries ON arrival = texts.rowid
               WHERE texts MATCH ?1 AND texts.rowid < ?2 ORDER BY texts.rowid DESC";
    let mut select = desk.prepare(sql)?;
    let mut rows = select.query(params![expression, before]).at(&desk.path)?;
    let limit = rules::page_limit(query.limit);
    let (mut last, mut passed_over) = (before, 0);
    while let Some(row) = rows.next().at(&desk.path)? {
        if page.items.len() == limit || passed_over > PASSED_OVER_MAX {
            page.next = Some(last.to_string());
            break;
        }
        last = row.get(0).at(&desk.path)?;
        let key = row.get(1).at(&desk.path)?;
        let found = match (&mut log, &session) {
            (Some(log), Some(row)) => seen_from(log, key)?.map(|record| (row.summary.clone(), record)),
            _ => seen_by(desk, scope, key)?,
        };
        let hit = found.map(|(summary, record)| hit(desk, summary, record, &words)).transpose()?;
        match hit.flatten() {
            Some(hit) => page.items.push(hit),
            None => passed_over += 1,
        }
    }
    Ok(page)
}

fn read_cursor(cursor: Option<&str>) -> Result<i64> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    text.parse().map_err(|_| StoreError::Invalid {
        what: "the cursor",
        why: format!("{text:?} is not one this store has given out"),
    })
}

/// `None` if the words are all there, but not together as a phrase wants them.
fn hit(desk: &Desk, summary: Summary, record: Record, words: &Query) -> Result<Option<Hit>> {
    let body = record.decode().map_err(|error| desk.damaged(error.to_string()))?;
    let text = body.search_text();
    if words.has_phrases() && !words.matches(&text) {
        return Ok(None);
    }
    Ok(Some(Hit {
        session: summary.id,
        title: summary.title.or(summary.preview),
        seq: record.meta.seq,
        id: record.meta.id,
        kind: record.meta.kind.as_str(),
        at: record.meta.at,
        snippet: words.snippet(&text),
    }))
}
