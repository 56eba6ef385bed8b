//! Compaction: replaces older messages in the context with a summary. Everything here is pure; the engine calls models
//! and writes the entry.
//!
//! 1. [`plan`] finds the cut and returns the removed part: an [`Archive`].
//! 2. A strategy turns the archive into a [`Digest`]: [`truncate`], [`mask`], or a summariser that gets the requests of
//!    [`summarise`].
//! 3. [`finish`] builds the compaction's entry from the rendered digest.
//!
//! A compaction is one entry: a summary, the first kept entry, and the kept tool results that are shortened. Archived
//! messages are not deleted: they remain in the log before the compaction.

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

pub use mask::{ToolOutput, mask, maskable_tokens};
pub use options::{CompactOptions, Detail, Keep, Method, OptionError};
pub use plan::{Cut, Snap, carried_over, find_cut};
pub use summary_text::{Digest, with_standing};
pub use truncate::{SizeLimit, shrink, shrink_story, truncate};

use crate::entry::{Compaction, Details, Shortened, Strategy, Trigger};
use crate::id::EntryId;
use crate::project::context::{Context, LatestCompaction, Message};
use crate::summary_frame::frame_summary;
use crate::tokens::{Count, count_messages};

/// The messages that leave the context, with the results of earlier compactions.
#[derive(Debug, Clone)]
pub struct Archive<'a> {
    /// The first messages, to be kept verbatim.
    pub opening: &'a [Message],
    /// The messages between the opening and the split turn.
    pub story: &'a [Message],
    /// The beginning of a turn whose end is kept; empty if no turn is split.
    pub turn: &'a [Message],
    /// Whether `turn` starts with the turn's user message. False if no turn is split, or if an earlier compaction
    /// archived that message.
    first_of_turn_is_archived: bool,
    /// The previous summary.
    pub previous: Digest,
    /// The previous summary's details, plus those of the archived messages.
    pub details: Details,
    /// Total number of archived messages, including those of earlier compactions.
    pub archived: u32,
    /// Number of messages that this compaction archives.
    pub newly_archived: usize,
    /// What the summary should focus on, from [`CompactOptions::instructions`].
    pub instructions: Option<&'a str>,
    /// Which archived messages the summary covers.
    pub detail: Detail,
}

impl Archive<'_> {
    /// The previous summary's story, plus its turn if that turn has ended.
    fn past_story(&self) -> String {
        if self.continues_split_turn() { self.previous.story.clone() } else { self.previous.past() }
    }

    /// The previous summary of the turn's beginning, if the same turn continues.
    fn past_turn(&self) -> String {
        if self.continues_split_turn() { self.previous.turn.clone() } else { String::new() }
    }

    /// Whether a turn that an earlier compaction split is split again, or nothing new was archived.
    fn continues_split_turn(&self) -> bool {
        !self.first_of_turn_is_archived && self.story.is_empty() && self.opening.is_empty()
    }

    /// The first messages verbatim, or as an earlier compaction kept them.
    pub fn opening_text(&self) -> String {
        truncate::opening_of(self)
    }

    /// Every archived message, oldest first.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.opening.iter().chain(self.story).chain(self.turn)
    }
}

/// Returns the text that replaces a long tool output, or `None` for the default text.
pub type MaskCallback = Arc<dyn Fn(&ToolOutput) -> Option<String> + Send + Sync>;
/// Shortens an output that is over the limit in characters; `None` uses the default.
pub type CompressCallback = Arc<dyn Fn(&ToolOutput, usize) -> Option<String> + Send + Sync>;

/// Callbacks of the Rust API that replace the default handling of tool output.
#[derive(Clone, Default)]
pub struct Callbacks {
    /// Replaces the text of a masked tool output. `None` uses the first line and the size.
    pub mask: Option<MaskCallback>,
    /// Shortens a kept tool output that is over `tool_output_max_chars`. `None` keeps its head and tail.
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

/// The shortened results among the kept messages, including those of earlier compactions.
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

/// How a summary was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionOrigin {
    pub strategy: Strategy,
    pub trigger: Trigger,
    pub from_hook: bool,
    pub instead_of: Option<Strategy>,
}

/// Build the entry of a compaction. The caller adds the number of archived messages and the token counts.
pub fn finish(
    context: &Context,
    cut: Cut,
    summary: Option<String>,
    details: Details,
    shortened: Vec<Shortened>,
    origin: CompactionOrigin,
) -> Compaction {
    let kept = &context.messages[cut.cut..];
    Compaction {
        summary,
        first_kept: kept.iter().find_map(|message| message.entry).map(|(_, id)| id),
        details,
        from_hook: origin.from_hook,
        instead_of: origin.instead_of,
        shortened,
        ..Compaction::new(origin.strategy, origin.trigger)
    }
}

/// Compute the context after a compaction is appended to the leaf, without reading the log again.
pub fn preview(context: &Context, cut: Cut, id: EntryId, compaction: &Compaction) -> Context {
    let mut messages = Vec::with_capacity(context.messages.len() - cut.cut + 1);
    messages.extend(compaction.summary.as_ref().map(|summary| Message {
        role: crate::project::context::Role::User,
        parts: vec![crate::Part::text(frame_summary(summary))],
        entry: Some((crate::Seq::ZERO, id)),
        answers: None,
        summary: Some(summary.clone()),
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
    let latest_compaction = LatestCompaction { id, body: compaction.clone() };
    Context {
        messages,
        compaction: Some(latest_compaction),
        reported: None,
        ..context_without_messages(context)
    }
}

fn context_without_messages(context: &Context) -> Context {
    Context {
        system: context.system.clone(),
        model: context.model.clone(),
        thinking: context.thinking.clone(),
        skills: context.skills.clone(),
        session: context.session.clone(),
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
