//! The strategy `truncate`: one shortened line per archived message. It needs no model, so it is the fallback of the
//! other strategies.

use super::shorten::{head, one_line};
use super::summary_text::Digest;
use super::transcript::{bracketed_parts, has_low_value, speaker, verbatim};
use super::{Archive, Detail};
use crate::content::joined_text;
use crate::project::context::Message;
use crate::tokens::text_bytes;

/// Maximum line lengths, in characters. A shorter length is tried if the total is too large.
const LINE_CHARS: &[usize] = &[160, 80, 40];
/// Lower bound of the size limit on a story, in bytes.
const STORY_BYTES_MIN: usize = 2_000;
/// Maximum size of a story, in bytes, including earlier summaries.
const STORY_BYTES_MAX: usize = 24_000;

/// The size limit on a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeLimit {
    /// Half the size of the messages and the earlier summary that it replaces, clamped to 2,000 to 24,000 bytes.
    Half,
    Bytes(usize),
}

pub fn truncate(archive: &Archive<'_>, limit: SizeLimit) -> Digest {
    let bytes = match limit {
        SizeLimit::Half => archive_bytes(archive).div_ceil(2).clamp(STORY_BYTES_MIN, STORY_BYTES_MAX),
        SizeLimit::Bytes(bytes) => bytes,
    };
    let opening = opening_of(archive);
    // The current turn has priority, then the newest messages.
    let turn = newest_lines(&turn_lines(archive), bytes / 2);
    let story_lines = lines_of(archive, archive.story, bytes);
    let story = joined(&archive.past_story(), &story_lines.join("\n"));
    let story_bytes = bytes.saturating_sub(turn.len());
    let story = newest_lines(&story.lines().map(str::to_owned).collect::<Vec<_>>(), story_bytes);
    Digest { opening, story, turn }
}

fn turn_lines(archive: &Archive<'_>) -> Vec<String> {
    let turn = lines_of(archive, archive.turn, STORY_BYTES_MAX).join("\n");
    joined(&archive.past_turn(), &turn).lines().map(str::to_owned).collect()
}

/// Shrink a digest to about `bytes_max` bytes by dropping older lines. The turn has priority, then the story,
/// then the beginning of the opening.
pub fn shrink(digest: Digest, bytes_max: usize) -> Digest {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let turn = newest_lines(&lines(&digest.turn), bytes_max);
    let story = newest_lines(&lines(&digest.story), bytes_max.saturating_sub(turn.len()));
    let remaining = bytes_max.saturating_sub(turn.len() + story.len());
    let opening = head(&digest.opening, remaining / 4).to_owned();
    Digest { opening, story, turn }
}

/// Shrink the story and turn of a digest to about `bytes_max` bytes. The turn has priority. The opening is kept verbatim.
pub fn shrink_story(digest: Digest, bytes_max: usize) -> Digest {
    let opening = digest.opening.clone();
    if bytes_max == 0 {
        return Digest { opening, ..Digest::default() };
    }
    Digest { opening, ..shrink(Digest { opening: String::new(), ..digest }, bytes_max) }
}

/// The first messages verbatim, or as an earlier compaction kept them.
pub fn opening_of(archive: &Archive<'_>) -> String {
    if archive.opening.is_empty() {
        return archive.previous.opening.clone();
    }
    archive.opening.iter().map(verbatim).collect::<Vec<_>>().join("\n")
}

pub fn joined(before: &str, after: &str) -> String {
    match (before.is_empty(), after.is_empty()) {
        (true, _) => after.to_owned(),
        (false, true) => before.to_owned(),
        (false, false) => format!("{before}\n{after}"),
    }
}

fn archive_bytes(archive: &Archive<'_>) -> usize {
    let messages = archive.story.iter().chain(archive.turn);
    messages.map(|message| text_bytes(&message.parts)).sum::<usize>() + archive.previous.past().len()
}

/// One line per message, at the longest line length at which all lines fit, or else at the shortest length.
fn lines_of(archive: &Archive<'_>, messages: &[Message], bytes_max: usize) -> Vec<String> {
    let relevant: Vec<&Message> = messages
        .iter()
        .filter(|message| archive.detail == Detail::Everything || !has_low_value(message))
        .collect();
    // Lines are rarely shorter than 12 bytes, which limits how many can fit. The first line is always kept.
    let start = relevant.len().saturating_sub(bytes_max / 12 + 1);
    let newest: Vec<&Message> =
        relevant.first().filter(|_| start > 0).into_iter().chain(&relevant[start..]).copied().collect();
    let skipped = start.saturating_sub(1);
    let shortest = LINE_CHARS[LINE_CHARS.len() - 1];
    for chars in LINE_CHARS {
        let mut lines: Vec<String> = newest.iter().map(|message| line_of(message, *chars)).collect();
        if skipped > 0 {
            lines.insert(1, format!("({skipped}{MISSING}"));
        }
        let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
        if bytes <= bytes_max || *chars == shortest {
            return lines;
        }
    }
    Vec::new()
}

/// A message on one line: its author, at most `chars` characters of its text, and its other parts in brackets.
fn line_of(message: &Message, chars: usize) -> String {
    let text = one_line(&joined_text(&message.parts), chars);
    let brackets: String =
        bracketed_parts(message, chars / 2).iter().map(|bracket| format!(" {bracket}")).collect();
    format!("{}: {text}{brackets}", speaker(message)).trim_end().to_owned()
}

/// Keep the first line, which usually states the topic, and the last lines that fit. A note between them states the
/// number of omitted lines.
fn newest_lines(lines: &[String], bytes_max: usize) -> String {
    let all: usize = lines.iter().map(|line| line.len() + 1).sum();
    if all <= bytes_max + 1 {
        return lines.join("\n");
    }
    let missing_before: usize = lines.iter().filter_map(|line| missing_in(line)).sum();
    let mut content_lines = lines.iter().filter(|line| missing_in(line).is_none());
    let mut remaining = bytes_max.saturating_sub(NOTE_BYTES);
    let first = content_lines.next().filter(|first| first.len() < remaining / 4);
    remaining = remaining.saturating_sub(first.map_or(0, |first| first.len() + 1));
    let content_lines: Vec<&String> = content_lines.collect();
    let fits = |line: &&&String| {
        let fits = line.len() < remaining;
        remaining = remaining.saturating_sub(line.len() + 1);
        fits
    };
    let kept = content_lines.iter().rev().take_while(fits).count();
    let omitted = content_lines.len() - kept + missing_before + usize::from(first.is_none());
    let note = format!("({omitted}{MISSING}");
    let first = first.map(String::as_str).into_iter();
    let newest = content_lines[content_lines.len() - kept..].iter().map(|line| line.as_str());
    first.chain(std::iter::once(note.as_str())).chain(newest).collect::<Vec<_>>().join("\n")
}

const MISSING: &str = " older lines are in the archive)";
const NOTE_BYTES: usize = 48;

/// Parse the number of missing lines from the note in an earlier summary.
fn missing_in(line: &str) -> Option<usize> {
    line.strip_prefix('(')?.strip_suffix(MISSING)?.parse().ok()
}
