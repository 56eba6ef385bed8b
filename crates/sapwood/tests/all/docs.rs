//! Checks of the crate's documentation that rustdoc does not make.

use std::path::Path;

/// Maximum length of the program in the crate documentation that has a store, a custom model and tool, and `subscribe`.
const PROGRAM_LINES_MAX: usize = 40;

/// The code in the doc comments of all source files, and the sources themselves.
fn examples_and_sources() -> (Vec<String>, String) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = String::new();
    for file in std::fs::read_dir(dir).unwrap() {
        sources += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    let comments = sources.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!").or(line.strip_prefix("///"))
    });
    let mut examples = Vec::new();
    let mut current: Option<String> = None;
    for line in comments.flatten() {
        let is_fence = line.trim_start().starts_with("```");
        match (&mut current, is_fence) {
            (Some(_), true) => examples.extend(current.take()),
            (Some(example), false) => *example += &format!("{line}\n"),
            (None, true) => current = Some(String::new()),
            (None, false) => {}
        }
    }
    (examples, sources)
}

#[test]
fn the_program_in_the_crate_documentation_is_short() {
    let (examples, _) = examples_and_sources();
    let parts = ["Sapwood::builder(", ".model(", ".tool(", ".subscribe("];
    let program = examples.iter().find(|example| parts.iter().all(|part| example.contains(part)));
    let lines = program.expect("the program exists").lines().count();
    assert!(lines <= PROGRAM_LINES_MAX, "it has {lines} lines");
}

#[test]
fn every_operation_is_used_in_an_example() {
    let (examples, sources) = examples_and_sources();
    let declared = sources.lines().filter_map(|line| {
        let rest = line.strip_prefix("    pub fn ").or(line.strip_prefix("    pub async fn "))?;
        rest.split(['(', '<']).next()
    });
    // These belong to types other than `Sapwood`, or are hidden.
    let exempt = ["code", "in_dir", "folder", "with_engine", "engine", "new", "scratch_dir", "memory"];
    let is_used = |name: &str| {
        let calls = [format!(".{name}("), format!("::{name}(")];
        examples.iter().any(|example| calls.iter().any(|call| example.contains(call)))
    };
    let missing: Vec<&str> = declared.filter(|name| !exempt.contains(name) && !is_used(name)).collect();
    assert!(missing.is_empty(), "no example calls {missing:?}");
}
