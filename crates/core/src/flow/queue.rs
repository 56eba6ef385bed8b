//! The queue of ready nodes: for each idle session, the first node that has all its inputs. It is updated node by node,
//! so that one step of a large flow does not scan all waiting nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Ready nodes by their rank in topological order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Queue {
    lines: BTreeMap<String, Line>,
    /// The heads of all session queues.
    heads: BTreeSet<usize>,
}

/// The nodes that wait for the same session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Line {
    ready: BTreeSet<usize>,
    /// The number of visits in this session that run or wait for a person.
    open: usize,
    /// The next node; `None` while a visit is in progress.
    head: Option<usize>,
}

impl Queue {
    /// The next node to enter.
    pub fn first(&self) -> Option<usize> {
        self.heads.first().copied()
    }

    pub fn is_free(&self, session: &str) -> bool {
        self.lines.get(session).is_none_or(|line| line.open == 0)
    }

    pub fn set_ready(&mut self, session: &str, rank: usize, is_ready: bool) {
        let has = |line: &Line| line.ready.contains(&rank);
        if self.lines.get(session).is_some_and(has) == is_ready {
            return;
        }
        self.change(session, |line| match is_ready {
            true => line.ready.insert(rank),
            false => line.ready.remove(&rank),
        });
    }

    pub fn begin(&mut self, session: &str) {
        self.change(session, |line| line.open += 1);
    }

    pub fn end(&mut self, session: &str) {
        // A log written by another program may end a visit that never began.
        self.change(session, |line| line.open = line.open.saturating_sub(1));
    }

    fn change<T>(&mut self, session: &str, change: impl FnOnce(&mut Line) -> T) {
        let line = self.lines.entry(session.to_owned()).or_default();
        change(line);
        let head = line.ready.first().copied().filter(|_| line.open == 0);
        let before = std::mem::replace(&mut line.head, head);
        before.map(|rank| self.heads.remove(&rank));
        self.heads.extend(head);
        if line.open == 0 && line.ready.is_empty() {
            self.lines.remove(session);
        }
    }
}
