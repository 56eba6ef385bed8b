//! Appends. An append is prepared from the cached state of its session, usually without a query. It
//! is written only if the version of the session's row has not changed since. Otherwise, or if a check
//! of the cached state fails, the session is read again and the append is retried, so a stale cache is
//! harmless.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::entry::LOG_VERSION;
use sapwood_core::entry::proof::{Proof, Salt};
use sapwood_core::port::store::{Append, Appended, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::{Head, Links, Placed, Tip, place};
use sapwood_core::{Draft, Right, Scope, SessionId, Source, StoreError, TenantId};
use tokio::sync::Mutex as AsyncMutex;
use uuid::Uuid;

use super::append_batch::{AppendJob, BatchColumns, PackedBatch, PackedRow};
use super::authority;
use super::blob;
use super::connection::StoreConnection;
use super::log::{LogRows, int};
use super::prefetch::{Prefetched, Stop};
use super::proofs::{links_to, parents_to_read, prove};
use super::session_table::{PgLease, RowLock, SessionRow, find};
use super::writer::AppendOutcome;
use super::{PgStore, reading};
use crate::authorize::authorize;
use crate::compression::{encode_body_in, pack, pack_drafts};
use crate::database::NamedDatabase;
use crate::proving::{ContentProof, ParentCache, salt_of};
use crate::stored_answer::StoredAnswer;
use crate::validate;

/// Maximum number of cached sessions. When it is reached, sessions that are not in use are evicted.
const SESSIONS_MAX: usize = 4_096;
/// Maximum number of attempts to write an append that conflicts with other writers.
const TRIES_MAX: usize = 100;

/// The cached state of a session that is being appended to.
pub(super) struct CachedSession {
    row: SessionRow,
    prefetched: Prefetched,
    parents: ParentCache,
}

/// The cache slot of one session, locked while a caller appends to the session.
type CacheSlot = Arc<AsyncMutex<Option<CachedSession>>>;

#[derive(Default)]
pub(super) struct AppendCache(Mutex<HashMap<(TenantId, SessionId), CacheSlot>>);

impl AppendCache {
    fn slot(&self, scope: &Scope, session: &SessionId) -> CacheSlot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SESSIONS_MAX {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry((scope.tenant.clone(), session.clone())).or_default().clone()
    }
}

/// Encodes, hashes and compresses the bodies of drafts. A salt that is not given is drawn.
fn pack_bodies(format: u32, drafts: &[Draft], salts: &[Option<Salt>]) -> Result<Arc<PackedBatch>> {
    let rows = pack_drafts(drafts, |index, draft| {
        let (kind, json) = encode_body_in(format, &draft.body)?;
        let is_proven = format >= LOG_VERSION;
        let content = is_proven.then(|| ContentProof::of(salt_of(salts, index), &json));
        Ok(PackedRow { kind, body: pack(json), content })
    })?;
    Ok(Arc::new(PackedBatch { format, rows }))
}

/// Whether the session state was just read from the database or comes from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freshness {
    Fresh,
    Cached,
}

pub(super) async fn append(store: &PgStore, scope: &Scope, append: Append) -> Result<Appended> {
    let packed = pack_bodies(store.format_to_write(), &append.drafts, &append.salts)?;
    let slot = store.append_cache.slot(scope, &append.session);
    let mut held = slot.lock().await;
    let mut lost: Option<Appended> = None;
    for _ in 0..TRIES_MAX {
        let (mut cached, freshness) = match held.take() {
            Some(cached) => (cached, Freshness::Cached),
            None => match load(store, scope, &append, packed.format, lost.as_ref()).await? {
                Loaded::Session(cached) => (*cached, Freshness::Fresh),
                Loaded::Answer(answer) => return Ok(answer),
            },
        };
        match attempt(store, scope, &append, &packed, &mut cached).await {
            Ok(Attempt::Done(answer)) => {
                *held = Some(cached);
                return Ok(answer);
            }
            // The cached state may be outdated and allow a caller whose right was revoked.
            Ok(Attempt::Answered(answer)) if freshness == Freshness::Fresh => return Ok(answer),
            Ok(Attempt::Answered(_)) => {}
            Ok(Attempt::Refused(written)) => lost = written.or(lost),
            Err(error) if freshness == Freshness::Fresh => return Err(error),
            Err(_) => {}
        }
    }
    Err(StoreError::Busy { place: store.server.place.to_string(), waited_ms: 0 })
}

enum Loaded {
    Session(Box<CachedSession>),
    /// The append is already in the log. This is its answer.
    Answer(Appended),
}

/// Reads a session, and checks whether the append is already in its log: under its idempotency key,
/// or because an earlier attempt was written but its answer was lost.
async fn load(
    store: &PgStore,
    scope: &Scope,
    append: &Append,
    format: u32,
    lost: Option<&Appended>,
) -> Result<Loaded> {
    reading!(store, scope, db => load_from(&db, scope, append, format, lost).await)
}

async fn load_from(
    db: &StoreConnection,
    scope: &Scope,
    append: &Append,
    format: u32,
    lost: Option<&Appended>,
) -> Result<Loaded> {
    let mut row = find(db, scope, &append.session, Right::Read, RowLock::No).await?;
    if append.source == Source::Imported && row.summary.authority.is_none() {
        authority::derive(db, scope, &mut row.summary).await?;
    }
    if let Some(lost) = lost
        && is_written(db, row.pk, lost).await?
    {
        return Ok(Loaded::Answer(lost.clone()));
    }
    authorize(scope, &row.summary, validate::right_needed(&row.summary, &append.drafts))?;
    if let Some(answer) = earlier_answer(db, row.pk, append).await? {
        return Ok(Loaded::Answer(answer));
    }
    let mut prefetched = Prefetched::new(row.summary.inherited);
    let log = LogRows::open(db, row.pk, row.summary.inherited).await?;
    prefetched.prepare(&log, row.summary.head.leaf, &append.drafts).await?;
    let mut parents = ParentCache::default();
    if let Some(leaf) = row.summary.head.leaf.filter(|_| format >= LOG_VERSION) {
        links_to(&log, &[leaf]).await?.into_iter().for_each(|(seq, link)| parents.add(seq, link));
    }
    Ok(Loaded::Session(Box::new(CachedSession { row, prefetched, parents })))
}

async fn is_written(db: &StoreConnection, pk: i64, lost: &Appended) -> Result<bool> {
    let Some((seq, id)) = lost.entries.first() else { return Ok(false) };
    let sql = "SELECT 1 FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3 AND id = $4";
    let id = Uuid::from_bytes(*id.as_bytes());
    Ok(db.query_opt(sql, &[&db.tenant.as_str(), &pk, &int(seq.0), &id]).await?.is_some())
}

async fn earlier_answer(db: &StoreConnection, pk: i64, append: &Append) -> Result<Option<Appended>> {
    let Some(key) = append.idempotency_key.as_deref() else { return Ok(None) };
    let sql = "SELECT answer FROM answers WHERE tenant = $1 AND session = $2 AND key = $3";
    let row = db.query_opt(sql, &[&db.tenant.as_str(), &pk, &key]).await?;
    row.map(|row| read_answer(db, row.get(0), append)).transpose()
}

fn read_answer(db: &impl NamedDatabase, json: &str, append: &Append) -> Result<Appended> {
    db.parse::<StoredAnswer>("a stored answer", json)?.for_retry(append)
}

enum Attempt {
    Done(Appended),
    /// The answer to the first append with the same key. The head may have moved since.
    Answered(Appended),
    /// The session's version has changed. If the write was retried after a lost connection, contains
    /// the answer of the first try, which may have been written.
    Refused(Option<Appended>),
}

async fn attempt(
    store: &PgStore,
    scope: &Scope,
    append: &Append,
    packed: &Arc<PackedBatch>,
    cached: &mut CachedSession,
) -> Result<Attempt> {
    if append.source == Source::Imported && cached.row.summary.authority.is_none() {
        // Reload the session, because loading derives its authority record.
        return Ok(Attempt::Refused(None));
    }
    let lease = cached.row.lease.as_ref().map(PgLease::now);
    validate::check_append(scope, &cached.row.summary, append, lease)?;
    check_blobs(store, scope, &append.drafts).await?;
    let (placed, tip, leaf) = place_drafts(store, scope, append, cached).await?;
    cached.row.summary.apply_batch(&placed, append.source, &tip, leaf);
    let answer = validate::answer_of(&placed, tip.head);
    let proofs = prove_batch(store, scope, cached, &placed, packed).await?;
    let placed = Arc::new(placed);
    let job = AppendJob::new(&cached.row, &placed, packed).with_answer(append, &answer);
    let mut job = job.with_proofs(&proofs);
    if append.source == Source::Imported {
        job.authority = cached.row.summary.authority.as_ref().map(validate::print_json);
    }
    job.audit = append.audit.clone().map(|note| (scope.principal.clone(), note, append.now));
    match store.writer.write(&scope.tenant, job).await? {
        AppendOutcome::Written => {
            cached.row.version += 1;
            cached.prefetched.add_written(&placed);
            Ok(Attempt::Done(answer))
        }
        AppendOutcome::Answered(json) => read_answer(store, &json, append).map(Attempt::Answered),
        AppendOutcome::Refused { tries: 0 } => Ok(Attempt::Refused(None)),
        AppendOutcome::Refused { .. } => Ok(Attempt::Refused(Some(answer))),
    }
}

/// Hashes the entries of a batch. Reads a parent's hash only if it is not cached.
async fn prove_batch(
    store: &PgStore,
    scope: &Scope,
    CachedSession { row, parents, .. }: &mut CachedSession,
    placed: &[Placed],
    packed: &PackedBatch,
) -> Result<Vec<Proof>> {
    let missing = parents_to_read(placed, packed, parents);
    let fetched = match missing.is_empty() {
        true => Vec::new(),
        false => reading!(store, scope, db => {
            let log = LogRows::open(&db, row.pk, row.summary.inherited).await?;
            links_to(&log, &missing).await
        })?,
    };
    Ok(prove(placed, packed, parents, fetched))
}

async fn check_blobs(store: &PgStore, scope: &Scope, drafts: &[Draft]) -> Result<()> {
    let blobs: Vec<_> = drafts.iter().flat_map(|draft| draft.body.blobs()).collect();
    if blobs.is_empty() {
        return Ok(());
    }
    reading!(store, scope, db => blob::check_all(&db, scope, &blobs).await)
}

/// Placed drafts, the tip after them, and the links of the leaf after them.
type PlacedBatch = (Vec<Placed>, Tip, Option<Links>);

fn place_on(
    nodes: &mut Prefetched,
    scope: &Scope,
    summary: &Summary,
    drafts: &[Draft],
) -> Result<PlacedBatch, Stop> {
    let mut tip = summary.tip();
    let placed = place(&mut tip, drafts.to_vec(), &scope.principal, nodes, validate::random_bits)?;
    let leaf = validate::links_of_leaf(&tip, &placed, nodes)?;
    Ok((placed, tip, leaf))
}

/// Computes the positions of the drafts, mostly from cached nodes.
async fn place_drafts(
    store: &PgStore,
    scope: &Scope,
    append: &Append,
    CachedSession { row, prefetched, .. }: &mut CachedSession,
) -> Result<PlacedBatch> {
    let (summary, drafts) = (&row.summary, &append.drafts);
    match place_on(prefetched, scope, summary, drafts) {
        Ok(done) => return Ok(done),
        Err(Stop::Refused(error)) => return Err(error.into()),
        Err(Stop::Missing(_)) => {}
    }
    reading!(store, scope, db => {
        let log = LogRows::open(&db, row.pk, summary.inherited).await?;
        prefetched.prepare(&log, summary.head.leaf, drafts).await?;
        prefetched.run_with_fetches(&log, |nodes| place_on(nodes, scope, summary, drafts)).await
    })
}

/// Writes the first entries of a session that is created in the same transaction.
pub(super) async fn write_first(
    db: &StoreConnection,
    scope: &Scope,
    mut row: SessionRow,
    drafts: &[Draft],
    format: u32,
) -> Result<Head> {
    let packed = pack_bodies(format, drafts, &[])?;
    let log = LogRows::open(db, row.pk, row.summary.inherited).await?;
    let mut nodes = Prefetched::new(row.summary.inherited);
    let place = |nodes: &mut Prefetched| place_on(nodes, scope, &row.summary, drafts);
    let (placed, tip, leaf) = nodes.run_with_fetches(&log, place).await?;
    row.summary.apply_batch(&placed, Source::Own, &tip, leaf);
    let mut parents = ParentCache::default();
    let fetched = links_to(&log, &parents_to_read(&placed, &packed, &parents)).await?;
    let proofs = prove(&placed, &packed, &mut parents, fetched);
    let job = AppendJob::new(&row, &Arc::new(placed), &packed).with_proofs(&proofs);
    let columns = BatchColumns::of(db.tenant.as_str(), std::iter::once(&job));
    let ((sql, count), params) = (columns.statement(), columns.params());
    if db.query(sql, &params[..count]).await?.is_empty() {
        return Err(db.damaged(format!("session {} was changed while it was being created", row.summary.id)));
    }
    Ok(tip.head)
}
