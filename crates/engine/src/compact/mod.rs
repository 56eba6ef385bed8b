//! Compact a session, undo a compaction, and prune. A compaction reads the context, summarizes its older part, and
//! appends one compaction entry. Entries appended in the meantime stay in the context, after the messages that the
//! compaction keeps. The compaction is planned again only if the session moved to another branch or another caller
//! compacted it.

mod options;
mod prune;
mod size_limit;

pub use options::{Compacted, Compacting, IfLarger, Writing};
pub use prune::{PRUNE_KEEP_LAST, Pruned, Pruning};

use std::sync::Arc;

use sapwood_core::compact::{
    Archive, CompactionOrigin, Cut, Detail, Digest, Method, SizeLimit, Snap, context_tokens, details,
    find_cut, finish, mask, preview, shorten_kept, truncate, with_standing,
};
use sapwood_core::entry::{Compaction, Details, Draft, Entry, LeafMoved, Strategy, Trigger};
use sapwood_core::port::store::{Append, Expect, PathSlice, StoreError, Until};
use sapwood_core::port::summariser::{BeforeCompact, Summariser};
use sapwood_core::project::context::Context;
use sapwood_core::tokens::{Count, count_in_use};
use sapwood_core::{EntryId, Kind, Right, Scope, Seq, SessionId};

use crate::log::edit;
use crate::summarise::{MeteredSummariser, summarise};
use crate::{Engine, EngineError, Result, service};
use size_limit::PlanShrinker;

/// Maximum number of plans for one compaction. A branch switch or another compaction requires a new plan.
const PLANS_MAX: u32 = 3;
/// Maximum number of append attempts under concurrent writes.
const APPENDS_MAX: u32 = 64;
/// A compaction that is not written yet, and the resulting context.
struct CompactionPlan {
    compaction: Compaction,
    after: Context,
    archived: usize,
}

enum PlanOutcome {
    Planned(Box<CompactionPlan>),
    Cancelled(String),
}

/// The result of planning a compaction.
enum Planning {
    /// There is nothing to compact.
    Nothing,
    /// The compacted context would have this many tokens, no fewer than before.
    Larger(u64),
    Cancelled(String),
    Planned(Box<CompactionPlan>),
}

/// The session state that a compaction was planned on. The plan stays valid if later writes only appended entries.
struct PlanBase {
    head: Seq,
    leaf: Option<EntryId>,
    compaction: Option<EntryId>,
    has_new_messages: bool,
    context: Context,
}

impl PlanBase {
    async fn at(engine: &Engine, scope: &Scope, slice: PathSlice) -> Result<Self> {
        let (leaf, compaction) = leaf_and_compaction(&slice.entries);
        let since = slice.entries.iter().rev().take_while(|entry| entry.meta.kind != Kind::Compaction);
        let has_new_messages = since.into_iter().any(|entry| entry.meta.kind.is_message());
        let head = slice.head.seq;
        let context = engine.grafts().context_with_grafts(scope, slice).await?;
        Ok(Self { head, leaf, compaction, has_new_messages, context })
    }

    /// Whether the plan is still valid for a later state: the leaf is on its path, and no compaction was added.
    fn is_valid_for(&self, later: &PathSlice) -> bool {
        let has_leaf = later.entries.iter().any(|entry| Some(entry.meta.id) == self.leaf);
        has_leaf && leaf_and_compaction(&later.entries).1 == self.compaction
    }
}

fn leaf_and_compaction(entries: &[Entry]) -> (Option<EntryId>, Option<EntryId>) {
    let compaction = entries.iter().rev().find(|entry| entry.meta.kind == Kind::Compaction);
    (entries.last().map(|entry| entry.meta.id), compaction.map(|entry| entry.meta.id))
}

service! {
    /// Compactions and context pressure.
    pub struct Compactions;
    compaction
}

impl Compactions<'_> {
    /// Replace the older part of a session's context with a summary. On failure the session is unchanged.
    pub async fn compact(self, scope: &Scope, session: &SessionId, how: Compacting) -> Result<Compacted> {
        how.check()?;
        if how.writing == Writing::Write {
            // Check the right first: another error could reveal facts about the session to a caller without it.
            self.engine.directory().check_right(scope, session, Right::Write).await?;
        }
        let mut how = self.add_hooks(scope, session, how);
        if how.standing.is_none() {
            how.standing = self.engine.flows().flow_facts(scope, session).await?;
        }
        let meter = how.summariser.take().map(|summariser| Arc::new(MeteredSummariser::new(summariser)));
        how.summariser = meter.clone().map(|meter| meter as Arc<dyn Summariser>);
        for _ in 0..PLANS_MAX {
            let slice =
                self.engine.configuration().read_path(scope, session, None, Until::ContextStart).await?;
            let base = PlanBase::at(self.engine, scope, slice).await?;
            let counter = self.engine.tokens.counter(base.context.model.as_deref());
            let tokens = context_tokens(&base.context, &counter);
            if !is_needed(&base, &how, &counter) {
                return Ok(Compacted::nothing(&base.context, tokens));
            }
            let mut plan = match self.plan_compaction(&base.context, &how, &counter, tokens).await? {
                Planning::Nothing => return Ok(Compacted::nothing(&base.context, tokens)),
                Planning::Larger(larger) => {
                    let nothing = Compacted::nothing(&base.context, tokens);
                    return Ok(Compacted { larger: Some(larger), ..nothing });
                }
                Planning::Cancelled(reason) => {
                    let nothing = Compacted::nothing(&base.context, tokens);
                    return Ok(Compacted { cancelled: Some(reason), ..nothing });
                }
                Planning::Planned(plan) => plan,
            };
            plan.compaction.written_by = meter.as_ref().and_then(|meter| meter.bill());
            if let Some(done) = self.write_compaction(scope, session, &base, *plan, &how).await? {
                return Ok(done);
            }
        }
        Err(EngineError::Contended { session: session.clone(), tries: PLANS_MAX })
    }

    /// Append the compaction after any entries added since. Returns `None` if the plan is no longer valid.
    async fn write_compaction(
        self,
        scope: &Scope,
        session: &SessionId,
        base: &PlanBase,
        plan: CompactionPlan,
        how: &Compacting,
    ) -> Result<Option<Compacted>> {
        let CompactionPlan { compaction, after, archived } = plan;
        let mut done = Compacted {
            kept: after.messages.len(),
            archived,
            tokens_before: compaction.tokens_before.unwrap_or_default(),
            tokens_after: compaction.tokens_after.unwrap_or_default(),
            compaction: Some(compaction.clone()),
            entry: None,
            cancelled: None,
            larger: None,
        };
        if how.writing == Writing::DryRun {
            return Ok(Some(done));
        }
        let mut head = base.head;
        for _ in 0..APPENDS_MAX {
            let now = self.engine.clock.now();
            let draft = Draft { turn: how.turn, ..Draft::new(now, compaction.clone()) };
            let append = Append {
                expect: Expect::Head(head),
                fence: how.fence,
                // A compaction inside a turn is part of that turn and gets no separate audit line.
                audit: how.turn.is_none().then(|| edit(session, "compact")),
                ..Append::new(session.clone(), now, vec![draft])
            };
            match self.engine.log().append(scope, append).await {
                Ok(appended) => {
                    done.entry = appended.entries.first().copied();
                    if let Some(hook) = &how.hook {
                        hook.after_compact(&compaction).await;
                    }
                    if head != base.head {
                        done.kept = self.engine.views().length(scope, session).await?;
                    }
                    return Ok(Some(done));
                }
                Err(EngineError::Store(StoreError::Conflict { .. })) => {}
                Err(error) => return Err(error),
            }
            let later =
                self.engine.configuration().read_path(scope, session, None, Until::ContextStart).await?;
            if !base.is_valid_for(&later) {
                return Ok(None);
            }
            head = later.head.seq;
        }
        Err(EngineError::Contended { session: session.clone(), tries: APPENDS_MAX })
    }

    async fn plan_compaction(
        self,
        context: &Context,
        how: &Compacting,
        count: &dyn Count,
        tokens_before: u64,
    ) -> Result<Planning> {
        let cut = find_cut(context, how.options.keep(), Snap::ToUser, count);
        let mut best = match cut {
            None => self.only_shorten(context, how),
            Some(cut) => {
                match self.plan_cut(context, cut, how.options.compact_strategy, how, SizeLimit::Half).await? {
                    PlanOutcome::Planned(plan) => Some(*plan),
                    PlanOutcome::Cancelled(reason) => return Ok(Planning::Cancelled(reason)),
                }
            }
        };
        if let Some(limit) = how.options.hard_limit_tokens {
            // Reserve tokens for the verbatim text first.
            let standing = how.standing.as_deref().map_or(0, |text| count.text(text));
            let limit = limit.saturating_sub(standing).max(1);
            best =
                PlanShrinker { compactions: self, how, count }.apply_hard_limit(context, best, limit).await?;
        }
        let Some(plan) = best.map(|plan| self.add_standing(plan, how)) else {
            return Ok(Planning::Nothing);
        };
        let smaller = self.smaller_plan(context, plan, cut, how, count, tokens_before).await?;
        let (mut plan, tokens_after) = match smaller {
            Ok(smaller) => smaller,
            Err(larger) => return Ok(Planning::Larger(larger)),
        };
        plan.compaction.tokens_before = Some(tokens_before);
        plan.compaction.tokens_after = Some(tokens_after);
        Ok(Planning::Planned(Box::new(plan)))
    }

    /// Make sure that the compaction shrinks the context, unless the caller forces it. Returns the plan and the tokens of
    /// its context, or the tokens that the smallest context would have.
    async fn smaller_plan(
        self,
        context: &Context,
        plan: CompactionPlan,
        cut: Option<Cut>,
        how: &Compacting,
        count: &dyn Count,
        tokens_before: u64,
    ) -> Result<std::result::Result<(CompactionPlan, u64), u64>> {
        let tokens_after = context_tokens(&plan.after, count);
        if tokens_after < tokens_before || how.if_larger == IfLarger::Write {
            return Ok(Ok((plan, tokens_after)));
        }
        let instead = match how.trigger {
            Trigger::Manual => {
                Some(PlanShrinker { compactions: self, how, count }.shrink_below(plan, tokens_before))
            }
            _ => self.truncate_instead(context, cut, how).await?,
        };
        let Some(instead) = instead else { return Ok(Err(tokens_after)) };
        let instead = self.add_standing(instead, how);
        let tokens_after = context_tokens(&instead.after, count);
        Ok(if tokens_after < tokens_before { Ok((instead, tokens_after)) } else { Err(tokens_after) })
    }

    fn add_standing(self, mut plan: CompactionPlan, how: &Compacting) -> CompactionPlan {
        match (&how.standing, &plan.compaction.summary) {
            (Some(standing), Some(summary)) => {
                plan.compaction.summary = Some(with_standing(summary, standing));
                self.rebuild_plan(plan)
            }
            _ => plan,
        }
    }

    /// Truncate each archived message to a line, because the first plan of an automatic compaction would not shrink
    /// the context. Returns `None` below pressure level orange.
    async fn truncate_instead(
        self,
        context: &Context,
        cut: Option<Cut>,
        how: &Compacting,
    ) -> Result<Option<CompactionPlan>> {
        let Some(cut) = cut.filter(|_| how.options.detail == Detail::WithoutLowValue) else {
            return Ok(None);
        };
        let without_hook = Compacting { hook: None, ..how.clone() };
        match self.plan_cut(context, cut, Method::Truncate, &without_hook, SizeLimit::Half).await? {
            PlanOutcome::Planned(mut plan) => {
                plan.compaction.instead_of = Some(how.options.compact_strategy.strategy());
                Ok(Some(*plan))
            }
            PlanOutcome::Cancelled(_) => Ok(None),
        }
    }

    /// Plan a compaction at `cut`: call the hook, then write the summary.
    async fn plan_cut(
        self,
        context: &Context,
        cut: Cut,
        method: Method,
        how: &Compacting,
        size_limit: SizeLimit,
    ) -> Result<PlanOutcome> {
        let archive = Archive::at(context, cut, &how.options);
        let answer = match &how.hook {
            Some(hook) => hook.before_compact(&archive).await,
            None => BeforeCompact::GoOn,
        };
        let (summary, carried, made) = match answer {
            BeforeCompact::Cancel { reason } => return Ok(PlanOutcome::Cancelled(reason)),
            BeforeCompact::Supply { summary, details: given } => {
                let made = made_by(method.strategy(), None, how, true);
                (summary, details::merge(archive.details.clone(), given), made)
            }
            BeforeCompact::GoOn => {
                let (digest, carried, method) = write_digest(&archive, method, how, size_limit).await?;
                let instead_of = method.1.map(Method::strategy);
                let instructions = archive.instructions.filter(|_| method.0 != Method::Llm);
                let summary = digest.render(archive.archived, &carried, instructions);
                (summary, carried, made_by(method.0.strategy(), instead_of, how, false))
            }
        };
        let shortened = shorten_kept(context, &context.messages[cut.cut..], &how.options, &how.callbacks);
        let mut compaction = finish(context, cut, Some(summary), carried, shortened, made);
        compaction.archived = Some(archive.archived);
        let newly = archive.newly_archived;
        Ok(PlanOutcome::Planned(Box::new(self.build_plan(context, cut, compaction, newly))))
    }

    fn build_plan(
        self,
        context: &Context,
        cut: Cut,
        compaction: Compaction,
        archived: usize,
    ) -> CompactionPlan {
        let id = EntryId::mint(self.engine.clock.now(), self.engine.clock.random());
        CompactionPlan { after: preview(context, cut, id, &compaction), compaction, archived }
    }

    /// Plan a compaction that keeps all messages and only shortens tool results.
    fn only_shorten(self, context: &Context, how: &Compacting) -> Option<CompactionPlan> {
        let start = context.summaries();
        let kept = &context.messages[start..];
        let shortened = shorten_kept(context, kept, &how.options, &how.callbacks);
        let before = context.compaction.as_ref().map(|in_force| &in_force.body);
        if before.map_or(0, |before| before.shortened.len()) == shortened.len()
            && before.is_none_or(|before| before.shortened == shortened)
        {
            return None;
        }
        let cut = Cut { start, cut: start, split: None };
        let summary = before.and_then(|before| before.summary.clone());
        let carried = before.map(|before| before.details.clone()).unwrap_or_default();
        let made = made_by(how.options.compact_strategy.strategy(), None, how, false);
        let mut compaction = finish(context, cut, summary, carried, shortened, made);
        compaction.archived = before.and_then(|before| before.archived);
        Some(self.build_plan(context, cut, compaction, 0))
    }

    /// Recompute the context after the compaction changed.
    fn rebuild_plan(self, plan: CompactionPlan) -> CompactionPlan {
        let start = plan.after.summaries();
        let cut = Cut { start, cut: start, split: None };
        self.build_plan(&plan.after, cut, plan.compaction, plan.archived)
    }

    /// Move the leaf to just before a compaction: the latest compaction on the path, or the compaction at `at`.
    /// This restores the earlier context. Messages after the compaction stay in the log, on a separate branch.
    pub async fn uncompact(self, scope: &Scope, session: &SessionId, at: Option<Seq>) -> Result<Uncompacted> {
        let slice = self.engine.configuration().read_path(scope, session, None, Until::ContextStart).await?;
        let none = || EngineError::NotCompacted { session: session.clone() };
        let meta = match at {
            Some(seq) => self.engine.store.read_entry(scope, session, seq).await?.meta,
            None => {
                let latest = slice.entries.iter().rev().find(|entry| entry.meta.kind == Kind::Compaction);
                latest.map(|entry| entry.meta.clone()).ok_or_else(none)?
            }
        };
        if meta.kind != Kind::Compaction {
            let why = format!("entry {} is a {}, not a compaction", meta.seq, meta.kind.as_str());
            return Err(EngineError::Invalid { what: "the entry", why });
        }
        let left = slice.entries.iter().rev().take_while(|entry| entry.meta.seq > meta.seq);
        let left = left.filter(|entry| entry.meta.kind.is_message()).count();
        let to = match meta.parent {
            Some(parent) => Some(self.engine.store.read_entry(scope, session, parent).await?.meta.id),
            None => None,
        };
        let now = self.engine.clock.now();
        let drafts = vec![Draft::new(now, LeafMoved { to })];
        let expect = Expect::Head(slice.head.seq);
        let audit = Some(edit(session, "uncompact"));
        let append = Append { expect, audit, ..Append::new(session.clone(), now, drafts) };
        self.engine.log().append(scope, append).await?;
        let kept = self.engine.views().length(scope, session).await?;
        Ok(Uncompacted { compaction: meta.seq, leaf: meta.parent, kept, left })
    }
}

/// The result of an `uncompact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uncompacted {
    pub compaction: Seq,
    /// The parent of the next entry.
    pub leaf: Option<Seq>,
    /// Messages now in the context.
    pub kept: usize,
    /// Messages after the compaction, which are now on another branch.
    pub left: usize,
}

fn is_needed(base: &PlanBase, how: &Compacting, count: &dyn Count) -> bool {
    // A provider's overflow error is new information even if no message was added.
    let is_automatic = !matches!(how.trigger, Trigger::Manual | Trigger::Overflow);
    if is_automatic && base.compaction.is_some() && !base.has_new_messages {
        return false;
    }
    let threshold = how.options.token_threshold;
    threshold.is_none_or(|threshold| count_in_use(&base.context, 0, count) > threshold)
}

fn made_by(
    strategy: Strategy,
    instead_of: Option<Strategy>,
    how: &Compacting,
    from_hook: bool,
) -> CompactionOrigin {
    CompactionOrigin { strategy, trigger: how.trigger, from_hook, instead_of }
}

/// Summarize an archive with a strategy. Also returns the strategy that was used, and the one it replaced: an empty
/// summary falls back to one line per message.
async fn write_digest(
    archive: &Archive<'_>,
    method: Method,
    how: &Compacting,
    size_limit: SizeLimit,
) -> Result<(Digest, Details, (Method, Option<Method>))> {
    let failed = |source| EngineError::Summariser { source };
    let carried = archive.details.clone();
    let (digest, carried) = match (method, &how.summariser, &how.custom_compactor) {
        (Method::ObservationMask, ..) => (mask(archive, &how.callbacks), carried),
        (Method::Llm, Some(summariser), _) => {
            summarise(archive, summariser.as_ref()).await.map_err(failed)?
        }
        (Method::Custom, _, Some(compactor)) => {
            let story = compactor.compact(archive).await.map_err(failed)?;
            (
                Digest {
                    opening: archive.opening_text(),
                    story: story.trim().to_owned(),
                    turn: String::new(),
                },
                carried,
            )
        }
        (Method::Truncate, ..) | (Method::Llm, None, _) | (Method::Custom, _, None) => {
            return Ok((truncate(archive, size_limit), carried, (Method::Truncate, None)));
        }
    };
    if digest.story.is_empty() && digest.turn.is_empty() && method != Method::ObservationMask {
        return Ok((
            truncate(archive, size_limit),
            archive.details.clone(),
            (Method::Truncate, Some(method)),
        ));
    }
    Ok((digest, carried, (method, None)))
}
