//! Looks at sessions' rows that come at the same time share one snapshot: to begin one takes locks that all readers of the
//! file meet at, and several times as long as to read a row.
//!
//! Whoever finds nobody waiting lets the other tasks of its thread come first, then reads for all of them. So a snapshot
//! never begins before anybody who reads in it has asked.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sapwood_core::port::store::Result;
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId};
use tokio::sync::oneshot;

use super::desk::Desk;
use super::reader::Readers;
use super::session::find;
use super::writer::gone;

/// Looks that share a snapshot; whoever comes when there are so many looks alone.
const LOOKS_MAX: usize = 256;

struct Look {
    scope: Scope,
    session: SessionId,
    answer: oneshot::Sender<Result<Summary>>,
}

#[derive(Default)]
pub(super) struct Gathering {
    looks: Mutex<Vec<Look>>,
}

impl Gathering {
    pub async fn summary(&self, readers: &Readers, scope: &Scope, session: &SessionId) -> Result<Summary> {
        let (sender, answer) = oneshot::channel();
        let look = Look { scope: scope.clone(), session: session.clone(), answer: sender };
        match self.join(look) {
            Place::First => {
                let leading = Leading { gathering: self, readers };
                tokio::task::yield_now().await;
                drop(leading);
            }
            Place::Behind => {}
            Place::None => return readers.glance(|desk| look_at(desk, scope, session)),
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    fn join(&self, look: Look) -> Place {
        let mut looks = self.looks();
        let place = match looks.len() {
            0 => Place::First,
            LOOKS_MAX.. => return Place::None,
            _ => Place::Behind,
        };
        looks.push(look);
        place
    }

    fn looks(&self) -> MutexGuard<'_, Vec<Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Behind,
    None,
}

/// Whoever came first. It reads for everybody when it goes, also if its own caller went away.
struct Leading<'g> {
    gathering: &'g Gathering,
    readers: &'g Readers,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let looks = std::mem::take(&mut *self.gathering.looks());
        let mut waiting = looks.into_iter();
        let read = self.readers.glance(|desk| {
            super::reader::in_snapshot(desk, |desk| {
                for look in waiting.by_ref() {
                    // A caller that has gone away needs no answer.
                    let _ = look.answer.send(look_at(desk, &look.scope, &look.session));
                }
                Ok(())
            })
        });
        // Without a snapshot each is told why by looking alone.
        if read.is_err() {
            for look in waiting {
                let alone = self.readers.glance(|desk| look_at(desk, &look.scope, &look.session));
                let _ = look.answer.send(alone);
            }
        }
    }
}

fn look_at(desk: &Desk, scope: &Scope, session: &SessionId) -> Result<Summary> {
    Ok(find(desk, scope, session, Right::Read)?.summary)
}
