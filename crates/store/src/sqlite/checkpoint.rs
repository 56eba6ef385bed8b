//! Checkpoints the write-ahead log on a separate thread: copying pages and syncing the file takes
//! tens of milliseconds, and appends must not wait for it.
//!
//! SQLite restarts the log only when all of its pages are in the database file, and a busy writer
//! is always slightly ahead of the checkpoint thread. So after the thread has checkpointed most of
//! the log, the writer itself checkpoints the few remaining pages. A sync of an overwritten log is
//! also faster than a sync of a growing log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rusqlite::hooks::Wal;
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::connection::{Mode, StoreConnection};
use super::error::AtPath;
use super::head::{self, Position};
use crate::Key;

/// Minimum number of pages for a checkpoint by the thread.
const CHECKPOINT_PAGES_MIN: u32 = 4_000;
/// Maximum number of remaining pages that the writer checkpoints itself after a checkpoint by the
/// thread.
const REST_PAGES_MAX: u32 = 1_000;
/// Pages in the log above which the writer checkpoints all of them itself: 64 MB.
const LOG_PAGES_MAX: u32 = 16_000;

/// The checkpoint thread. It ends when this handle is dropped.
pub(super) struct Checkpointer {
    shared: Arc<CheckpointState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct CheckpointState {
    /// The number of log pages that are known to be in the database file.
    checkpointed_pages: AtomicU32,
    /// Set when the thread has finished a checkpoint, so that the writer checkpoints the remaining
    /// pages.
    finish: AtomicBool,
    due: AtomicBool,
    closing: AtomicBool,
}

impl Checkpointer {
    /// Starts the thread and installs a commit hook on the writer's connection.
    pub fn start(writer: &mut StoreConnection, key: Option<Key>) -> Result<Self> {
        let shared = Arc::new(CheckpointState::default());
        let (path, served) = (writer.path.clone(), Arc::clone(&shared));
        let failed = |source| StoreError::Io { place: writer.path.display().to_string(), source };
        let thread = std::thread::Builder::new()
            .name("sapwood-ckpt".to_owned())
            .spawn(move || served.serve(path, key))
            .map_err(failed)?;
        let (hooked, handle) = (Arc::clone(&shared), thread.thread().clone());
        let hook = move |wal: &mut Wal, pages: i32| {
            if hooked.note_commit(wal, pages) {
                handle.unpark();
            }
            Ok(())
        };
        writer.conn.wal_hook(Some(hook)).at(&writer.path)?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl CheckpointState {
    /// Runs after each commit of the writer. Returns whether the thread has to be woken.
    fn note_commit(&self, wal: &mut Wal, pages: i32) -> bool {
        let pages = u32::try_from(pages).unwrap_or(0);
        let mut checkpointed = self.checkpointed_pages.load(Ordering::Relaxed);
        if pages < checkpointed {
            // The log has restarted.
            checkpointed = 0;
            self.checkpointed_pages.store(0, Ordering::Relaxed);
        }
        let is_small_rest = pages - checkpointed <= REST_PAGES_MAX;
        if pages >= LOG_PAGES_MAX || self.finish.swap(false, Ordering::SeqCst) && is_small_rest {
            // If the checkpoint fails, the commit stays in the log.
            let _ = wal.checkpoint();
            return false;
        }
        pages - checkpointed >= CHECKPOINT_PAGES_MIN && !self.due.swap(true, Ordering::SeqCst)
    }

    fn serve(&self, path: PathBuf, key: Option<Key>) {
        let mut db = None;
        while !self.closing.load(Ordering::SeqCst) {
            if self.due.load(Ordering::SeqCst) {
                if db.is_none() {
                    db = StoreConnection::open(&path, Mode::Write, key.as_ref()).ok();
                }
                // Pages that cannot be checkpointed now stay in the log. The writer retries when
                // the log is long.
                if let Some(pages) = db.as_ref().and_then(run_checkpoint) {
                    self.checkpointed_pages.store(pages, Ordering::Relaxed);
                    self.finish.store(true, Ordering::SeqCst);
                }
                self.due.store(false, Ordering::SeqCst);
            } else {
                std::thread::park();
            }
        }
    }
}

/// Checkpoints as many pages as possible without blocking other connections. Returns the number of
/// log pages that are now in the database file.
fn run_checkpoint(db: &StoreConnection) -> Option<u32> {
    // Read before the checkpoint, so that the checkpoint includes this entry.
    let position = Position::of(db).ok();
    let mut checkpoint = db.prepare("PRAGMA wal_checkpoint(PASSIVE)").ok()?;
    let (log, copied): (u32, u32) = checkpoint.query_row([], |row| Ok((row.get(1)?, row.get(2)?))).ok()?;
    if let Some(position) = position.filter(|_| copied == log) {
        head::advance(&db.path, &position);
    }
    Some(copied)
}
