//! Checkpoints the write-ahead log on a separate thread: copying pages and syncing the file takes
//! tens of milliseconds, and appends must not wait for it.
//!
//! SQLite restarts the log only when all of it is in the database file, and a busy writer is always
//! slightly ahead. So once most of the log has been checkpointed, the writer itself checkpoints the
//! small rest. Overwriting a log is also faster to sync than growing it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rusqlite::hooks::Wal;
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;

use super::connection::{Mode, StoreConnection};
use super::error::AtPath;
use crate::Key;

/// Minimum number of pages in the log for a checkpoint.
const FOLD_PAGES: u32 = 4_000;
/// Maximum number of pages that the writer checkpoints itself after the thread has checkpointed the
/// others.
const REST_PAGES_MAX: u32 = 1_000;
/// Pages in the log above which the writer checkpoints all of them itself: 64 MB.
const LOG_PAGES_MAX: u32 = 16_000;

/// The checkpoint thread. It ends when this is dropped.
pub(super) struct Checkpointer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The number of log pages that are known to be in the file.
    folded_pages: AtomicU32,
    /// The thread has done its checkpoint; the writer checkpoints the rest.
    finish: AtomicBool,
    due: AtomicBool,
    closing: AtomicBool,
}

impl Checkpointer {
    /// Starts the thread and a hook on the commits of the writer's connection.
    pub fn start(writer: &mut StoreConnection, key: Option<Key>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (path, served) = (writer.path.clone(), Arc::clone(&shared));
        let failed = |source| StoreError::Io { place: writer.path.display().to_string(), source };
        let thread = std::thread::Builder::new()
            .name("sapwood-folder".to_owned())
            .spawn(move || served.serve(path, key))
            .map_err(failed)?;
        let (watching, handle) = (Arc::clone(&shared), thread.thread().clone());
        let hook = move |wal: &mut Wal, pages: i32| {
            if watching.note_commit(wal, pages) {
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

impl Shared {
    /// Runs after each commit of the writer. Returns whether the thread has to be woken.
    fn note_commit(&self, wal: &mut Wal, pages: i32) -> bool {
        let pages = u32::try_from(pages).unwrap_or(0);
        let mut folded = self.folded_pages.load(Ordering::Relaxed);
        if pages < folded {
            // The log has restarted.
            folded = 0;
            self.folded_pages.store(0, Ordering::Relaxed);
        }
        let is_short = pages - folded <= REST_PAGES_MAX;
        if pages >= LOG_PAGES_MAX || self.finish.swap(false, Ordering::SeqCst) && is_short {
            // The commit is durable, even if the checkpoint fails.
            let _ = wal.checkpoint();
            return false;
        }
        pages - folded >= FOLD_PAGES && !self.due.swap(true, Ordering::SeqCst)
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
                if let Some(pages) = db.as_ref().and_then(fold) {
                    self.folded_pages.store(pages, Ordering::Relaxed);
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
/// pages in the file.
fn fold(db: &StoreConnection) -> Option<u32> {
    let mut fold = db.prepare("PRAGMA wal_checkpoint(PASSIVE)").ok()?;
    fold.query_row([], |row| row.get(2)).ok()
}
