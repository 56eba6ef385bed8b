//! Finds the cut of a compaction. The plan is a pure function of the context: the archive contains the
//! messages that the model would have received. A later compaction therefore continues after the summary of
//! the earlier one, and no message is lost (I7). A cut never separates a call from its result (I6).

use std::collections::HashSet;

use super::options::{CompactOptions, Keep};
use super::summary_text::Digest;
use super::{Archive, details};
use crate::entry::Shortened;
use crate::id::EntryId;
use crate::project::context::{Context, Message, Role};
use crate::tokens::Count;

/// Maximum distance that a cut moves back to a user message, in messages. Beyond that, the turn is split.
const NEAR_MESSAGES_MAX: usize = 8;
/// The same limit in tokens: the number of tokens to keep, divided by this.
const NEAR_TOKENS_DIVISOR: u64 = 4;

/// Whether a cut moves to a user message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snap {
    ToUser,
    /// Cut anywhere, for the hard limit.
    Never,
}

/// The messages that leave the context: `messages[start..cut]`. An earlier summary is in `messages[..start]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The index of the first message after the summaries of earlier compactions.
    pub start: usize,
    /// The index of the first message to keep.
    pub cut: usize,
    /// The start of the turn that the cut splits.
    pub split: Option<usize>,
}

/// Find the cut; `None` if everything would be kept.
pub fn find_cut(context: &Context, keep: Keep, snap: Snap, count: &dyn Count) -> Option<Cut> {
    let start = context.summaries();
    let messages = &context.messages;
    let by_messages = keep.messages.map_or(start, |kept| messages.len().saturating_sub(kept));
    let by_tokens = keep.tokens.map_or(start, |kept| cut_by_tokens(messages, start, kept, count));
    let wanted = by_messages.max(by_tokens).max(start);
    let whole = with_its_calls(messages, start, wanted);
    let cut = match snap {
        Snap::ToUser => near_user(messages, start, whole, keep, count).unwrap_or(whole),
        Snap::Never => whole,
    };
    (cut > start).then(|| Cut { start, cut, split: split_turn(messages, start, cut) })
}

/// The start of the longest suffix of messages within the token limit. The last message is always kept.
fn cut_by_tokens(messages: &[Message], start: usize, tokens_max: u64, count: &dyn Count) -> usize {
    let mut tokens = 0_u64;
    for at in (start..messages.len()).rev() {
        tokens = tokens.saturating_add(count.message(&messages[at]));
        if tokens > tokens_max {
            return (at + 1).min(messages.len().saturating_sub(1)).max(start);
        }
    }
    start
}

/// Move a cut back until it does not separate a call from its result.
fn with_its_calls(messages: &[Message], start: usize, cut: usize) -> usize {
    let is_result = |at: usize| messages.get(at).is_some_and(|message| message.answers.is_some());
    (start..=cut).rev().find(|at| !is_result(*at)).unwrap_or(start)
}

/// The nearest user message at the cut or within the allowed distance before it, if any.
fn near_user(messages: &[Message], start: usize, cut: usize, keep: Keep, count: &dyn Count) -> Option<usize> {
    let first = cut.saturating_sub(NEAR_MESSAGES_MAX).max(start);
    let found = (first..=cut).rev().find(|at| messages.get(*at).is_some_and(begins_turn))?;
    let moved: u64 = messages[found..cut].iter().map(|message| count.message(message)).sum();
    let is_near = keep.tokens.is_none_or(|tokens| moved <= tokens / NEAR_TOKENS_DIVISOR);
    is_near.then_some(found)
}

fn begins_turn(message: &Message) -> bool {
    message.role == Role::User
}

/// The start of the turn that continues after the cut; `None` if the cut is between two turns.
fn split_turn(messages: &[Message], start: usize, cut: usize) -> Option<usize> {
    let is_split = messages.get(cut).is_some_and(|message| !begins_turn(message));
    is_split.then(|| (start..cut).rev().find(|at| begins_turn(&messages[*at])).unwrap_or(start))
}

impl<'a> Archive<'a> {
    /// The archive that a cut removes from the context.
    pub fn at(context: &'a Context, cut: Cut, options: &'a CompactOptions) -> Self {
        let previous = context.compaction.as_ref().map(|latest_compaction| &latest_compaction.body);
        let (start, split) = (cut.start, cut.split.unwrap_or(cut.cut));
        let messages = &context.messages[start..cut.cut];
        let digest = previous.and_then(|compaction| compaction.summary.as_deref());
        let digest = digest.map(Digest::parse).unwrap_or_default();
        let opening_end = opening_end(messages, &digest, options).min(split - start);
        let carried = previous.map(|compaction| compaction.details.clone()).unwrap_or_default();
        let real = messages.iter().filter(|message| message.entry.is_some()).count();
        let before = previous.and_then(|compaction| compaction.archived.filter(|_| start > 0)).unwrap_or(0);
        Self {
            opening: &messages[..opening_end],
            story: &messages[opening_end..split - start],
            turn: &messages[split - start..],
            first_of_turn_is_archived: messages.get(split - start).is_some_and(begins_turn),
            details: details::gather(carried, messages),
            archived: before.saturating_add(u32::try_from(real).unwrap_or(u32::MAX)),
            newly_archived: real,
            previous: digest,
            instructions: options.instructions.as_deref(),
            detail: options.detail,
        }
    }
}

/// The end of the first messages that are kept verbatim, each call with its results. An earlier opening is preserved.
fn opening_end(messages: &[Message], previous: &Digest, options: &CompactOptions) -> usize {
    if !previous.opening.is_empty() {
        return 0;
    }
    let wanted = (options.keep_first as usize).min(messages.len());
    let results = messages[wanted..].iter().take_while(|message| message.answers.is_some()).count();
    if wanted == 0 { 0 } else { wanted + results }
}

/// The results among kept messages that an earlier compaction shortened.
pub fn carried_over(context: &Context, kept: &[Message]) -> Vec<Shortened> {
    let Some(latest_compaction) = &context.compaction else { return Vec::new() };
    if latest_compaction.body.shortened.is_empty() {
        return Vec::new();
    }
    let ids: HashSet<EntryId> = kept.iter().filter_map(|message| message.entry).map(|(_, id)| id).collect();
    let stays = |shortened: &&Shortened| ids.contains(&shortened.entry);
    latest_compaction.body.shortened.iter().filter(stays).cloned().collect()
}
