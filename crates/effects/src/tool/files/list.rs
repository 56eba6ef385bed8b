//! `list_directory`: lists the entries of a directory.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cap_std::fs::DirEntry;
use sapwood_core::port::tool::{FsScope, Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::protected::is_protected;
use super::root::{Refusal, Root};
use crate::tool::blocking::{StopSignal, run_blocking};
use crate::tool::{Tool, spec};

/// Maximum number of entries shown, and of entries read.
const ENTRIES_MAX: usize = 1_000;
const ENTRIES_READ_MAX: usize = 100_000;

pub struct ListDirectory(Arc<Root>);

impl ListDirectory {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

#[async_trait]
impl Tool for ListDirectory {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "a directory; default: the working directory"}
            },
            "additionalProperties": false
        });
        let description = "Lists a directory: directories end in /, links end in @, files are followed by their size in bytes.";
        spec("list_directory", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let path = input["path"].as_str().unwrap_or(".").to_owned();
        run_blocking(move |stop| {
            list(&root, &path, stop).unwrap_or_else(|refusal| ToolOutput::error(refusal.to_string()))
        })
        .await
    }
}

fn list(root: &Root, path: &str, stop: &StopSignal) -> Result<ToolOutput, Refusal> {
    let (dir, _) = root.open_dir(path)?;
    let entries = dir.entries().map_err(|why| Refusal::Io { path: path.to_owned(), why })?;
    let mut lines: Vec<String> = entries
        .take(ENTRIES_READ_MAX)
        .take_while(|_| !stop.is_set())
        .flatten()
        .filter(|entry| root.scope() != FsScope::Project || !is_protected(Path::new(&entry.file_name())))
        .map(|entry| describe(&entry))
        .collect();
    lines.sort();
    let all = lines.len();
    lines.truncate(ENTRIES_MAX);
    if all > ENTRIES_MAX {
        lines.push(format!("[{} more; use find_files to find them by name]", all - ENTRIES_MAX));
    }
    if all == 0 {
        lines.push(format!("[{path} is empty]"));
    }
    Ok(ToolOutput::text(lines.join("\n")))
}

fn describe(entry: &DirEntry) -> String {
    let name = entry.file_name().to_string_lossy().into_owned();
    match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => format!("{name}/"),
        Ok(metadata) if metadata.is_symlink() => format!("{name}@"),
        Ok(metadata) if metadata.is_file() => format!("{name}  {}", metadata.len()),
        Ok(_) => format!("{name}  (device, pipe or socket)"),
        Err(_) => name,
    }
}
