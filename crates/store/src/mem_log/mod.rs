//! One session's log in memory: its summary and its rows. Appending takes two steps, so that a
//! store can write to disk between [`InMemoryLog::plan`] and [`InMemoryLog::commit`]. The memory
//! and JSONL stores are built on it.
//!
//! Preserves I1, I2 and I13 by placing entries with `sapwood_core::tree::place`, I4 by committing
//! whole batches, I5 in `plan`, and I8 because a fork has its own rows and only reads the rows of
//! its source.

mod read;
mod row_store;
mod search;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sapwood_core::entry::{Outcome, Record};
use sapwood_core::port::store::{Append, Appended, Fork, Result};
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::tree::{Head, Links, Lookup, Placed, Tip, place, settings_at};
use sapwood_core::{
    BlobHash, Body, Draft, EntryId, Kind, Principal, Right, Scope, Seq, Source, StoreError, TurnId,
};

use crate::authorize::authorize;
use crate::lease::{LeaseClock, StoredLease};
use crate::validate;
pub use row_store::{Base, Row, RowStore, Stored, Walk, first_not_before, locate, row_at};
use row_store::{RowLookup, meta_at};
pub use search::{Searching, check_only};

/// The source of the random bits of ids.
pub type Chance = Arc<dyn Fn() -> u128 + Send + Sync>;

pub struct InMemoryLog<B> {
    pub summary: Summary,
    pub lease: Option<StoredLease>,
    /// Set to get reproducible ids. By default the system's random source is used.
    pub chance: Option<Chance>,
    shelf: Arc<RowStore<B>>,
    answers: HashMap<String, Answer>,
    /// The seq at which each of this session's own turns began.
    began: HashMap<TurnId, Seq>,
    /// The outcomes of this session's own turns, in order.
    ended: Vec<EndedTurn>,
}

/// The stored answer to an idempotency key, and the request it belongs to.
pub struct Answer {
    pub appended: Appended,
    pub request: Option<String>,
}

struct EndedTurn {
    turn: TurnId,
    outcome: Outcome,
    began: Seq,
    ended: Seq,
}

/// The outcome of [`InMemoryLog::plan`].
pub enum Plan {
    /// The idempotency key is known; this is the stored answer.
    Answered(Appended),
    Write(Planned),
}

/// A batch that has passed all checks and has its positions, but is not in the log yet.
pub struct Planned {
    pub batch: Vec<Placed>,
    /// The bodies' bytes, in the same order.
    pub bodies: Vec<Vec<u8>>,
    pub key: Option<String>,
    pub request: Option<String>,
    source: Source,
    tip: Tip,
    leaf: Option<Links>,
}

impl Planned {
    /// Returns whether the entries were imported.
    pub fn is_import(&self) -> bool {
        self.source == Source::Imported
    }

    /// Returns the answer that the append will get.
    pub fn appended(&self) -> Appended {
        let entries = self.batch.iter().map(|placed| (placed.entry.meta.seq, placed.entry.meta.id)).collect();
        Appended { head: self.tip.head, entries }
    }

    /// Returns the entries as records.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let version = sapwood_core::entry::LOG_VERSION;
        let record = move |(placed, body): (&Placed, &Vec<u8>)| Record {
            meta: placed.entry.meta.clone(),
            version,
            body: body.clone(),
        };
        self.batch.iter().zip(&self.bodies).map(record)
    }
}

impl<B: Stored> InMemoryLog<B> {
    pub fn new(summary: Summary, shelf: Arc<RowStore<B>>) -> Self {
        Self {
            summary,
            lease: None,
            chance: None,
            shelf,
            answers: HashMap::new(),
            began: HashMap::new(),
            ended: Vec::new(),
        }
    }

    pub fn shelf(&self) -> &Arc<RowStore<B>> {
        &self.shelf
    }

    /// Returns the stored answers by idempotency key.
    pub fn answers(&self) -> &HashMap<String, Answer> {
        &self.answers
    }

    fn ways(&self) -> RowLookup<'_, B> {
        RowLookup { shelf: &self.shelf, session: Some(&self.summary.id) }
    }

    /// Checks an append and computes the positions of its entries. Changes nothing.
    pub fn plan(
        &self,
        scope: &Scope,
        append: &Append,
        clock: &dyn LeaseClock,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<Plan> {
        authorize(scope, &self.summary, validate::right_needed(&self.summary, &append.drafts))?;
        if let Some(first) = append.idempotency_key.as_ref().and_then(|key| self.answers.get(key)) {
            validate::check_request(append, first.request.as_deref())?;
            return Ok(Plan::Answered(first.appended.clone()));
        }
        let lease = self.lease.as_ref().map(|lease| lease.at(&clock.read()));
        validate::check_append(scope, &self.summary, append, lease)?;
        let mut planned = self.place(append.drafts.clone(), &scope.principal, has_blob)?;
        planned.key.clone_from(&append.idempotency_key);
        planned.request.clone_from(&append.request);
        planned.source = append.source;
        Ok(Plan::Write(planned))
    }

    /// Assigns positions after the end of the log to drafts.
    pub fn place(
        &self,
        drafts: Vec<Draft>,
        by: &Principal,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<Planned> {
        let missing = drafts.iter().flat_map(|draft| draft.body.blobs()).find(|blob| !has_blob(blob));
        if let Some(blob) = missing {
            return Err(StoreError::NoBlob { blob });
        }
        let bodies =
            drafts.iter().map(|draft| validate::encode_body(&draft.body)).collect::<Result<Vec<_>>>()?;
        let mut tip = self.summary.tip();
        let draw = || self.chance.as_ref().map_or_else(validate::random_bits, |chance| chance());
        let batch = place(&mut tip, drafts, by, &mut self.ways(), draw)?;
        let leaf = self.links_of_leaf(&tip, &batch)?;
        Ok(Planned { batch, bodies, key: None, request: None, source: Source::Own, tip, leaf })
    }

    fn links_of_leaf(&self, tip: &Tip, batch: &[Placed]) -> Result<Option<Links>> {
        let Some(leaf) = tip.head.leaf else { return Ok(None) };
        match batch.iter().find(|placed| placed.entry.meta.seq == leaf) {
            Some(placed) => Ok(placed.links),
            None => self.ways().node(leaf).map(|node| Some(node.links)),
        }
    }

    /// Commits a planned batch. `stored` locates each body. The log must not have changed since the
    /// plan.
    pub fn commit(&mut self, planned: Planned, stored: Vec<B>) -> Appended {
        debug_assert_eq!(planned.batch.len(), stored.len());
        self.summary.apply_batch(&planned.batch, planned.source, &planned.tip, planned.leaf);
        let mut entries = Vec::with_capacity(planned.batch.len());
        for (placed, body) in planned.batch.into_iter().zip(stored) {
            let row = row_of(placed, body);
            entries.push((row.meta.seq, row.meta.id));
            self.note_turn(&row);
            self.shelf.push(row);
        }
        let appended = Appended { head: self.summary.head, entries };
        if let Some(key) = planned.key {
            let request = planned.request;
            self.answers.insert(key, Answer { appended: appended.clone(), request });
        }
        appended
    }

    fn note_turn(&mut self, row: &Row<B>) {
        let Some(turn) = row.meta.turn else { return };
        if row.meta.kind == Kind::TurnStarted {
            self.began.insert(turn, row.meta.seq);
        }
        if let (Some(outcome), Some(began)) = (row.ended, self.began.get(&turn)) {
            self.ended.push(EndedTurn { turn, outcome, began: *began, ended: row.meta.seq });
        }
    }

    /// Returns where a fork would branch off: the physical position of the entry, and the initial
    /// state of the fork's summary.
    fn fork_point(&self, at: Option<Seq>) -> Result<Option<(Seq, ForkPoint)>> {
        let Some(at) = at.or(self.summary.head.leaf).filter(|at| *at > Seq::ZERO) else { return Ok(None) };
        let links = self.ways().node(at)?.links;
        let row = self.row(at)?;
        let model = settings_at(at, &mut self.ways())?.model;
        let authority = self.summary.authority.as_ref();
        let authority = authority.map(|authority| authority.forked(at, &mut self.ways())).transpose()?;
        Ok(Some((at, ForkPoint { id: row.meta.id, links, model, authority })))
    }

    /// Creates a log that begins with the path of this log, by reference.
    pub fn fork(&self, scope: &Scope, fork: &Fork) -> Result<Self> {
        authorize(scope, &self.summary, Right::Write)?;
        let point = self.fork_point(fork.at)?;
        let shelf = match &point {
            Some((at, point)) => {
                let (owner, at) =
                    locate(&self.shelf, *at).ok_or_else(|| validate::no_entry(&self.summary.id, at))?;
                RowStore::forked(Base { shelf: Arc::clone(owner), at }, point.links.depth)
            }
            None => RowStore::whole(0),
        };
        let point = point.map(|(_, point)| point);
        let summary = Summary::forked(&fork.new, scope.principal.clone(), &self.summary, point);
        Ok(Self::new(summary, Arc::new(shelf)))
    }

    /// Assigns positions to the first entries of a fork. Labels of entries that it does not share
    /// are left out.
    pub fn place_first(
        &self,
        mut drafts: Vec<Draft>,
        by: &Principal,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<Option<Planned>> {
        let shares = |draft: &Draft| match &draft.body {
            Body::Label(label) => matches!(self.ways().find(label.target), Ok(Some(_))),
            _ => true,
        };
        drafts.retain(shares);
        if drafts.is_empty() {
            return Ok(None);
        }
        self.place(drafts, by, has_blob).map(Some)
    }

    /// Returns whether this session refers to the blob, in its own or in shared entries.
    pub fn refers_to(&self, blob: &BlobHash) -> bool {
        row_store::refers_to(&self.shelf, blob)
    }

    /// Returns the id of an entry, for records that store it along with the seq.
    pub fn id_at(&self, seq: Seq) -> Option<EntryId> {
        row_at(&self.shelf, seq).map(|row| row.meta.id)
    }

    pub fn kind_at(&self, seq: Seq) -> Option<Kind> {
        row_at(&self.shelf, seq).map(|row| row.meta.kind)
    }

    fn row(&self, seq: Seq) -> Result<Arc<Row<B>>> {
        row_at(&self.shelf, seq).ok_or_else(|| validate::no_entry(&self.summary.id, seq))
    }

    fn record(&self, seq: Seq, row: &Row<B>) -> Result<Record> {
        let version = sapwood_core::entry::LOG_VERSION;
        Ok(Record { meta: meta_at(&self.shelf, seq, row), version, body: row.body.load(row.meta.kind)? })
    }
}

/// Places one entry of a path that is kept for forks. It keeps its seq and parent, and the summary
/// does not change.
pub fn place_kept<B>(
    shelf: &Arc<RowStore<B>>,
    draft: Draft,
    seq: Seq,
    parent: Option<Seq>,
) -> Result<Placed> {
    let mut ways = RowLookup { shelf, session: None };
    let model =
        parent.map(|parent| settings_at(parent, &mut ways)).transpose()?.and_then(|settings| settings.model);
    let head = Head { seq: Seq(seq.0.saturating_sub(1)), leaf: parent };
    let mut tip = Tip { head, last_id: None, model };
    let mut placed = place(&mut tip, vec![draft], &Principal::System, &mut ways, validate::random_bits)?;
    Ok(placed.remove(0))
}

/// Returns where a fork of a stored log begins, and the initial state of its summary.
pub fn fork_point_at<B>(shelf: &Arc<RowStore<B>>, seq: Seq) -> Result<ForkPoint> {
    let mut ways = RowLookup { shelf, session: None };
    let links = ways.node(seq)?.links;
    let model = settings_at(seq, &mut ways)?.model;
    let row = row_at(shelf, seq)
        .ok_or_else(|| validate::damaged("the shared part of a fork", format!("no entry {seq}")))?;
    // The authority record of a stored fork is in its own file.
    Ok(ForkPoint { id: row.meta.id, links, model, authority: None })
}

/// Converts a placed entry into a row.
pub fn row_of<B>(placed: Placed, body: B) -> Row<B> {
    let ended = match &placed.entry.body {
        Body::TurnEnded(ended) => Some(ended.outcome),
        _ => None,
    };
    let blobs: BTreeSet<BlobHash> = placed.entry.body.blobs().into_iter().collect();
    Row {
        meta: placed.entry.meta,
        links: placed.links,
        snapshot: placed.snapshot,
        ended,
        blobs: blobs.into_iter().collect(),
        body,
    }
}

/// The rows that forks need from other row stores: their seqs, by row store.
#[derive(Default)]
pub struct Needed(BTreeMap<usize, BTreeSet<Seq>>);

impl Needed {
    /// Adds all shared entries of one log.
    pub fn add<B: Stored>(&mut self, book: &InMemoryLog<B>) {
        let mut next = locate(&book.shelf, Seq(book.summary.inherited));
        while let Some((owner, at)) = next.filter(|(owner, _)| !Arc::ptr_eq(owner, &book.shelf)) {
            if !self.0.entry(address(owner)).or_default().insert(at) {
                return; // Another fork has already added the other ancestors.
            }
            let above = Walk::from(owner, Some(at)).next().and_then(|(_, row)| row.meta.parent);
            next = above.and_then(|above| locate(owner, above));
        }
    }

    pub fn of<B>(&self, shelf: &Arc<RowStore<B>>) -> BTreeSet<Seq> {
        self.0.get(&address(shelf)).cloned().unwrap_or_default()
    }
}

/// Returns a key that identifies a row store.
pub fn address<B>(shelf: &Arc<RowStore<B>>) -> usize {
    Arc::as_ptr(shelf).addr()
}
