//! The rows of one log, and its links to the logs it was forked from. This module performs no I/O:
//! `B` is the location of a body.
//!
//! A row store only grows until its session is erased. A fork refers to a row in its source's row
//! store, and finds its shared entries from there by their depth. So creating a fork copies no
//! rows. Locks are acquired from a fork towards its source, never in reverse, and one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sapwood_core::entry::proof::Proof;
use sapwood_core::entry::{Meta, Outcome};
use sapwood_core::port::store::Result;
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Links, Lookup, TreeNode, ancestor_at};
use sapwood_core::{BlobHash, EntryId, Kind, Seq, SessionId, StoreError};

use crate::decode::parent_of_shared;
use crate::validate::{beside_tree, no_entry};

/// The location of a body.
pub trait StoredBody: Clone + Send + Sync {
    /// Returns the body's bytes, as the codec wrote them.
    fn load(&self, kind: Kind) -> Result<Vec<u8>>;
}

/// One entry, without its body.
#[derive(Debug, Clone)]
pub struct LogRow<B> {
    /// Its seqs are the seqs of the log that the entry was written to.
    pub meta: Meta,
    /// Present for entries in the tree.
    pub links: Option<Links>,
    pub snapshot: Option<Settings>,
    pub ended: Option<Outcome>,
    pub blobs: Box<[BlobHash]>,
    /// `None` for an entry that was written before entries had hashes.
    pub proof: Option<Proof>,
    pub body: B,
}

/// The shared part of a fork: the path to `at`, which is a seq in another row store.
#[derive(Debug)]
pub struct ForkBase<B> {
    pub rows: Arc<RowStore<B>>,
    pub at: Seq,
}

#[derive(Debug)]
struct Rows<B> {
    /// `None` is a row of an erased session that no fork needs.
    rows: Vec<Option<Arc<LogRow<B>>>>,
    /// The rows that refer to each blob.
    refs: BTreeMap<BlobHash, Vec<Seq>>,
}

#[derive(Debug)]
pub struct RowStore<B> {
    base: Option<ForkBase<B>>,
    /// Entries up to this seq are read through the base.
    first: u32,
    /// Entries up to this seq are shared with another session, and numbered by their depth. Larger
    /// than `first` if this row store contains copies of them.
    inherited: u32,
    rows: RwLock<Rows<B>>,
}

impl<B> RowStore<B> {
    /// Creates a row store without a base. Its first `copied` rows will be copies of another log's
    /// path.
    pub fn whole(copied: u32) -> Self {
        Self { base: None, first: 0, inherited: copied, rows: empty_rows() }
    }

    /// Creates a row store that begins with `inherited` entries of another row store.
    pub fn forked(base: ForkBase<B>, inherited: u32) -> Self {
        Self { base: Some(base), first: inherited, inherited, rows: empty_rows() }
    }

    pub fn base(&self) -> Option<&ForkBase<B>> {
        self.base.as_ref()
    }

    fn read(&self) -> RwLockReadGuard<'_, Rows<B>> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows<B>> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_row(&self, seq: Seq) -> Option<Arc<LogRow<B>>> {
        let index = seq.0.checked_sub(self.first + 1)?;
        self.read().rows.get(index as usize)?.clone()
    }

    /// Stores a row at its seq. A gap before it stays empty.
    pub fn push(&self, row: LogRow<B>) {
        let Some(index) = row.meta.seq.0.checked_sub(self.first + 1) else { return };
        let mut inner = self.write();
        for blob in &row.blobs {
            inner.refs.entry(*blob).or_default().push(row.meta.seq);
        }
        inner.rows.resize(index as usize, None);
        inner.rows.push(Some(Arc::new(row)));
    }

    /// Drops all rows except the needed ones, after the session was erased.
    pub fn retain(&self, needed: &BTreeSet<Seq>) {
        let mut inner = self.write();
        let first = self.first;
        for (index, row) in inner.rows.iter_mut().enumerate() {
            if !needed.contains(&Seq(first + 1 + index as u32)) {
                *row = None;
            }
        }
        inner.refs.retain(|_, seqs| {
            seqs.retain(|seq| needed.contains(seq));
            !seqs.is_empty()
        });
    }

    /// Returns the blobs that this log's own rows refer to.
    pub fn own_blobs(&self) -> Vec<BlobHash> {
        self.read().refs.keys().copied().collect()
    }

    /// Returns the seqs of this log's own rows.
    pub fn own_seqs(&self) -> BTreeSet<Seq> {
        let rows = &self.read().rows;
        let present = rows.iter().enumerate().filter(|(_, row)| row.is_some());
        present.map(|(index, _)| Seq(self.first + 1 + index as u32)).collect()
    }

    fn own_refs(&self, blob: &BlobHash) -> Vec<Seq> {
        self.read().refs.get(blob).cloned().unwrap_or_default()
    }

    fn depth_of(&self, seq: Seq) -> Option<u32> {
        if seq.0 <= self.first {
            return Some(seq.0);
        }
        self.own_row(seq)?.links.map(|links| links.depth)
    }
}

impl<B> Drop for RowStore<B> {
    /// Drops a long chain of forks iteratively. A recursive drop would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.base.take();
        while let Some(mut rows) = next.and_then(|base| Arc::into_inner(base.rows)) {
            next = rows.base.take();
        }
    }
}

fn empty_rows<B>() -> RwLock<Rows<B>> {
    RwLock::new(Rows { rows: Vec::new(), refs: BTreeMap::new() })
}

/// Returns the row store and the seq in it at which this log's entry `seq` is stored.
pub fn locate<B>(rows: &Arc<RowStore<B>>, seq: Seq) -> Option<(&Arc<RowStore<B>>, Seq)> {
    let (mut rows, mut seq) = (rows, seq);
    while seq.0 <= rows.first {
        let base = rows.base.as_ref()?;
        seq = ancestor_at(base.at, seq.0, &mut RowLookup { rows: &base.rows, session: None }).ok()??;
        rows = &base.rows;
    }
    Some((rows, seq))
}

/// Returns the row of this log's entry `seq`.
pub fn row_at<B>(rows: &Arc<RowStore<B>>, seq: Seq) -> Option<Arc<LogRow<B>>> {
    let (owner, seq) = locate(rows, seq)?;
    owner.own_row(seq)
}

/// Returns the entry's metadata in this log's numbering.
pub fn meta_at<B>(rows: &RowStore<B>, seq: Seq, row: &LogRow<B>) -> Meta {
    let mut meta = row.meta.clone();
    if seq.0 <= rows.first {
        meta.seq = seq;
        meta.parent = parent_of_shared(seq);
    }
    meta
}

/// Returns whether the log refers to the blob, in its own or in shared entries.
pub fn refers_to<B>(top: &Arc<RowStore<B>>, blob: &BlobHash) -> bool {
    if !top.own_refs(blob).is_empty() {
        return true;
    }
    let mut next = top.base.as_ref();
    while let Some(base) = next {
        let shares = |seq: &Seq| {
            let depth = base.rows.depth_of(*seq).filter(|depth| *depth <= top.first);
            let located = depth.and_then(|depth| locate(top, Seq(depth)));
            located.is_some_and(|(owner, at)| Arc::ptr_eq(owner, &base.rows) && at == *seq)
        };
        if base.rows.own_refs(blob).iter().any(shares) {
            return true;
        }
        next = base.rows.base.as_ref();
    }
    false
}

/// Looks up nodes and settings in a log, for placing entries and walking paths.
pub struct RowLookup<'a, B> {
    pub rows: &'a Arc<RowStore<B>>,
    /// The session that errors name. `None` for the shared part of a fork.
    pub session: Option<&'a SessionId>,
}

impl<B> RowLookup<'_, B> {
    fn missing(&self, seq: Seq) -> StoreError {
        match self.session {
            Some(session) => no_entry(session, seq),
            None => StoreError::Damaged {
                place: "the shared part of a fork".to_owned(),
                what: format!("no entry {seq}"),
            },
        }
    }
}

impl<B> Lookup for RowLookup<'_, B> {
    type Error = StoreError;

    fn node(&mut self, seq: Seq) -> Result<TreeNode> {
        let (owner, at) = locate(self.rows, seq).ok_or_else(|| self.missing(seq))?;
        let row = owner.own_row(at).ok_or_else(|| self.missing(seq))?;
        let links = row.links.ok_or_else(|| beside_tree(seq, row.meta.kind))?;
        if seq.0 > self.rows.first {
            return Ok(TreeNode { seq, parent: row.meta.parent, links });
        }
        let settings = links.settings.and_then(|at| owner.depth_of(at)).map(Seq);
        let links = Links { depth: seq.0, jump: seq, messages: links.messages, settings };
        Ok(TreeNode { seq, parent: parent_of_shared(seq), links })
    }

    fn find(&mut self, id: EntryId) -> Result<Option<(Seq, Kind)>> {
        let last = self.rows.first + self.rows.read().rows.len() as u32;
        let seq = first_not_before(self.rows, Seq(last), id);
        let row = row_at(self.rows, seq).filter(|row| row.meta.id == id);
        Ok(row.map(|row| (seq, row.meta.kind)))
    }

    fn settings(&mut self, at: Seq) -> Result<Settings> {
        let row = row_at(self.rows, at).ok_or_else(|| self.missing(at))?;
        Ok(row.snapshot.clone().unwrap_or_default())
    }

    fn inherited(&self) -> u32 {
        self.rows.inherited
    }
}

/// Returns the first entry whose id is at least `id`, or one past `last` if there is none. Ids grow
/// with seq (I13).
pub fn first_not_before<B>(rows: &Arc<RowStore<B>>, last: Seq, id: EntryId) -> Seq {
    let (mut low, mut high) = (1, last.0 + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        // A gap belongs to an erased session; no caller can request its entries.
        match row_at(rows, Seq(middle)) {
            Some(row) if row.meta.id >= id => high = middle,
            _ => low = middle + 1,
        }
    }
    Seq(low)
}

/// Walks a path from an entry to the root.
pub struct PathWalk<'a, B> {
    top: &'a Arc<RowStore<B>>,
    next: Option<(Seq, &'a Arc<RowStore<B>>, Seq)>,
}

impl<'a, B> PathWalk<'a, B> {
    pub fn from(top: &'a Arc<RowStore<B>>, seq: Option<Seq>) -> Self {
        let located = |seq| locate(top, seq).map(|(owner, at)| (seq, owner, at));
        Self { top, next: seq.and_then(located) }
    }
}

impl<B> Iterator for PathWalk<'_, B> {
    /// The seq in the numbering of the walked log, and the row.
    type Item = (Seq, Arc<LogRow<B>>);

    fn next(&mut self) -> Option<Self::Item> {
        let (seq, owner, at) = self.next.take()?;
        let row = owner.own_row(at)?;
        let parent =
            if Arc::ptr_eq(owner, self.top) { row.meta.parent } else { seq.0.checked_sub(1).map(Seq) };
        if let (Some(parent), Some(above)) = (parent, row.meta.parent) {
            self.next = locate(owner, above).map(|(owner, at)| (parent, owner, at));
        }
        Some((seq, row))
    }
}
