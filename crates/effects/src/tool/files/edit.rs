//! `edit_file`: replaces an exact string in a file.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};
use similar::TextDiff;

use super::root::{Refusal, Root};
use super::write::CONTENT_BYTES_MAX;
use crate::tool::blocking::run_blocking;
use crate::tool::{Tool, spec, text_field};

/// Maximum number of diff lines to show, and time limit for computing a minimal diff.
const DIFF_LINES_MAX: usize = 120;
const DIFF_TIME_MAX: Duration = Duration::from_millis(500);

pub struct EditFile(Arc<Root>);

impl EditFile {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

struct Edit {
    path: String,
    old_text: String,
    new_text: String,
    occurrences: Occurrences,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Occurrences {
    One,
    All,
}

#[async_trait]
impl Tool for EditFile {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "relative to the working directory"},
                "old_text": {"type": "string", "minLength": 1, "description": "the exact text in the file"},
                "new_text": {"type": "string", "description": "the replacement"},
                "replace_all": {"type": "boolean", "description": "replace every occurrence"}
            },
            "required": ["path", "old_text", "new_text"],
            "additionalProperties": false
        });
        let description = "Replaces text in a file. The old text must occur in the file exactly once, including its \
                           white space, unless replace_all is set. Returns a diff.";
        spec("edit_file", description, &schema, Touch::Edits, Replay::Never)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let edit = Edit {
            path: text_field(input, "path").to_owned(),
            old_text: text_field(input, "old_text").to_owned(),
            new_text: text_field(input, "new_text").to_owned(),
            occurrences: if input["replace_all"].as_bool() == Some(true) {
                Occurrences::All
            } else {
                Occurrences::One
            },
        };
        run_blocking(move |_| {
            apply(&root, &edit).unwrap_or_else(|refusal| ToolOutput::error(refusal.to_string()))
        })
        .await
    }
}

fn apply(root: &Root, edit: &Edit) -> Result<ToolOutput, Refusal> {
    let path = &edit.path;
    let opened = root.reader().open_file(path)?;
    if opened.bytes > CONTENT_BYTES_MAX as u64 {
        return Ok(ToolOutput::error(format!("{path} has {} bytes, too large to edit", opened.bytes)));
    }
    let mut before = Vec::new();
    let mut content = opened.file.take(CONTENT_BYTES_MAX as u64);
    content.read_to_end(&mut before).map_err(|why| Refusal::Io { path: path.clone(), why })?;
    let Ok(before) = String::from_utf8(before) else {
        return Ok(ToolOutput::error(format!("{path} is not UTF-8 text")));
    };
    let after = match replace(&before, edit) {
        Ok(after) if after.len() <= CONTENT_BYTES_MAX => after,
        Ok(after) => {
            return Ok(ToolOutput::error(format!(
                "{path} would have {} bytes, which is too large",
                after.len()
            )));
        }
        Err(why) => return Ok(ToolOutput::error(why)),
    };
    root.write_file(path, after.as_bytes())?;
    Ok(ToolOutput::text(show_diff(path, &before, &after)))
}

fn replace(before: &str, edit: &Edit) -> Result<String, String> {
    let path = &edit.path;
    if edit.old_text == edit.new_text {
        return Err("old_text and new_text are the same".to_owned());
    }
    match (before.matches(&edit.old_text).count(), edit.occurrences) {
        (0, _) => Err(format!("old_text does not occur in {path}: read the file and copy the text exactly")),
        (1, _) | (_, Occurrences::All) => Ok(before.replace(&edit.old_text, &edit.new_text)),
        (count, Occurrences::One) => {
            Err(format!("old_text occurs {count} times in {path}: include more context, or set replace_all"))
        }
    }
}

fn show_diff(path: &str, before: &str, after: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_TIME_MAX).diff_lines(before, after);
    let unified = diff.unified_diff().context_radius(2).header(path, path).to_string();
    let mut lines = unified.lines();
    let mut shown: Vec<&str> = lines.by_ref().take(DIFF_LINES_MAX).collect();
    let rest = lines.count();
    let more = format!("… and {rest} more lines");
    if rest > 0 {
        shown.push(&more);
    }
    shown.join("\n")
}
