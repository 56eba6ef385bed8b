//! Batches concurrent reads of session rows into one snapshot. Beginning a snapshot acquires locks
//! that all readers of the file contend for, and is several times slower than reading a row.
//!
//! Each caller first yields to the other tasks of its thread. The first task to resume serves the
//! whole batch. A snapshot therefore begins only after every caller in its batch has made its
//! request. Never await another caller's future here: it may be part of a task that waits for the
//! current task.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId};
use tokio::sync::oneshot;

use super::connection::StoreConnection;
use super::reader::Readers;
use super::session_table::find;
use super::writer::closed;

/// Maximum number of reads per batch; further callers read separately.
const BATCH_READS_MAX: usize = 256;

struct PendingRead {
    scope: Scope,
    session: SessionId,
    answer: oneshot::Sender<Result<Summary>>,
}

#[derive(Default)]
pub(super) struct ReadBatcher {
    pending: Mutex<Vec<PendingRead>>,
}

impl ReadBatcher {
    pub async fn summary(&self, readers: &Readers, scope: &Scope, session: &SessionId) -> Result<Summary> {
        let (sender, answer) = oneshot::channel();
        let read = PendingRead { scope: scope.clone(), session: session.clone(), answer: sender };
        if !self.join(read) {
            return readers.with_connection(|db| load_summary(db, scope, session));
        }
        let guard = BatchGuard { batcher: self, readers };
        tokio::task::yield_now().await;
        drop(guard);
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Adds a read to the batch. Returns false if the batch is full.
    fn join(&self, read: PendingRead) -> bool {
        let mut pending = self.pending();
        let has_capacity = pending.len() < BATCH_READS_MAX;
        if has_capacity {
            pending.push(read);
        }
        has_capacity
    }

    fn pending(&self) -> MutexGuard<'_, Vec<PendingRead>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting caller. When it resumes or is cancelled, it serves all reads of the batch.
struct BatchGuard<'g> {
    batcher: &'g ReadBatcher,
    readers: &'g Readers,
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        let pending = std::mem::take(&mut *self.batcher.pending());
        if pending.is_empty() {
            return;
        }
        let mut waiting = pending.into_iter();
        let outcome = self.readers.with_connection(|db| {
            super::reader::in_snapshot(db, |db| {
                for read in waiting.by_ref() {
                    // A cancelled caller needs no answer.
                    let _ = read.answer.send(load_summary(db, &read.scope, &read.session));
                }
                Ok(())
            })
        });
        // If the snapshot failed, each read runs separately and reports its error.
        if outcome.is_err() {
            for read in waiting {
                let result = self.readers.with_connection(|db| load_summary(db, &read.scope, &read.session));
                let _ = read.answer.send(result);
            }
        }
    }
}

fn load_summary(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Summary> {
    Ok(find(db, scope, session, Right::Read)?.summary)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use sapwood_core::port::store::{NewSession, Sessions};
    use sapwood_core::{Principal, TenantId, TimestampMs};

    use super::*;
    use crate::OpenOptions;
    use crate::sqlite::SqliteStore;

    /// The first read is polled once and then not again until the second read is done, like a
    /// pending branch of a larger future.
    #[tokio::test]
    async fn a_read_that_is_not_polled_again_blocks_no_other_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path().join("s.db"), OpenOptions::default()).unwrap();
        let scope = Scope::operator(TenantId::local(), Principal::System);
        let session: SessionId = "s".parse().unwrap();
        store.create(&scope, NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
        let mut held = pin!(store.summary(&scope, &session));
        let begun = poll_fn(|context| Poll::Ready(held.as_mut().poll(context))).await;
        assert!(begun.is_pending());
        let other = tokio::time::timeout(Duration::from_secs(60), store.summary(&scope, &session)).await;
        assert_eq!(other.expect("an answer in time").unwrap().id, session);
        assert_eq!(held.await.unwrap().id, session, "the first read is answered, too");
    }
}
