//! A thread that builds index segments from texts in the background. It performs no I/O: the writer
//! passes it texts, and later writes the finished segments.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::Segment;

/// Builds a segment from a batch of texts.
type Job = Box<dyn FnOnce() -> Segment + Send>;

/// Maximum number of batches in flight: the batch in progress, and a queued batch, so that the
/// thread does not wait for the writer.
const AHEAD_MAX: usize = 2;

pub(in crate::sqlite) struct Indexer {
    jobs: Option<Sender<Job>>,
    segments: Receiver<Segment>,
    under_way: usize,
    thread: Option<JoinHandle<()>>,
}

/// The state of the oldest batch.
pub(in crate::sqlite) enum Came {
    /// There is no batch.
    Idle,
    /// The thread is still working on it.
    Busy,
    Ready(Segment),
}

impl Indexer {
    pub fn start(place: &str) -> Result<Self> {
        let (jobs, waiting) = channel::<Job>();
        let (ready, segments) = channel();
        let serve = move || {
            // Ends when the writer drops its sender.
            while let Ok(job) = waiting.recv() {
                if ready.send(job()).is_err() {
                    return;
                }
            }
        };
        let failed = |source| StoreError::Io { place: place.to_owned(), source };
        let thread = std::thread::Builder::new().name("sapwood-indexer".to_owned());
        let thread = thread.spawn(serve).map_err(failed)?;
        Ok(Self { jobs: Some(jobs), segments, under_way: 0, thread: Some(thread) })
    }

    /// Polls the oldest batch.
    pub fn look(&mut self) -> Came {
        if self.under_way == 0 {
            return Came::Idle;
        }
        match self.segments.try_recv() {
            Ok(segment) => {
                self.under_way -= 1;
                Came::Ready(segment)
            }
            Err(TryRecvError::Empty) => Came::Busy,
            // Without the thread, the writer builds segments itself before a search.
            Err(TryRecvError::Disconnected) => Came::Idle,
        }
    }

    /// Like [`Indexer::look`], but waits until the batch is done.
    pub fn wait(&mut self) -> Came {
        if self.under_way == 0 {
            return Came::Idle;
        }
        self.under_way -= 1;
        self.segments.recv().map_or(Came::Idle, Came::Ready)
    }

    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    pub fn has_room(&self) -> bool {
        self.under_way < AHEAD_MAX
    }

    /// Passes a batch to the thread. The indexer must have room.
    pub fn give(&mut self, job: Job) {
        if self.jobs.as_ref().is_some_and(|sender| sender.send(job).is_ok()) {
            self.under_way += 1;
        }
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
