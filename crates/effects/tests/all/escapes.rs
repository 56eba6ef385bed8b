//! Attempts to escape a session's scope. Every attempt must fail.

mod commands;
mod paths;
mod races;
mod repositories;
mod sandbox;

use std::fs;

use sapwood_core::port::tool::FsScope;
use serde_json::{Value, json};

use crate::tool_harness::{ToolHarness, Tools, read};

/// Content that must never be shown or changed.
pub const CANARY: &str = "canary-7f3a";

/// A harness with a secret next to its project and its scratch directory.
pub fn harness_with_vault() -> ToolHarness {
    let harness = ToolHarness::new();
    fs::create_dir(harness.outside("vault")).unwrap();
    fs::write(harness.outside("vault/secret"), CANARY).unwrap();
    harness
}

/// Calls of every file tool with one path.
pub fn attempts(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read_file", json!({"path": path})),
        ("write_file", json!({"path": path, "content": "overwritten"})),
        ("edit_file", json!({"path": path, "old_text": "c", "new_text": "x"})),
        ("list_directory", json!({"path": path})),
        ("find_files", json!({"path": path, "pattern": "*"})),
        ("search_text", json!({"path": path, "pattern": "."})),
    ]
}

/// Assert that every file tool refuses a path and that the vault is unchanged.
pub async fn assert_refused(harness: &ToolHarness, toolbox: &Tools, path: &str) {
    for (name, input) in attempts(path) {
        let text = toolbox.fails(name, input).await;
        assert!(!text.contains(CANARY), "{name} {path:?} shows the canary");
    }
    assert_vault_unchanged(harness);
}

pub fn assert_vault_unchanged(harness: &ToolHarness) {
    assert_eq!(read(harness.outside("vault/secret")), CANARY);
    let names: Vec<_> =
        fs::read_dir(harness.outside("vault")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"], "the vault was changed");
}

/// Toolboxes with their file directories, for the two restricted scopes.
pub async fn restricted_toolboxes(harness: &ToolHarness) -> [(std::path::PathBuf, Tools); 2] {
    let sandboxed = harness.open(FsScope::Sandboxed, &[]).await;
    let project = harness.open(FsScope::Project, &[]).await;
    [(harness.scratch(), sandboxed), (harness.project(), project)]
}
