//! Full text. Entries with text are numbered as they are written; the index trails behind and is brought up to date
//! before a search, or by the writer when it has fallen far behind. Hits come newest first, by that number.
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
use sapwood_core::{Body, Kind, Record, Right, Scope, StoreError};

use super::desk::Desk;
use super::fault::Fault;
use super::log::{LogRows, pk_of};
use super::pack::with_unpacked;
use super::session::find;
use super::sight::{seen_by, seen_from};
use crate::match_text::{Query, distinct_words};
use crate::rules;

/// Begins the words that mark a text's tenant and session. FTS5 takes private-use characters for letters.
const MARK: char = '\u{E000}';
/// Texts per transaction when catching up: long enough to be quick, short enough not to hold others up.
const CATCH_UP_TEXTS: usize = 1_000;
/// Longest text that is indexed, in bytes; what is beyond is not found.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Texts kept in memory until they are indexed; over that they are read from their rows again.
const FRESH_TEXTS_MAX: usize = 4_096;
/// Hits that a caller may not see are passed over; so many at most in one search.
const PASSED_OVER_MAX: usize = 100_000;

/// How many texts are not in the index yet.
pub(super) fn lag(desk: &Desk) -> Result<i64> {
    let mut select = desk.prepare(
        "SELECT coalesce((SELECT max(doc) FROM docs), 0) - (SELECT value FROM counters WHERE name = 'indexed')",
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
    let mut insert = desk.prepare("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?;
    let mut last = indexed;
    for (doc, text) in desk.fresh.take_from(indexed + 1, CATCH_UP_TEXTS) {
        insert.execute(params![doc, text]).at(path)?;
        last = doc;
    }
    if last == indexed {
        let up_to = desk.fresh.first().unwrap_or(i64::MAX);
        for (doc, text) in stored_texts(desk, indexed, up_to)? {
            insert.execute(params![doc, text]).at(path)?;
            last = doc;
        }
    }
    if last == indexed {
        // Only gaps are left, where sessions were erased.
        last = match desk.fresh.first() {
            Some(fresh) => fresh - 1,
            None => desk.prepare("SELECT max(doc) FROM docs")?.query_row([], |row| row.get(0)).at(path)?,
        };
    }
    desk.prepare("UPDATE counters SET value = ?1 WHERE name = 'indexed'")?.execute([last]).at(path)?;
    Ok(())
}

/// The texts of rows between two numbers, both excluded.
fn stored_texts(desk: &Desk, after: i64, before: i64) -> Result<Vec<(i64, String)>> {
    let path = &desk.path;
    let sql = "SELECT docs.doc, docs.key, tenant, kind, version, packing, body FROM docs
               JOIN entries ON entries.key = docs.key JOIN sessions ON sessions.pk = docs.key >> 32
               WHERE docs.doc > ?1 AND docs.doc < ?2 ORDER BY docs.doc LIMIT ?3";
    let mut select = desk.prepare(sql)?;
    let mut rows =
        select.query(params![after, before, i64::try_from(CATCH_UP_TEXTS).unwrap_or(i64::MAX)]).at(path)?;
    let mut texts = Vec::new();
    while let Some(row) = rows.next().at(path)? {
        let (key, tenant): (i64, i64) = (row.get(1).at(path)?, row.get(2).at(path)?);
        let packed = row.get_ref(6).at(path)?.as_blob().unwrap_or_default();
        let words = stored_words(row.get(3).at(path)?, row.get(4).at(path)?, row.get(5).at(path)?, packed);
        texts.push((row.get(0).at(path)?, marked(tenant, pk_of(key), &words)));
    }
    Ok(texts)
}

/// The words of a row's body. One that cannot be read is found by nothing: `doctor` reports it.
fn stored_words(kind: u8, version: u32, packing: u8, packed: &[u8]) -> String {
    let body = Kind::from_code(kind).and_then(|kind| {
        with_unpacked(packing, packed, BODY_BYTES_MAX, |json| codec::decode(version, kind, json)).ok()?.ok()
    });
    body.and_then(|body| words_of(&body)).unwrap_or_default()
}

/// The words a body is found by; `None` for kinds that searches do not look through.
pub(super) fn words_of(body: &Body) -> Option<String> {
    if !is_searched(body.kind()) {
        return None;
    }
    let text = body.search_text();
    Some(distinct_words(&text[..text.floor_char_boundary(TEXT_BYTES_MAX)]))
}

/// Entries a full-text search looks through.
pub(super) fn is_searched(kind: Kind) -> bool {
    kind.is_message() || matches!(kind, Kind::Compaction | Kind::SessionNamed)
}

/// Gives an entry its number among the texts, and keeps its words at hand until they are indexed.
pub(super) fn number(desk: &Desk, tenant: i64, key: i64, words: &str) -> Result<i64> {
    desk.prepare("INSERT INTO docs (key) VALUES (?1)")?.execute([key]).at(&desk.path)?;
    let doc = desk.conn.last_insert_rowid();
    desk.fresh.push(doc, marked(tenant, pk_of(key), words));
    Ok(doc)
}

/// Texts that this process has appended and that are not in the index yet: a mirror of the newest rows of `docs`, so that
/// indexing does not have to read and unpack what was in memory a moment ago.
#[derive(Default)]
pub(super) struct Fresh(RefCell<VecDeque<(i64, String)>>);

impl Fresh {
    fn push(&self, doc: i64, text: String) {
        let mut texts = self.0.borrow_mut();
        if texts.len() >= FRESH_TEXTS_MAX {
            texts.clear();
        }
        texts.push_back((doc, text));
    }

    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    fn first(&self) -> Option<i64> {
        self.0.borrow().front().map(|(doc, _)| *doc)
    }

    /// Takes the texts that are numbered from `next` on without a gap. Those below are indexed already.
    fn take_from(&self, mut next: i64, limit: usize) -> Vec<(i64, String)> {
        let mut texts = self.0.borrow_mut();
        while texts.front().is_some_and(|(doc, _)| *doc < next) {
            texts.pop_front();
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(text) = texts.pop_front_if(|(doc, _)| *doc == next)
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

fn marked(tenant: i64, session: i64, text: &str) -> String {
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
    let sql = "SELECT doc, tenant, kind, version, packing, body FROM entries JOIN sessions ON sessions.pk = key >> 32
               WHERE key = ?1 AND doc NOT NULL";
    let mut select = desk.prepare(sql)?;
    let found = select.query_row([key], |row| {
        let packed = row.get_ref(5)?.as_blob().unwrap_or_default();
        let words = stored_words(row.get(2)?, row.get(3)?, row.get(4)?, packed);
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, words))
    });
    let Some((doc, tenant, words)) = found.optional().at(path)? else { return Ok(()) };
    let sql = "INSERT INTO texts (texts, rowid, text) SELECT 'delete', ?1, ?2
               WHERE ?1 <= (SELECT value FROM counters WHERE name = 'indexed')";
    desk.prepare(sql)?.execute(params![doc, marked(tenant, pk_of(key), &words)]).at(path)?;
    desk.prepare("DELETE FROM docs WHERE doc = ?1")?.execute([doc]).at(path)?;
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
    let sql = "UPDATE counters SET value = min(value, coalesce((SELECT max(doc) FROM docs), 0)) WHERE name = 'indexed'";
    desk.prepare(sql)?.execute([]).at(&desk.path)?;
    desk.fresh.forget_all();
    Ok(())
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
    let sql = "SELECT texts.rowid, docs.key FROM texts JOIN docs ON docs.doc = texts.rowid
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
