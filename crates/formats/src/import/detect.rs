//! Format detection: the first lines of a file have features that are unique to its format.

use serde_json::Value;

use super::Format;

/// Number of bytes to inspect.
pub const PEEK_BYTES: usize = 256 << 10;
const LINES_MAX: usize = 64;

/// Return the format of a file with this beginning.
pub fn detect(beginning: &[u8]) -> Option<Format> {
    if beginning.starts_with(b"SQLite format 3\0") {
        return Some(Format::OpenCode);
    }
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning).trim_ascii_start();
    if text.starts_with(b"[") {
        return Some(Format::Messages);
    }
    let lines = text.split(|byte| *byte == b'\n').take(LINES_MAX);
    let mut values = lines.filter_map(|line| serde_json::from_slice::<Value>(line.trim_ascii()).ok());
    let first = values.next();
    let Some(first) = first.filter(Value::is_object) else { return detect_document(text) };
    match guess_from_first(&first) {
        Guess::Sure(format) => Some(format),
        // Two formats share a header. The next line distinguishes them.
        Guess::Header => Some(match values.next() {
            Some(second) if is_operator(&second) => Format::Operator,
            None if first.get("version").is_none()
                && !first["timestamp"].is_i64()
                && first.get("cwd").is_some() =>
            {
                Format::Operator
            }
            _ => Format::Sapwood,
        }),
        Guess::Session => {
            let dialect = values.find_map(|line| dialect_of(&line));
            Some(dialect.filter(|_| first.get("version").is_none()).unwrap_or(Format::Pi))
        }
        Guess::Unknown => {
            let mut seen = vec![first];
            seen.extend(values);
            let headless = || seen.iter().filter(|line| is_operator(line)).find_map(dialect_of);
            seen.iter().find_map(detect_line).or_else(headless).or_else(|| detect_long(text))
        }
    }
}

enum Guess {
    Sure(Format),
    Header,
    /// The header of pi or operator.
    Session,
    Unknown,
}

fn guess_from_first(first: &Value) -> Guess {
    let has = |key: &str| first.get(key).is_some();
    match first["type"].as_str() {
        Some("session_header") => Guess::Header,
        Some("session") if has("parent_session") || first["timestamp"].is_number() => {
            Guess::Sure(Format::Operator)
        }
        Some("session") => Guess::Session,
        Some("session_meta") if has("payload") => Guess::Sure(Format::Codex),
        _ if has("transcriptHistory") => Guess::Sure(Format::RoleFiles),
        _ if has("sessionId") && (has("projectHash") || has("startTime")) => Guess::Sure(Format::GeminiCli),
        _ if has("messages") && !has("sessionId") => Guess::Sure(Format::Messages),
        _ if has("role") && (has("content") || has("tool_calls")) => Guess::Sure(Format::Messages),
        _ => Guess::Unknown,
    }
}

fn detect_line(line: &Value) -> Option<Format> {
    let has = |key: &str| line.get(key).is_some();
    match line["type"].as_str() {
        Some("session_meta" | "response_item" | "turn_context" | "event_msg" | "compacted")
            if has("payload") =>
        {
            Some(Format::Codex)
        }
        Some("user_message" | "assistant_message" | "tool_result") if has("seq") => Some(Format::Sapwood),
        _ if has("parentUuid") || has("leafUuid") || has("messageId") && has("snapshot") => {
            Some(Format::ClaudeCode)
        }
        Some(_) if has("sessionId") && (has("customTitle") || has("uuid")) => Some(Format::ClaudeCode),
        _ if has("$set") || has("$rewindTo") => Some(Format::GeminiCli),
        _ => None,
    }
}

/// Distinguish records of pi and operator by the spelling of their keys. pi's oldest records have no such
/// keys.
fn dialect_of(line: &Value) -> Option<Format> {
    const SNAKE_CASE_KEYS: &[&str] =
        &["parent_id", "target_id", "first_kept_entry_id", "from_id", "custom_type"];
    const CAMEL_CASE_KEYS: &[&str] = &["parentId", "targetId", "firstKeptEntryId", "fromId", "customType"];
    let has_one = |keys: &[&str]| keys.iter().any(|key| line.get(*key).is_some());
    match line["type"].as_str() {
        Some("leaf" | "custom_info") => Some(Format::Operator),
        _ if has_one(SNAKE_CASE_KEYS) => Some(Format::Operator),
        _ => has_one(CAMEL_CASE_KEYS).then_some(Format::Pi),
    }
}

fn is_operator(line: &Value) -> bool {
    const KINDS: &[&str] = &[
        "message",
        "compaction",
        "branch",
        "branch_summary",
        "leaf",
        "label",
        "thinking_level_change",
        "model_change",
        "session_info",
        "custom_info",
        "custom",
        "custom_message",
    ];
    line.get("seq").is_none() && line["type"].as_str().is_some_and(|kind| KINDS.contains(&kind))
}

/// Detect a document that is longer than the inspected part or spans several lines, by its first keys.
fn detect_document(text: &[u8]) -> Option<Format> {
    if !text.starts_with(b"{") {
        return None;
    }
    let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
    if has("\"transcriptHistory\"") || has("\"logicalSessionId\"") {
        return Some(Format::RoleFiles);
    }
    if has("\"projectHash\"") && has("\"sessionId\"") {
        return Some(Format::GeminiCli);
    }
    has("\"messages\"").then_some(Format::Messages).or_else(|| detect_long(text))
}

/// Detect a file whose first distinctive line is longer than the inspected part.
fn detect_long(text: &[u8]) -> Option<Format> {
    let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
    if has("\"parentUuid\"") {
        return Some(Format::ClaudeCode);
    }
    (has("\"payload\"") && (has("\"response_item\"") || has("\"session_meta\""))).then_some(Format::Codex)
}
