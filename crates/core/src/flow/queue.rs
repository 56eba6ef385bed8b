//! Which node is entered next: of each session that nobody works in, the first node that has all it needs. Kept up to date
//! node by node, so that a step of a wide flow does not look through all that wait.

use std::collections::{BTreeMap, BTreeSet};

/// Nodes by their ranks: when they come in an order in which work can flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Queue {
    lines: BTreeMap<String, Line>,
    /// The heads of all lines.
    heads: BTreeSet<usize>,
}

/// Those who wait for the same session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Line {
    ready: BTreeSet<usize>,
    /// Visits that are begun there: they run, or a person is asked.
    open: usize,
    /// Whose turn it is: none as long as somebody works there.
    head: Option<usize>,
}

impl Queue {
    /// The node that is entered next.
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
        // A log that somebody made may end what it did not begin.
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
