//! The single writer. All waiting jobs share one transaction, so that one sync serves many callers
//! (group commit). Each caller gets its reply only after the commit (I3).
//!
//! If the writer is free, a caller commits on its own thread, so that a single stream of appends
//! needs no thread switch. Concurrent callers leave their jobs in the queue, and a thread commits
//! them together. While more callers arrive, the thread waits briefly for them, because a commit
//! costs the same for one job as for a hundred. Another thread syncs ([`super::sync`]) while the
//! next group is written.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio::sync::{Semaphore, oneshot};

use super::connection::{StoreConnection, wal_path};
use super::error::translate;
use super::index::indexer::{Indexer, SegmentPoll};
use super::search;
use super::sync::{Reply, Syncer};
use crate::Durability;
use crate::path_health::PathHealth;

/// Capacity of the queue, in jobs. Further callers wait for a free slot.
const QUEUE_JOBS: usize = 1_024;
/// Maximum number of callers that share one commit, so that no caller waits long.
const GROUP_JOBS_MAX: usize = 128;
/// A group of this size does not wait for more callers.
const GROUP_JOBS_ENOUGH: usize = 16;
/// Time that the thread waits for more callers.
const GROUP_WAIT: Duration = Duration::from_micros(50);
/// If the index lags by more entries than this, the writer indexes them itself.
const INDEX_LAG_MAX: i64 = 10_000;
/// Commits between two checks of the index lag.
const COMMITS_PER_LAG_CHECK: u32 = 64;

/// The outcome of a job: its reply, and whether it failed.
struct JobOutcome {
    reply: Reply,
    failed: bool,
}

type WriteJob = Box<dyn FnOnce(Result<&StoreConnection>) -> JobOutcome + Send>;

/// Which thread commits a job when the writer is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitThread {
    Caller,
    Writer,
}

pub(super) struct Writer {
    shared: Arc<WriterShared>,
    slots: Semaphore,
    /// Taken when the store is dropped.
    thread: Option<JoinHandle<()>>,
}

struct WriterShared {
    /// Dropped before the connection, so that it can sync and reply to all callers while the
    /// write-ahead log still exists.
    syncer: Syncer,
    state: Mutex<WriterState>,
    queue: Mutex<VecDeque<WriteJob>>,
    /// Set if the last group had several callers: the next group is left to the thread.
    contended: AtomicBool,
    /// Set while the thread is idle and must be woken.
    asleep: AtomicBool,
    closing: AtomicBool,
    file: FileIdentity,
}

/// The files that were opened. A file that was deleted, moved or replaced must not be written to:
/// the entries would be lost when the process ends.
struct FileIdentity {
    database: PathHealth,
    log: PathHealth,
}

impl FileIdentity {
    fn of(path: &Path) -> Self {
        Self { database: PathHealth::new(path), log: PathHealth::new(&wal_path(path)) }
    }

    fn check(&self) -> Result<()> {
        self.database.check_identity()?;
        self.log.check_identity()
    }
}

/// The state of the writer, used by the thread that has locked it.
struct WriterState {
    db: StoreConnection,
    indexer: Indexer,
    /// The texts that were passed to the indexer. If the unindexed texts have been cleared since,
    /// the segments in flight are discarded.
    queued: QueuedTexts,
    commits: u32,
}

impl Writer {
    pub fn start(db: StoreConnection, durability: Durability) -> Result<Self> {
        let place = db.path.display().to_string();
        let syncer = Syncer::start(&db.path, durability)?;
        let indexer = Indexer::start(&place)?;
        let file = FileIdentity::of(&db.path);
        let shared = Arc::new(WriterShared {
            syncer,
            state: Mutex::new(WriterState { db, indexer, queued: QueuedTexts::default(), commits: 0 }),
            queue: Mutex::default(),
            contended: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            file,
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sapwood-writer".to_owned());
        // Without the thread, concurrent callers would wait forever.
        let thread =
            thread.spawn(move || served.serve()).map_err(|source| StoreError::Io { place, source })?;
        Ok(Self { shared, slots: Semaphore::new(QUEUE_JOBS), thread: Some(thread) })
    }

    /// Runs `work` in a transaction and returns after the commit. If `work` fails, it must not have
    /// written anything.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreConnection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.write_in(CommitThread::Caller, work).await
    }

    pub async fn write_in<T: Send + 'static>(
        &self,
        thread: CommitThread,
        work: impl FnOnce(&StoreConnection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _slot = self.slots.acquire().await.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        let job = move |db: Result<&StoreConnection>| {
            let outcome = db.and_then(work);
            let failed = outcome.is_err();
            let reply = move |committed: Result<()>| {
                // The job's own error is more specific than the error of the commit. A cancelled
                // caller is not an error: its entries are still written.
                let _ = sender.send(outcome.and_then(|done| committed.map(|()| done)));
            };
            JobOutcome { reply: Box::new(reply), failed }
        };
        let is_first = self.shared.enqueue(Box::new(job));
        let guard = QueuedJobGuard(self);
        if thread == CommitThread::Caller {
            if is_first {
                // First run other tasks of this thread that are ready to append, so that one commit
                // also includes their jobs.
                tokio::task::yield_now().await;
            }
            self.try_commit();
        }
        drop(guard);
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Commits the queue on this thread if the writer is free. The writer thread commits any
    /// remaining jobs, see [`QueuedJobGuard`].
    fn try_commit(&self) {
        if !self.shared.contended.load(Ordering::Acquire)
            && !self.shared.queue().is_empty()
            && let Some(mut state) = self.shared.try_state()
        {
            blocking(|| {
                self.shared.syncer.sync_and_reply(self.shared.run_group(&state.db));
                state.index_after_commit();
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
    pub fn run_exclusive<T>(&self, work: impl FnOnce(&StoreConnection) -> Result<T>) -> Result<T> {
        let outcome = blocking(|| work(&self.shared.state().db));
        self.wake();
        outcome
    }
}

/// A caller with a job in the queue. If the caller is cancelled, the thread commits the job.
struct QueuedJobGuard<'w>(&'w Writer);

impl Drop for QueuedJobGuard<'_> {
    fn drop(&mut self) {
        if !self.0.shared.queue().is_empty() {
            self.0.wake();
        }
    }
}

/// Commits all queued jobs before the store is closed.
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

pub(super) fn closed() -> StoreError {
    StoreError::Backend {
        place: "the store".to_owned(),
        what: "it was closed, or an operation in it panicked".to_owned(),
    }
}

impl WriterShared {
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
                self.wait_for_more();
                let mut state = self.state();
                self.syncer.queue_replies(self.run_group(&state.db));
                state.index_after_commit();
            }
            // Set the flag before checking the queue again, so that a new job is either found here
            // or its caller wakes the thread.
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
    fn wait_for_more(&self) {
        let mut waiting = self.queue().len();
        while self.contended.load(Ordering::Acquire) && waiting < GROUP_JOBS_ENOUGH {
            std::thread::sleep(GROUP_WAIT);
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
        if let Err(error) = db.execute("BEGIN IMMEDIATE", []) {
            (first(Err(error)).reply)(Ok(()));
            return Vec::new();
        }
        if db.refresh_caches().is_err() {
            db.clear_caches();
        }
        let mut group = Group { replies: Vec::new(), poisoned: false };
        group.run(db, first);
        while group.replies.len() < GROUP_JOBS_MAX && !group.poisoned {
            let Some(next) = self.queue().pop_front() else { break };
            group.run(db, next);
        }
        self.contended.store(group.replies.len() > 1, Ordering::Release);
        group.end(db, &self.file)
    }
}

impl WriterState {
    fn index_after_commit(&mut self) {
        self.commits = self.commits.wrapping_add(1);
        // If the index cannot be written now, it is written before the next search, which reports
        // the error.
        let _ = self.index_in_background();
        // Check occasionally for texts that other processes left unindexed.
        let lag = |db| search::lag(db).unwrap_or(0);
        if self.commits.is_multiple_of(COMMITS_PER_LAG_CHECK) && lag(&self.db) > INDEX_LAG_MAX {
            let _ = search::catch_up(&self.db);
        }
    }

    /// Passes texts of this process to the indexer in batches, and writes the finished segments in
    /// the same order.
    fn index_in_background(&mut self) -> Result<()> {
        // If the log grows faster than it can be indexed, wait for the indexer. Otherwise texts
        // would be dropped from memory and have to be read and decompressed again.
        let must_wait = self.db.unindexed.is_near_limit() && !self.indexer.has_capacity();
        let polled = if must_wait { self.indexer.wait() } else { self.indexer.poll() };
        if let SegmentPoll::Ready(segment) = polled {
            search::add_indexed(&self.db, &segment, self.queued.clear_count)?;
        }
        let is_current = self.queued.clear_count == self.db.unindexed.clear_count();
        let queued = self.queued.last.filter(|_| is_current && !self.indexer.is_idle());
        // First receive the segments in flight that have to be discarded.
        if !self.indexer.has_capacity() || (!is_current && !self.indexer.is_idle()) {
            return Ok(());
        }
        if let Some((last, segment)) = search::next_segment(&self.db, queued)? {
            self.queued = QueuedTexts { last: Some(last), clear_count: self.db.unindexed.clear_count() };
            self.indexer.submit(Box::new(segment));
        }
        Ok(())
    }
}

/// The last text that was passed to the indexer, and the clear count of the unindexed texts at that
/// time.
#[derive(Default)]
struct QueuedTexts {
    last: Option<i64>,
    clear_count: u64,
}

/// Jobs that share a transaction.
struct Group {
    replies: Vec<Reply>,
    /// Set if a job failed or panicked after it had written. The whole group must then be rolled back.
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
            // Dropping the job closes its channel, which notifies the caller.
            Err(_) => self.poisoned |= db.conn.total_changes() != before,
        }
        // After some errors, such as a damaged page, SQLite has rolled back the whole transaction.
        self.poisoned |= db.conn.is_autocommit();
    }

    /// Ends the transaction. Returns the replies to send after a sync. If the commit failed, sends
    /// the error to all callers immediately.
    fn end(self, db: &StoreConnection, file: &FileIdentity) -> Vec<Reply> {
        let committed = match self.poisoned {
            true => Err(CommitFailure::Poisoned),
            false => commit(db, file),
        };
        let Err(failure) = committed else { return self.replies };
        let _ = db.conn.execute_batch("ROLLBACK");
        db.clear_caches();
        for reply in self.replies {
            reply(Err(match &failure {
                CommitFailure::Sqlite(error) => translate(error, &db.path),
                CommitFailure::Moved => file.database.moved(),
                CommitFailure::Poisoned => rolled_back(db),
            }));
        }
        Vec::new()
    }
}

/// Why a transaction was not committed.
enum CommitFailure {
    Poisoned,
    Moved,
    Sqlite(rusqlite::Error),
}

fn commit(db: &StoreConnection, file: &FileIdentity) -> std::result::Result<(), CommitFailure> {
    file.check().map_err(|_| CommitFailure::Moved)?;
    let committed = db.conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
    committed.map(|_| ()).map_err(CommitFailure::Sqlite)
}

fn rolled_back(db: &StoreConnection) -> StoreError {
    let place = db.path.display().to_string();
    let what = "a write in the same transaction failed, and the whole transaction was rolled back".to_owned();
    StoreError::Backend { place, what }
}
