//! The strategy `observation_mask`: user and assistant messages are kept whole, and long tool output is
//! replaced by its first line and size. Most of a coding session is tool output, so this frees most of the
//! context without a model call.

use super::shorten::first_line;
use super::summary_text::Digest;
use super::transcript::{has_low_value, render_message, tool_name};
use super::truncate::{joined, opening_of};
use super::{Archive, Callbacks, Detail};
use crate::content::joined_text;
use crate::project::context::Message;
use crate::tokens::Count;

/// Maximum length of an output that is kept whole, in characters.
const SHORT_CHARS_MAX: usize = 400;
const SHORT_LINES_MAX: usize = 8;
const FIRST_LINE_CHARS_MAX: usize = 160;
/// Maximum length of a call's input, in characters.
const INPUT_CHARS_MAX: usize = 200;
/// Maximum size of a summary's story and turn, in bytes, far below the limit on an entry body. Messages are
/// kept whole; a caller that needs a smaller summary sets a hard limit. Older messages that do not fit are
/// only in the archive.
const STORY_BYTES_MAX: usize = 4 << 20;

/// A tool's output, as passed to a callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// The id of the call.
    pub call_id: String,
    /// The name of the tool.
    pub tool: String,
    /// The joined text of the output, without media.
    pub text: String,
    /// Whether the call failed.
    pub is_error: bool,
}

impl ToolOutput {
    /// The output in a message; `None` if the message is not a tool result.
    pub fn of(message: &Message) -> Option<Self> {
        let answers = message.answers.as_ref()?;
        let text = joined_text(&message.parts);
        Some(Self {
            call_id: answers.call_id.clone(),
            tool: tool_name(message),
            text,
            is_error: answers.is_error,
        })
    }
}

pub fn mask(archive: &Archive<'_>, callbacks: &Callbacks) -> Digest {
    let turn = masked_text(archive, archive.turn, callbacks, STORY_BYTES_MAX / 2);
    let story_bytes_max = STORY_BYTES_MAX - turn.len().min(STORY_BYTES_MAX / 2);
    let story = masked_text(archive, archive.story, callbacks, story_bytes_max);
    Digest {
        opening: opening_of(archive),
        story: joined(&newest_of(&archive.past_story(), story_bytes_max.saturating_sub(story.len())), &story),
        turn: joined(&archive.past_turn(), &turn),
    }
}

/// The number of tokens that masking would free in these messages.
pub fn maskable_tokens(messages: &[Message], count: &dyn Count) -> u64 {
    let freed = |message: &Message| {
        let masked = mask_output(&ToolOutput::of(message)?, &Callbacks::default())?;
        Some(count.message(message).saturating_sub(count.text(&masked)))
    };
    messages.iter().filter_map(freed).sum()
}

/// Keep the longest suffix of an older story that fits and starts on a new line, after a note on the omitted
/// characters.
fn newest_of(story: &str, bytes_max: usize) -> String {
    if story.len() <= bytes_max {
        return story.to_owned();
    }
    let cut = story.len() - bytes_max;
    let line = (cut..story.len()).find(|at| story.is_char_boundary(*at) && story[..*at].ends_with('\n'));
    let kept = line.map_or("", |at| &story[at..]);
    format!("({} older characters are in the archive)\n{kept}", story.chars().count() - kept.chars().count())
}

/// Mask messages, newest first, until the limit is reached. The text lists them oldest first.
fn masked_text(
    archive: &Archive<'_>,
    messages: &[Message],
    callbacks: &Callbacks,
    bytes_max: usize,
) -> String {
    let mut texts: Vec<String> = Vec::new();
    let (mut bytes, mut omitted) = (0, 0);
    for (at, message) in messages.iter().enumerate().rev() {
        if archive.detail == Detail::WithoutLowValue && has_low_value(message) {
            continue;
        }
        let text = masked_message(message, callbacks);
        bytes += text.len() + 1;
        if bytes > bytes_max {
            omitted = at + 1;
            break;
        }
        texts.push(text);
    }
    if omitted > 0 {
        texts.push(format!("({omitted} older messages are in the archive)"));
    }
    texts.reverse();
    texts.join("\n")
}

fn masked_message(message: &Message, callbacks: &Callbacks) -> String {
    let Some(output) = ToolOutput::of(message) else {
        return render_message(message, &joined_text(&message.parts), INPUT_CHARS_MAX);
    };
    let masked = mask_output(&output, callbacks);
    render_message(message, masked.as_deref().unwrap_or(&output.text), INPUT_CHARS_MAX)
}

/// The replacement of a long output; `None` for a short output, which is kept.
fn mask_output(output: &ToolOutput, callbacks: &Callbacks) -> Option<String> {
    let text = output.text.as_str();
    let lines = text.lines().count();
    if lines <= SHORT_LINES_MAX && text.chars().count() <= SHORT_CHARS_MAX {
        return None;
    }
    if let Some(replaced) = callbacks.mask.as_ref().and_then(|mask| mask(output)) {
        return Some(replaced);
    }
    let chars = text.chars().count();
    let unit = if lines == 1 { "line" } else { "lines" };
    Some(format!("{} [masked: {lines} {unit}, {chars} characters]", first_line(text, FIRST_LINE_CHARS_MAX)))
}
