//! The queue of ready nodes: for each idle session, the first node that has all its inputs. It is updated node by node,
//! so that one step of a large flow does not scan all waiting nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Ready nodes by their rank in topological order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ReadyQueue {
    sessions: BTreeMap<String, SessionQueue>,
    /// The heads of all session queues.
    heads: BTreeSet<usize>,
}

/// The nodes that wait for the same session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SessionQueue {
    ready: BTreeSet<usize>,
    /// The number of visits in this session that run or wait for a person.
    open: usize,
    /// The next node; `None` while a visit is in progress.
    head: Option<usize>,
}

impl ReadyQueue {
    /// The next node to enter.
    pub fn first(&self) -> Option<usize> {
        self.heads.first().copied()
    }

    pub fn is_free(&self, session: &str) -> bool {
        self.sessions.get(session).is_none_or(|queue| queue.open == 0)
    }

    pub fn set_ready(&mut self, session: &str, rank: usize, is_ready: bool) {
        let has = |queue: &SessionQueue| queue.ready.contains(&rank);
        if self.sessions.get(session).is_some_and(has) == is_ready {
            return;
        }
        self.change(session, |queue| match is_ready {
            true => queue.ready.insert(rank),
            false => queue.ready.remove(&rank),
        });
    }

    pub fn begin(&mut self, session: &str) {
        self.change(session, |queue| queue.open += 1);
    }

    pub fn end(&mut self, session: &str) {
        // A log written by another program may end a visit that never began.
        self.change(session, |queue| queue.open = queue.open.saturating_sub(1));
    }

    fn change<T>(&mut self, session: &str, change: impl FnOnce(&mut SessionQueue) -> T) {
        let queue = self.sessions.entry(session.to_owned()).or_default();
        change(queue);
        let head = queue.ready.first().copied().filter(|_| queue.open == 0);
        let before = std::mem::replace(&mut queue.head, head);
        before.map(|rank| self.heads.remove(&rank));
        self.heads.extend(head);
        if queue.open == 0 && queue.ready.is_empty() {
            self.sessions.remove(session);
        }
    }
}
