//! The one writer. Everything that is waiting goes into one transaction, so that one sync serves many callers (group
//! commit), and each is answered only after the commit (I3).
//!
//! A caller that finds nobody writing commits on its own thread: a single stream of appends pays for no hand-over. When
//! callers meet, they leave their work in the queue, and a thread commits it for all of them; while they still come in, it
//! waits a moment for more of them, because a commit costs the same for one and for a hundred. Another thread sees to the
//! sync ([`super::sync`]), so that the next group is written meanwhile.

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

/// Callers that may wait; more wait for a place in the queue.
const QUEUE_JOBS: usize = 1_024;
/// Most callers that share one commit, so that none waits long.
const GROUP_JOBS_MAX: usize = 128;
/// A group of this size is not waited for any longer.
const GROUP_JOBS_PLENTY: usize = 16;
/// How long the thread waits to see whether more callers come.
const GATHER_TIME: Duration = Duration::from_micros(50);
/// So many texts that are not in the search index, although nobody is at it, are indexed by the writer itself.
const INDEX_LAG_MAX: i64 = 10_000;
/// Commits between two looks at that lag.
const COMMITS_PER_LOOK: u32 = 64;

/// What a job did: its reply, and whether it failed.
struct Done {
    reply: Reply,
    failed: bool,
}

type WriteJob = Box<dyn FnOnce(Result<&StoreConnection>) -> Done + Send>;

/// Who commits a job that nobody else is in the way of.
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
    /// Dropped before the db: it answers everybody while the log is still there.
    syncer: Syncer,
    seat: Mutex<Seat>,
    queue: Mutex<VecDeque<WriteJob>>,
    /// The last group had several callers: leave the next one to the thread.
    contended: AtomicBool,
    /// The thread has nothing to do and must be woken.
    asleep: AtomicBool,
    closing: AtomicBool,
}

/// Whoever holds it writes.
struct Seat {
    db: StoreConnection,
    indexer: Indexer,
    /// The last text that the indexer has got, and how often fresh texts had been forgotten by then. Once they are forgotten
    /// again, nothing that is under way counts.
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
            seat: Mutex::new(Seat { db, indexer, given: Given::default(), commits: 0 }),
            queue: Mutex::default(),
            contended: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sapwood-writer".to_owned());
        // Without it, callers that meet would wait for ever.
        let thread =
            thread.spawn(move || served.serve()).map_err(|source| StoreError::Io { place, source })?;
        Ok(Self { shared, places: Semaphore::new(QUEUE_JOBS), thread: Some(thread) })
    }

    /// Runs `work` in a transaction and answers when it is committed. If `work` fails it must not have written yet.
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
                // Its own error says more than that of the commit it spoilt. A caller that has gone away is no reason to
                // fail: the entries are written all the same.
                let _ = sender.send(outcome.and_then(|done| committed.map(|()| done)));
            };
            Done { reply: Box::new(reply), failed }
        };
        let is_first = self.shared.enqueue(Box::new(job));
        let left = Left(self);
        if turn == Turn::Caller {
            if is_first {
                // Other tasks of this thread that are ready to append come first, so that one commit serves them too.
                tokio::task::yield_now().await;
            }
            self.get_it_done();
        }
        drop(left);
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Commits the queue here if nobody is writing. What is left then is [`Left`] to the thread.
    fn get_it_done(&self) {
        if !self.shared.contended.load(Ordering::Acquire)
            && !self.shared.queue().is_empty()
            && let Some(mut seat) = self.shared.try_seat()
        {
            blocking(|| {
                self.shared.syncer.answer_here(self.shared.run_group(&seat.db));
                seat.index_now_and_then();
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
        let outcome = blocking(|| work(&self.shared.seat().db));
        self.wake();
        outcome
    }
}

/// A caller that has left a job in the queue. If it goes away before it saw to it, the thread does.
struct Left<'w>(&'w Writer);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if !self.0.shared.queue().is_empty() {
            self.0.wake();
        }
    }
}

/// What was sent is finished before the store is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Runs what blocks. On a runtime with several threads, other tasks move out of the way first.
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

    /// Leaves a job in the queue, and says whether it is the only one there.
    fn enqueue(&self, job: WriteJob) -> bool {
        let mut queue = self.queue();
        queue.push_back(job);
        queue.len() == 1
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_seat(&self) -> Option<MutexGuard<'_, Seat>> {
        match self.seat.try_lock() {
            Ok(seat) => Some(seat),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The thread's life: commit what callers have left, and sleep.
    fn serve(&self) {
        loop {
            while !self.queue().is_empty() {
                self.gather();
                let mut seat = self.seat();
                self.syncer.answer_soon(self.run_group(&seat.db));
                seat.index_now_and_then();
            }
            // Said before the queue is looked at once more, so that whoever comes now either is seen or wakes us.
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

    /// Waits while callers are still coming in.
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

    /// Commits what is in the queue, as one transaction, and leaves it to the caller to have that synced and to answer.
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

impl Seat {
    fn index_now_and_then(&mut self) {
        self.commits = self.commits.wrapping_add(1);
        // An index that cannot be written now is written before the next search, which then says what is wrong.
        let _ = self.index_beside();
        // What others left is looked for now and then.
        let lag = |db| search::lag(db).unwrap_or(0);
        if self.commits.is_multiple_of(COMMITS_PER_LOOK) && lag(&self.db) > INDEX_LAG_MAX {
            let _ = search::catch_up(&self.db);
        }
    }

    /// Texts of this process go to the indexer in batches, and come back as segments, in the same order.
    fn index_beside(&mut self) -> Result<()> {
        // A log that grows more quickly than it can be indexed waits for the index here, before texts are forgotten that
        // would have to be read and unpacked again.
        let must_wait = self.db.fresh.is_too_much() && !self.indexer.has_room();
        let came = if must_wait { self.indexer.wait() } else { self.indexer.look() };
        if let Came::Ready(segment) = came {
            search::add_indexed(&self.db, &segment, self.given.forgotten)?;
        }
        let is_known = self.given.forgotten == self.db.fresh.forgotten();
        let given = self.given.last.filter(|_| is_known && !self.indexer.is_idle());
        // What is under way and does not count any more comes back first.
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
    /// A job failed in mid-write: nobody's entries may stay.
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
            // Its caller is told by the dropped channel.
            Err(_) => self.poisoned |= db.conn.total_changes() != before,
        }
    }

    /// The replies that a sync has to come before. Callers whose commit failed are answered at once.
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
    let what =
        "a write failed in the middle, and everything that shared its transaction was taken back".to_owned();
    StoreError::Backend { place, what }
}
