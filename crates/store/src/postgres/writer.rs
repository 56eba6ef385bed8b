//! Group commit. Concurrent appends of one tenant are written together, in one statement and one
//! commit. If no batch is in flight, an append is written immediately. A few batches are in flight
//! at a time, so that a batch is sent while the previous batch is synced.
//!
//! A batch whose connection is lost is retried. Each append is written only on the session version
//! that it was prepared on, so it cannot be written twice. If the lost attempt was written, the
//! retry is refused, and the caller finds the entries in the session's log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use sapwood_core::port::store::Result;
use sapwood_core::{StoreError, TenantId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_postgres::Row;

use super::append_batch::{AppendJob, BatchColumns};
use super::audit::write_lines;
use super::authority;
use super::connection::{Mode, StoreConnection};
use super::error::{RetryBudget, translate, translate_pool};
use super::notify::Notifier;

/// Maximum number of batches in flight.
const BATCHES_MAX: usize = 4;
/// Maximum number of appends in one batch, and maximum size of the batch in bytes.
const BATCH_JOBS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The pause before a batch is the duration of the last batch divided by `PAUSE_SHARE`, and at most
/// `PAUSE_MAX`. A pause below `PAUSE_MIN`, the resolution of a timer, is skipped.
const PAUSE_SHARE: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(2);
const PAUSE_MIN: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AppendOutcome {
    Written,
    /// The idempotency key was used before. Contains the stored answer.
    Answered(String),
    /// The session's version has changed. Nothing was written, unless an earlier attempt was
    /// written and its answer lost.
    Refused {
        tries: u32,
    },
}

pub(super) struct Writer {
    queue: Arc<Queue>,
    handle: Handle,
}

struct Queue {
    state: Mutex<QueueState>,
    pool: Pool,
    place: Arc<str>,
    notifier: Notifier,
}

#[derive(Default)]
struct QueueState {
    tenants: VecDeque<(TenantId, VecDeque<QueuedAppend>)>,
    running: usize,
    /// The number of appends in the last batch, and how long it took.
    last_jobs: usize,
    last_took: Duration,
}

struct QueuedAppend {
    job: AppendJob,
    reply: oneshot::Sender<Result<AppendOutcome>>,
}

impl Writer {
    pub fn new(pool: Pool, place: Arc<str>, notifier: Notifier, handle: Handle) -> Self {
        let queue = Queue { state: Mutex::default(), pool, place, notifier };
        Self { queue: Arc::new(queue), handle }
    }

    pub async fn write(&self, tenant: &TenantId, job: AppendJob) -> Result<AppendOutcome> {
        let (reply, outcome) = oneshot::channel();
        if self.queue.push(tenant, QueuedAppend { job, reply }) {
            self.handle.spawn(self.queue.clone().run());
        }
        let gone = |_| StoreError::Unreachable {
            place: self.queue.place.to_string(),
            why: "the store was closed".to_owned(),
        };
        outcome.await.map_err(gone)?
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an append. Returns whether a new task must be started.
    fn push(&self, tenant: &TenantId, queued: QueuedAppend) -> bool {
        let mut state = self.lock();
        match state.tenants.iter_mut().find(|(name, _)| name == tenant) {
            Some((_, jobs)) => jobs.push_back(queued),
            None => state.tenants.push_back((tenant.clone(), VecDeque::from([queued]))),
        }
        let more = state.running < BATCHES_MAX;
        state.running += usize::from(more);
        more
    }

    /// Takes the next batch, from the tenant that has waited longest. Sessions are sorted, so that
    /// two batches never deadlock.
    fn take(&self) -> Option<(TenantId, Vec<QueuedAppend>)> {
        let mut state = self.lock();
        let Some((tenant, mut jobs)) = state.tenants.pop_front() else {
            state.running -= 1;
            return None;
        };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_JOBS_MAX
            && (batch.is_empty() || bytes < BATCH_BYTES_MAX)
            && let Some(queued) = jobs.pop_front_if(|next| is_of_one_format(&batch, next))
        {
            bytes += queued.job.bytes();
            batch.push(queued);
        }
        if !jobs.is_empty() {
            state.tenants.push_back((tenant.clone(), jobs));
        }
        batch.sort_by_key(|queued| queued.job.pk());
        Some((tenant, batch))
    }

    async fn run(self: Arc<Self>) {
        loop {
            if let Some(pause) = self.pause() {
                tokio::time::sleep(pause).await;
            }
            let Some((tenant, batch)) = self.take() else { return };
            let (jobs, began) = (batch.len(), Instant::now());
            self.write_batch(&tenant, batch).await;
            let mut state = self.lock();
            (state.last_jobs, state.last_took) = (jobs, began.elapsed());
        }
    }

    /// Returns how long to wait for more appends. Callers of the previous batch usually append
    /// again, one shortly after another. The first append would be written alone, and the others
    /// would wait for a whole sync. If syncs are slow and the previous batch had several callers,
    /// the writer therefore waits for a fraction of a sync.
    fn pause(&self) -> Option<Duration> {
        let state = self.lock();
        let queued: usize = state.tenants.iter().map(|(_, jobs)| jobs.len()).sum();
        let pause = (state.last_took / PAUSE_SHARE).min(PAUSE_MAX);
        (0 < queued && queued < state.last_jobs && pause >= PAUSE_MIN).then_some(pause)
    }

    async fn write_batch(&self, tenant: &TenantId, batch: Vec<QueuedAppend>) {
        match self.persist(tenant, &batch).await {
            Ok(outcomes) => {
                self.notifier.signal_write();
                for (queued, outcome) in batch.into_iter().zip(outcomes) {
                    // The caller may be cancelled; its entries stay written.
                    let _ = queued.reply.send(Ok(outcome));
                }
            }
            Err(error) if batch.len() == 1 => {
                for queued in batch {
                    let _ = queued.reply.send(Err(copy(&error)));
                }
            }
            // A single append may be the cause, so each append is retried separately.
            Err(StoreError::Backend { .. } | StoreError::Busy { .. }) => {
                for queued in batch {
                    Box::pin(self.write_batch(tenant, vec![queued])).await;
                }
            }
            Err(error) => {
                for queued in batch {
                    let _ = queued.reply.send(Err(copy(&error)));
                }
            }
        }
    }

    async fn persist(&self, tenant: &TenantId, batch: &[QueuedAppend]) -> Result<Vec<AppendOutcome>> {
        let mut retries = RetryBudget::new();
        let mut tries = 0;
        loop {
            match self.try_persist(tenant, batch).await {
                Ok(rows) => return Ok(outcomes_of(&rows, batch.len(), tries)),
                Err(error) => retries.wait_for_retry(error).await?,
            }
            tries += 1;
        }
    }

    async fn try_persist(&self, tenant: &TenantId, batch: &[QueuedAppend]) -> Result<Vec<Row>> {
        let columns = BatchColumns::of(tenant.as_str(), batch.iter().map(|queued| &queued.job));
        let ((sql, count), params) = (columns.statement(), columns.params());
        if batch.iter().all(|queued| queued.job.audit.is_none() && queued.job.authority.is_none()) {
            let client = self.pool.get().await.map_err(|error| translate_pool(&error, &self.place))?;
            let to_store_error = |error| translate(&error, &self.place);
            let append = client.prepare_cached(sql).await.map_err(to_store_error)?;
            return client.query(&append, &params[..count]).await.map_err(to_store_error);
        }
        let db = StoreConnection::open(&self.pool, &self.place, tenant, Mode::Write).await?;
        let rows = db.query(sql, &params[..count]).await?;
        let written = rows.iter().filter(|row| row.get::<_, Option<&str>>(1).is_none());
        let job_of = |row: &Row| usize::try_from(row.get::<_, i32>(0) - 1).ok().and_then(|at| batch.get(at));
        let jobs: Vec<&AppendJob> = written.filter_map(job_of).map(|queued| &queued.job).collect();
        for job in &jobs {
            if let Some(record) = &job.authority {
                authority::store(&db, job.pk(), record).await?;
            }
        }
        let notes: Vec<_> = jobs.iter().filter_map(|job| job.audit.clone()).collect();
        if !notes.is_empty() {
            write_lines(&db, notes).await?;
        }
        db.commit().await?;
        Ok(rows)
    }
}

/// Returns whether an append has the format of the batch. A batch has one format; servers change it while they run.
fn is_of_one_format(batch: &[QueuedAppend], next: &QueuedAppend) -> bool {
    batch.first().is_none_or(|first| first.job.format() == next.job.format())
}

fn outcomes_of(rows: &[Row], jobs: usize, tries: u32) -> Vec<AppendOutcome> {
    let mut outcomes = vec![AppendOutcome::Refused { tries }; jobs];
    for row in rows {
        let at = usize::try_from(row.get::<_, i32>(0) - 1).unwrap_or(usize::MAX);
        if let Some(outcome) = outcomes.get_mut(at) {
            *outcome =
                row.get::<_, Option<String>>(1).map_or(AppendOutcome::Written, AppendOutcome::Answered);
        }
    }
    outcomes
}

/// Copies an error. `StoreError` is not `Clone`, because some variants contain an `io::Error`, but
/// database errors can be copied.
fn copy(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unreachable { place, why } => {
            StoreError::Unreachable { place: place.clone(), why: why.clone() }
        }
        StoreError::ReadOnly { place, why } => {
            StoreError::ReadOnly { place: place.clone(), why: why.clone() }
        }
        StoreError::DiskFull { place } => StoreError::DiskFull { place: place.clone() },
        StoreError::Busy { place, waited_ms } => {
            StoreError::Busy { place: place.clone(), waited_ms: *waited_ms }
        }
        other => StoreError::Backend { place: "the database".to_owned(), what: other.to_string() },
    }
}
