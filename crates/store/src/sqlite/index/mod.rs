//! The search index: a list of segments, each for a range of texts, newest last. Small segments are
//! merged, so that a search reads few of them. Their size is limited, so that erasing a session
//! from a segment is fast.
//!
//! [`segment`] defines the byte format, [`indexer`] builds segments in the background, and this
//! file stores them in rows.

pub(super) mod indexer;
mod segment;

use std::collections::HashSet;

use rusqlite::params;
use sapwood_core::port::store::Result;

use super::connection::StoreConnection;
use super::error::AtPath;
use crate::database::NamedDatabase;
use segment::{CorruptSegment, blocks_of, check as check_bytes, find_in, merge};
pub(super) use segment::{Segment, SegmentBuilder, WORD_BYTES_MAX};

/// The number of segments in a size class that are merged into a segment of the next class.
const FAN_IN: usize = 8;
/// Upper bounds of the size classes, in texts. A larger segment is not merged.
const SIZES: [u32; 4] = [4, 32, 256, 2_048];
/// A segment of this many blocks (8 MB) is not merged either, because merging happens in memory.
const BLOCKS_MAX: i64 = 2_048;
/// Number of newest segments that are considered for a merge after an insert. It is larger than the
/// number that can accumulate before a merge.
const MERGE_CANDIDATES_MAX: usize = SIZES.len() * FAN_IN * 2;

/// A term that a text must contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TermQuery {
    Word(String),
    /// A word that begins with this prefix.
    Prefix(String),
    /// Any of these words.
    OneOf(Vec<String>),
}

/// A segment's row without its blocks.
struct SegmentRow {
    first: i64,
    last: i64,
    texts: u32,
    block_from: i64,
    block_count: i64,
}

/// Appends a segment and merges small segments, in the caller's transaction.
pub(super) fn add(db: &StoreConnection, segment: &Segment) -> Result<()> {
    if segment.texts > 0 {
        insert(db, segment)?;
        merge_newest(db)?;
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
    db.execute(sql, values)?;
    Ok(())
}

fn delete(db: &StoreConnection, row: &SegmentRow) -> Result<()> {
    let range = [row.block_from, row.block_from + row.block_count];
    db.execute("DELETE FROM blocks WHERE pk >= ?1 AND pk < ?2", range)?;
    db.execute("DELETE FROM segments WHERE first = ?1", [row.first])?;
    Ok(())
}

/// Merges the newest segments if enough of them are of one size class.
fn merge_newest(db: &StoreConnection) -> Result<()> {
    let newest = rows(db, &format!("ORDER BY first DESC LIMIT {MERGE_CANDIDATES_MAX}"))?;
    let sizes: Vec<usize> = newest.iter().map(size_class).collect();
    let Some(count) = (0..SIZES.len()).rev().find_map(|size| merge_count(&sizes, size)) else {
        return Ok(());
    };
    let mut parts = Vec::with_capacity(count);
    for row in newest[..count].iter().rev() {
        parts.push(load(db, row)?);
    }
    let merged = merge(&parts, |_| true).map_err(|corrupt| damaged(db, corrupt))?;
    for row in &newest[..count] {
        delete(db, row)?;
    }
    insert(db, &merged)
}

fn size_class(row: &SegmentRow) -> usize {
    let is_of = |end: &u32| row.texts < *end && row.block_count < BLOCKS_MAX;
    SIZES.iter().position(is_of).unwrap_or(SIZES.len())
}

/// Returns how many of the newest segments are at most of size class `size`, if enough of them are
/// exactly of that class to be merged.
fn merge_count(sizes: &[usize], size: usize) -> Option<usize> {
    let count = sizes.iter().take_while(|other| **other <= size).count();
    let alike = sizes[..count].iter().filter(|other| **other == size).count();
    (alike >= FAN_IN).then_some(count)
}

fn rows(db: &StoreConnection, which: &str) -> Result<Vec<SegmentRow>> {
    let sql = format!("SELECT first, last, texts, block_from, block_count FROM segments {which}");
    let mut select = db.prepare(&sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(SegmentRow {
            first: row.get(0)?,
            last: row.get(1)?,
            texts: row.get(2)?,
            block_from: row.get(3)?,
            block_count: row.get(4)?,
        })
    };
    select.query_map([], read).and_then(Iterator::collect).at(&db.path)
}

fn load(db: &StoreConnection, row: &SegmentRow) -> Result<Segment> {
    let range = [row.block_from, row.block_from + row.block_count];
    let blocks = db.query_all("SELECT bytes FROM blocks WHERE pk >= ?1 AND pk < ?2 ORDER BY pk", range)?;
    Ok(Segment { first: row.first, last: row.last, texts: row.texts, directory: directory(db, row)?, blocks })
}

fn directory(db: &StoreConnection, row: &SegmentRow) -> Result<Vec<u8>> {
    db.query_value("SELECT directory FROM segments WHERE first = ?1", [row.first])
}

fn damaged(db: &StoreConnection, _: CorruptSegment) -> sapwood_core::StoreError {
    db.damaged("the search index is damaged; run `sapwood doctor --repair` to rebuild it".to_owned())
}

/// Removes texts by rewriting the segments that contain them, so that no trace of the texts is
/// left.
pub(super) fn remove_texts(db: &StoreConnection, removed: &HashSet<i64>) -> Result<()> {
    for row in rows(db, "ORDER BY first")? {
        if !removed.iter().any(|number| (row.first..=row.last).contains(number)) {
            continue;
        }
        let segment = load(db, &row)?;
        let remaining = merge(&[segment], |number| !removed.contains(&number));
        let remaining = remaining.map_err(|corrupt| damaged(db, corrupt))?;
        delete(db, &row)?;
        if remaining.texts > 0 {
            insert(db, &remaining)?;
        }
    }
    Ok(())
}

pub(super) fn clear(db: &StoreConnection) -> Result<()> {
    db.conn.execute_batch("DELETE FROM segments; DELETE FROM blocks;").at(&db.path)
}

pub(super) fn is_readable(db: &StoreConnection) -> Result<bool> {
    for row in rows(db, "ORDER BY first")? {
        if check_bytes(&load(db, &row)?).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Iterates over the numbers of texts that match all terms, newest first, below `before`.
pub(super) struct TermMatches<'d> {
    db: &'d StoreConnection,
    terms: Vec<TermQuery>,
    before: i64,
    /// Segments that have not been searched yet, newest last.
    rows: Vec<SegmentRow>,
    /// Matches in the current segment, newest last.
    found: Vec<i64>,
}

impl<'d> TermMatches<'d> {
    pub fn new(db: &'d StoreConnection, terms: Vec<TermQuery>, before: i64) -> Result<Self> {
        let mut rows = rows(db, "ORDER BY first")?;
        rows.retain(|row| row.first < before);
        Ok(Self { db, terms, before, rows, found: Vec::new() })
    }

    pub fn next(&mut self) -> Result<Option<i64>> {
        loop {
            if let Some(number) = self.found.pop() {
                return Ok(Some(number));
            }
            let Some(row) = self.rows.pop() else { return Ok(None) };
            self.search_segment(&row)?;
        }
    }

    fn search_segment(&mut self, row: &SegmentRow) -> Result<()> {
        let directory = directory(self.db, row)?;
        let mut common: Option<Vec<u64>> = None;
        for term in &self.terms {
            let found = self.texts_matching(row, &directory, term)?;
            let remaining = match common {
                None => found,
                Some(common) => intersect(&common, &found),
            };
            if remaining.is_empty() {
                return Ok(());
            }
            common = Some(remaining);
        }
        let numbers = common.unwrap_or_default().into_iter().filter_map(|number| i64::try_from(number).ok());
        let numbers = numbers.map(|number| row.first.saturating_add(number));
        self.found.extend(numbers.filter(|number| *number < self.before));
        Ok(())
    }

    /// Returns the texts of a segment that match this term, in order.
    fn texts_matching(&self, row: &SegmentRow, directory: &[u8], term: &TermQuery) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        match term {
            TermQuery::Word(word) => self.read_blocks(row, directory, word, false, &mut found)?,
            TermQuery::Prefix(word) => self.read_blocks(row, directory, word, true, &mut found)?,
            TermQuery::OneOf(words) => {
                for word in words {
                    self.read_blocks(row, directory, word, false, &mut found)?;
                }
            }
        }
        if !matches!(term, TermQuery::Word(_)) {
            found.sort_unstable();
            found.dedup();
        }
        Ok(found)
    }

    fn read_blocks(
        &self,
        row: &SegmentRow,
        directory: &[u8],
        word: &str,
        is_prefix: bool,
        found: &mut Vec<u64>,
    ) -> Result<()> {
        let corrupt = |corrupt| damaged(self.db, corrupt);
        let (start, count) = blocks_of(directory, word, is_prefix).map_err(corrupt)?;
        let mut select = self.db.prepare("SELECT bytes FROM blocks WHERE pk = ?1")?;
        for number in start..start + count {
            let pk = row.block_from + i64::try_from(number).unwrap_or(i64::MAX);
            let mut blocks = select.query([pk]).at(&self.db.path)?;
            let Some(block) = blocks.next().at(&self.db.path)? else {
                return Err(damaged(self.db, CorruptSegment));
            };
            let bytes = block.get_ref(0).at(&self.db.path)?.as_blob().map_err(|_| corrupt(CorruptSegment))?;
            find_in(bytes, word, is_prefix, found).map_err(corrupt)?;
        }
        Ok(())
    }
}

/// Intersects two sorted lists. Iterates over the shorter one, because queries usually combine a
/// rare and a common word.
fn intersect(one: &[u64], other: &[u64]) -> Vec<u64> {
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
