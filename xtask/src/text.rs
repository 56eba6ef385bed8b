//! Checks source files: each states its purpose in its first line, is short, and contains no unfinished code and no ignored
//! tests. Also checks that each error code is documented in docs/errors.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Maximum number of lines in a file, and in a file with only tests.
const FILE_LINES_MAX: usize = 600;
const TEST_FILE_LINES_MAX: usize = 800;
/// Split with `concat!`, so that this file does not match itself.
const UNFINISHED_MARKERS: &[&str] =
    &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("#[ig", "nore")];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask"] {
        collect(&root.join(folder), &["rs"], &mut files)?;
    }
    let mut faults = Vec::new();
    check_console(root, &mut faults)?;
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        check_file(&name, &text, &mut faults);
    }
    check_error_pages(root, &files, &mut faults)?;
    Ok(faults)
}

/// Apply the same checks to the console's files, except for generated ones.
fn check_console(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let mut files = Vec::new();
    collect(&root.join("web/src"), &["ts", "tsx"], &mut files)?;
    for file in files.iter().filter(|file| !file.ends_with("api.gen.ts")) {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        check_text(&name, &text, "// ", faults);
    }
    Ok(())
}

fn check_file(name: &str, text: &str, faults: &mut Vec<String>) {
    check_text(name, text, "//!", faults);
}

fn check_text(name: &str, text: &str, prefix: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if !text.starts_with(prefix) {
        faults.push(format!("{name} must begin with `{prefix}` and state its purpose"));
    }
    let limit = lines_max(name);
    if lines > limit {
        faults.push(format!("{name} has {lines} lines, over the limit of {limit}: split it"));
    }
    for open in UNFINISHED_MARKERS.iter().filter(|open| text.contains(**open)) {
        faults.push(format!("{name} contains {open}"));
    }
}

fn lines_max(name: &str) -> usize {
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    if is_test { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX }
}

/// Check that every stable error code is documented, and that the code of every page is in use.
fn check_error_pages(root: &Path, files: &[PathBuf], faults: &mut Vec<String>) -> Result<()> {
    let mut codes = Vec::new();
    for file in files.iter().filter(|file| file.starts_with(root.join("crates"))) {
        let text = fs::read_to_string(file)?;
        codes.extend(problem_codes(&text));
        let Some(start) = text.find("pub fn code(&self)") else { continue };
        let body = text[start..].split("\n    }\n").next().unwrap_or_default();
        let quoted = body.split('"').skip(1).step_by(2);
        codes.extend(quoted.filter(|code| code.contains('.')).map(str::to_owned));
    }
    let folder = root.join("docs/errors");
    for code in codes.iter().filter(|code| !has_page(&folder, code)) {
        faults.push(format!("error code {code} has no page docs/errors/{code}.md"));
    }
    for page in fs::read_dir(&folder).context("failed to read docs/errors")? {
        let name = page?.file_name().to_string_lossy().into_owned();
        let code = name.trim_end_matches(".md");
        if code.contains('.') && !codes.iter().any(|known| known == code) {
            faults.push(format!("docs/errors/{name} describes a code that is not used"));
        }
    }
    Ok(())
}

/// Find the error codes of problems that handlers create directly.
fn problem_codes(text: &str) -> impl Iterator<Item = String> {
    let after = text.split("Problem::new(").skip(1).map(str::trim_start);
    let quoted = after.filter_map(|rest| rest.strip_prefix('"')?.split('"').next());
    quoted.filter(|code| code.contains('.')).map(str::to_owned)
}

/// Whether a code has its own page, or a line on the page of its family or of the server.
fn has_page(folder: &Path, code: &str) -> bool {
    let family = code.split('.').next().unwrap_or_default();
    let has_line = |page: &str| {
        let page = fs::read_to_string(folder.join(format!("{page}.md"))).unwrap_or_default();
        page.contains(&format!("`{code}`"))
    };
    folder.join(format!("{code}.md")).is_file() || has_line(family) || has_line("server")
}

fn collect(folder: &Path, endings: &[&str], files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target" && name != "node_modules") {
            collect(&path, endings, files)?;
        } else if path.extension().is_some_and(|found| endings.iter().any(|ending| found == *ending)) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_file_may_be_longer() {
        assert_eq!(lines_max("crates/core/src/tree.rs"), FILE_LINES_MAX);
        assert_eq!(lines_max("web/src/api.ts"), FILE_LINES_MAX);
        assert_eq!(lines_max("crates/core/tests/all/flow.rs"), TEST_FILE_LINES_MAX);
        assert_eq!(lines_max("crates/formats/src/message/tests.rs"), TEST_FILE_LINES_MAX);
    }
}
