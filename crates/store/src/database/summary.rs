//! Recomputes a session's summary from its log, to repair a wrong one.

use sapwood_core::entry::{Body, SessionState, Stance};
use sapwood_core::port::store::{Finding, Repair, Result};
use sapwood_core::project::summary::Summary;
use sapwood_core::tree::{Head, Lookup, settings_at};
use sapwood_core::{EntryId, Record, Seq, SessionId};

use super::NamedDatabase;

/// A summary that is being recomputed. The session's own records are added in order.
pub(crate) struct SummaryRebuild {
    summary: Summary,
    leaf: RebuiltLeaf,
}

/// The leaf after the records added so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RebuiltLeaf {
    At(Option<Seq>),
    MovedTo(EntryId),
}

impl SummaryRebuild {
    /// Starts with the state at creation.
    pub fn of<L: Lookup>(stored: &Summary, log: &mut L) -> Result<Self, L::Error> {
        let mut summary = stored.unfolded();
        let shared = (stored.inherited > 0).then_some(Seq(stored.inherited));
        if let Some(seq) = shared {
            summary.head = Head { seq, leaf: shared };
            if log.node(seq)?.links.messages > 0 {
                summary.state = SessionState::Active;
            }
        }
        Ok(Self { summary, leaf: RebuiltLeaf::At(shared) })
    }

    pub fn add(&mut self, db: &impl NamedDatabase, record: Record) -> Result<()> {
        let entry = record.into_entry().map_err(|error| db.damaged(error))?;
        self.leaf = match &entry.body {
            Body::LeafMoved(moved) => moved.to.map_or(RebuiltLeaf::At(None), RebuiltLeaf::MovedTo),
            _ if entry.meta.kind.stance() == Stance::InTree => RebuiltLeaf::At(Some(entry.meta.seq)),
            _ => self.leaf,
        };
        self.summary.apply(&entry);
        Ok(())
    }

    /// Returns the summary after the last record.
    pub fn finish<L: Lookup>(&self, log: &mut L) -> Result<Summary, L::Error> {
        let leaf = match self.leaf {
            RebuiltLeaf::At(leaf) => leaf,
            RebuiltLeaf::MovedTo(id) => log.find(id)?.map(|(seq, _)| seq),
        };
        let (messages, model) = match leaf {
            Some(leaf) => (log.node(leaf)?.links.messages, settings_at(leaf, log)?.model),
            None => (0, None),
        };
        let head = Head { leaf, ..self.summary.head };
        Ok(Summary { head, messages, model, ..self.summary.clone() })
    }
}

/// Returns the finding about a summary that was repaired.
pub(crate) fn repaired(db: &impl NamedDatabase, session: &SessionId) -> Finding {
    let what = format!("the summary of session {session} did not match its log");
    db.finding("cache", what, Repair::Yes)
}
