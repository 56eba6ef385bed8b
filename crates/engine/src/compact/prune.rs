//! Pruning: old messages of an inactive session leave the context without a summary. The log keeps them.

use sapwood_core::entry::{Body, Draft, SessionState};
use sapwood_core::port::store::{Append, Expect, ListFilter};
use sapwood_core::project::summary::Summary;
use sapwood_core::trim::plan_prune;
use sapwood_core::{EntryId, Principal, Scope, Seq, SessionId, TenantId, TimestampMs};

use super::{Compactions, Writing};
use crate::Result;
use crate::log::edit;

/// How many messages a prune keeps by default.
pub const PRUNE_KEEP_LAST: usize = 12;

/// Number of sessions per query when inactive sessions are pruned.
const IDLE_ROWS: usize = 200;
/// Maximum number of queries of one run: enough for 200,000 sessions.
const IDLE_PAGES_MAX: usize = 1_000;

/// The conditions and extent of a prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruning {
    pub inactive_for_ms: i64,
    pub keep_last: usize,
    pub writing: Writing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Time since the latest write.
    pub idle_ms: i64,
    pub kept: usize,
    pub removed: usize,
    pub tokens_before: u64,
    pub tokens_after: u64,
}

impl Compactions<'_> {
    /// Remove old messages from the context of a session that was idle long enough. The log keeps these messages.
    pub async fn prune(self, scope: &Scope, session: &SessionId, how: Pruning) -> Result<Pruned> {
        let summary = self.engine.store.summary(scope, session).await?;
        let idle_ms = (self.engine.clock.now().0 - summary.updated_at.0).max(0);
        let context = self.engine.views().context(scope, session, None).await?;
        let plan = plan_prune(&context, how.keep_last).filter(|_| idle_ms >= how.inactive_for_ms);
        let Some(plan) = plan else {
            let (kept, tokens) = (context.messages.len(), context.tokens);
            return Ok(Pruned { idle_ms, kept, removed: 0, tokens_before: tokens, tokens_after: tokens });
        };
        let kept = match plan.first_kept {
            Some(first) => {
                let is_first = |id: Option<(Seq, EntryId)>| id.is_some_and(|(_, id)| id == first);
                let at = context.messages.iter().position(|message| is_first(message.entry));
                context.messages.len() - at.unwrap_or(0)
            }
            None => 0,
        };
        let pruned = Pruned {
            idle_ms,
            kept,
            removed: context.messages.len() - kept,
            tokens_before: context.tokens,
            tokens_after: plan.tokens_after.unwrap_or_default(),
        };
        if how.writing == Writing::Write {
            // A concurrent write means that the session is in use, so return the conflict.
            let now = self.engine.clock.now();
            let drafts = vec![Draft::new(now, Body::Compaction(plan))];
            let expect = Expect::Head(summary.head.seq);
            let audit = Some(edit(session, "prune"));
            let append = Append { expect, audit, ..Append::new(session.clone(), now, drafts) };
            self.engine.log().append(scope, append).await?;
        }
        Ok(pruned)
    }

    /// Prune the sessions of a tenant that were last used after `since` and have been inactive for long enough since
    /// then. Returns how many sessions were pruned. Sessions that cannot be pruned are skipped.
    pub async fn prune_idle(self, tenant: &TenantId, since: TimestampMs, how: Pruning) -> Result<usize> {
        let scope = Scope::operator(tenant.clone(), Principal::System);
        let until = TimestampMs(self.engine.clock.now().0.saturating_sub(how.inactive_for_ms));
        let (since, until) = (Some(since), Some(until));
        let mut filter = ListFilter { since, until, limit: IDLE_ROWS, ..ListFilter::default() };
        let mut pruned = 0;
        for _ in 0..IDLE_PAGES_MAX {
            let page = self.engine.store.list(&scope, &filter).await?;
            for summary in page.items.iter().filter(|summary| is_prunable(summary, how.keep_last)) {
                match self.prune(&scope, &summary.id, how).await {
                    Ok(done) => pruned += usize::from(done.removed > 0),
                    // The session is in use again, or was erased.
                    Err(error) => {
                        tracing::warn!(session = %summary.id, %error, "failed to prune an inactive session");
                    }
                }
            }
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        Ok(pruned)
    }
}

/// Whether a session can have messages to prune, as far as its summary shows.
fn is_prunable(summary: &Summary, keep_last: usize) -> bool {
    let is_open = matches!(summary.state, SessionState::Active | SessionState::Closed);
    is_open && summary.open_turn.is_none() && summary.messages as usize > keep_last
}
