//! Recover a role's position in a flow from its session: the latest assignment, the progress of the visit,
//! and the facts that a compaction must preserve.

use sapwood_core::flow::prompts::standing;
use sapwood_core::flow::{Assignment, Visit, VisitKey};
use sapwood_core::{Entry, Kind, Scope, Seq, SessionId};

use crate::{Engine, Result};

/// Maximum bytes of the latest user text that are preserved verbatim.
const USER_TEXT_BYTES_MAX: usize = 16 << 10;
/// Entries searched for an assignment at first; each further search covers eight times as many.
const LOOKED_BACK_ENTRIES: u32 = 256;

impl Engine {
    /// The flow node that a session is working on, if any.
    pub(crate) async fn post_of(&self, scope: &Scope, session: &SessionId) -> Result<Option<Assignment>> {
        let mut latest = None;
        self.each_own_of_kinds(scope, session, &[Kind::CustomInfo], Seq::ZERO, |entry| {
            latest = Assignment::of_body(&entry.body).or(latest.take());
        })
        .await?;
        Ok(latest)
    }

    /// The entries of a visit, from the start of its first turn; `None` if it has not started. Only the run's
    /// latest visit in the session is checked, because nodes that share a session take turns.
    pub(crate) async fn visit_entries(
        &self,
        scope: &Scope,
        session: &SessionId,
        run: &str,
        key: &VisitKey,
    ) -> Result<Option<(Assignment, Vec<Entry>)>> {
        let mut posts = self.posts_since(scope, session, run).await?.into_iter();
        let Some((post, seq)) = posts.next().filter(|(post, _)| post.is_of(run, key)) else {
            return Ok(None);
        };
        let end = posts.next().map(|(_, seq)| seq);
        // The assignment directly follows the start of its turn, in the same append.
        let after = Seq(seq.0.saturating_sub(2));
        // Exclude the start of the next visit's turn, which precedes its assignment.
        let before = end.map_or(Seq(u32::MAX), |end: Seq| Seq(end.0.saturating_sub(1)));
        let mut entries = Vec::new();
        self.each_entry(scope, session, after, |entry| {
            if entry.meta.seq < before {
                entries.push(entry);
            }
        })
        .await?;
        self.retain_own(scope, session, &mut entries).await?;
        Ok(Some((post, entries)))
    }

    /// The latest assignment of a run in a session, and later assignments of other runs. The search starts at the
    /// end, because a role may have visited thousands of nodes.
    async fn posts_since(
        &self,
        scope: &Scope,
        session: &SessionId,
        run: &str,
    ) -> Result<Vec<(Assignment, Seq)>> {
        let head = self.summary(scope, session).await?.head.seq;
        let mut looked = LOOKED_BACK_ENTRIES;
        loop {
            let after = Seq(head.0.saturating_sub(looked));
            let mut posts = Vec::new();
            self.each_own_of_kinds(scope, session, &[Kind::CustomInfo], after, |entry| {
                posts.extend(Assignment::of_body(&entry.body).map(|post| (post, entry.meta.seq)));
            })
            .await?;
            match posts.iter().rposition(|(post, _)| post.run == run) {
                Some(latest) => return Ok(posts.split_off(latest)),
                None if after == Seq::ZERO => return Ok(Vec::new()),
                None => looked = looked.saturating_mul(8),
            }
        }
    }

    /// The progress of an assignment's visit.
    pub(crate) async fn visit_of(
        &self,
        scope: &Scope,
        session: &SessionId,
        post: &Assignment,
    ) -> Result<Visit> {
        let key = VisitKey { node: post.node.clone(), visit: post.visit, attempt: post.attempt };
        let found = self.visit_entries(scope, session, &post.run, &key).await?;
        Ok(found.map(|(_, entries)| Visit::fold(&entries)).unwrap_or_default())
    }

    /// The facts that a compaction of a role's session preserves verbatim; `None` for other sessions.
    pub(crate) async fn flow_facts(&self, scope: &Scope, session: &SessionId) -> Result<Option<String>> {
        let Some(post) = self.post_of(scope, session).await? else { return Ok(None) };
        let visit = self.visit_of(scope, session, &post).await?;
        let mut last_user_text = String::new();
        self.each_of_kinds(scope, session, &[Kind::UserMessage], |entry| last_user_text = entry.body.text())
            .await?;
        let end = last_user_text.floor_char_boundary(USER_TEXT_BYTES_MAX);
        Ok(Some(standing(&post, &visit.handed, &last_user_text[..end])))
    }
}
