//! The one writer. It takes everything that is waiting into one transaction, so that one sync serves many callers
//! (group commit), and answers each only after the commit (I3).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio::sync::{mpsc, oneshot};

use super::desk::Desk;
use super::fault::Fault;
use super::search;

/// Callers that may wait; more wait for a place in the queue.
const QUEUE_JOBS: usize = 1_024;
/// Most callers that share one commit, so that none waits long.
const GROUP_JOBS_MAX: usize = 512;
/// So many texts that are not in the search index yet are worth a transaction of their own.
const INDEX_LAG_MAX: i64 = 2_000;
/// Commits between two looks at that lag.
const COMMITS_PER_LOOK: u32 = 64;

/// Tells a caller how its commit went.
type Reply = Box<dyn FnOnce(Result<()>) + Send>;

/// What a job did: its reply, and whether it failed.
struct Done {
    reply: Reply,
    failed: bool,
}

enum Job {
    /// Runs in a transaction it may share with others. It checks first and writes then.
    Grouped(Box<dyn FnOnce(Result<&Desk>) -> Done + Send>),
    /// Runs by itself, outside a transaction.
    Alone(Box<dyn FnOnce(&Desk) + Send>),
}

pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(desk: Desk) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_JOBS);
        let run = move || Loop { desk, queue, commits: 0 }.run();
        let thread = std::thread::Builder::new().name("sapwood-writer".to_owned()).spawn(run).ok();
        Self { jobs: Some(jobs), thread }
    }

    /// Runs `work` in a transaction and answers when it is committed. If `work` fails it must not have written yet.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let job = move |desk: Result<&Desk>| {
            let outcome = desk.and_then(work);
            let failed = outcome.is_err();
            let reply = move |committed: Result<()>| {
                // A caller that has gone away is no reason to fail: the entries are written all the same.
                let _ = sender.send(committed.and(outcome));
            };
            Done { reply: Box::new(reply), failed }
        };
        self.send(Job::Grouped(Box::new(job))).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs `work` between transactions.
    pub async fn alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let job = move |desk: &Desk| {
            let _ = sender.send(work(desk));
        };
        self.send(Job::Alone(Box::new(job))).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    async fn send(&self, job: Job) -> Result<()> {
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).await.map_err(|_| gone())
    }
}

/// What was sent is finished before the store is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn gone() -> StoreError {
    StoreError::Backend { place: "the store".to_owned(), what: "it was closed, or a call in it crashed".to_owned() }
}

struct Loop {
    desk: Desk,
    queue: mpsc::Receiver<Job>,
    commits: u32,
}

impl Loop {
    fn run(mut self) {
        let mut next = self.queue.blocking_recv();
        while let Some(job) = next.take() {
            match job {
                Job::Alone(work) => {
                    let desk = &self.desk;
                    let _ = catch_unwind(AssertUnwindSafe(|| work(desk)));
                }
                Job::Grouped(work) => next = self.run_group(work),
            }
            if next.is_none() {
                next = self.queue.blocking_recv();
            }
        }
    }

    /// Runs a job and whatever else is waiting in one transaction. Answers with a job that wants to be alone, if it met
    /// one.
    fn run_group(&mut self, first: Box<dyn FnOnce(Result<&Desk>) -> Done + Send>) -> Option<Job> {
        if let Err(error) = self.desk.conn.execute_batch("BEGIN IMMEDIATE").at(&self.desk.path) {
            let done = first(Err(error));
            (done.reply)(Ok(()));
            return None;
        }
        let mut group = Group { replies: Vec::new(), poisoned: false };
        group.run(&self.desk, first);
        let mut alone = None;
        while group.replies.len() < GROUP_JOBS_MAX && !group.poisoned {
            match self.queue.try_recv() {
                Ok(Job::Grouped(work)) => group.run(&self.desk, work),
                Ok(job @ Job::Alone(_)) => {
                    alone = Some(job);
                    break;
                }
                Err(_) => break,
            }
        }
        group.end(&self.desk);
        self.index_now_and_then();
        alone
    }

    fn index_now_and_then(&mut self) {
        self.commits += 1;
        if self.commits % COMMITS_PER_LOOK == 1
            && search::lag(&self.desk).is_ok_and(|lag| lag > INDEX_LAG_MAX)
        {
            // An index that cannot be written now is written before the next search, which then says what is wrong.
            let _ = search::catch_up(&self.desk);
        }
    }
}

/// Jobs that share a transaction.
struct Group {
    replies: Vec<Reply>,
    /// A job failed in mid-write: nobody's entries may stay.
    poisoned: bool,
}

impl Group {
    fn run(&mut self, desk: &Desk, work: Box<dyn FnOnce(Result<&Desk>) -> Done + Send>) {
        let before = desk.conn.total_changes();
        match catch_unwind(AssertUnwindSafe(|| work(Ok(desk)))) {
            Ok(done) => {
                self.poisoned |= done.failed && desk.conn.total_changes() != before;
                self.replies.push(done.reply);
            }
            // Its caller is told by the dropped channel.
            Err(_) => self.poisoned |= desk.conn.total_changes() != before,
        }
    }

    fn end(self, desk: &Desk) {
        let committed = if self.poisoned {
            Err(rusqlite::Error::ExecuteReturnedResults)
        } else {
            desk.conn.execute_batch("COMMIT")
        };
        if committed.is_err() {
            let _ = desk.conn.execute_batch("ROLLBACK");
            desk.forget();
        }
        for reply in self.replies {
            reply(match &committed {
                Ok(()) => Ok(()),
                Err(_) if self.poisoned => Err(rolled_back(desk)),
                Err(error) => Err(super::fault::translate(error, &desk.path)),
            });
        }
    }
}

fn rolled_back(desk: &Desk) -> StoreError {
    let place = desk.path.display().to_string();
    let what = "a write failed in the middle, and everything that shared its transaction was taken back".to_owned();
    StoreError::Backend { place, what }
}
