//! One session's log in memory: its summary and its rows. Appending takes two steps, so that a
//! store can write to disk between [`InMemoryLog::plan`] and [`InMemoryLog::commit`]. The memory
//! and JSONL stores are built on it.
//!
//! Preserves I1, I2 and I13 by placing entries with `sapwood_core::tree::place`, I4 by committing
//! whole batches, I5 in `plan`, and I8 because a fork has its own rows and only reads the rows of
//! its source.

mod port;
mod prove;
mod read;
mod row_store;
mod search;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sapwood_core::entry::proof::Proof;
use sapwood_core::entry::{Outcome, Record};
use sapwood_core::port::store::{Append, Appended, Fork, Result};
use sapwood_core::project::summary::{ForkPoint, Summary};
use sapwood_core::tree::{Head, Links, Lookup, Placed, Tip, place, settings_at};
use sapwood_core::{
    BlobHash, Body, Draft, EntryId, Kind, Principal, Right, Scope, Seq, Source, StoreError, TurnId,
};

use crate::authorize::authorize;
use crate::compression::encode_body;
use crate::lease::{LeaseClock, StoredLease};
use crate::stored_answer::StoredAnswer;
use crate::validate;
pub(crate) use port::impl_log;
pub use row_store::{ForkBase, LogRow, PathWalk, RowStore, StoredBody, first_not_before, locate, row_at};
use row_store::{RowLookup, meta_at};
pub use search::{LogSearch, check_session_readable};

/// The source of the random bits of ids.
pub type RandomBits = Arc<dyn Fn() -> u128 + Send + Sync>;

pub struct InMemoryLog<B> {
    pub summary: Summary,
    pub lease: Option<StoredLease>,
    /// Set to get reproducible ids. If it is `None`, the system's random source is used.
    pub random_bits: Option<RandomBits>,
    rows: Arc<RowStore<B>>,
    answers: HashMap<String, StoredAnswer>,
    /// The seq at which each turn started in this session, without shared turns.
    turn_starts: HashMap<TurnId, Seq>,
    /// The turns that ended in this session, in order, without shared turns.
    ended: Vec<EndedTurn>,
}

struct EndedTurn {
    turn: TurnId,
    outcome: Outcome,
    began: Seq,
    ended: Seq,
}

/// The outcome of [`InMemoryLog::plan`].
pub enum AppendPlan {
    /// The idempotency key is known; this is the stored answer.
    Answered(Appended),
    Write(PlannedBatch),
}

/// A batch that has passed all checks and has its positions, but is not in the log yet.
pub struct PlannedBatch {
    pub batch: Vec<Placed>,
    /// The bodies' bytes, in the same order.
    pub bodies: Vec<Vec<u8>>,
    /// The entries' proofs, in the same order.
    pub proofs: Vec<Option<Proof>>,
    pub key: Option<String>,
    pub request: Option<String>,
    source: Source,
    tip: Tip,
    leaf: Option<Links>,
}

impl PlannedBatch {
    pub fn is_import(&self) -> bool {
        self.source == Source::Imported
    }

    pub fn appended(&self) -> Appended {
        validate::answer_of(&self.batch, self.tip.head)
    }

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

impl<B: StoredBody> InMemoryLog<B> {
    pub fn new(summary: Summary, rows: Arc<RowStore<B>>) -> Self {
        Self {
            summary,
            lease: None,
            random_bits: None,
            rows,
            answers: HashMap::new(),
            turn_starts: HashMap::new(),
            ended: Vec::new(),
        }
    }

    pub fn rows(&self) -> &Arc<RowStore<B>> {
        &self.rows
    }

    /// Returns the stored answers by idempotency key.
    pub fn answers(&self) -> &HashMap<String, StoredAnswer> {
        &self.answers
    }

    fn lookup(&self) -> RowLookup<'_, B> {
        RowLookup { rows: &self.rows, session: Some(&self.summary.id) }
    }

    /// Checks an append and computes the positions of its entries. Changes nothing.
    pub fn plan(
        &self,
        scope: &Scope,
        append: &Append,
        clock: &dyn LeaseClock,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<AppendPlan> {
        authorize(scope, &self.summary, validate::right_needed(&self.summary, &append.drafts))?;
        if let Some(first) = append.idempotency_key.as_ref().and_then(|key| self.answers.get(key)) {
            return first.for_retry(append).map(AppendPlan::Answered);
        }
        let lease = self.lease.as_ref().map(|lease| lease.at(&clock.read()));
        validate::check_append(scope, &self.summary, append, lease)?;
        let mut planned = self.place(append.drafts.clone(), &scope.principal, has_blob)?;
        self.prove(&mut planned, &append.salts);
        planned.key.clone_from(&append.idempotency_key);
        planned.request.clone_from(&append.request);
        planned.source = append.source;
        Ok(AppendPlan::Write(planned))
    }

    /// Assigns positions after the end of the log to drafts. The batch has no proofs yet.
    pub fn place(
        &self,
        drafts: Vec<Draft>,
        by: &Principal,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<PlannedBatch> {
        let missing = drafts.iter().flat_map(|draft| draft.body.blobs()).find(|blob| !has_blob(blob));
        if let Some(blob) = missing {
            return Err(StoreError::NoBlob { blob });
        }
        let bodies = drafts.iter().map(|draft| encode_body(&draft.body)).collect::<Result<Vec<_>>>()?;
        let mut tip = self.summary.tip();
        let draw =
            || self.random_bits.as_ref().map_or_else(validate::random_bits, |random_bits| random_bits());
        let batch = place(&mut tip, drafts, by, &mut self.lookup(), draw)?;
        let leaf = validate::links_of_leaf(&tip, &batch, &mut self.lookup())?;
        let proofs = vec![None; batch.len()];
        Ok(PlannedBatch { batch, bodies, proofs, key: None, request: None, source: Source::Own, tip, leaf })
    }

    /// Commits a planned batch. `stored` contains the location of each body. The log must not have
    /// changed since the plan.
    pub fn commit(&mut self, planned: PlannedBatch, stored: Vec<B>) -> Appended {
        debug_assert_eq!(planned.batch.len(), stored.len());
        self.summary.apply_batch(&planned.batch, planned.source, &planned.tip, planned.leaf);
        let mut entries = Vec::with_capacity(planned.batch.len());
        for ((placed, body), proof) in planned.batch.into_iter().zip(stored).zip(planned.proofs) {
            let row = LogRow { proof, ..row_of(placed, body) };
            entries.push((row.meta.seq, row.meta.id));
            self.record_turn(&row);
            self.rows.push(row);
        }
        let appended = Appended { head: self.summary.head, entries };
        if let Some(key) = planned.key {
            self.answers.insert(key, StoredAnswer::of(&appended, planned.request));
        }
        appended
    }

    fn record_turn(&mut self, row: &LogRow<B>) {
        let Some(turn) = row.meta.turn else { return };
        if row.meta.kind == Kind::TurnStarted {
            self.turn_starts.insert(turn, row.meta.seq);
        }
        if let (Some(outcome), Some(began)) = (row.ended, self.turn_starts.get(&turn)) {
            self.ended.push(EndedTurn { turn, outcome, began: *began, ended: row.meta.seq });
        }
    }

    /// Returns the seq of the entry at which a fork branches off, and the initial state of the
    /// fork's summary. Returns `None` if the fork shares no entry.
    fn fork_point(&self, at: Option<Seq>) -> Result<Option<(Seq, ForkPoint)>> {
        let Some(at) = at.or(self.summary.head.leaf).filter(|at| *at > Seq::ZERO) else { return Ok(None) };
        let (id, authority) = (self.row(at)?.meta.id, self.summary.authority.as_ref());
        Ok(Some((at, validate::fork_point(authority, (at, id), &mut self.lookup())?)))
    }

    /// Creates a fork of this log. The fork refers to the rows of the path to the fork point and
    /// does not copy them.
    pub fn fork(&self, scope: &Scope, fork: &Fork) -> Result<Self> {
        authorize(scope, &self.summary, Right::Write)?;
        let point = self.fork_point(fork.at)?;
        let rows = match &point {
            Some((at, point)) => {
                let (owner, at) =
                    locate(&self.rows, *at).ok_or_else(|| validate::no_entry(&self.summary.id, at))?;
                RowStore::forked(ForkBase { rows: Arc::clone(owner), at }, point.links.depth)
            }
            None => RowStore::whole(0),
        };
        let point = point.map(|(_, point)| point);
        let summary = Summary::forked(&fork.new, scope.principal.clone(), &self.summary, point);
        Ok(Self::new(summary, Arc::new(rows)))
    }

    /// Assigns positions to the first entries of a fork. Labels of entries that it does not share
    /// are left out.
    pub fn place_first(
        &self,
        mut drafts: Vec<Draft>,
        by: &Principal,
        has_blob: impl Fn(&BlobHash) -> bool,
    ) -> Result<Option<PlannedBatch>> {
        let shares = |draft: &Draft| match &draft.body {
            Body::Label(label) => matches!(self.lookup().find(label.target), Ok(Some(_))),
            _ => true,
        };
        drafts.retain(shares);
        if drafts.is_empty() {
            return Ok(None);
        }
        let mut planned = self.place(drafts, by, has_blob)?;
        self.prove(&mut planned, &[]);
        Ok(Some(planned))
    }

    /// Returns whether this session refers to the blob, in its own or in shared entries.
    pub fn refers_to(&self, blob: &BlobHash) -> bool {
        row_store::refers_to(&self.rows, blob)
    }

    pub fn id_at(&self, seq: Seq) -> Option<EntryId> {
        row_at(&self.rows, seq).map(|row| row.meta.id)
    }

    pub fn kind_at(&self, seq: Seq) -> Option<Kind> {
        row_at(&self.rows, seq).map(|row| row.meta.kind)
    }

    fn row(&self, seq: Seq) -> Result<Arc<LogRow<B>>> {
        row_at(&self.rows, seq).ok_or_else(|| validate::no_entry(&self.summary.id, seq))
    }

    fn record(&self, seq: Seq, row: &LogRow<B>) -> Result<Record> {
        let version = sapwood_core::entry::LOG_VERSION;
        Ok(Record { meta: meta_at(&self.rows, seq, row), version, body: row.body.load(row.meta.kind)? })
    }
}

/// Places one entry of a path that is shared with forks and stored in this row store. The caller
/// specifies its seq and parent. The summary does not change.
pub fn place_shared<B>(
    rows: &Arc<RowStore<B>>,
    draft: Draft,
    seq: Seq,
    parent: Option<Seq>,
) -> Result<Placed> {
    let mut lookup = RowLookup { rows, session: None };
    let model = parent
        .map(|parent| settings_at(parent, &mut lookup))
        .transpose()?
        .and_then(|settings| settings.model);
    let head = Head { seq: Seq(seq.0.saturating_sub(1)), leaf: parent };
    let mut tip = Tip { head, last_id: None, model };
    let mut placed = place(&mut tip, vec![draft], &Principal::System, &mut lookup, validate::random_bits)?;
    Ok(placed.remove(0))
}

/// Returns the initial state of the summary of a fork that branches off at `seq`.
pub fn fork_point_at<B>(rows: &Arc<RowStore<B>>, seq: Seq) -> Result<ForkPoint> {
    let row = row_at(rows, seq)
        .ok_or_else(|| validate::damaged("the shared part of a fork", format!("no entry {seq}")))?;
    // The authority record of a stored fork is in a separate file.
    validate::fork_point(None, (seq, row.meta.id), &mut RowLookup { rows, session: None })
}

/// Returns the row of a placed entry, without a proof.
pub fn row_of<B>(placed: Placed, body: B) -> LogRow<B> {
    let ended = match &placed.entry.body {
        Body::TurnEnded(ended) => Some(ended.outcome),
        _ => None,
    };
    let blobs: BTreeSet<BlobHash> = placed.entry.body.blobs().into_iter().collect();
    LogRow {
        meta: placed.entry.meta,
        links: placed.links,
        snapshot: placed.snapshot,
        ended,
        blobs: blobs.into_iter().collect(),
        proof: None,
        body,
    }
}

/// The rows that forks share with other logs: their seqs, by row store.
#[derive(Default)]
pub struct SharedRows(BTreeMap<usize, BTreeSet<Seq>>);

impl SharedRows {
    pub fn add<B: StoredBody>(&mut self, log: &InMemoryLog<B>) {
        let mut next = locate(&log.rows, Seq(log.summary.inherited));
        while let Some((owner, at)) = next.filter(|(owner, _)| !Arc::ptr_eq(owner, &log.rows)) {
            if !self.0.entry(row_store_key(owner)).or_default().insert(at) {
                return; // Another fork has already added this row and its ancestors.
            }
            let above = PathWalk::from(owner, Some(at)).next().and_then(|(_, row)| row.meta.parent);
            next = above.and_then(|above| locate(owner, above));
        }
    }

    pub fn of<B>(&self, rows: &Arc<RowStore<B>>) -> BTreeSet<Seq> {
        self.0.get(&row_store_key(rows)).cloned().unwrap_or_default()
    }
}

/// Returns a key that identifies a row store.
pub fn row_store_key<B>(rows: &Arc<RowStore<B>>) -> usize {
    Arc::as_ptr(rows).addr()
}
