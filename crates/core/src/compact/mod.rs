//! Compaction: older messages leave the context, and a summary stands in for them. Everything here is a function of its
//! arguments; whoever calls a model or writes the entry is outside.
//!
//! 1. [`plan`] finds the cut and says what it takes out: an [`Archive`].
//! 2. A strategy makes a [`Digest`] of it: [`truncate`], [`mask`], or somebody who is asked in the words of
//!    [`summarise`].
//! 3. [`finish`] makes the compaction's entry of that.
//!
//! A compaction is one entry: a summary, the first entry that stays, and tool results among those that stay which show
//! shortened. Nothing that was archived is gone: it is in the log, before the compaction.

pub mod details;
mod mask;
pub mod options;
pub mod plan;
pub mod shorten;
pub mod summarise;
pub mod summary_text;
mod transcript;
mod truncate;

use std::sync::Arc;

pub use mask::{ToolOutput, mask};
pub use options::{CompactOptions, Detail, Keep, Method, OptionError};
pub use plan::{Cut, Snap, carried_over, find_cut};
pub use summary_text::{Digest, with_standing};
pub use truncate::{Room, squeeze, truncate};

use crate::entry::{Compaction, Details, Shortened, Strategy, Trigger};
use crate::id::EntryId;
use crate::project::context::{Context, InForce, Message};
use crate::tokens::{Count, count_messages};

/// What leaves the context, and what was archived before it.
#[derive(Debug, Clone)]
pub struct Archive<'a> {
    /// The first messages, to be kept word for word.
    pub opening: &'a [Message],
    pub story: &'a [Message],
    /// The beginning of a turn whose end stays in the context; empty if no turn is split.
    pub turn: &'a [Message],
    /// Whether `turn` has the user's words; otherwise they were archived before.
    first_of_turn_is_archived: bool,
    /// What the summary before this one said.
    pub previous: Digest,
    /// What it carried, with what these messages add.
    pub details: Details,
    /// Messages that were archived, now and before.
    pub archived: u32,
    pub newly_archived: usize,
    pub instructions: Option<&'a str>,
    pub detail: Detail,
}

impl Archive<'_> {
    /// The older story, with the older turn where that is over by now.
    fn past_story(&self) -> String {
        if self.goes_on() { self.previous.story.clone() } else { self.previous.past() }
    }

    /// The beginning of the turn as an earlier compaction told it, where the same turn is still going on.
    fn past_turn(&self) -> String {
        if self.goes_on() { self.previous.turn.clone() } else { String::new() }
    }

    /// Whether the turn that an earlier compaction split is split again, or nothing new was archived.
    fn goes_on(&self) -> bool {
        !self.first_of_turn_is_archived && self.story.is_empty() && self.opening.is_empty()
    }

    /// The first messages as they were, or as an earlier compaction kept them.
    pub fn opening_text(&self) -> String {
        truncate::opening_of(self)
    }

    /// Every archived message, oldest first.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.opening.iter().chain(self.story).chain(self.turn)
    }
}

/// Replaces a masked output; `None` leaves the usual text.
pub type MaskCallback = Arc<dyn Fn(&ToolOutput) -> Option<String> + Send + Sync>;
/// Shortens an output that is over the limit in characters; `None` leaves it to us.
pub type CompressCallback = Arc<dyn Fn(&ToolOutput, usize) -> Option<String> + Send + Sync>;

/// What the Rust API can put in the place of our own way with tool output.
#[derive(Clone, Default)]
pub struct Callbacks {
    pub mask: Option<MaskCallback>,
    pub compress: Option<CompressCallback>,
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = |is_set| if is_set { "set" } else { "none" };
        write!(
            f,
            "Callbacks {{ mask: {}, compress: {} }}",
            set(self.mask.is_some()),
            set(self.compress.is_some())
        )
    }
}

/// Results among the kept messages that are to show shortened, those of earlier compactions included.
pub fn shorten_kept(
    context: &Context,
    kept: &[Message],
    options: &CompactOptions,
    callbacks: &Callbacks,
) -> Vec<Shortened> {
    let mut shortened = carried_over(context, kept);
    let Some(chars_max) = options.tool_output_max_chars.map(|max| max as usize) else { return shortened };
    for message in kept {
        let Some((output, (_, entry))) = ToolOutput::of(message).zip(message.entry) else { continue };
        if output.text.chars().count() <= chars_max {
            continue;
        }
        let compressed = callbacks.compress.as_ref().and_then(|compress| compress(&output, chars_max));
        if let Some(text) = compressed.or_else(|| shorten::shorten_output(&output.text, chars_max)) {
            shortened.retain(|before| before.entry != entry);
            shortened.push(Shortened { entry, text });
        }
    }
    shortened
}

/// How a summary came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    pub strategy: Strategy,
    pub trigger: Trigger,
    pub from_hook: bool,
    pub instead_of: Option<Strategy>,
}

/// The entry of a compaction. Whoever knows how to count adds the context's size before and after.
pub fn finish(
    context: &Context,
    cut: Cut,
    summary: Option<String>,
    details: Details,
    shortened: Vec<Shortened>,
    made: Made,
) -> Compaction {
    let kept = &context.messages[cut.cut..];
    Compaction {
        summary,
        first_kept: kept.iter().find_map(|message| message.entry).map(|(_, id)| id),
        details,
        from_hook: made.from_hook,
        instead_of: made.instead_of,
        shortened,
        ..Compaction::new(made.strategy, made.trigger)
    }
}

/// The context as it will be once a compaction is written behind the leaf, without reading it again.
pub fn preview(context: &Context, cut: Cut, id: EntryId, compaction: &Compaction) -> Context {
    let mut messages = Vec::with_capacity(context.messages.len() - cut.cut + 1);
    messages.extend(compaction.summary.as_ref().map(|summary| Message {
        role: crate::project::context::Role::User,
        parts: vec![crate::Part::text(summary.clone())],
        entry: Some((crate::Seq::ZERO, id)),
        answers: None,
    }));
    for message in &context.messages[cut.cut..] {
        let mut message = message.clone();
        let id = message.entry.map(|(_, id)| id);
        let text = compaction.shortened.iter().find(|shortened| Some(shortened.entry) == id);
        if let Some(shortened) = text {
            message.show_as(&shortened.text);
        }
        messages.push(message);
    }
    let in_force = InForce { id, body: compaction.clone() };
    Context { messages, compaction: Some(in_force), reported: None, ..context_without_messages(context) }
}

fn context_without_messages(context: &Context) -> Context {
    Context {
        system: context.system.clone(),
        model: context.model.clone(),
        thinking: context.thinking.clone(),
        skills: context.skills.clone(),
        messages: Vec::new(),
        tokens: context.tokens,
        compaction: None,
        reported: None,
    }
}

/// Tokens of a context's messages and its system prompt.
pub fn context_tokens(context: &Context, count: &dyn Count) -> u64 {
    let system = context.system.as_deref().map_or(0, |system| count.text(system));
    system + count_messages(&context.messages, count)
}
