//! Full-text search. The index lags behind the log: sessions with unindexed entries are marked, and
//! the index is brought up to date before a search. Hits are returned newest first.

use sapwood_core::port::store::{Hit, Page, Result, SearchQuery};
use sapwood_core::{Right, Scope, TenantId};

use super::connection::StoreConnection;
use super::log::{LogRows, seq_of};
use super::session_table::{RowLock, find};
use super::visibility::{seen_by, seen_from};
use crate::database::search::{
    HitPage, index_words, searched_kinds, session_marker, tenant_marker, truncate_word,
};
use crate::match_text::{TextQuery, stored_text};
use crate::tokenize::distinct_words;
use crate::validate::bad_cursor;

/// The database's limits on words and texts. Longer words are truncated, and the rest of a longer
/// text is not indexed.
const WORD_BYTES_MAX: usize = 1_000;
const WORDS_BYTES_MAX: usize = 500_000;
/// Entries indexed per transaction.
const CATCH_UP_ROWS: i64 = 2_000;
/// Maximum number of transactions of one catch-up, so that continuous appends do not block a search
/// forever.
const CATCH_UP_ROUNDS_MAX: usize = 100_000;
/// Hits read at a time.
const HIT_ROWS: i32 = 256;

pub(super) fn rounds() -> std::ops::Range<usize> {
    0..CATCH_UP_ROUNDS_MAX
}

/// Returns whether the tenant has unindexed entries.
pub(super) async fn is_behind(db: &StoreConnection) -> Result<bool> {
    let sql = "SELECT 1 FROM sessions WHERE tenant = $1 AND behind LIMIT 1";
    Ok(db.query_opt(sql, &[&db.tenant.as_str()]).await?.is_some())
}

/// Indexes a batch of entries. Several processes may index concurrently: each indexes sessions that
/// no other process has locked. Returns false if there is no such session.
pub(super) async fn index_some(db: &StoreConnection) -> Result<bool> {
    let tenant = db.tenant.as_str();
    let sql = "SELECT pk, indexed FROM sessions WHERE tenant = $1 AND behind ORDER BY pk LIMIT 64
               FOR NO KEY UPDATE SKIP LOCKED";
    let rows = db.query(sql, &[&tenant]).await?;
    let mut budget = CATCH_UP_ROWS;
    for row in &rows {
        let (pk, indexed): (i64, i32) = (row.get(0), row.get(1));
        let taken = index_session(db, pk, indexed, budget).await?;
        budget -= taken;
        if budget <= 0 {
            break;
        }
    }
    Ok(!rows.is_empty())
}

/// Indexes a session's next entries and returns their number.
async fn index_session(db: &StoreConnection, pk: i64, indexed: i32, budget: i64) -> Result<i64> {
    let tenant = db.tenant.as_str();
    let sql = "SELECT seq, at, kind, version, packing, body FROM entries
               WHERE tenant = $1 AND session = $2 AND seq > $3 ORDER BY seq LIMIT $4";
    let rows = db.query(sql, &[&tenant, &pk, &indexed, &budget]).await?;
    let (mut seqs, mut times, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let small = |at: usize| u8::try_from(row.get::<_, i16>(at)).unwrap_or(u8::MAX);
        let version = u32::try_from(row.get::<_, i16>(3)).unwrap_or(0);
        if let Some(text) = stored_text(small(2), version, small(4), row.get(5)) {
            seqs.push(row.get::<_, i32>(0));
            times.push(row.get::<_, i64>(1));
            texts.push(vector(&db.tenant, pk, &distinct_words(&text)));
        }
    }
    let sql = "INSERT INTO texts (tenant, session, seq, at, words)
               SELECT $1, $2, t.seq, t.at, t.words::tsvector FROM unnest($3::int[], $4::bigint[], $5::text[])
                 AS t (seq, at, words) ON CONFLICT DO NOTHING";
    db.execute(sql, &[&tenant, &pk, &seqs, &times, &texts]).await?;
    let is_done = (rows.len() as i64) < budget;
    let last = rows.last().map_or(indexed, |row| row.get(0));
    let sql = "UPDATE sessions SET indexed = $3, behind = behind AND NOT ($4 AND head <= $3)
               WHERE tenant = $1 AND pk = $2";
    db.execute(sql, &[&tenant, &pk, &last, &is_done]).await?;
    Ok(rows.len() as i64)
}

/// Formats words as a `tsvector`. They contain only letters and digits, so quoting them is enough.
fn vector(tenant: &TenantId, session: i64, words: &str) -> String {
    let mut vector = format!("'{}' '{}'", tenant_marker(tenant), session_marker(session));
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        if vector.len() > WORDS_BYTES_MAX {
            break;
        }
        vector.push_str(" '");
        vector.push_str(truncate_word(word, WORD_BYTES_MAX));
        vector.push('\'');
    }
    vector
}

/// Formats a query as a `tsquery`, which may match more texts than the query. Returns `None` for a
/// query without words.
fn tsquery(query: &TextQuery, markers: &[String]) -> Option<String> {
    let print = |(word, is_prefix)| format!("'{word}'{}", if is_prefix { ":*" } else { "" });
    let words: Vec<String> = index_words(query, WORD_BYTES_MAX).map(print).collect();
    let markers: Vec<String> = markers.iter().map(|marker| format!("'{marker}'")).collect();
    (!words.is_empty()).then(|| format!("({}) & {}", markers.join(" | "), words.join(" & ")))
}

/// The position of a hit: its time, session and seq.
type HitPosition = (i64, i64, i32);

pub(super) async fn search(db: &StoreConnection, scope: &Scope, query: &SearchQuery) -> Result<Page<Hit>> {
    let words = TextQuery::parse(&query.text);
    let mut page = HitPage::new(query, &words, WORD_BYTES_MAX);
    let mut after = read_cursor(query.cursor.as_deref())?;
    let session = match &query.session {
        Some(id) => Some(find(db, scope, id, Right::Read, RowLock::No).await?),
        None => None,
    };
    let log = match &session {
        Some(row) => Some(LogRows::open(db, row.pk, row.summary.inherited).await?),
        None => None,
    };
    let markers = match &log {
        Some(log) => log.lineage().map(session_marker).collect(),
        None => vec![tenant_marker(&db.tenant)],
    };
    let Some(tsquery) = tsquery(&words, &markers) else { return Ok(page.finish(None)) };
    loop {
        let rows = find_rows(db, &tsquery, after).await?;
        for key in &rows {
            if page.is_full() {
                return Ok(page.finish(Some(format!("{}.{}.{}", after.0, after.1, after.2))));
            }
            after = *key;
            let key = (key.1, seq_of(key.2));
            let seen = match (&log, &session) {
                (Some(log), Some(row)) => {
                    seen_from(log, key).await?.map(|record| (row.summary.clone(), record))
                }
                _ => seen_by(db, scope, key).await?,
            };
            page.add(db, seen)?;
        }
        if rows.len() < HIT_ROWS as usize {
            return Ok(page.finish(None));
        }
    }
}

async fn find_rows(db: &StoreConnection, tsquery: &str, after: HitPosition) -> Result<Vec<HitPosition>> {
    let sql = "SELECT at, session, seq FROM find_texts($1, $2, $3, $4, $5, $6)";
    let tenant = db.tenant.as_str();
    let rows = db.query(sql, &[&tenant, &tsquery, &after.0, &after.1, &after.2, &HIT_ROWS]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

fn read_cursor(cursor: Option<&str>) -> Result<HitPosition> {
    let Some(text) = cursor else { return Ok((i64::MAX, i64::MAX, i32::MAX)) };
    let mut parts = text.splitn(3, '.');
    let mut parse = || {
        let (at, session) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((at, session, parts.next()?.parse().ok()?))
    };
    parse().ok_or_else(|| bad_cursor(text))
}

/// Returns how many of the tenant's texts are missing from the index.
pub(super) async fn count_missing(db: &StoreConnection) -> Result<i64> {
    let kinds: Vec<i16> = searched_kinds().map(|kind| i16::from(kind.code())).collect();
    let sql = "SELECT count(*) FROM sessions s JOIN entries e ON e.tenant = $1 AND e.session = s.pk AND e.seq <= s.indexed
               WHERE s.tenant = $1 AND e.kind = ANY ($2)
               AND NOT EXISTS (SELECT 1 FROM texts t WHERE t.tenant = $1 AND t.session = e.session AND t.seq = e.seq)";
    Ok(db.query_one(sql, &[&db.tenant.as_str(), &kinds]).await?.get(0))
}

/// Clears the tenant's index, so that all of its texts are indexed again.
pub(super) async fn clear_index(db: &StoreConnection) -> Result<()> {
    let tenant = db.tenant.as_str();
    db.execute("DELETE FROM texts WHERE tenant = $1", &[&tenant]).await?;
    db.execute("UPDATE sessions SET indexed = inherited, behind = true WHERE tenant = $1", &[&tenant])
        .await?;
    Ok(())
}
