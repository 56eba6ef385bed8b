//! One session's log as rows: its fork point, its entries, and walks along its path.
//!
//! A fork's first entries are rows of the session it was forked from. [`LogRows`] hides that: it
//! numbers them by their depth, as defined in `sapwood_core::tree`, and finds their rows through
//! the fork point. Its levels are the sessions whose rows it reads, its own session first.

use std::ops::ControlFlow;

use sapwood_core::entry::{Meta, Stance};
use sapwood_core::port::store::{PAGE_BYTES, Result, bytes_of_page, is_full_page};
use sapwood_core::tree::{Links, TreeNode};
use sapwood_core::{EntryId, Kind, Record, Seq, TimestampMs, TurnId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::connection::StoreConnection;
use crate::database::NamedDatabase;
use crate::database::kinds::{KindPages, stored_kinds};
use crate::decode::{RawEntry, kind_of, parent_of_shared};
use crate::page::BackwardPage;

/// Maximum depth of nested forks. A deeper fork is an error.
const FORKS_MAX: i32 = 4_096;
/// Minimum and maximum number of rows that a walk reads at a time.
const CHUNK_ROWS_MIN: i64 = 64;
const CHUNK_ROWS_MAX: i64 = 2_048;

pub(super) const COLUMNS: &str = "seq, parent, depth, id, at, kind, version, packing, turn, by, body";

/// Converts a number to the database's integer type. Sessions are far too small to exceed it.
pub(super) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn seq_of(number: i32) -> Seq {
    Seq(u32::try_from(number).unwrap_or(0))
}

/// A session whose rows belong to the log.
#[derive(Debug, Clone, Copy)]
struct Level {
    pk: i64,
    inherited: u32,
    /// The entry of this level at which the previous level was forked.
    fork_point: i32,
}

pub(super) struct LogRows<'d> {
    pub db: &'d StoreConnection,
    levels: Vec<Level>,
}

pub(super) type Visit<'v> = &'v mut (dyn FnMut(RawEntry) -> Result<ControlFlow<()>> + Send);

impl<'d> LogRows<'d> {
    /// Opens the log of a session with `inherited` shared entries. Runs no query if there are none,
    /// the usual case.
    pub async fn open(db: &'d StoreConnection, pk: i64, inherited: u32) -> Result<Self> {
        if inherited == 0 {
            return Ok(Self { db, levels: vec![Level { pk, inherited, fork_point: 0 }] });
        }
        let sql = "WITH RECURSIVE up AS (
                     SELECT pk, inherited, base, base_seq, 0 AS fork_point, 0 AS level
                     FROM sessions WHERE tenant = $1 AND pk = $2
                   UNION ALL
                     SELECT s.pk, s.inherited, s.base, s.base_seq, up.base_seq, up.level + 1
                     FROM up CROSS JOIN LATERAL (
                       SELECT pk, inherited, base, base_seq FROM sessions WHERE tenant = $1 AND pk = up.base LIMIT 1
                     ) s WHERE up.level <= $3
                   ) SELECT pk, inherited, fork_point FROM up ORDER BY level";
        let rows = db.query(sql, &[&db.tenant.as_str(), &pk, &FORKS_MAX]).await?;
        let level =
            |row: &Row| Level { pk: row.get(0), inherited: seq_of(row.get(1)).0, fork_point: row.get(2) };
        if rows.is_empty() || rows.len() > FORKS_MAX as usize {
            return Err(db.damaged(format!("session row {pk} has {} levels of nested forks", rows.len())));
        }
        Ok(Self { db, levels: rows.iter().map(level).collect() })
    }

    pub fn pk(&self) -> i64 {
        self.levels[0].pk
    }

    pub fn inherited(&self) -> u32 {
        self.levels[0].inherited
    }

    /// Returns the session of a level.
    pub(super) fn pk_of(&self, level: usize) -> i64 {
        self.levels[level].pk
    }

    /// Returns this session, followed by the sessions whose rows it shares.
    pub fn lineage(&self) -> impl Iterator<Item = i64> + '_ {
        self.levels.iter().map(|level| level.pk)
    }

    /// Returns the session that contains an entry's row, and the entry's seq in that session.
    pub async fn home_of(&self, seq: Seq) -> Result<(i64, Seq)> {
        let (level, seq) = self.descend(0, seq).await?;
        Ok((self.levels[level].pk, seq))
    }

    /// Returns how many entries the session `pk` shares with its source.
    pub fn inherited_of(&self, pk: i64) -> u32 {
        self.levels.iter().find(|level| level.pk == pk).map_or(0, |level| level.inherited)
    }

    /// Returns the level that contains an entry's row, and the entry's seq at that level. `seq` is the
    /// entry's seq at level `at`.
    pub(super) async fn descend(&self, mut at: usize, mut seq: Seq) -> Result<(usize, Seq)> {
        while seq.0 <= self.levels[at].inherited {
            let gone = || self.db.damaged(format!("shared entry {seq} of session {} is missing", self.pk()));
            let above = self.levels.get(at + 1).ok_or_else(gone)?;
            let sql = "SELECT ancestor_at($1, $2, $3, $4, $5)";
            let tenant = self.db.tenant.as_str();
            let row = self
                .db
                .query_one(sql, &[&tenant, &above.pk, &int(above.inherited), &above.fork_point, &int(seq.0)])
                .await?;
            seq = seq_of(row.get::<_, Option<i32>>(0).ok_or_else(gone)?);
            at += 1;
        }
        Ok((at, seq))
    }

    pub async fn record(&self, seq: Seq) -> Result<Option<Record>> {
        if seq == Seq::ZERO {
            return Ok(None);
        }
        let (level, at) = self.descend(0, seq).await?;
        let sql = format!("SELECT {COLUMNS} FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3");
        let params: super::connection::Params<'_> =
            &[&self.db.tenant.as_str(), &self.levels[level].pk, &int(at.0)];
        let row = self.db.query_opt(&sql, params).await?;
        row.map(|row| self.unpack(self.raw(&row, level)?)).transpose()
    }

    /// Converts a row to an entry in this session's numbering, without decoding its body.
    pub(super) fn raw(&self, row: &Row, level: usize) -> Result<RawEntry> {
        let own: i32 = row.get(0);
        let seq = seq_of(if level == 0 { own } else { row.get::<_, Option<i32>>(2).unwrap_or(0) });
        let parent = match level {
            0 => row.get::<_, Option<i32>>(1).map(seq_of),
            _ => parent_of_shared(seq),
        };
        let code = u8::try_from(row.get::<_, i16>(5)).unwrap_or(u8::MAX);
        let kind = kind_of(code, seq).map_err(|what| self.db.damaged(what))?;
        let by: &str = row.get(9);
        let meta = Meta {
            seq,
            id: EntryId::from_bytes(row.get::<_, Uuid>(3).into_bytes()),
            parent,
            at: TimestampMs(row.get(4)),
            by: by.parse().map_err(|error| self.db.damaged(format!("entry {seq}: {error}")))?,
            turn: row.get::<_, Option<Uuid>>(8).map(|turn| TurnId::from_bytes(turn.into_bytes())),
            kind,
        };
        Ok(RawEntry {
            meta,
            version: u32::try_from(row.get::<_, i16>(6)).unwrap_or(0),
            packing: u8::try_from(row.get::<_, i16>(7)).unwrap_or(u8::MAX),
            bytes: row.get(10),
        })
    }

    fn unpack(&self, raw: RawEntry) -> Result<Record> {
        raw.into_record(self.pk()).map_err(|what| self.db.damaged(what))
    }

    /// Visits the entries of a path from `from` up to the root, until `visit` returns `Break`.
    pub async fn walk(&self, from: Seq, visit: Visit<'_>) -> Result<()> {
        let (mut level, mut wanted) = self.descend(0, from).await?;
        while let ControlFlow::Continue(Some(above)) = self.walk_level(level, wanted, visit).await? {
            (level, wanted) = self.descend(level, above).await?;
        }
        Ok(())
    }

    /// Walks over one session's own rows, in chunks that grow while most of their rows are on the
    /// path. Returns the shared entry at which the walk continues.
    async fn walk_level(
        &self,
        level: usize,
        mut wanted: Seq,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<(), Option<Seq>>> {
        let Level { pk, inherited, .. } = self.levels[level];
        let sql = format!(
            "SELECT {COLUMNS} FROM entries WHERE tenant = $1 AND session = $2 AND seq <= $3
             ORDER BY seq DESC LIMIT $4"
        );
        let mut chunk = CHUNK_ROWS_MIN;
        loop {
            let rows = self.db.query(&sql, &[&self.db.tenant.as_str(), &pk, &int(wanted.0), &chunk]).await?;
            let mut visited: usize = 0;
            for row in &rows {
                if row.get::<_, i32>(0) != int(wanted.0) {
                    continue;
                }
                visited += 1;
                if visit(self.raw(row, level)?)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                match row.get::<_, Option<i32>>(1).map(seq_of) {
                    Some(parent) if parent < wanted && parent.0 > inherited => wanted = parent,
                    Some(parent) if parent >= wanted => visited = 0,
                    parent => return Ok(ControlFlow::Continue(parent)),
                }
            }
            if visited == 0 {
                let what =
                    format!("session {pk} has no entry {wanted}, which is the parent of other entries (I2)");
                return Err(self.db.damaged(what));
            }
            let is_dense = visited * 2 > rows.len();
            chunk = if is_dense { (chunk * 2).min(CHUNK_ROWS_MAX) } else { CHUNK_ROWS_MIN };
        }
    }

    /// Returns the entries after a seq, in order.
    pub async fn read_after(&self, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let mut records = self.read_shared_page(after, limit).await?;
        if is_full_page(&records, limit) {
            return Ok(records);
        }
        let rest = i64::try_from(limit - records.len()).unwrap_or(i64::MAX);
        // A compressed body is no larger than the original, so the database never sends more than a
        // page.
        let sql = format!(
            "SELECT {COLUMNS} FROM (SELECT {COLUMNS}, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
             FROM (SELECT {COLUMNS} FROM entries WHERE tenant = $1 AND session = $2 AND seq > $3 ORDER BY seq LIMIT $4) AS page)
             AS page WHERE before < $5 ORDER BY seq"
        );
        let (from, budget) = (int(after.0.max(self.inherited())), PAGE_BYTES as i64);
        let tenant = self.db.tenant.as_str();
        let rows = self.db.query(&sql, &[&tenant, &self.pk(), &from, &rest, &budget]).await?;
        let mut bytes = bytes_of_page(&records);
        for row in &rows {
            if bytes >= PAGE_BYTES {
                break;
            }
            let record = self.unpack(self.raw(row, 0)?)?;
            bytes += record.body.len();
            records.push(record);
        }
        Ok(records)
    }

    /// Reads the part of a page that is shared with the source.
    async fn read_shared_page(&self, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let mut page = BackwardPage::default();
        self.walk_shared(after, after.0.saturating_add(limit), &mut |raw| {
            page.add_older(self.unpack(raw)?);
            Ok(())
        })
        .await?;
        Ok(page.into_records())
    }

    /// Reads all entries of some kinds that are shared with the source.
    async fn read_shared_kinds(&self, after: Seq, kinds: &[Kind]) -> Result<Vec<Record>> {
        let mut raws = Vec::new();
        self.walk_shared(after, u32::MAX, &mut |raw| {
            raws.extend(kinds.contains(&raw.meta.kind).then_some(raw));
            Ok(())
        })
        .await?;
        raws.into_iter().rev().map(|raw| self.unpack(raw)).collect()
    }

    /// Visits the entries shared with the source after `after`, from `last` backwards.
    async fn walk_shared(
        &self,
        after: Seq,
        last: u32,
        visit: &mut (dyn FnMut(RawEntry) -> Result<()> + Send),
    ) -> Result<()> {
        let last = self.inherited().min(last);
        if last <= after.0 {
            return Ok(());
        }
        self.walk(Seq(last), &mut |raw| {
            if raw.meta.seq <= after {
                return Ok(ControlFlow::Break(()));
            }
            visit(raw)?;
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        Ok(())
    }

    /// Returns the session's own entries of one kind.
    pub async fn read_kind(&self, kind: Kind, after: Seq, limit: usize) -> Result<Vec<Record>> {
        let sql = match kind.code() {
            // Messages are not in the index of kinds, so this scans the log.
            0..=3 => format!(
                "SELECT {COLUMNS} FROM entries WHERE tenant = $1 AND session = $2 AND seq > $4 AND kind = $3
                 ORDER BY seq LIMIT $5"
            ),
            _ => format!(
                "SELECT {COLUMNS} FROM entries WHERE tenant = $1 AND session = $2 AND kind = $3 AND kind > 3
                 AND seq > $4 ORDER BY seq LIMIT $5"
            ),
        };
        let from = int(after.0.max(self.inherited()));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let code = i16::from(kind.code());
        let rows = self.db.query(&sql, &[&self.db.tenant.as_str(), &self.pk(), &code, &from, &limit]).await?;
        rows.iter().map(|row| self.unpack(self.raw(row, 0)?)).collect()
    }

    /// Returns the entries of several kinds in order, including shared ones.
    pub async fn read_kinds(&self, kinds: &[Kind], after: Seq, limit: usize) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        // Only entries in the tree are shared, so other kinds need no walk.
        if kinds.iter().any(|kind| kind.stance() == Stance::InTree) {
            records = self.read_shared_kinds(after, kinds).await?;
        }
        for stored in stored_kinds(kinds) {
            let mut pages = KindPages::new(kinds, after, limit);
            while let Some(after) = pages.next() {
                pages.add(self.read_kind(stored, after, limit).await?);
            }
            records.extend(pages.found);
        }
        records.sort_by_key(|record| record.meta.seq);
        records.truncate(limit);
        Ok(records)
    }

    pub async fn last_seq(&self) -> Result<Seq> {
        let sql = "SELECT seq FROM entries WHERE tenant = $1 AND session = $2 ORDER BY seq DESC LIMIT 1";
        let row = self.db.query_opt(sql, &[&self.db.tenant.as_str(), &self.pk()]).await?;
        Ok(row.map_or(Seq(self.inherited()), |row| seq_of(row.get(0))))
    }

    async fn id_at(&self, seq: Seq) -> Result<EntryId> {
        let (pk, at) = self.home_of(seq).await?;
        let sql = "SELECT id FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3";
        let row = self.db.query_one(sql, &[&self.db.tenant.as_str(), &pk, &int(at.0)]).await?;
        Ok(EntryId::from_bytes(row.get::<_, Uuid>(0).into_bytes()))
    }

    /// Returns the first entry whose id is `id` or greater. Ids grow with seq (I13), so this is a
    /// binary search.
    pub async fn first_at_or_after(&self, id: EntryId, last: Seq) -> Result<Seq> {
        let shared = self.inherited();
        if shared > 0 && self.id_at(Seq(shared)).await? >= id {
            let (mut low, mut high) = (1, shared);
            while low < high {
                let middle = low + (high - low) / 2;
                match self.id_at(Seq(middle)).await? < id {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            return Ok(Seq(low));
        }
        let sql = "SELECT first_at_or_after($1, $2, $3, $4, $5)";
        let (low, high) = (int(shared + 1), int(last.0 + 1));
        let id = Uuid::from_bytes(*id.as_bytes());
        let row = self.db.query_one(sql, &[&self.db.tenant.as_str(), &self.pk(), &low, &high, &id]).await?;
        Ok(seq_of(row.get(0)))
    }

    /// Returns the entry with this id, including shared entries.
    pub async fn find(&self, id: EntryId) -> Result<Option<(Seq, Kind)>> {
        let last = self.last_seq().await?;
        let seq = self.first_at_or_after(id, last).await?;
        let record = if seq > last { None } else { self.record(seq).await? };
        Ok(record.filter(|record| record.meta.id == id).map(|record| (seq, record.meta.kind)))
    }

    /// Returns the first two entries whose id is in the range: enough to know whether the match is
    /// unique.
    pub async fn records_between(&self, low: EntryId, high: EntryId) -> Result<Vec<Record>> {
        let last = self.last_seq().await?;
        let first = self.first_at_or_after(low, last).await?;
        let mut records = Vec::new();
        for seq in [first, first.next()] {
            let record = if seq > last { None } else { self.record(seq).await? };
            records.extend(record.filter(|record| record.meta.id <= high));
        }
        Ok(records)
    }

    /// Returns the entry with the `count`-th message on the path to `leaf`, without reading the
    /// path.
    pub async fn nth_message(&self, leaf: Seq, count: u32) -> Result<Option<Seq>> {
        let (mut level, mut at) = self.descend(0, leaf).await?;
        if count == 0 || self.node_row(level, at).await?.links.messages < count {
            return Ok(None);
        }
        loop {
            let sql = "SELECT highest_with($1, $2, $3, $4)";
            let pk = self.levels[level].pk;
            let params: super::connection::Params<'_> =
                &[&self.db.tenant.as_str(), &pk, &int(at.0), &int(count)];
            at = seq_of(self.db.query_one(sql, params).await?.get(0));
            let found = self.node_row(level, at).await?;
            let number = if level == 0 { at } else { Seq(found.links.depth) };
            // The path may continue in the source.
            let Some(parent) = found.parent.filter(|parent| parent.0 <= self.levels[level].inherited) else {
                return Ok(Some(number));
            };
            let (above, seq) = self.descend(level, parent).await?;
            if self.node_row(above, seq).await?.links.messages < count {
                return Ok(Some(number));
            }
            (level, at) = (above, seq);
        }
    }

    async fn node_row(&self, level: usize, seq: Seq) -> Result<TreeNode> {
        self.node_of(self.levels[level].pk, seq).await?.ok_or_else(|| {
            self.db.damaged(format!("session {} has no entry {seq} in its tree", self.levels[level].pk))
        })
    }

    /// Returns an entry's links, in the numbering of the session that contains its row.
    pub async fn node_of(&self, pk: i64, seq: Seq) -> Result<Option<TreeNode>> {
        let sql = "SELECT seq, parent, depth, jump, messages, settings FROM entries
                   WHERE tenant = $1 AND session = $2 AND seq = $3 AND depth IS NOT NULL";
        let row = self.db.query_opt(sql, &[&self.db.tenant.as_str(), &pk, &int(seq.0)]).await?;
        Ok(row.map(|row| read_node(&row)))
    }

    /// Returns the nodes of the session's own entries, of their jump targets, and of the jump targets
    /// of these targets. The links of the next entry need no other nodes.
    pub async fn nodes_from(&self, seqs: &[Seq]) -> Result<Vec<TreeNode>> {
        // LIMIT forces a lookup by the full key: in a plain join the planner may assume a short
        // session and read all of it.
        let sql = "WITH near AS (
                     SELECT e.* FROM unnest($3::int[]) AS asked (seq) CROSS JOIN LATERAL (
                       SELECT seq, parent, depth, jump, messages, settings FROM entries
                       WHERE tenant = $1 AND session = $2 AND seq = asked.seq AND depth IS NOT NULL LIMIT 1) e
                   ), far AS (
                     SELECT e.* FROM near CROSS JOIN LATERAL (
                       SELECT seq, parent, depth, jump, messages, settings FROM entries
                       WHERE tenant = $1 AND session = $2 AND seq = near.jump LIMIT 1) e
                   ), farther AS (
                     SELECT e.* FROM far CROSS JOIN LATERAL (
                       SELECT seq, parent, depth, jump, messages, settings FROM entries
                       WHERE tenant = $1 AND session = $2 AND seq = far.jump LIMIT 1) e
                   )
                   SELECT * FROM near UNION SELECT * FROM far UNION SELECT * FROM farther";
        let seqs: Vec<i32> =
            seqs.iter().filter(|seq| seq.0 > self.inherited()).map(|seq| int(seq.0)).collect();
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.db.query(sql, &[&self.db.tenant.as_str(), &self.pk(), &seqs]).await?;
        Ok(rows.iter().map(read_node).collect())
    }
}

fn read_node(row: &Row) -> TreeNode {
    TreeNode {
        seq: seq_of(row.get(0)),
        parent: row.get::<_, Option<i32>>(1).map(seq_of),
        links: Links {
            depth: seq_of(row.get(2)).0,
            jump: seq_of(row.get(3)),
            messages: seq_of(row.get(4)).0,
            settings: row.get::<_, Option<i32>>(5).map(seq_of),
        },
    }
}
