//! Full text. Entries with text are numbered as they are written; the index trails behind and is brought up to date
//! before a search, or by the writer when it has fallen far behind. Hits come newest first, by that number.
//!
//! Each indexed text begins with two words that no text can contain (they start with a private-use character): one for
//! the tenant, one for the session. So the index itself keeps tenants apart (I9), and a search within one session does
//! not wade through the others.

use rusqlite::{OptionalExtension, params};
use sapwood_core::entry::codec;
use sapwood_core::port::store::{BODY_BYTES_MAX, Hit, Page, Result, SearchQuery};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Kind, Record, Right, Scope, Seq, SessionId, StoreError};

use super::desk::Desk;
use super::fault::Fault;
use super::log::{LogRows, pk_of, seq_of};
use super::pack::unpack;
use super::session::{find, read_summary};
use crate::admit::admit;
use crate::match_text::Query;
use crate::rules;

/// Begins the words that mark a text's tenant and session. FTS5 takes private-use characters for letters.
const MARK: char = '\u{E000}';
/// Texts per transaction when catching up: long enough to be quick, short enough not to hold others up.
const CATCH_UP_TEXTS: i64 = 1_000;
/// Longest text that is indexed, in bytes; what is beyond is not found.
const TEXT_BYTES_MAX: usize = 1 << 20;
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
        desk.conn.execute_batch("BEGIN IMMEDIATE").at(&desk.path)?;
        let indexed = index_some(desk);
        let end = if indexed.is_ok() { "COMMIT" } else { "ROLLBACK" };
        desk.conn.execute_batch(end).at(&desk.path)?;
        indexed?;
    }
    Ok(())
}

fn index_some(desk: &Desk) -> Result<()> {
    let path = &desk.path;
    let mut select = desk.prepare("SELECT value FROM counters WHERE name = 'indexed'")?;
    let indexed: i64 = select.query_row([], |row| row.get(0)).at(path)?;
    let sql = "SELECT docs.doc, docs.key, tenant, kind, version, packing, body FROM docs
               JOIN entries ON entries.key = docs.key JOIN sessions ON sessions.pk = docs.key >> 32
               WHERE docs.doc > ?1 ORDER BY docs.doc LIMIT ?2";
    let mut pending = desk.prepare(sql)?;
    let mut insert = desk.prepare("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?;
    let mut rows = pending.query([indexed, CATCH_UP_TEXTS]).at(path)?;
    let mut last = indexed;
    while let Some(row) = rows.next().at(path)? {
        last = row.get(0).at(path)?;
        let (key, tenant): (i64, i64) = (row.get(1).at(path)?, row.get(2).at(path)?);
        let packed = row.get_ref(6).at(path)?.as_blob().unwrap_or_default();
        let text = search_text(row.get(3).at(path)?, row.get(4).at(path)?, row.get(5).at(path)?, packed);
        insert.execute(params![last, marked(tenant, pk_of(key), &text)]).at(path)?;
    }
    if last == indexed {
        // Only gaps are left, where sessions were erased.
        last = desk.prepare("SELECT max(doc) FROM docs")?.query_row([], |row| row.get(0)).at(path)?;
    }
    desk.prepare("UPDATE counters SET value = ?1 WHERE name = 'indexed'")?.execute([last]).at(path)?;
    Ok(())
}

/// What an entry is found by. One that cannot be read is found by nothing: `doctor` reports it.
fn search_text(kind: u8, version: u32, packing: u8, packed: &[u8]) -> String {
    let body = Kind::from_code(kind).and_then(|kind| {
        let json = unpack(packing, packed, BODY_BYTES_MAX).ok()?;
        codec::decode(version, kind, &json).ok()
    });
    let mut text = body.map(|body| body.search_text()).unwrap_or_default();
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
    if text.contains(MARK) {
        text = text.replace(MARK, " ");
    }
    text
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
        let text = search_text(row.get(2)?, row.get(3)?, row.get(4)?, packed);
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, text))
    });
    let Some((doc, tenant, text)) = found.optional().at(path)? else { return Ok(()) };
    let sql = "INSERT INTO texts (texts, rowid, text) SELECT 'delete', ?1, ?2
               WHERE ?1 <= (SELECT value FROM counters WHERE name = 'indexed')";
    desk.prepare(sql)?.execute(params![doc, marked(tenant, pk_of(key), &text)]).at(path)?;
    desk.prepare("DELETE FROM docs WHERE doc = ?1")?.execute([doc]).at(path)?;
    Ok(())
}

/// After texts were taken out at the end: their numbers will be given again.
pub(super) fn settle(desk: &Desk) -> Result<()> {
    let sql = "UPDATE counters SET value = min(value, coalesce((SELECT max(doc) FROM docs), 0)) WHERE name = 'indexed'";
    desk.prepare(sql)?.execute([]).at(&desk.path)?;
    Ok(())
}

/// Builds the whole index anew.
pub(super) fn rebuild(desk: &Desk) -> Result<()> {
    desk.conn
        .execute_batch(
            "BEGIN IMMEDIATE;
             INSERT INTO texts (texts) VALUES ('delete-all');
             UPDATE counters SET value = 0 WHERE name = 'indexed';
             COMMIT",
        )
        .at(&desk.path)?;
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
            let marks: Vec<String> = log.lineage().iter().map(|pk| format!("\"{}\"", session_mark(*pk))).collect();
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
            _ => seen_at_home(desk, scope, key)?,
        };
        match found {
            Some((summary, record)) => page.items.push(hit(desk, summary, record, &words)?),
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

/// The entry as a session sees it: its own, or one it shares with the session it was forked from.
fn seen_from(log: &mut LogRows<'_>, key: i64) -> Result<Option<Record>> {
    if pk_of(key) == log.pk {
        return log.record(seq_of(key));
    }
    let mut select = log.desk.prepare("SELECT depth FROM entries WHERE key = ?1")?;
    let depth: Option<u32> = select.query_row([key], |row| row.get(0)).at(&log.desk.path)?;
    match depth.map(Seq) {
        Some(seq) if seq.0 <= log.inherited && log.home_of(seq)? == (pk_of(key), seq_of(key)) => log.record(seq),
        _ => Ok(None),
    }
}

/// The entry in the session it was written in, if the caller may see that; in a fork, if that session was erased.
fn seen_at_home(desk: &Desk, scope: &Scope, key: i64) -> Result<Option<(Summary, Record)>> {
    let summary = summary_of(desk, pk_of(key))?;
    if let Some(summary) = summary {
        if admit(scope, &summary, Right::Read).is_err() {
            return Ok(None);
        }
        let record = LogRows::open(desk, pk_of(key))?.record(seq_of(key))?;
        return Ok(record.map(|record| (summary, record)));
    }
    let mut heirs = vec![pk_of(key)];
    while let Some(pk) = heirs.pop() {
        let mut select = desk.prepare("SELECT pk FROM sessions WHERE base = ?1")?;
        let forks: Vec<i64> = select.query_map([pk], |row| row.get(0)).and_then(Iterator::collect).at(&desk.path)?;
        for fork in forks {
            let Some(record) = seen_from(&mut LogRows::open(desk, fork)?, key)? else { continue };
            match summary_of(desk, fork)? {
                Some(summary) if admit(scope, &summary, Right::Read).is_ok() => return Ok(Some((summary, record))),
                Some(_) => {}
                None => heirs.push(fork),
            }
        }
    }
    Ok(None)
}

fn summary_of(desk: &Desk, pk: i64) -> Result<Option<Summary>> {
    let mut select = desk.prepare("SELECT summary FROM sessions WHERE pk = ?1")?;
    let json: Option<String> = select.query_row([pk], |row| row.get(0)).at(&desk.path)?;
    json.map(|json| read_summary(desk, &json)).transpose()
}

fn hit(desk: &Desk, summary: Summary, record: Record, words: &Query) -> Result<Hit> {
    let body = record.decode().map_err(|error| desk.damaged(error.to_string()))?;
    let session: SessionId = summary.id;
    Ok(Hit {
        session,
        title: summary.title.or(summary.preview),
        seq: record.meta.seq,
        id: record.meta.id,
        kind: record.meta.kind.as_str(),
        at: record.meta.at,
        snippet: words.snippet(&body.search_text()),
    })
}
