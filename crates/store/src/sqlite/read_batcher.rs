//! Looks at sessions' rows that come at the same time share one snapshot: to begin one takes locks that all readers of the
//! file meet at, and several times as long as to read a row.
//!
//! Everybody lets the other tasks of its thread come first; whoever goes on first then reads for all who wait. So a snapshot
//! never begins before anybody who reads in it has asked, and nobody depends on another's going on: that one may be a
//! piece of the work of whoever waits here, and is not gone on with before this has its answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId};
use tokio::sync::oneshot;

use super::connection::StoreConnection;
use super::reader::Readers;
use super::session::find;
use super::writer::gone;

/// Looks that share a snapshot; whoever comes when there are so many looks alone.
const LOOKS_MAX: usize = 256;

struct PendingRead {
    scope: Scope,
    session: SessionId,
    answer: oneshot::Sender<Result<Summary>>,
}

#[derive(Default)]
pub(super) struct ReadBatcher {
    looks: Mutex<Vec<PendingRead>>,
}

impl ReadBatcher {
    pub async fn summary(&self, readers: &Readers, scope: &Scope, session: &SessionId) -> Result<Summary> {
        let (sender, answer) = oneshot::channel();
        let look = PendingRead { scope: scope.clone(), session: session.clone(), answer: sender };
        if !self.join(look) {
            return readers.glance(|db| look_at(db, scope, session));
        }
        let waiting = BatchGuard { gathering: self, readers };
        tokio::task::yield_now().await;
        drop(waiting);
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// False if there are too many.
    fn join(&self, look: PendingRead) -> bool {
        let mut looks = self.looks();
        let has_room = looks.len() < LOOKS_MAX;
        if has_room {
            looks.push(look);
        }
        has_room
    }

    fn looks(&self) -> MutexGuard<'_, Vec<PendingRead>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits. It reads for everybody who still does when it goes on, or away.
struct BatchGuard<'g> {
    gathering: &'g ReadBatcher,
    readers: &'g Readers,
}

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        let looks = std::mem::take(&mut *self.gathering.looks());
        if looks.is_empty() {
            return;
        }
        let mut waiting = looks.into_iter();
        let read = self.readers.glance(|db| {
            super::reader::in_snapshot(db, |db| {
                for look in waiting.by_ref() {
                    // A caller that has gone away needs no answer.
                    let _ = look.answer.send(look_at(db, &look.scope, &look.session));
                }
                Ok(())
            })
        });
        // Without a snapshot each is told why by looking alone.
        if read.is_err() {
            for look in waiting {
                let alone = self.readers.glance(|db| look_at(db, &look.scope, &look.session));
                let _ = look.answer.send(alone);
            }
        }
    }
}

fn look_at(db: &StoreConnection, scope: &Scope, session: &SessionId) -> Result<Summary> {
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

    /// As a piece of somebody's work is that is not gone on with while they do something else.
    #[tokio::test]
    async fn a_look_that_is_not_gone_on_with_keeps_nobody_waiting() {
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
        assert_eq!(held.await.unwrap().id, session, "and it has its answer, too");
    }
}
