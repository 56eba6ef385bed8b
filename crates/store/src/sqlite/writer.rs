//! The single writer. All waiting jobs share one transaction, so that one sync serves many callers
//! (group commit). Each caller is answered only after the commit (I3).
//!
//! If the writer is free, a caller commits on its own thread, so that a single stream of appends
//! needs no thread switch. Concurrent callers leave their jobs in the queue, and a thread commits
//! them together. While more callers arrive, the thread waits briefly for them, because a commit
//! costs the same for one job as for a hundred. Another thread syncs ([`super::sync`]) while the
//! next group is written.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio::sync::{Semaphore, oneshot};

use super::connection::StoreConnection;
use super::error::{AtPath, translate};
use super::index::indexer::{Came, Indexer};
use super::search;
use super::sync::{Reply, Syncer};
use crate::Durability;

/// Capacity of the queue; further callers wait for a slot.
const QUEUE_JOBS: usize = 1_024;
/// Maximum number of callers that share one commit, so that no caller waits long.
const GROUP_JOBS_MAX: usize = 128;
/// A group of this size does not wait for more callers.
const GROUP_JOBS_PLENTY: usize = 16;
/// How long the thread waits for more callers.
const GATHER_TIME: Duration = Duration::from_micros(50);
/// If more texts than this are not indexed, the writer indexes them itself.
const INDEX_LAG_MAX: i64 = 10_000;
/// Commits between two checks of the index lag.
const COMMITS_PER_LOOK: u32 = 64;

/// The outcome of a job: its reply, and whether it failed.
struct Done {
    reply: Reply,
    failed: bool,
}

type WriteJob = Box<dyn FnOnce(Result<&StoreConnection>) -> Done + Send>;

/// Which thread commits a job when the writer is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Caller,
    Thread,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    places: Semaphore,
    /// Taken when the store is dropped.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Dropped before the connection, so that it can answer all callers while the log still exists.
    syncer: Syncer,
    state: Mutex<WriterState>,
    queue: Mutex<VecDeque<WriteJob>>,
    /// The last group had several callers: leave the next group to the thread.
    contended: AtomicBool,
    /// The thread is idle and must be woken.
    asleep: AtomicBool,
    closing: AtomicBool,
}

/// The state of the writer, used by the thread that has locked it.
struct WriterState {
    db: StoreConnection,
    indexer: Indexer,
    /// The last text passed to the indexer, and how often fresh texts had been dropped by then. If
    /// they are dropped again, segments in flight are discarded.
    given: Given,
    commits: u32,
}

impl Writer {
    pub fn start(db: StoreConnection, durability: Durability) -> Result<Self> {
        let place = db.path.display().to_string();
        let syncer = Syncer::start(&db.path, durability)?;
        let indexer = Indexer::start(&place)?;
        let shared = Arc::new(Shared {
            syncer,
            state: Mutex::new(WriterState { db, indexer, given: Given::default(), commits: 0 }),
            queue: Mutex::default(),
            contended: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sapwood-writer".to_owned());
        // Without the thread, concurrent callers would wait forever.
        let thread =
            thread.spawn(move || served.serve()).map_err(|source| StoreError::Io { place, source })?;
        Ok(Self { shared, places: Semaphore::new(QUEUE_JOBS), thread: Some(thread) })
    }

    /// Runs `work` in a transaction and returns after the commit. If `work` fails, it must not have
    /// written anything.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreConnection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.write_in(Turn::Caller, work).await
    }

    pub async fn write_in<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl FnOnce(&StoreConnection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _place = self.places.acquire().await.map_err(|_| gone())?;
        let (sender, answer) = oneshot::channel();
        let job = move |db: Result<&StoreConnection>| {
            let outcome = db.and_then(work);
            let failed = outcome.is_err();
            let reply = move |committed: Result<()>| {
                // The job's own error is more specific than the error of the commit. A cancelled
                // caller is not an error: its entries are still written.
                let _ = sender.send(outcome.and_then(|done| committed.map(|()| done)));
            };
            Done { reply: Box::new(reply), failed }
        };
        let is_first = self.shared.enqueue(Box::new(job));
        let left = Left(self);
        if turn == Turn::Caller {
            if is_first {
                // Let other tasks of this thread that are ready to append run first, so that one
                // commit also serves them.
                tokio::task::yield_now().await;
            }
            self.get_it_done();
        }
        drop(left);
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Commits the queue on this thread if the writer is free. The writer thread commits any
    /// remaining jobs, see [`Left`].
    fn get_it_done(&self) {
        if !self.shared.contended.load(Ordering::Acquire)
            && !self.shared.queue().is_empty()
            && let Some(mut state) = self.shared.try_state()
        {
            blocking(|| {
                self.shared.syncer.answer_here(self.shared.run_group(&state.db));
                state.index_now_and_then();
            });
        }
    }

    fn wake(&self) {
        if self.shared.asleep.load(Ordering::Acquire)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Runs `work` between transactions.
    pub fn alone<T>(&self, work: impl FnOnce(&StoreConnection) -> Result<T>) -> Result<T> {
        let outcome = blocking(|| work(&self.shared.state().db));
        self.wake();
        outcome
    }
}

/// A caller with a job in the queue. If the caller is cancelled, the thread commits the job.
struct Left<'w>(&'w Writer);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if !self.0.shared.queue().is_empty() {
            self.0.wake();
        }
    }
}

/// Finishes all queued jobs before the store is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Runs blocking work. On a multi-threaded runtime, other tasks are moved to other threads first.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

pub(super) fn gone() -> StoreError {
    StoreError::Backend {
        place: "the store".to_owned(),
        what: "it was closed, or a call in it crashed".to_owned(),
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, VecDeque<WriteJob>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job to the queue. Returns whether it is the only queued job.
    fn enqueue(&self, job: WriteJob) -> bool {
        let mut queue = self.queue();
        queue.push_back(job);
        queue.len() == 1
    }

    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_state(&self) -> Option<MutexGuard<'_, WriterState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The thread's main loop: commits queued jobs, then sleeps.
    fn serve(&self) {
        loop {
            while !self.queue().is_empty() {
                self.gather();
                let mut state = self.state();
                self.syncer.answer_soon(self.run_group(&state.db));
                state.index_now_and_then();
            }
            // Set before the queue is checked again, so that a new caller is either seen here or
            // wakes the thread.
            self.asleep.store(true, Ordering::SeqCst);
            if self.queue().is_empty() {
                if self.closing.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Waits while more callers arrive.
    fn gather(&self) {
        let mut waiting = self.queue().len();
        while self.contended.load(Ordering::Acquire) && waiting < GROUP_JOBS_PLENTY {
            std::thread::sleep(GATHER_TIME);
            let now = self.queue().len();
            if now == waiting {
                return;
            }
            waiting = now;
        }
    }

    /// Commits the queued jobs in one transaction. Returns the replies, which the caller sends
    /// after a sync.
    fn run_group(&self, db: &StoreConnection) -> Vec<Reply> {
        let Some(first) = self.queue().pop_front() else { return Vec::new() };
        if let Err(error) = db.prepare("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([]).at(&db.path))
        {
            (first(Err(error)).reply)(Ok(()));
            return Vec::new();
        }
        if db.append_cache.refresh(db).is_err() {
            db.forget();
        }
        let mut group = Group { replies: Vec::new(), poisoned: false };
        group.run(db, first);
        while group.replies.len() < GROUP_JOBS_MAX && !group.poisoned {
            let Some(next) = self.queue().pop_front() else { break };
            group.run(db, next);
        }
        self.contended.store(group.replies.len() > 1, Ordering::Release);
        group.end(db)
    }
}

impl WriterState {
    fn index_now_and_then(&mut self) {
        self.commits = self.commits.wrapping_add(1);
        // If the index cannot be written now, it is written before the next search, which reports
        // the error.
        let _ = self.index_beside();
        // Check occasionally for texts that other processes left unindexed.
        let lag = |db| search::lag(db).unwrap_or(0);
        if self.commits.is_multiple_of(COMMITS_PER_LOOK) && lag(&self.db) > INDEX_LAG_MAX {
            let _ = search::catch_up(&self.db);
        }
    }

    /// Passes texts of this process to the indexer in batches, and writes the finished segments in
    /// the same order.
    fn index_beside(&mut self) -> Result<()> {
        // If the log grows faster than it can be indexed, wait for the indexer. Otherwise texts
        // would be dropped from memory and have to be read and decompressed again.
        let must_wait = self.db.fresh.is_too_much() && !self.indexer.has_room();
        let came = if must_wait { self.indexer.wait() } else { self.indexer.look() };
        if let Came::Ready(segment) = came {
            search::add_indexed(&self.db, &segment, self.given.forgotten)?;
        }
        let is_known = self.given.forgotten == self.db.fresh.forgotten();
        let given = self.given.last.filter(|_| is_known && !self.indexer.is_idle());
        // Discarded segments in flight must be received first.
        if !self.indexer.has_room() || (!is_known && !self.indexer.is_idle()) {
            return Ok(());
        }
        if let Some((last, segment)) = search::next_segment(&self.db, given)? {
            self.given = Given { last: Some(last), forgotten: self.db.fresh.forgotten() };
            self.indexer.give(Box::new(segment));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Given {
    last: Option<i64>,
    forgotten: u64,
}

/// Jobs that share a transaction.
struct Group {
    replies: Vec<Reply>,
    /// A job failed after it had written: the whole group must be rolled back.
    poisoned: bool,
}

impl Group {
    fn run(&mut self, db: &StoreConnection, job: WriteJob) {
        let before = db.conn.total_changes();
        match catch_unwind(AssertUnwindSafe(|| job(Ok(db)))) {
            Ok(done) => {
                self.poisoned |= done.failed && db.conn.total_changes() != before;
                self.replies.push(done.reply);
            }
            // The dropped channel notifies its caller.
            Err(_) => self.poisoned |= db.conn.total_changes() != before,
        }
    }

    /// Ends the transaction. Returns the replies to send after a sync; if the commit failed,
    /// callers are answered immediately.
    fn end(self, db: &StoreConnection) -> Vec<Reply> {
        let committed = match self.poisoned {
            true => Err(None),
            false => db
                .conn
                .prepare_cached("COMMIT")
                .and_then(|mut commit| commit.execute([]))
                .map(|_| ())
                .map_err(Some),
        };
        let Err(error) = committed else { return self.replies };
        let _ = db.conn.execute_batch("ROLLBACK");
        db.forget();
        for reply in self.replies {
            reply(Err(match &error {
                Some(error) => translate(error, &db.path),
                None => rolled_back(db),
            }));
        }
        Vec::new()
    }
}

fn rolled_back(db: &StoreConnection) -> StoreError {
    let place = db.path.display().to_string();
    let what = "a write failed halfway, and its whole transaction was rolled back".to_owned();
    StoreError::Backend { place, what }
}
