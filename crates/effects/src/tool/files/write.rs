//! `write_file`: writes a whole file atomically.

use std::sync::Arc;

use async_trait::async_trait;
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::root::{Root, WriteOutcome};
use crate::tool::blocking::run_blocking;
use crate::tool::{Tool, spec, text_field};

/// Maximum size of the content.
pub(super) const CONTENT_BYTES_MAX: usize = 8 << 20;

pub struct WriteFile(Arc<Root>);

impl WriteFile {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

#[async_trait]
impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "relative to the working directory"},
                "content": {"type": "string", "description": "the complete content of the file"}
            },
            "required": ["path", "content"],
            "additionalProperties": false
        });
        let description = "Creates or replaces a file. Missing directories are created.";
        // Not replayed after a crash, because another program may have changed the file in the meantime.
        spec("write_file", description, &schema, Touch::Edits, Replay::Never)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let (path, content) = (text_field(input, "path").to_owned(), text_field(input, "content").to_owned());
        run_blocking(move |_| write(&root, &path, &content)).await
    }
}

fn write(root: &Root, path: &str, content: &str) -> ToolOutput {
    let bytes = content.len();
    if bytes > CONTENT_BYTES_MAX {
        return ToolOutput::error(format!(
            "the content has {bytes} bytes, but the limit is {CONTENT_BYTES_MAX}"
        ));
    }
    match root.write_file(path, content.as_bytes()) {
        Ok(WriteOutcome::Created) => ToolOutput::text(format!("created {path}: {bytes} bytes")),
        Ok(WriteOutcome::Replaced) => ToolOutput::text(format!("replaced {path}: {bytes} bytes")),
        Err(refusal) => ToolOutput::error(refusal.to_string()),
    }
}
