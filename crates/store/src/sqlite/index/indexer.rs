//! A thread that builds index segments from texts in the background. It performs no I/O: the writer
//! passes it texts, and later writes the finished segments.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::Segment;

/// Builds a segment from a batch of texts.
type Job = Box<dyn FnOnce() -> Segment + Send>;

/// Maximum number of batches in flight: the batch in progress, and a queued batch so that the
/// thread never waits for the writer.
const IN_FLIGHT_MAX: usize = 2;

pub(in crate::sqlite) struct Indexer {
    jobs: Option<Sender<Job>>,
    segments: Receiver<Segment>,
    in_flight: usize,
    thread: Option<JoinHandle<()>>,
}

/// The state of the oldest batch in flight.
pub(in crate::sqlite) enum SegmentPoll {
    /// No batch is in flight.
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
            // The loop ends when the writer drops its sender.
            while let Ok(job) = waiting.recv() {
                if ready.send(job()).is_err() {
                    return;
                }
            }
        };
        let failed = |source| StoreError::Io { place: place.to_owned(), source };
        let thread = std::thread::Builder::new().name("sapwood-indexer".to_owned());
        let thread = thread.spawn(serve).map_err(failed)?;
        Ok(Self { jobs: Some(jobs), segments, in_flight: 0, thread: Some(thread) })
    }

    /// Returns the state of the oldest batch without blocking.
    pub fn poll(&mut self) -> SegmentPoll {
        if self.in_flight == 0 {
            return SegmentPoll::Idle;
        }
        match self.segments.try_recv() {
            Ok(segment) => {
                self.in_flight -= 1;
                SegmentPoll::Ready(segment)
            }
            Err(TryRecvError::Empty) => SegmentPoll::Busy,
            // Without the thread, the writer builds segments itself before a search.
            Err(TryRecvError::Disconnected) => SegmentPoll::Idle,
        }
    }

    /// Like [`Indexer::poll`], but blocks until the batch is done.
    pub fn wait(&mut self) -> SegmentPoll {
        if self.in_flight == 0 {
            return SegmentPoll::Idle;
        }
        self.in_flight -= 1;
        self.segments.recv().map_or(SegmentPoll::Idle, SegmentPoll::Ready)
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub fn has_capacity(&self) -> bool {
        self.in_flight < IN_FLIGHT_MAX
    }

    /// Passes a batch to the thread. Call it only if [`Indexer::has_capacity`].
    pub fn submit(&mut self, job: Job) {
        if self.jobs.as_ref().is_some_and(|sender| sender.send(job).is_ok()) {
            self.in_flight += 1;
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
