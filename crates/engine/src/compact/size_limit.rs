//! Keep a compacted context within a limit: the hard limit of the options, or the size of the context before.

use sapwood_core::compact::{
    Digest, Keep, Method, SizeLimit, Snap, context_tokens, find_cut, shorten_kept, shrink, shrink_story,
};
use sapwood_core::entry::Details;
use sapwood_core::project::context::Context;
use sapwood_core::tokens::Count;

use super::{Compacting, CompactionPlan, Compactions, PlanOutcome};
use crate::Result;

/// Divisors of the hard limit: each attempt retains less context, and the final attempt only the latest message.
const HARD_SHARES: &[u64] = &[2, 4, 8, u64::MAX];
/// Assumed bytes per token for summaries under a hard limit.
const HARD_BYTES_PER_TOKEN: u64 = 3;
/// Maximum items of each kind in a summary under a hard limit, by attempt.
const HARD_ITEMS: &[usize] = &[60, 10, 3, 0];
/// Maximum items of each kind in a summary that is larger than the messages it replaces, by attempt.
const SHRUNK_ITEMS: &[usize] = &[60, 20, 10, 3, 0];
/// Divisors of the size of such a summary, by attempt.
const SUMMARY_SHARES: &[usize] = &[2, 4, 8, 16, usize::MAX];

/// Shrinks the plan of one compaction.
#[derive(Clone, Copy)]
pub(super) struct PlanShrinker<'a> {
    pub compactions: Compactions<'a>,
    pub how: &'a Compacting,
    pub count: &'a dyn Count,
}

impl PlanShrinker<'_> {
    /// Apply the hard limit's strategy until the context fits or only the latest message is left.
    pub(super) async fn apply_hard_limit(
        self,
        context: &Context,
        first: Option<CompactionPlan>,
        limit: u64,
    ) -> Result<Option<CompactionPlan>> {
        let Self { compactions, how, count } = self;
        let method = how.options.hard_limit_strategy.unwrap_or(Method::Truncate);
        let mut best = first;
        // The hook was already called when the compaction began, and its decision stays valid.
        let mut stricter = Compacting { hook: None, ..how.clone() };
        for share in HARD_SHARES {
            let current = best.as_ref().map_or(context, |plan| &plan.after);
            if context_tokens(current, count) <= limit {
                return Ok(best);
            }
            if *share == u64::MAX {
                let chars = u32::try_from(limit).unwrap_or(u32::MAX).max(80);
                stricter.options.tool_output_max_chars = Some(chars);
            }
            let keep = Keep { messages: None, tokens: Some(limit / share) };
            let Some(cut) = find_cut(current, keep, Snap::Never, count) else { continue };
            let kept: u64 = current.messages[cut.cut..].iter().map(|message| count.message(message)).sum();
            let size_limit =
                SizeLimit::Bytes((limit.saturating_sub(kept) / 2 * HARD_BYTES_PER_TOKEN) as usize);
            let archived = best.as_ref().map_or(0, |plan| plan.archived);
            if let PlanOutcome::Planned(plan) =
                compactions.plan_cut(current, cut, method, &stricter, size_limit).await?
            {
                best = Some(CompactionPlan { archived: archived + plan.archived, ..*plan });
            }
        }
        Ok(PlanShrinker { how: &stricter, ..self }.squeeze_summary(context, best, limit, method))
    }

    /// Shorten the retained tool outputs and, with `truncate`, the summary. Used when no more messages can be archived.
    fn squeeze_summary(
        self,
        context: &Context,
        best: Option<CompactionPlan>,
        limit: u64,
        method: Method,
    ) -> Option<CompactionPlan> {
        let Self { compactions, how, count } = self;
        let mut best = match best {
            Some(plan) if context_tokens(&plan.after, count) > limit => self.shorten_further(plan),
            Some(plan) => plan,
            None => compactions.only_shorten(context, how)?,
        };
        for items in HARD_ITEMS.iter().filter(|_| method == Method::Truncate) {
            let tokens = context_tokens(&best.after, count);
            let Some(summary) = best.compaction.summary.as_deref().filter(|_| tokens > limit) else { break };
            let rest = tokens.saturating_sub(count.text(summary));
            let size_limit = limit.saturating_sub(rest) * HARD_BYTES_PER_TOKEN / 2;
            let digest = match items {
                0 => Digest::default(),
                _ => shrink(Digest::parse(summary), size_limit as usize),
            };
            let shown = newest_details(&best.compaction.details, *items);
            let archived = best.compaction.archived.unwrap_or_default();
            best.compaction.summary = Some(digest.render(archived, &shown, None));
            best = compactions.rebuild_plan(best);
        }
        Some(best)
    }

    fn shorten_further(self, mut plan: CompactionPlan) -> CompactionPlan {
        let how = self.how;
        let kept = &plan.after.messages[plan.after.summaries()..];
        plan.compaction.shortened = shorten_kept(&plan.after, kept, &how.options, &how.callbacks);
        self.compactions.rebuild_plan(plan)
    }

    /// Drop the oldest lines of a summary until the context is smaller than before. Returns the smallest plan if no share
    /// of the summary is small enough. A hook's summary is not changed.
    pub(super) fn shrink_below(self, mut plan: CompactionPlan, tokens_before: u64) -> CompactionPlan {
        let Self { compactions, how, count } = self;
        let Some(summary) = plan.compaction.summary.clone().filter(|_| !plan.compaction.from_hook) else {
            return plan;
        };
        let digest = Digest::parse(&summary);
        let bytes = digest.story.len() + digest.turn.len();
        for (share, items) in SUMMARY_SHARES.iter().zip(SHRUNK_ITEMS) {
            if context_tokens(&plan.after, count) < tokens_before {
                break;
            }
            let shown = newest_details(&plan.compaction.details, *items);
            let archived = plan.compaction.archived.unwrap_or_default();
            let instructions = how.options.instructions.as_deref();
            let shorter = shrink_story(digest.clone(), bytes / share).render(archived, &shown, instructions);
            plan.compaction.summary = Some(shorter);
            plan = compactions.rebuild_plan(plan);
        }
        plan
    }
}

fn newest_details(details: &Details, items_max: usize) -> Details {
    let newest = |items: &[String]| items[items.len().saturating_sub(items_max)..].to_vec();
    Details {
        files_read: newest(&details.files_read),
        files_changed: newest(&details.files_changed),
        facts: newest(&details.facts),
        decisions: newest(&details.decisions),
        open_items: newest(&details.open_items),
    }
}
