//! The text of a summary and its parts. A summary is one text in the log and one message in the context. The next
//! compaction finds its parts by their headings. A text without headings, from a model or another program, is treated
//! as one story.

use crate::entry::Details;

const OPENING: &str = "── The first messages, word for word ──";
const STORY: &str = "── What happened before ──";
const TURN: &str = "── The current turn so far ──";
const CARRIED: &str = "── Carried along ──";
const STANDING: &str = "── The flow, as it stands ──";
const ARCHIVED: &str = "archived; this";
/// Maximum number of files, facts, decisions and open items to show, for each kind; the newest are shown.
const SHOWN_MAX: usize = 60;

/// A summary, split into its parts. Each part may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Digest {
    /// The first messages of the session, if they are kept.
    pub opening: String,
    /// The summary of the messages after the opening.
    pub story: String,
    /// The beginning of a turn whose end is still in the context.
    pub turn: String,
}

impl Digest {
    /// A digest that has only a story.
    pub fn of_story(story: String) -> Self {
        Self { story, ..Self::default() }
    }

    /// Parse a summary. Details and the flow's state are dropped, because every compaction renders them again.
    pub fn parse(summary: &str) -> Self {
        let summary = split_at_heading(summary, STANDING).map_or(summary, |(before, _)| before);
        if !summary.starts_with('[') || !summary.lines().next().is_some_and(|line| line.contains(ARCHIVED)) {
            return Self::of_story(summary.trim().to_owned());
        }
        let mut digest = Self::default();
        let mut rest = summary;
        // Search from the end: text in a story may look like a heading, but the last match is the real heading.
        for (heading, part) in
            [(CARRIED, None), (TURN, Some(&mut digest.turn)), (STORY, Some(&mut digest.story))]
        {
            if let Some((before, after)) = split_at_heading(rest, heading) {
                rest = before;
                if let Some(part) = part {
                    after.trim().clone_into(part);
                }
            }
        }
        if let Some((_, opening)) = split_at_heading(rest, OPENING) {
            opening.trim().clone_into(&mut digest.opening);
        }
        digest
    }

    /// Render the summary for the log.
    pub fn render(&self, archived: u32, details: &Details, instructions: Option<&str>) -> String {
        let (messages, were, them) =
            if archived == 1 { ("message", "was", "it") } else { ("messages", "were", "them") };
        let mut text = format!("[{archived} earlier {messages} {were} {ARCHIVED} summary replaces {them}.]");
        if let Some(instructions) = instructions {
            text.push_str("\nKeep in mind: ");
            text.push_str(instructions.trim());
        }
        let carried = render_details(details);
        let parts = [(OPENING, &self.opening), (STORY, &self.story), (TURN, &self.turn), (CARRIED, &carried)];
        for (heading, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
            text.push_str("\n\n");
            text.push_str(heading);
            text.push('\n');
            text.push_str(part);
        }
        text
    }

    /// Join story and turn into the story of the next summary.
    pub fn past(&self) -> String {
        match (self.story.is_empty(), self.turn.is_empty()) {
            (_, true) => self.story.clone(),
            (true, false) => self.turn.clone(),
            (false, false) => format!("{}\n{}", self.story, self.turn),
        }
    }
}

/// Append the flow's current state, which no strategy may shorten, replacing the state already in the
/// summary.
pub fn with_standing(summary: &str, standing: &str) -> String {
    let summary = split_at_heading(summary, STANDING).map_or(summary, |(before, _)| before);
    format!("{}\n\n{STANDING}\n{standing}", summary.trim_end())
}

fn split_at_heading<'a>(text: &'a str, heading: &str) -> Option<(&'a str, &'a str)> {
    let is_line = |at: &usize| {
        (*at == 0 || text[..*at].ends_with('\n'))
            && text[at + heading.len()..].chars().next().is_none_or(|next| next == '\n')
    };
    let at = text.rmatch_indices(heading).map(|(at, _)| at).find(is_line)?;
    Some((&text[..at], &text[at + heading.len()..]))
}

fn render_details(details: &Details) -> String {
    let newest = |items: &[String]| items[items.len().saturating_sub(SHOWN_MAX)..].to_vec();
    let mut blocks = Vec::new();
    for (name, files) in [("Files changed", &details.files_changed), ("Files read", &details.files_read)] {
        if !files.is_empty() {
            blocks.push(format!("{name}: {}", newest(files).join(", ")));
        }
    }
    for (name, items) in
        [("Facts", &details.facts), ("Decisions", &details.decisions), ("Open items", &details.open_items)]
    {
        if !items.is_empty() {
            blocks.push(format!("{name}:\n- {}", newest(items).join("\n- ")));
        }
    }
    blocks.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_round_trips() {
        let digest = Digest {
            opening: "user: fix the build".to_owned(),
            story: "user: more\n── What happened before ── or so it seemed\nassistant: done".to_owned(),
            turn: "user: and now".to_owned(),
        };
        let details = Details { files_read: vec!["a.rs".to_owned()], ..Details::default() };
        let text = digest.render(14, &details, Some("the build"));
        assert!(text.starts_with("[14 earlier messages were archived"), "{text}");
        assert_eq!(Digest::parse(&text), digest, "{text}");
        let alone = Digest::of_story("user: x".to_owned());
        assert_eq!(Digest::parse(&alone.render(1, &Details::default(), None)), alone);
    }

    #[test]
    fn standing_facts_are_replaced_and_never_become_part_of_the_story() {
        let alone = Digest::of_story("user: x".to_owned()).render(1, &Details::default(), None);
        let once = with_standing(&alone, "Node: draft");
        let twice = with_standing(&once, "Node: review");
        assert!(twice.ends_with("Node: review") && !twice.contains("draft"), "{twice}");
        assert_eq!(Digest::parse(&twice), Digest::parse(&alone));
        assert_eq!(Digest::parse(&with_standing("a foreign summary", "Node: a")).story, "a foreign summary");
    }

    #[test]
    fn a_foreign_text_is_a_story() {
        assert_eq!(Digest::parse("## Goal\nfix it\n"), Digest::of_story("## Goal\nfix it".to_owned()));
        assert_eq!(Digest::parse("[1] a footnote").story, "[1] a footnote");
    }
}
