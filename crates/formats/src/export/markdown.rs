//! The active path as Markdown for human readers. Tool calls and results are written in code fences that their
//! content cannot close.

use std::fmt::Write;

use sapwood_core::Body;
use sapwood_core::content::Part;
use sapwood_core::entry::{Entry, ToolResult};
use sapwood_core::project::summary::Summary;

use super::calls::ToolNames;
use super::messages::describe_media;
use super::without_controls;
use crate::import::text::write_rfc3339;

/// Renders a page entry by entry.
#[derive(Default)]
pub struct PageWriter {
    calls: ToolNames,
}

impl PageWriter {
    /// The text of the next entry of the active path.
    pub fn entry(&mut self, entry: &Entry) -> String {
        let mut text = String::new();
        self.calls.record(&entry.body);
        write_entry(&mut text, entry, &self.calls);
        without_controls(text)
    }
}

/// The text before the first entry.
pub fn begin(summary: &Summary) -> String {
    let mut page = String::new();
    let title = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("A session");
    let _ = writeln!(page, "# {}\n", one_line(title));
    let _ = write!(page, "Session `{}`, started {}", summary.id, write_rfc3339(summary.created_at));
    if let Some(model) = &summary.model {
        let _ = write!(page, ", model `{}`", one_line(model));
    }
    page.push_str(".\n");
    without_controls(page)
}

/// Render the page. `path` is the active path from its root, oldest first.
pub fn page(summary: &Summary, path: &[Entry]) -> String {
    let (mut page, mut writer) = (begin(summary), PageWriter::default());
    path.iter().for_each(|entry| page.push_str(&writer.entry(entry)));
    page
}

fn write_entry(page: &mut String, entry: &Entry, calls: &ToolNames) {
    match &entry.body {
        Body::UserMessage(user) => section(page, "User", &user.parts),
        Body::AssistantMessage(answer) => section(page, "Assistant", &answer.parts),
        Body::CustomMessage(custom) => {
            section(page, &format!("Note ({})", one_line(&custom.custom_type)), &custom.parts)
        }
        Body::ToolResult(result) => write_result(page, result, calls.tool_of(result)),
        Body::SystemNote(note) => quote(page, "Note", &note.text),
        Body::Compaction(compaction) => {
            page.push_str("\n---\n");
            quote(page, "Summary of earlier messages", compaction.summary.as_deref().unwrap_or("(omitted)"));
        }
        Body::BranchSummary(branch) => quote(page, "Summary of an abandoned branch", &branch.summary),
        _ => {}
    }
}

fn section(page: &mut String, name: &str, parts: &[Part]) {
    let _ = write!(page, "\n## {name}\n");
    for part in parts {
        match part {
            Part::Text(text) => {
                let _ = write!(page, "\n{}\n", text.text.trim_end());
            }
            Part::Reasoning(reasoning) if reasoning.text.is_empty() => {}
            Part::Reasoning(reasoning) => quote(page, "Reasoning", &reasoning.text),
            Part::ToolCall(call) => {
                let _ = write!(page, "\nCalls `{}`:\n", one_line(&call.name));
                fence(page, "json", call.input.get());
            }
            Part::Media(media) => {
                let _ = write!(page, "\n{}\n", describe_media(media));
            }
        }
    }
}

fn write_result(page: &mut String, result: &ToolResult, tool: Option<&str>) {
    let name = tool.map_or_else(String::new, |tool| format!(" of `{}`", one_line(tool)));
    let _ = write!(page, "\n{}{name}:\n", if result.is_error { "Error" } else { "Result" });
    for part in &result.parts {
        match part {
            Part::Media(media) => {
                let _ = write!(page, "\n{}\n", describe_media(media));
            }
            part => fence(page, "", part.as_text().unwrap_or_default()),
        }
    }
}

/// Write text in a code fence that is longer than any fence in the text.
fn fence(page: &mut String, kind: &str, text: &str) {
    let longest = text.split(|ch| ch != '`').map(str::len).max().unwrap_or(0);
    let ticks = "`".repeat(longest.max(2) + 1);
    let _ = write!(page, "\n{ticks}{kind}\n{}\n{ticks}\n", text.trim_end_matches('\n'));
}

fn quote(page: &mut String, name: &str, text: &str) {
    let _ = write!(page, "\n> **{name}**\n>\n");
    for line in text.lines() {
        let _ = writeln!(page, "> {line}");
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|ch| if ch.is_control() || ch == '`' { ' ' } else { ch }).collect()
}
