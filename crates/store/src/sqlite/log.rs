//! One session's log as rows: its fork point, its nodes and entries, and walks along its path.
//!
//! A fork's first entries are rows of the session it was forked from. [`LogRows`] hides that: it
//! numbers them by their depth, as defined in `sapwood_core::tree`, and finds their rows through
//! the fork point.

use std::ops::ControlFlow;

use rusqlite::{OptionalExtension, Row};
use sapwood_core::entry::{Meta, Stance};
use sapwood_core::port::store::{PAGE_BYTES, Result, bytes_of_page, is_full_page};
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Links, Lookup, TreeNode, ancestor_at};
use sapwood_core::{EntryId, Kind, Record, Seq, StoreError, TimestampMs, TurnId};

use super::connection::StoreConnection;
use super::error::AtPath;
use crate::database::NamedDatabase;
use crate::database::kinds::{KindPages, stored_kinds};
use crate::decode::{RawEntry, kind_of, parent_of_shared};
use crate::page::BackwardPage;

/// Maximum depth of nested forks. A deeper fork is an error.
const FORKS_MAX: usize = 4_096;
/// Maximum number of consecutive rows of other sessions that a walk skips. Above that, a lookup of
/// the next row is faster.
const SKIPPED_ROWS_MAX: u32 = 8;

/// The columns of an entry. The body is last, so that SQLite does not read it unless it is needed.
pub(super) const COLUMNS: &str = "key, id, parent, at, by, kind, depth, turn, version, packing, body";

pub(super) fn key_of(pk: i64, seq: Seq) -> i64 {
    (pk << 32) | i64::from(seq.0)
}

pub(super) fn seq_of(key: i64) -> Seq {
    Seq(u32::try_from(key & 0xffff_ffff).unwrap_or(0))
}

pub(super) fn pk_of(key: i64) -> i64 {
    key >> 32
}

/// Returns the largest key that a session can have.
pub(super) fn last_key(pk: i64) -> i64 {
    key_of(pk, Seq(u32::MAX))
}

/// A session's rows, and the rows it shares with the session it was forked from.
pub(super) struct LogRows<'d> {
    pub db: &'d StoreConnection,
    pub pk: i64,
    pub inherited: u32,
    base: Option<Box<(LogRows<'d>, Seq)>>,
}

/// How the reading session numbers a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    Own,
    /// By depth: the row belongs to the source of the fork.
    Shared,
}

/// The row of one entry, in the numbering of the reading session.
pub(super) struct PathStep<'r> {
    row: &'r Row<'r>,
    numbering: Numbering,
    pub seq: Seq,
    pub kind: Kind,
}

impl<'d> LogRows<'d> {
    pub fn open(db: &'d StoreConnection, pk: i64) -> Result<Self> {
        let (inherited, mut above) = base_of(db, pk)?;
        let mut chain = vec![(pk, inherited, Seq::ZERO)];
        while let Some((base, at)) = above {
            if chain.len() >= FORKS_MAX {
                return Err(
                    db.damaged(format!("session {pk} is a fork nested more than {FORKS_MAX} levels deep"))
                );
            }
            let (inherited, next) = base_of(db, base)?;
            chain.push((base, inherited, at));
            above = next;
        }
        let mut base = None;
        while let Some((pk, inherited, at)) = chain.pop() {
            let rows = LogRows { db, pk, inherited, base };
            if chain.is_empty() {
                return Ok(rows);
            }
            base = Some(Box::new((rows, at)));
        }
        Err(db.damaged(format!("session {pk} has no row")))
    }

    /// Like [`LogRows::open`], for a session whose number of shared entries is known. Reads nothing
    /// if it is zero, the usual case.
    pub fn with_inherited(db: &'d StoreConnection, pk: i64, inherited: u32) -> Result<Self> {
        match inherited {
            0 => Ok(LogRows { db, pk, inherited, base: None }),
            _ => Self::open(db, pk),
        }
    }

    /// Returns the pk of the session that contains an entry's row, and the entry's seq in that
    /// session.
    pub fn locate(&mut self, seq: Seq) -> Result<(i64, Seq)> {
        if seq.0 > self.inherited {
            return Ok((self.pk, seq));
        }
        let (base, at) = self.shared(seq)?;
        base.locate(at)
    }

    /// Returns the pk of this session, followed by the pks of the sessions whose rows it shares.
    pub fn lineage(&self) -> Vec<i64> {
        let mut pks = vec![self.pk];
        let mut base = &self.base;
        while let Some(above) = base {
            pks.push(above.0.pk);
            base = &above.0.base;
        }
        pks
    }

    /// Returns the source's rows, and the seq of a shared entry there.
    fn shared(&mut self, seq: Seq) -> Result<(&mut LogRows<'d>, Seq)> {
        let (db, pk) = (self.db, self.pk);
        let missing = || db.damaged(format!("shared entry {seq} of session {pk} is missing"));
        let (rows, fork_point) = self.base.as_deref_mut().ok_or_else(missing)?;
        let at = ancestor_at(*fork_point, seq.0, rows)?.ok_or_else(missing)?;
        Ok((rows, at))
    }

    pub fn record(&mut self, seq: Seq) -> Result<Option<Record>> {
        self.record_as(seq, Numbering::Own)
    }

    fn record_as(&mut self, seq: Seq, numbering: Numbering) -> Result<Option<Record>> {
        if seq.0 <= self.inherited {
            if seq == Seq::ZERO {
                return Ok(None);
            }
            let (base, at) = self.shared(seq)?;
            return base.record_as(at, Numbering::Shared);
        }
        let mut select = self.db.prepare(&format!("SELECT {COLUMNS} FROM log WHERE key = ?1"))?;
        let mut rows = select.query([key_of(self.pk, seq)]).at(&self.db.path)?;
        let row = rows.next().at(&self.db.path)?;
        row.map(|row| read_step(self.db, row, numbering)?.record(self.db)).transpose()
    }

    /// Visits the entries of a path from `from` up to the root, until `visit` returns `Break`.
    pub fn walk(
        &mut self,
        from: Seq,
        visit: &mut dyn FnMut(&PathStep<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.walk_as(from, Numbering::Own, visit)
    }

    fn walk_as(
        &mut self,
        from: Seq,
        numbering: Numbering,
        visit: &mut dyn FnMut(&PathStep<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut next = Some(from);
        let mut skips_max = SKIPPED_ROWS_MAX;
        while let Some(seq) = next {
            if seq.0 <= self.inherited {
                let (base, at) = self.shared(seq)?;
                return base.walk_as(at, Numbering::Shared, visit);
            }
            match self.walk_run(seq, numbering, &mut skips_max, visit)? {
                ControlFlow::Continue(parent) => next = parent,
                ControlFlow::Break(()) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Walks as long as the path's rows are close together. Returns the entry to look up next.
    fn walk_run(
        &self,
        from: Seq,
        numbering: Numbering,
        skips_max: &mut u32,
        visit: &mut dyn FnMut(&PathStep<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<(), Option<Seq>>> {
        let (db, path) = (self.db, &self.db.path);
        let sql = format!(
            "SELECT {COLUMNS} FROM entries WHERE arrival <= (SELECT arrival FROM placed WHERE key = ?1)
             ORDER BY arrival DESC"
        );
        let mut select = db.prepare(&sql)?;
        let mut rows = select.query([key_of(self.pk, from)]).at(path)?;
        let (mut wanted, mut visited, mut skipped) = (from, 0, 0);
        while let Some(row) = rows.next().at(path)? {
            if row.get::<_, i64>(0).at(path)? != key_of(self.pk, wanted) {
                skipped += 1;
                if skipped > *skips_max {
                    // Where many sessions were written at the same time, skipping their rows is
                    // slower than a lookup.
                    *skips_max = SKIPPED_ROWS_MAX.min(visited);
                    return Ok(ControlFlow::Continue(Some(wanted)));
                }
                continue;
            }
            visited += 1;
            skipped = 0;
            if visit(&read_step(db, row, numbering)?)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match row.get::<_, Option<u32>>(2).at(path)?.map(Seq) {
                Some(parent) if parent >= wanted => break,
                Some(parent) if parent.0 > self.inherited => wanted = parent,
                parent => return Ok(ControlFlow::Continue(parent)),
            }
        }
        Err(db.damaged(format!(
            "session {} has no entry {wanted}, which is the parent of other entries (I2)",
            self.pk
        )))
    }

    /// Returns the entries after a seq, in order.
    pub fn read_after(&mut self, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let mut records = self.read_shared(after, limit)?;
        if is_full_page(&records, limit) {
            return Ok(records);
        }
        let (rest, mut bytes) = (limit - records.len(), bytes_of_page(&records));
        let db = self.db;
        let sql = format!("SELECT {COLUMNS} FROM log WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3");
        let mut select = db.prepare(&sql)?;
        let from = key_of(self.pk, Seq(after.0.max(self.inherited)));
        let limit = i64::try_from(rest).unwrap_or(i64::MAX);
        let mut rows = select.query([from, last_key(self.pk), limit]).at(&db.path)?;
        while bytes < PAGE_BYTES
            && let Some(row) = rows.next().at(&db.path)?
        {
            let record = read_step(db, row, Numbering::Own)?.record(db)?;
            bytes += record.body.len();
            records.push(record);
        }
        Ok(records)
    }

    /// Reads the part of a page that is shared with the source.
    fn read_shared(&mut self, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let last = self.inherited.min(after.0.saturating_add(limit));
        let mut page = BackwardPage::default();
        if last <= after.0 {
            return Ok(Vec::new());
        }
        let db = self.db;
        self.walk(Seq(last), &mut |step| {
            if step.seq <= after {
                return Ok(ControlFlow::Break(()));
            }
            page.add_older(step.record(db)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(page.into_records())
    }

    /// Returns the session's own entries of one indexed kind.
    pub fn read_kind(&self, kind: Kind, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let db = self.db;
        let sql = format!(
            "SELECT {COLUMNS} FROM entries WHERE kind = ?1 AND kind > 3 AND key > ?2 AND key <= ?3 ORDER BY key LIMIT ?4"
        );
        let mut select = db.prepare(&sql)?;
        let from = key_of(self.pk, Seq(after.0.max(self.inherited)));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = select.query([i64::from(kind.code()), from, last_key(self.pk), limit]).at(&db.path)?;
        let mut records = Vec::new();
        while let Some(row) = rows.next().at(&db.path)? {
            records.push(read_step(db, row, Numbering::Own)?.record(db)?);
        }
        Ok(records)
    }

    /// Returns the entries of several kinds in order, including shared ones.
    pub fn read_kinds(&mut self, kinds: &[Kind], after: Seq, limit: usize) -> Result<Vec<Record>> {
        let mut records = self.read_shared_kinds(kinds, after)?;
        if kinds.iter().any(|kind| kind.code() <= 3) {
            self.scan_kinds(kinds, after, limit, &mut records)?;
        } else {
            for stored in stored_kinds(kinds) {
                let mut pages = KindPages::new(kinds, after, limit);
                while let Some(after) = pages.next() {
                    pages.add(self.read_kind(stored, after, limit)?);
                }
                records.extend(pages.found);
            }
            records.sort_by_key(|record| record.meta.seq);
        }
        records.truncate(limit);
        Ok(records)
    }

    /// Returns the shared entries of these kinds. Only entries in the tree are shared, so other
    /// kinds need no walk.
    fn read_shared_kinds(&mut self, kinds: &[Kind], after: Seq) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let any_in_tree = kinds.iter().any(|kind| kind.stance() == Stance::InTree);
        if !any_in_tree || after.0 >= self.inherited {
            return Ok(records);
        }
        let db = self.db;
        self.walk(Seq(self.inherited), &mut |step| {
            if step.seq <= after {
                return Ok(ControlFlow::Break(()));
            }
            if kinds.contains(&step.kind) {
                records.push(step.record(db)?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        records.reverse();
        Ok(records)
    }

    /// Scans the log, because messages are not in the index of kinds.
    fn scan_kinds(&self, kinds: &[Kind], after: Seq, limit: usize, records: &mut Vec<Record>) -> Result<()> {
        let db = self.db;
        let stored = stored_kinds(kinds);
        let sql = format!("SELECT {COLUMNS} FROM log WHERE key > ?1 AND key <= ?2 ORDER BY key");
        let mut select = db.prepare(&sql)?;
        let from = key_of(self.pk, Seq(after.0.max(self.inherited)));
        let mut rows = select.query([from, last_key(self.pk)]).at(&db.path)?;
        while let Some(row) = rows.next().at(&db.path)? {
            let step = read_step(db, row, Numbering::Own)?;
            if stored.contains(&step.kind) {
                records.push(step.record(db)?);
                records.pop_if(|record| !kinds.contains(&record.meta.kind));
            }
            if records.len() >= limit {
                break;
            }
        }
        Ok(())
    }

    /// Returns the first two entries whose id is in the range: enough to know whether the match is
    /// unique.
    pub fn records_between(&mut self, low: EntryId, high: EntryId) -> Result<Vec<Record>> {
        let first = self.first_at_or_after(low)?;
        let last = self.last_seq()?;
        let mut records = Vec::new();
        for seq in [first, first.next()] {
            let record = if seq > last { None } else { self.record(seq)? };
            records.extend(record.filter(|record| record.meta.id <= high));
        }
        Ok(records)
    }

    pub fn last_seq(&self) -> Result<Seq> {
        let db = self.db;
        let sql = "SELECT key FROM placed WHERE key > ?1 AND key <= ?2 ORDER BY key DESC LIMIT 1";
        let bounds = [key_of(self.pk, Seq::ZERO), last_key(self.pk)];
        let last: Option<i64> = db.query_opt(sql, bounds)?;
        Ok(last.map_or(Seq(self.inherited), seq_of))
    }

    fn id_at(&mut self, seq: Seq) -> Result<EntryId> {
        let (pk, seq) = self.locate(seq)?;
        let db = self.db;
        let id: [u8; 16] = db.query_value("SELECT id FROM log WHERE key = ?1", [key_of(pk, seq)])?;
        Ok(EntryId::from_bytes(id))
    }

    /// Returns the first entry whose id is at least `id`, by binary search: ids grow with seq
    /// (I13).
    pub fn first_at_or_after(&mut self, id: EntryId) -> Result<Seq> {
        let (mut low, mut high) = (1, self.last_seq()?.0 + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.id_at(Seq(middle))? < id {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(Seq(low))
    }

    fn own_node(&self, seq: Seq) -> Result<Option<TreeNode>> {
        let db = self.db;
        let sql = "SELECT parent, depth, jump, messages, settings FROM log WHERE key = ?1 AND depth NOT NULL";
        let mut select = db.prepare(sql)?;
        let node = select.query_row([key_of(self.pk, seq)], |row| {
            let links = Links {
                depth: row.get(1)?,
                jump: Seq(row.get(2)?),
                messages: row.get(3)?,
                settings: row.get::<_, Option<u32>>(4)?.map(Seq),
            };
            Ok(TreeNode { seq, parent: row.get::<_, Option<u32>>(0)?.map(Seq), links })
        });
        node.optional().at(&db.path)
    }
}

impl Lookup for LogRows<'_> {
    type Error = StoreError;

    fn node(&mut self, seq: Seq) -> Result<TreeNode> {
        if seq.0 > self.inherited {
            let missing = || self.db.damaged(format!("session {} has no entry {seq} in its tree", self.pk));
            return self.own_node(seq)?.ok_or_else(missing);
        }
        let (base, at) = self.shared(seq)?;
        let mut links = base.node(at)?.links;
        if let Some(settings) = links.settings {
            links.settings = Some(Seq(base.node(settings)?.links.depth));
        }
        Ok(TreeNode { seq, parent: parent_of_shared(seq), links: Links { jump: seq, ..links } })
    }

    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>> {
        let seq = self.first_at_or_after(id)?;
        let record = if seq > self.last_seq()? { None } else { self.record(seq)? };
        Ok(record.filter(|record| record.meta.id == id).map(|record| (seq, record.meta.kind)))
    }

    fn settings(&mut self, at: Seq) -> Result<Settings> {
        let (pk, seq) = self.locate(at)?;
        let db = self.db;
        let snapshot: Option<String> =
            db.query_value("SELECT snapshot FROM log WHERE key = ?1", [key_of(pk, seq)])?;
        serde_json::from_str(snapshot.as_deref().unwrap_or("{}"))
            .map_err(|error| db.damaged(format!("failed to parse the settings at entry {at}: {error}")))
    }

    fn inherited(&self) -> u32 {
        self.inherited
    }
}

/// Returns how many entries a session shares, and the session and seq of its fork point.
fn base_of(db: &StoreConnection, pk: i64) -> Result<(u32, Option<(i64, Seq)>)> {
    let mut select = db.prepare("SELECT inherited, base, base_seq FROM sessions WHERE pk = ?1")?;
    let row = select.query_row([pk], |row| {
        let base = row.get::<_, Option<i64>>(1)?.zip(row.get::<_, Option<u32>>(2)?.map(Seq));
        Ok((row.get(0)?, base))
    });
    row.at(&db.path)
}

pub(super) fn read_step<'r>(
    db: &StoreConnection,
    row: &'r Row<'r>,
    numbering: Numbering,
) -> Result<PathStep<'r>> {
    let path = &db.path;
    let seq = match numbering {
        Numbering::Own => seq_of(row.get(0).at(path)?),
        Numbering::Shared => Seq(row.get(6).at(path)?),
    };
    let kind = kind_of(row.get(5).at(path)?, seq).map_err(|what| db.damaged(what))?;
    Ok(PathStep { row, numbering, seq, kind })
}

impl PathStep<'_> {
    pub fn id(&self, db: &StoreConnection) -> Result<EntryId> {
        Ok(EntryId::from_bytes(self.row.get(1).at(&db.path)?))
    }

    pub fn record(&self, db: &StoreConnection) -> Result<Record> {
        self.raw(db)?.into_record(self.session_pk()).map_err(|what| db.damaged(what))
    }

    /// Returns the undecoded row, to be decoded on another thread.
    pub fn raw(&self, db: &StoreConnection) -> Result<RawEntry> {
        let (row, path) = (self.row, &db.path);
        let parent = match self.numbering {
            Numbering::Own => row.get::<_, Option<u32>>(2).at(path)?.map(Seq),
            Numbering::Shared => parent_of_shared(self.seq),
        };
        let meta = Meta {
            seq: self.seq,
            id: self.id(db)?,
            parent,
            at: TimestampMs(row.get(3).at(path)?),
            by: db.principal(row.get(4).at(path)?)?,
            turn: row.get::<_, Option<[u8; 16]>>(7).at(path)?.map(TurnId::from_bytes),
            kind: self.kind,
        };
        Ok(RawEntry {
            meta,
            version: row.get(8).at(path)?,
            packing: row.get(9).at(path)?,
            bytes: row.get_ref(10).at(path)?.as_blob().unwrap_or_default().to_vec(),
        })
    }

    fn session_pk(&self) -> i64 {
        self.row.get(0).map(pk_of).unwrap_or_default()
    }
}
