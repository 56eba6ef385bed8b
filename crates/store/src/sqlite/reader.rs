//! A few threads that read, each with a connection of its own. They are started when there is work for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::port::store::Result;
use tokio::sync::oneshot;

use super::desk::{Desk, Mode};
use super::fault::Fault;
use super::writer::gone;
use crate::{Durability, Key};

const READERS_MAX: usize = 4;

type Job = Box<dyn FnOnce(Result<&Desk>) + Send>;

pub(super) struct Readers {
    jobs: Mutex<Sender<Job>>,
    queue: Arc<Mutex<Receiver<Job>>>,
    started: AtomicUsize,
    busy: Arc<AtomicUsize>,
    path: PathBuf,
    key: Option<Key>,
}

impl Readers {
    pub fn new(path: PathBuf, key: Option<Key>) -> Self {
        let (jobs, queue) = channel();
        Self {
            jobs: Mutex::new(jobs),
            queue: Arc::new(Mutex::new(queue)),
            started: AtomicUsize::new(0),
            busy: Arc::default(),
            path,
            key,
        }
    }

    /// Runs `work` on one consistent view of the file.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let job = move |desk: Result<&Desk>| {
            let _ = sender.send(desk.and_then(|desk| in_snapshot(desk, work)));
        };
        self.start_one_if_all_are_busy();
        let sent = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(job));
        sent.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    fn start_one_if_all_are_busy(&self) {
        let started = self.started.load(Ordering::Relaxed);
        let busy = self.busy.fetch_add(1, Ordering::Relaxed);
        if busy < started || started >= READERS_MAX {
            return;
        }
        let reader = Reader {
            queue: Arc::clone(&self.queue),
            busy: Arc::clone(&self.busy),
            path: self.path.clone(),
            key: self.key.clone(),
        };
        let name = format!("sapwood-reader-{started}");
        if std::thread::Builder::new().name(name).spawn(move || reader.run()).is_ok() {
            self.started.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn in_snapshot<T>(desk: &Desk, work: impl FnOnce(&Desk) -> Result<T>) -> Result<T> {
    desk.prepare("BEGIN")?.execute([]).at(&desk.path)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| work(desk))).unwrap_or_else(|_| Err(gone()));
    desk.prepare("COMMIT")?.execute([]).at(&desk.path)?;
    outcome
}

struct Reader {
    queue: Arc<Mutex<Receiver<Job>>>,
    busy: Arc<AtomicUsize>,
    path: PathBuf,
    key: Option<Key>,
}

impl Reader {
    fn run(self) {
        let mut desk = None;
        loop {
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            match self.desk(&mut desk) {
                Ok(desk) => job(Ok(desk)),
                Err(error) => job(Err(error)),
            }
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn desk<'d>(&self, slot: &'d mut Option<Desk>) -> Result<&'d Desk> {
        Ok(match slot {
            Some(desk) => desk,
            None => slot.insert(Desk::open(&self.path, Mode::Read, Durability::Full, self.key.as_ref())?),
        })
    }
}
