//! Recover a role's position in a flow from its session: the latest assignment, the progress of the visit,
//! and the facts that a compaction must preserve.

use sapwood_core::flow::prompts::standing_facts;
use sapwood_core::flow::{Assignment, Visit, VisitKey};
use sapwood_core::{Entry, Kind, Scope, Seq, SessionId};

use super::Flows;
use crate::Result;

/// Maximum bytes of the latest user text that are preserved verbatim.
const USER_TEXT_BYTES_MAX: usize = 16 << 10;
/// Number of entries in the first search for an assignment. Each further search covers eight times as many.
const FIRST_SEARCH_ENTRIES: u32 = 256;

impl Flows<'_> {
    /// The flow node that a session is working on, if any.
    pub(crate) async fn assignment_of(
        self,
        scope: &Scope,
        session: &SessionId,
    ) -> Result<Option<Assignment>> {
        let mut latest = None;
        self.engine
            .configuration()
            .each_own_of_kinds(scope, session, &[Kind::FlowAssigned], Seq::ZERO, |entry| {
                latest = Assignment::of_body(&entry.body).or(latest.take());
            })
            .await?;
        Ok(latest)
    }

    /// The entries of a visit, from the start of its first turn; `None` if it has not started. Only the run's
    /// latest visit in the session is checked, because nodes that share a session run one at a time.
    pub(crate) async fn visit_entries(
        self,
        scope: &Scope,
        session: &SessionId,
        run: &str,
        key: &VisitKey,
    ) -> Result<Option<(Assignment, Vec<Entry>)>> {
        let mut assignments = self.assignments_since(scope, session, run).await?.into_iter();
        let Some((assignment, seq)) =
            assignments.next().filter(|(assignment, _)| assignment.is_for_visit(run, key))
        else {
            return Ok(None);
        };
        let end = assignments.next().map(|(_, seq)| seq);
        // The assignment directly follows the start of its turn, in the same append.
        let after = Seq(seq.0.saturating_sub(2));
        // Exclude the start of the next visit's turn, which precedes its assignment.
        let before = end.map_or(Seq(u32::MAX), |end: Seq| Seq(end.0.saturating_sub(1)));
        let mut entries = Vec::new();
        self.engine
            .log()
            .each_entry(scope, session, after, |entry| {
                if entry.meta.seq < before {
                    entries.push(entry);
                }
            })
            .await?;
        self.engine.configuration().retain_own(scope, session, &mut entries).await?;
        Ok(Some((assignment, entries)))
    }

    /// The latest assignment of a run in a session, and later assignments of other runs. The search starts at the
    /// end, because a role may have visited thousands of nodes.
    async fn assignments_since(
        self,
        scope: &Scope,
        session: &SessionId,
        run: &str,
    ) -> Result<Vec<(Assignment, Seq)>> {
        let head = self.engine.directory().summary(scope, session).await?.head.seq;
        let mut searched = FIRST_SEARCH_ENTRIES;
        loop {
            let after = Seq(head.0.saturating_sub(searched));
            let mut assignments = Vec::new();
            self.engine
                .configuration()
                .each_own_of_kinds(scope, session, &[Kind::FlowAssigned], after, |entry| {
                    assignments.extend(
                        Assignment::of_body(&entry.body).map(|assignment| (assignment, entry.meta.seq)),
                    );
                })
                .await?;
            match assignments.iter().rposition(|(assignment, _)| assignment.run == run) {
                Some(latest) => return Ok(assignments.split_off(latest)),
                None if after == Seq::ZERO => return Ok(Vec::new()),
                None => searched = searched.saturating_mul(8),
            }
        }
    }

    /// The progress of an assignment's visit.
    pub(crate) async fn visit_of(
        self,
        scope: &Scope,
        session: &SessionId,
        assignment: &Assignment,
    ) -> Result<Visit> {
        let key =
            VisitKey { node: assignment.node.clone(), visit: assignment.visit, attempt: assignment.attempt };
        let found = self.visit_entries(scope, session, &assignment.run, &key).await?;
        Ok(found.map(|(_, entries)| Visit::fold(&entries)).unwrap_or_default())
    }

    /// The facts that a compaction of a role's session preserves verbatim; `None` for other sessions.
    pub(crate) async fn flow_facts(self, scope: &Scope, session: &SessionId) -> Result<Option<String>> {
        let Some(assignment) = self.assignment_of(scope, session).await? else { return Ok(None) };
        let visit = self.visit_of(scope, session, &assignment).await?;
        let mut last_user_text = String::new();
        self.engine
            .log()
            .each_of_kinds(scope, session, &[Kind::UserMessage], |entry| last_user_text = entry.body.text())
            .await?;
        let end = last_user_text.floor_char_boundary(USER_TEXT_BYTES_MAX);
        Ok(Some(standing_facts(&assignment, &visit.handed, &last_user_text[..end])))
    }
}
