//! A deterministic summary of a transcript given in one message as `speaker: text` lines. It extracts lines and keeps
//! the lines of an earlier summary.

/// Maximum number of lines of each kind in a summary, and maximum length of each.
const LINES_MAX: usize = 30;
const LINE_CHARS_MAX: usize = 200;

/// Summarize a transcript. Returns `None` if the text contains no conversation.
pub fn summarise_transcript(text: &str) -> Option<String> {
    let facts = extract(text, |line| line.strip_prefix("- ").map(str::to_owned));
    let requests = extract(text, |line| line.strip_prefix("user: ").map(str::to_owned));
    let answers = extract(text, |line| line.strip_prefix("assistant: ").map(str::to_owned));
    let calls = extract(text, |line| line.strip_prefix("[calls ")?.strip_suffix(']').map(str::to_owned));
    let (goal, rest) = requests.split_first()?;
    let mut summary = format!("## Goal\n- {goal}\n");
    let sections = [
        ("Facts", facts),
        ("Later requests", rest.to_vec()),
        ("Answered", answers),
        ("Done", calls.into_iter().map(|call| format!("called {call}")).collect()),
    ];
    for (name, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
        summary.push_str(&format!("## {name}\n- {}\n", lines.join("\n- ")));
    }
    Some(summary)
}

/// Keep the first and the latest matches, and drop the matches in between.
fn extract(text: &str, find: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found: Vec<String> =
        text.lines().filter_map(find).filter(|line| !line.trim().is_empty()).map(shorten).collect();
    if found.len() > LINES_MAX {
        found.drain(LINES_MAX / 2..found.len() - LINES_MAX / 2);
    }
    found
}

fn shorten(line: String) -> String {
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
