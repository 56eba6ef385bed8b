//! Checks that every file and test that docs/seeds.md names exists, so that renaming or removing a test is noticed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The page whose references are checked.
const PAGE: &str = "docs/seeds.md";
/// A code span is a reference if it begins with one of these folders or contains the separator.
const FOLDERS: &[&str] = &["crates/", "web/", "xtask/", "docs/", "examples/"];
const SEPARATOR: &str = "::";

pub fn check(root: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    Ok(find_missing(&page, &read))
}

fn find_missing(page: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        for reference in references(line) {
            faults.extend(mistake(reference, read).map(|why| format!("{PAGE}:{number}: {why}")));
        }
    }
    faults
}

/// The code spans of a line that name a file or a test.
fn references(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| span.contains(SEPARATOR) || FOLDERS.iter().any(|folder| span.starts_with(folder)))
}

/// What is wrong with a reference. In a Rust file the test is a function, elsewhere it is a string.
fn mistake(reference: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let (path, test) = match reference.split_once(SEPARATOR) {
        Some((path, test)) => (path, Some(test)),
        None => (reference, None),
    };
    let Some(text) = read(path) else { return Some(format!("failed to read `{path}`")) };
    let test = test?;
    let wanted = if path.ends_with(".rs") { format!("fn {test}(") } else { format!("\"{test}\"") };
    (!text.contains(&wanted)).then(|| format!("{path} has no test `{test}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Option<String> {
        match path {
            "crates/a.rs" => Some("async fn it_works() {}".to_owned()),
            "web/a.test.ts" => Some("test(\"it works\", run)".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn existing_files_and_tests_are_accepted() {
        let page =
            "| a | `crates/a.rs::it_works`, `web/a.test.ts::it works` |\n| b | `crates/a.rs`, `fork` |";
        assert_eq!(find_missing(page, &read), Vec::<String>::new());
    }

    #[test]
    fn missing_files_and_tests_are_reported_with_their_line() {
        let page = "| a | `crates/a.rs::it`, `web/a.test.ts::works` |\n| b | `crates/b.rs`, `…::it_works` |";
        let faults = find_missing(page, &read);
        assert_eq!(faults.len(), 4);
        assert_eq!(faults[0], "docs/seeds.md:1: crates/a.rs has no test `it`");
        assert_eq!(faults[2], "docs/seeds.md:2: failed to read `crates/b.rs`");
    }
}
