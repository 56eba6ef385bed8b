//! Appending. An append is prepared on what is remembered of its session, without asking the database anything, and written
//! only if the session's row still has the version it was prepared on. If not, or if anything speaks against it, the
//! session is read anew and it is tried again: so what is remembered may be out of date and never does harm.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::port::store::{Append, Appended, Result};
use sapwood_core::tree::{Head, Links, Lookup, Placed, Tip, place};
use sapwood_core::{Draft, EntryId, Right, Scope, Seq, SessionId, Source, StoreError, TenantId};
use tokio::sync::Mutex as AsyncMutex;
use uuid::Uuid;

use super::authority;
use super::blob;
use super::desk::Desk;
use super::job::{APPEND, Columns, Job, StoredAnswer};
use super::known::{Known, Stop};
use super::lease::PgLease;
use super::log::{LogRows, int};
use super::session::{Hold, SessionRow, find};
use super::writer::End;
use super::{PgStore, reading};
use crate::admit::admit;
use crate::pack::{Packed, pack_body, pack_drafts};
use crate::rules;

/// Sessions remembered. When there are more, those that nobody is using are forgotten.
const SESSIONS_MAX: usize = 4_096;
/// How often an append is prepared anew because others were quicker.
const TRIES_MAX: usize = 100;

/// What is remembered of a session that is being appended to.
pub(super) struct HotSession {
    row: SessionRow,
    known: Known,
}

/// One session's place, held by whoever is appending to it.
type Seat = Arc<AsyncMutex<Option<HotSession>>>;

#[derive(Default)]
pub(super) struct Hot(Mutex<HashMap<(TenantId, SessionId), Seat>>);

impl Hot {
    fn seat(&self, scope: &Scope, session: &SessionId) -> Seat {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seats.len() >= SESSIONS_MAX {
            seats.retain(|_, seat| Arc::strong_count(seat) > 1);
        }
        seats.entry((scope.tenant.clone(), session.clone())).or_default().clone()
    }
}

fn pack_bodies(drafts: &[Draft]) -> Result<Vec<Packed>> {
    pack_drafts(drafts, |draft| pack_body(&draft.body))
}

/// Whether what is remembered was just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Fresh,
    Old,
}

pub(super) async fn append(store: &PgStore, scope: &Scope, append: Append) -> Result<Appended> {
    let packed = pack_bodies(&append.drafts)?;
    let seat = store.hot.seat(scope, &append.session);
    let mut held = seat.lock().await;
    let mut lost: Option<Appended> = None;
    for _ in 0..TRIES_MAX {
        let (mut hot, memory) = match held.take() {
            Some(hot) => (hot, Memory::Old),
            None => match load(store, scope, &append, lost.as_ref()).await? {
                Loaded::Session(hot) => (*hot, Memory::Fresh),
                Loaded::Answer(answer) => return Ok(answer),
            },
        };
        match attempt(store, scope, &append, &packed, &mut hot).await {
            Ok(Attempt::Done(answer)) => {
                *held = Some(hot);
                return Ok(answer);
            }
            // What is remembered may say that somebody may ask who no longer may.
            Ok(Attempt::Answered(answer)) if memory == Memory::Fresh => return Ok(answer),
            Ok(Attempt::Answered(_)) => {}
            Ok(Attempt::Refused(written)) => lost = written.or(lost),
            Err(error) if memory == Memory::Fresh => return Err(error),
            Err(_) => {}
        }
    }
    Err(StoreError::Busy { place: store.server.place.to_string(), waited_ms: 0 })
}

enum Loaded {
    Session(Box<HotSession>),
    /// The append was written before.
    Answer(Appended),
}

/// Reads a session, and looks whether the append is in its log already: under its key, or because an earlier try of our own
/// was written though its answer was lost.
async fn load(store: &PgStore, scope: &Scope, append: &Append, lost: Option<&Appended>) -> Result<Loaded> {
    reading!(store, scope, desk => load_from(&desk, scope, append, lost).await)
}

async fn load_from(desk: &Desk, scope: &Scope, append: &Append, lost: Option<&Appended>) -> Result<Loaded> {
    let mut row = find(desk, scope, &append.session, Right::Read, Hold::No).await?;
    if append.source == Source::Imported && row.summary.authority.is_none() {
        let source = authority::trace(desk, scope, &append.session).await?;
        rules::settle_summary(&mut row.summary, source);
    }
    if let Some(lost) = lost
        && is_written(desk, row.pk, lost).await?
    {
        return Ok(Loaded::Answer(lost.clone()));
    }
    admit(scope, &row.summary, rules::right_needed(&row.summary, &append.drafts))?;
    if let Some(answer) = earlier_answer(desk, row.pk, append).await? {
        return Ok(Loaded::Answer(answer));
    }
    let mut known = Known::new(row.summary.inherited);
    let log = LogRows::open(desk, row.pk, row.summary.inherited).await?;
    known.prepare(&log, row.summary.head.leaf, &append.drafts).await?;
    Ok(Loaded::Session(Box::new(HotSession { row, known })))
}

async fn is_written(desk: &Desk, pk: i64, lost: &Appended) -> Result<bool> {
    let Some((seq, id)) = lost.entries.first() else { return Ok(false) };
    let sql = "SELECT 1 FROM entries WHERE tenant = $1 AND session = $2 AND seq = $3 AND id = $4";
    let id = Uuid::from_bytes(*id.as_bytes());
    Ok(desk.query_opt(sql, &[&desk.tenant.as_str(), &pk, &int(seq.0), &id]).await?.is_some())
}

async fn earlier_answer(desk: &Desk, pk: i64, append: &Append) -> Result<Option<Appended>> {
    let Some(key) = append.idempotency_key.as_deref() else { return Ok(None) };
    let sql = "SELECT answer FROM answers WHERE tenant = $1 AND session = $2 AND key = $3";
    let row = desk.query_opt(sql, &[&desk.tenant.as_str(), &pk, &key]).await?;
    let Some(row) = row else { return Ok(None) };
    let stored: StoredAnswer =
        serde_json::from_str(row.get(0)).map_err(|error| desk.damaged(format!("a kept answer: {error}")))?;
    stored.for_same(append).map(Some)
}

enum Attempt {
    Done(Appended),
    /// By the first append with the same key. The session may have moved on.
    Answered(Appended),
    /// With what may have been written by a try whose answer was lost.
    Refused(Option<Appended>),
}

async fn attempt(
    store: &PgStore,
    scope: &Scope,
    append: &Append,
    packed: &[Packed],
    hot: &mut HotSession,
) -> Result<Attempt> {
    if append.source == Source::Imported && hot.row.summary.authority.is_none() {
        // Read the session again: its record is worked out then.
        return Ok(Attempt::Refused(None));
    }
    let lease = hot.row.lease.as_ref().map(PgLease::now);
    rules::check_append(scope, &hot.row.summary, append, lease)?;
    check_blobs(store, scope, &append.drafts).await?;
    let (placed, tip) = place_drafts(store, scope, append, hot).await?;
    let leaf = leaf_links(store, scope, hot, &placed, &tip).await?;
    hot.row.summary.apply_batch(&placed, append.source, &tip, leaf);
    let answer = answer_of(&placed, tip.head);
    let mut job = Job::new(&hot.row, &placed, packed).answering(append, &answer);
    if append.source == Source::Imported {
        job.authority = hot.row.summary.authority.as_ref().map(rules::print_json);
    }
    job.audit = append.audit.clone().map(|note| (scope.principal.clone(), note, append.now));
    match store.writer.write(&scope.tenant, job).await? {
        End::Written => {
            hot.row.version += 1;
            hot.known.remember(&placed);
            Ok(Attempt::Done(answer))
        }
        End::Answered(json) => serde_json::from_str::<StoredAnswer>(&json)
            .map_err(|error| store.damaged(format!("a kept answer: {error}")))?
            .for_same(append)
            .map(Attempt::Answered),
        End::Refused { tries: 0 } => Ok(Attempt::Refused(None)),
        End::Refused { .. } => Ok(Attempt::Refused(Some(answer))),
    }
}

fn answer_of(placed: &[Placed], head: Head) -> Appended {
    let entries: Vec<(Seq, EntryId)> =
        placed.iter().map(|placed| (placed.entry.meta.seq, placed.entry.meta.id)).collect();
    Appended { head, entries }
}

async fn check_blobs(store: &PgStore, scope: &Scope, drafts: &[Draft]) -> Result<()> {
    let blobs: Vec<_> = drafts.iter().flat_map(|draft| draft.body.blobs()).collect();
    if blobs.is_empty() {
        return Ok(());
    }
    reading!(store, scope, desk => blob::check_all(&desk, scope, &blobs).await)
}

/// Finds the drafts' places: mostly from what is known.
async fn place_drafts(
    store: &PgStore,
    scope: &Scope,
    append: &Append,
    hot: &mut HotSession,
) -> Result<(Vec<Placed>, Tip)> {
    let tip_before = hot.row.summary.tip();
    let mut run = |known: &mut Known| {
        let mut tip = tip_before.clone();
        let placed = place(&mut tip, append.drafts.clone(), &scope.principal, known, rules::random_bits)?;
        Ok((placed, tip))
    };
    match run(&mut hot.known) {
        Ok(done) => return Ok(done),
        Err(Stop::Refused(error)) => return Err(error.into()),
        Err(Stop::Want(_)) => {}
    }
    let (pk, inherited, leaf) = (hot.row.pk, hot.row.summary.inherited, hot.row.summary.head.leaf);
    let known = &mut hot.known;
    reading!(store, scope, desk => {
        let log = LogRows::open(&desk, pk, inherited).await?;
        known.prepare(&log, leaf, &append.drafts).await?;
        known.supply(&log, &mut run).await
    })
}

/// The links of the leaf that a batch has led to.
async fn leaf_links(
    store: &PgStore,
    scope: &Scope,
    hot: &mut HotSession,
    placed: &[Placed],
    tip: &Tip,
) -> Result<Option<Links>> {
    let Some(leaf) = tip.head.leaf else { return Ok(None) };
    let links = |placed: &&Placed| placed.entry.meta.seq == leaf;
    if let Some(placed) = placed.iter().rev().find(links) {
        return Ok(placed.links);
    }
    if let Ok(node) = hot.known.node(leaf) {
        return Ok(Some(node.links));
    }
    let (pk, inherited) = (hot.row.pk, hot.row.summary.inherited);
    let known = &mut hot.known;
    let node = reading!(store, scope, desk => {
        let log = LogRows::open(&desk, pk, inherited).await?;
        known.supply(&log, |known| known.node(leaf)).await
    })?;
    Ok(Some(node.links))
}

/// The first entries of a session that is being made in the same transaction.
pub(super) async fn write_first(
    desk: &Desk,
    scope: &Scope,
    mut row: SessionRow,
    drafts: Vec<Draft>,
) -> Result<Head> {
    let packed = pack_bodies(&drafts)?;
    let log = LogRows::open(desk, row.pk, row.summary.inherited).await?;
    let mut known = Known::new(row.summary.inherited);
    let tip_before = row.summary.tip();
    let (placed, tip) = known
        .supply(&log, |known| {
            let mut tip = tip_before.clone();
            let placed = place(&mut tip, drafts.clone(), &scope.principal, known, rules::random_bits)?;
            Ok((placed, tip))
        })
        .await?;
    let of_batch = placed.iter().rev().find(|placed| Some(placed.entry.meta.seq) == tip.head.leaf);
    let leaf = match (of_batch, tip.head.leaf) {
        (Some(placed), _) => placed.links,
        (None, Some(leaf)) => Some(known.supply(&log, |known| known.node(leaf)).await?.links),
        (None, None) => None,
    };
    row.summary.apply_batch(&placed, Source::Own, &tip, leaf);
    let job = Job::new(&row, &placed, &packed);
    let columns = Columns::of(desk.tenant.as_str(), std::iter::once(&job));
    if desk.query(APPEND, &columns.params()).await?.is_empty() {
        return Err(desk.damaged(format!("session {} was changed while it was being made", row.summary.id)));
    }
    Ok(tip.head)
}
