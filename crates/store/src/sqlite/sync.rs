//! Syncing commits. SQLite writes its log without waiting for the disk. With durability `full` this
//! module syncs a commit before its callers get their replies (I3), while the writer already
//! processes the next group.
//!
//! A sync covers all earlier writes to the log, so a commit never survives without the commits it
//! depends on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::connection::wal_path;
use crate::Durability;

/// Sends the outcome of a commit to its caller.
pub(super) type Reply = Box<dyn FnOnce(Result<()>) + Send>;

/// The thread that syncs for groups of callers. It sends all replies before it ends.
pub(super) struct Syncer {
    shared: Arc<SyncState>,
    thread: Option<JoinHandle<()>>,
}

struct SyncState {
    path: PathBuf,
    durability: Durability,
    wal: Mutex<Option<File>>,
    /// Set when a sync has failed. The operating system may have dropped the unwritten pages, and a
    /// later sync would not report that.
    failed: AtomicBool,
    waiting: Mutex<Vec<Reply>>,
    closing: AtomicBool,
}

impl Syncer {
    pub fn start(path: &Path, durability: Durability) -> Result<Self> {
        let shared = Arc::new(SyncState {
            path: path.to_owned(),
            durability,
            wal: Mutex::default(),
            failed: AtomicBool::new(false),
            waiting: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sapwood-syncer".to_owned());
        let failed = |source| StoreError::Io { place: path.display().to_string(), source };
        let thread = thread.spawn(move || served.serve()).map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Syncs on this thread, then sends the replies.
    pub fn sync_and_reply(&self, replies: Vec<Reply>) {
        self.shared.sync_and_reply(replies);
    }

    /// Queues the replies. The sync thread sends them after its next sync. Does not block.
    pub fn queue_replies(&self, replies: Vec<Reply>) {
        match (self.shared.durability, &self.thread) {
            (Durability::Full, Some(thread)) => {
                self.shared.waiting().extend(replies);
                thread.thread().unpark();
            }
            _ => self.shared.sync_and_reply(replies),
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl SyncState {
    fn waiting(&self) -> MutexGuard<'_, Vec<Reply>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            // Load the flag before the queue, so that replies that were queued before closing are
            // still sent.
            let closing = self.closing.load(Ordering::SeqCst);
            let replies = std::mem::take(&mut *self.waiting());
            match replies.is_empty() {
                false => self.sync_and_reply(replies),
                true if closing => return,
                true => std::thread::park(),
            }
        }
    }

    fn sync_and_reply(&self, replies: Vec<Reply>) {
        if replies.is_empty() {
            return;
        }
        let outcome = match self.durability {
            Durability::Full => self.sync(),
            Durability::Normal => Ok(()),
        };
        for reply in replies {
            reply(outcome.as_ref().copied().map_err(|error| self.sync_error(error)));
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(std::io::Error::other("an earlier sync of the write-ahead log failed; reopen the store"));
        }
        let mut wal = self.wal.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = match &*wal {
            Some(file) => file.sync_data(),
            None => File::open(wal_path(&self.path)).and_then(|file| wal.insert(file).sync_all()),
        };
        if synced.is_err() {
            self.failed.store(true, Ordering::SeqCst);
        }
        synced
    }

    fn sync_error(&self, error: &std::io::Error) -> StoreError {
        let source = std::io::Error::new(error.kind(), error.to_string());
        StoreError::Io { place: self.path.display().to_string(), source }
    }
}
