//! The details of a summary: the files that tools read and changed, and marked facts, decisions and open items. Every
//! compaction stores them, and the next compaction starts from them.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::shorten::head;
use crate::content::{Part, ToolCall};
use crate::entry::Details;
use crate::project::context::{Message, Role};

/// Maximum number of items of each kind; the newest are kept.
const ITEMS_MAX: usize = 200;
/// Maximum length of a path or of an item found in a message, in characters.
const ITEM_CHARS_MAX: usize = 300;
/// Maximum number of messages to scan. Only the newest are scanned.
const MESSAGES_MAX: usize = 10_000;
/// Maximum size of a tool input that is searched for a file path, in bytes. Larger inputs are skipped.
const INPUT_BYTES_MAX: usize = 64 << 10;

const PATH_KEYS: &[&str] =
    &["path", "file_path", "file", "filename", "target_file", "notebook_path", "new_path"];
const CHANGING: &[&str] = &[
    "write", "edit", "patch", "create", "replace", "insert", "delete", "remove", "append", "rename", "move",
];
const READING: &[&str] = &["read", "view", "cat", "open", "show"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Change,
}

/// Add the details of these messages to the previous details.
pub fn gather(previous: Details, messages: &[Message]) -> Details {
    let mut details = previous;
    let recent = &messages[messages.len().saturating_sub(MESSAGES_MAX)..];
    gather_files(&mut details, recent);
    for message in recent.iter().filter(|message| matches!(message.role, Role::User | Role::Assistant)) {
        message.parts.iter().filter_map(Part::as_text).for_each(|text| gather_marked(&mut details, text));
    }
    tidy(details)
}

/// Merge a summariser's details with those collected so far. The summariser received the open items and omits finished
/// ones, so its list of open items replaces the earlier list, unless it is empty.
pub fn merge(carried: Details, found: Details) -> Details {
    let open_items = if found.open_items.is_empty() { carried.open_items } else { found.open_items };
    tidy(Details {
        files_read: [carried.files_read, found.files_read].concat(),
        files_changed: [carried.files_changed, found.files_changed].concat(),
        facts: [carried.facts, found.facts].concat(),
        decisions: [carried.decisions, found.decisions].concat(),
        open_items,
    })
}

/// Remove duplicates (the last occurrence stays) and limit the number of items. A changed file is not listed
/// as read.
fn tidy(mut details: Details) -> Details {
    let changed: HashSet<String> = details.files_changed.iter().cloned().collect();
    details.files_read.retain(|file| !changed.contains(file));
    let Details { files_read, files_changed, facts, decisions, open_items } = &mut details;
    for items in [files_read, files_changed, facts, decisions, open_items] {
        let mut seen = HashSet::new();
        let mut kept: Vec<String> = items.drain(..).rev().filter(|item| seen.insert(item.clone())).collect();
        kept.truncate(ITEMS_MAX);
        kept.reverse();
        *items = kept;
    }
    details
}

/// Collect lines that start with a marker such as "Decision:".
fn gather_marked(details: &mut Details, text: &str) {
    for line in text.lines() {
        let line = line.trim_start_matches(['-', '*', ' ', '\t', '#']);
        let Some((item, list)) = marked(line, details) else { continue };
        let item = head(item.trim(), ITEM_CHARS_MAX);
        if !item.is_empty() {
            list.push(item.to_owned());
        }
    }
}

fn marked<'a, 'd>(line: &'a str, details: &'d mut Details) -> Option<(&'a str, &'d mut Vec<String>)> {
    if let Some(item) = line.strip_prefix("[ ] ") {
        return Some((item, &mut details.open_items));
    }
    let (marker, item) = line.split_once(':').filter(|(marker, _)| marker.len() <= 12)?;
    let list = match marker.trim_matches('*').to_ascii_lowercase().as_str() {
        "fact" | "note" => &mut details.facts,
        "decision" | "decided" => &mut details.decisions,
        "todo" | "open item" | "open" | "pending" | "next step" => &mut details.open_items,
        _ => return None,
    };
    Some((item.trim_start_matches('*'), list))
}

fn gather_files(details: &mut Details, messages: &[Message]) {
    let failed = failed_calls(messages);
    for message in messages {
        for call in message.parts.iter().filter_map(Part::as_tool_call) {
            if failed.get(call.call_id.as_str()).copied().unwrap_or(false) {
                continue;
            }
            match accessed_file(call) {
                Some((Access::Read, file)) => details.files_read.push(file),
                Some((Access::Change, file)) => details.files_changed.push(file),
                None => {}
            }
        }
    }
}

fn failed_calls(messages: &[Message]) -> HashMap<&str, bool> {
    let results = messages.iter().filter_map(|message| message.answers.as_ref());
    results.map(|answers| (answers.call_id.as_str(), answers.is_error)).collect()
}

fn accessed_file(call: &ToolCall) -> Option<(Access, String)> {
    let input = call.input.get();
    if input.len() > INPUT_BYTES_MAX || !input.contains("path") && !input.contains("file") {
        return None;
    }
    let input: Value = serde_json::from_str(input).ok()?;
    let path = PATH_KEYS.iter().find_map(|key| input.get(key)?.as_str())?;
    let name = call.name.to_lowercase();
    // Some tools have several commands and select one by an input field.
    let verb = input.get("command").and_then(Value::as_str).unwrap_or(&name).to_lowercase();
    let uses_word_of = |words: &[&str]| words.iter().any(|word| verb.contains(word));
    let access = match (uses_word_of(CHANGING), uses_word_of(READING)) {
        (true, _) => Access::Change,
        (false, true) => Access::Read,
        (false, false) => return None,
    };
    Some((access, head(path, ITEM_CHARS_MAX).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Json;

    fn message(role: Role, parts: Vec<Part>) -> Message {
        Message { role, parts, entry: None, answers: None, summary: None }
    }

    fn call(tool: &str, input: &str) -> Message {
        message(Role::Assistant, vec![Part::tool_call("c", tool, Json::parse(input).unwrap())])
    }

    #[test]
    fn files_are_found_in_the_calls_that_read_and_changed_them() {
        let messages = [
            call("read_file", r#"{"path":"a.rs"}"#),
            call("read_file", r#"{"path":"b.rs"}"#),
            call("edit", r#"{"file_path":"b.rs","old":"x"}"#),
            call("editor", r#"{"command":"view","path":"c.rs"}"#),
            call("run", r#"{"path":"d.rs"}"#),
        ];
        let details = gather(Details::default(), &messages);
        assert_eq!(details.files_read, ["a.rs", "c.rs"]);
        assert_eq!(details.files_changed, ["b.rs"]);
    }

    #[test]
    fn marked_items_are_kept_without_duplicates() {
        let said = "Decision: use SQLite\nplain\n- TODO: write docs\n**Fact:** port is 80";
        let messages = [message(Role::Assistant, vec![Part::text(said)])];
        let previous = Details { decisions: vec!["use SQLite".to_owned()], ..Details::default() };
        let details = gather(previous, &messages);
        assert_eq!(details.decisions, ["use SQLite"]);
        assert_eq!(details.open_items, ["write docs"]);
        assert_eq!(details.facts, ["port is 80"]);
    }
}
