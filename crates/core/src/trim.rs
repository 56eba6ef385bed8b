//! Trimming and pruning: the oldest messages leave the context, without a summary. The log keeps them.

use crate::compact::carried_over;
use crate::entry::{Compaction, Strategy, Trigger};
use crate::project::context::{Context, Message};

/// Plan a compaction that keeps the last `keep_last` messages of a context. The call of a kept result is also kept, so
/// the context may keep a few more messages. `None` if no message would be removed.
pub fn plan_trim(context: &Context, keep_last: usize) -> Option<Compaction> {
    plan_removal(context, keep_last, Strategy::Trim, Trigger::Manual)
}

/// Like [`plan_trim`], for a session that has been idle.
pub fn plan_prune(context: &Context, keep_last: usize) -> Option<Compaction> {
    plan_removal(context, keep_last, Strategy::Prune, Trigger::Inactivity)
}

fn plan_removal(
    context: &Context,
    keep_last: usize,
    strategy: Strategy,
    trigger: Trigger,
) -> Option<Compaction> {
    let messages = &context.messages;
    if messages.len() <= keep_last {
        return None;
    }
    let kept = first_kept(messages, messages.len() - keep_last);
    (kept > 0).then(|| Compaction {
        first_kept: messages[kept..].iter().find_map(|message| message.entry).map(|(_, id)| id),
        tokens_before: Some(context.tokens),
        tokens_after: Some(messages[kept..].iter().map(Message::tokens).sum()),
        shortened: carried_over(context, &messages[kept..]),
        ..Compaction::new(strategy, trigger)
    })
}

/// Move a cut back until it does not separate a call from its result.
fn first_kept(messages: &[Message], cut: usize) -> usize {
    (0..=cut).rev().find(|at| messages.get(*at).is_none_or(|message| message.answers.is_none())).unwrap_or(0)
}
