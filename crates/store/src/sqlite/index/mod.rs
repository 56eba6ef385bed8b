//! The search index: segments, each of a run of texts, newest last. Small ones are merged as they gather, so that there
//! are few to look into; none grows so large that erasing a session from it takes long.
//!
//! [`segment`] knows the bytes, [`indexer`] builds them beside the writer, and this file keeps them in rows.

pub(super) mod indexer;
mod segment;

use std::collections::HashSet;

use rusqlite::params;
use sapwood_core::port::store::Result;

use super::connection::StoreConnection;
use super::error::AtPath;
pub(super) use segment::{Builder, Segment, WORD_BYTES_MAX, cut};
use segment::{Garbled, blocks_of, check as check_bytes, find_in, merge};

/// So many segments of a size become one of the next.
const FAN_IN: usize = 8;
/// Where the sizes end, in texts. A segment that is larger stays as it is.
const SIZES: [u32; 4] = [4, 32, 256, 2_048];
/// A segment of so many blocks, 8 MB, is as large as one of the most texts: merging happens in memory.
const BLOCKS_MAX: i64 = 2_048;
/// Segments that are looked at when one was added: more than can gather before they are merged.
const GATHERED_MAX: usize = SIZES.len() * FAN_IN * 2;

/// What a text must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TermQuery {
    Word(String),
    /// A word that begins so.
    Prefix(String),
    /// Any of these words.
    OneOf(Vec<String>),
}

/// A segment's row without its blocks.
struct Row {
    first: i64,
    last: i64,
    texts: u32,
    block_from: i64,
    block_count: i64,
}

/// Writes a segment behind the others and merges what has gathered, in the caller's transaction.
pub(super) fn add(db: &StoreConnection, segment: &Segment) -> Result<()> {
    if segment.texts > 0 {
        insert(db, segment)?;
        merge_gathered(db)?;
    }
    Ok(())
}

fn insert(db: &StoreConnection, segment: &Segment) -> Result<()> {
    let path = &db.path;
    let block_from: i64 = db
        .prepare("SELECT coalesce(max(pk), 0) + 1 FROM blocks")?
        .query_row([], |row| row.get(0))
        .at(path)?;
    let mut write = db.prepare("INSERT INTO blocks (pk, bytes) VALUES (?1, ?2)")?;
    for (pk, block) in (block_from..).zip(&segment.blocks) {
        write.execute(params![pk, block]).at(path)?;
    }
    let sql = "INSERT INTO segments (first, last, texts, block_from, block_count, directory) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let block_count = i64::try_from(segment.blocks.len()).unwrap_or(i64::MAX);
    let values =
        params![segment.first, segment.last, segment.texts, block_from, block_count, segment.directory];
    db.prepare(sql)?.execute(values).at(path)?;
    Ok(())
}

fn delete(db: &StoreConnection, row: &Row) -> Result<()> {
    let range = [row.block_from, row.block_from + row.block_count];
    db.prepare("DELETE FROM blocks WHERE pk >= ?1 AND pk < ?2")?.execute(range).at(&db.path)?;
    db.prepare("DELETE FROM segments WHERE first = ?1")?.execute([row.first]).at(&db.path)?;
    Ok(())
}

/// Merges the newest segments if there are enough of one size among them.
fn merge_gathered(db: &StoreConnection) -> Result<()> {
    let newest = rows(db, &format!("ORDER BY first DESC LIMIT {GATHERED_MAX}"))?;
    let sizes: Vec<usize> = newest.iter().map(size_of).collect();
    let Some(count) = (0..SIZES.len()).rev().find_map(|size| gathered(&sizes, size)) else { return Ok(()) };
    let mut parts = Vec::with_capacity(count);
    for row in newest[..count].iter().rev() {
        parts.push(load(db, row)?);
    }
    let merged = merge(&parts, |_| true).map_err(|garbled| damaged(db, garbled))?;
    for row in &newest[..count] {
        delete(db, row)?;
    }
    insert(db, &merged)
}

fn size_of(row: &Row) -> usize {
    let is_of = |end: &u32| row.texts < *end && row.block_count < BLOCKS_MAX;
    SIZES.iter().position(is_of).unwrap_or(SIZES.len())
}

/// How many of the newest are no larger than a size, if enough of them are just of that size.
fn gathered(sizes: &[usize], size: usize) -> Option<usize> {
    let count = sizes.iter().take_while(|other| **other <= size).count();
    let alike = sizes[..count].iter().filter(|other| **other == size).count();
    (alike >= FAN_IN).then_some(count)
}

fn rows(db: &StoreConnection, which: &str) -> Result<Vec<Row>> {
    let sql = format!("SELECT first, last, texts, block_from, block_count FROM segments {which}");
    let mut select = db.prepare(&sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Row {
            first: row.get(0)?,
            last: row.get(1)?,
            texts: row.get(2)?,
            block_from: row.get(3)?,
            block_count: row.get(4)?,
        })
    };
    select.query_map([], read).and_then(Iterator::collect).at(&db.path)
}

fn load(db: &StoreConnection, row: &Row) -> Result<Segment> {
    let mut select = db.prepare("SELECT bytes FROM blocks WHERE pk >= ?1 AND pk < ?2 ORDER BY pk")?;
    let range = [row.block_from, row.block_from + row.block_count];
    let blocks = select.query_map(range, |row| row.get(0)).and_then(Iterator::collect).at(&db.path)?;
    Ok(Segment { first: row.first, last: row.last, texts: row.texts, directory: directory(db, row)?, blocks })
}

fn directory(db: &StoreConnection, row: &Row) -> Result<Vec<u8>> {
    let mut select = db.prepare("SELECT directory FROM segments WHERE first = ?1")?;
    select.query_row([row.first], |row| row.get(0)).at(&db.path)
}

fn damaged(db: &StoreConnection, _: Garbled) -> sapwood_core::StoreError {
    db.damaged("the search index cannot be read; sapwood doctor --repair builds it anew".to_owned())
}

/// Takes texts out, such that no trace of them stays.
pub(super) fn forget(db: &StoreConnection, gone: &HashSet<i64>) -> Result<()> {
    for row in rows(db, "ORDER BY first")? {
        if !gone.iter().any(|number| (row.first..=row.last).contains(number)) {
            continue;
        }
        let segment = load(db, &row)?;
        let left = merge(&[segment], |number| !gone.contains(&number));
        let left = left.map_err(|garbled| damaged(db, garbled))?;
        delete(db, &row)?;
        if left.texts > 0 {
            insert(db, &left)?;
        }
    }
    Ok(())
}

/// Empties it.
pub(super) fn clear(db: &StoreConnection) -> Result<()> {
    db.conn.execute_batch("DELETE FROM segments; DELETE FROM blocks;").at(&db.path)
}

/// Whether every segment can be read.
pub(super) fn is_sound(db: &StoreConnection) -> Result<bool> {
    for row in rows(db, "ORDER BY first")? {
        if check_bytes(&load(db, &row)?).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The numbers of texts that hold everything that is wanted, newest first, from below `before` on.
pub(super) struct TermMatches<'d> {
    db: &'d StoreConnection,
    wanted: Vec<TermQuery>,
    before: i64,
    /// Segments that are still to be looked into, the newest last.
    rows: Vec<Row>,
    /// What was found in the last one, the newest last.
    found: Vec<i64>,
}

impl<'d> TermMatches<'d> {
    pub fn new(db: &'d StoreConnection, wanted: Vec<TermQuery>, before: i64) -> Result<Self> {
        let mut rows = rows(db, "ORDER BY first")?;
        rows.retain(|row| row.first < before);
        Ok(Self { db, wanted, before, rows, found: Vec::new() })
    }

    pub fn next(&mut self) -> Result<Option<i64>> {
        loop {
            if let Some(number) = self.found.pop() {
                return Ok(Some(number));
            }
            let Some(row) = self.rows.pop() else { return Ok(None) };
            self.look_into(&row)?;
        }
    }

    fn look_into(&mut self, row: &Row) -> Result<()> {
        let directory = directory(self.db, row)?;
        let mut common: Option<Vec<u64>> = None;
        for wanted in &self.wanted {
            let found = self.holding(row, &directory, wanted)?;
            let left = match common {
                None => found,
                Some(common) => in_both(&common, &found),
            };
            if left.is_empty() {
                return Ok(());
            }
            common = Some(left);
        }
        let numbers = common.unwrap_or_default().into_iter().filter_map(|number| i64::try_from(number).ok());
        let numbers = numbers.map(|number| row.first.saturating_add(number));
        self.found.extend(numbers.filter(|number| *number < self.before));
        Ok(())
    }

    /// The texts of a segment that hold this, in order.
    fn holding(&self, row: &Row, directory: &[u8], wanted: &TermQuery) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        match wanted {
            TermQuery::Word(word) => self.read_blocks(row, directory, word, false, &mut found)?,
            TermQuery::Prefix(word) => self.read_blocks(row, directory, word, true, &mut found)?,
            TermQuery::OneOf(words) => {
                for word in words {
                    self.read_blocks(row, directory, word, false, &mut found)?;
                }
            }
        }
        if !matches!(wanted, TermQuery::Word(_)) {
            found.sort_unstable();
            found.dedup();
        }
        Ok(found)
    }

    fn read_blocks(
        &self,
        row: &Row,
        directory: &[u8],
        word: &str,
        is_prefix: bool,
        found: &mut Vec<u64>,
    ) -> Result<()> {
        let garbled = |garbled| damaged(self.db, garbled);
        let (start, count) = blocks_of(directory, word, is_prefix).map_err(garbled)?;
        let mut select = self.db.prepare("SELECT bytes FROM blocks WHERE pk = ?1")?;
        for number in start..start + count {
            let pk = row.block_from + i64::try_from(number).unwrap_or(i64::MAX);
            let mut blocks = select.query([pk]).at(&self.db.path)?;
            let Some(block) = blocks.next().at(&self.db.path)? else {
                return Err(damaged(self.db, Garbled));
            };
            let bytes = block.get_ref(0).at(&self.db.path)?.as_blob().map_err(|_| garbled(Garbled))?;
            find_in(bytes, word, is_prefix, found).map_err(garbled)?;
        }
        Ok(())
    }
}

/// What two growing lists share. The shorter one leads: a rare word beside a common one is the usual case.
fn in_both(one: &[u64], other: &[u64]) -> Vec<u64> {
    let (short, mut long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let mut both = Vec::with_capacity(short.len());
    for number in short {
        long = &long[long.partition_point(|other| other < number)..];
        if long.first() == Some(number) {
            both.push(*number);
        }
    }
    both
}
