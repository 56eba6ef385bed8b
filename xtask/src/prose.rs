//! Checks prose: reports marker words that hide the actor, and sentences in the docs that are too long.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Words and phrases that hide the actor or replace a plain verb. Each is split, so that this file does not match
/// itself.
const MARKERS: &[&str] = &[
    concat!("who", "ever"),
    concat!("whom", "ever"),
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("every", "body"),
    concat!("any", "body"),
    concat!("goes", " on"),
    concat!("went", " on"),
    concat!("comes", " along"),
    concat!("stands in", " for"),
    concat!("of no", " interest"),
];
/// A line may contain a marker if it contains one of these texts: wire names, sample data and quotations.
const ALLOWED: &[&str] = &[
    // The flag and JSON key of memories that belong to the whole tenant.
    concat!("--every", "body"),
    concat!("`every", "body"),
    concat!("\"every", "body\""),
    concat!("every", "body:"),
    concat!("every", "body,"),
    concat!("every", "body }"),
    concat!("every", "body.then_some"),
    concat!(".every", "body"),
    concat!("every", "body?"),
];
/// Maximum number of words in a sentence of the docs.
const SENTENCE_WORDS_MAX: usize = 40;
const EXTENSIONS: &[&str] =
    &["rs", "ts", "tsx", "mjs", "css", "html", "md", "sql", "toml", "yaml", "yml", "py"];
/// Folders to check, relative to the root.
const FOLDERS: &[&str] = &["crates", "xtask", "web/src", "web/tests", "docs", "examples", "fuzz"];
const FILES: &[&str] = &["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.toml", "deny.toml"];
/// Folders with data, dependencies or generated files, which are not checked.
const SKIPPED: &[&str] = &["target", "node_modules", "fixtures", "seeds", "corpus", "artifacts", "data"];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        faults.extend(find_markers(&name, &text));
        if name.starts_with("docs/") || name == "README.md" {
            faults.extend(find_long_sentences(&name, &text));
        }
    }
    Ok(faults)
}

fn find_markers(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let lower = line.to_lowercase();
        let is_allowed =
            |marker: &str| ALLOWED.iter().any(|part| line.contains(part) && part.contains(marker));
        for marker in MARKERS.iter().filter(|marker| has_word(&lower, marker) && !is_allowed(marker)) {
            faults.push(format!(
                "{name}:{number} contains {marker:?}: name the actor, or use a plain verb (docs/STYLE.md)"
            ));
        }
    }
    faults
}

/// Whether the phrase occurs and is not part of a longer word.
fn has_word(line: &str, phrase: &str) -> bool {
    let is_part = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
    line.match_indices(phrase).any(|(at, _)| {
        !is_part(line[..at].chars().next_back()) && !is_part(line[at + phrase.len()..].chars().next())
    })
}

/// Report long sentences in paragraphs and list items. Tables, headings and code are not checked.
fn find_long_sentences(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut paragraph, mut start, mut is_code) = (String::new(), 1, false);
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        let trimmed = line.trim_start();
        is_code ^= trimmed.starts_with("```");
        let is_list_item =
            trimmed.starts_with("- ") || trimmed.starts_with(|char: char| char.is_ascii_digit());
        let is_skipped = is_code || trimmed.is_empty() || trimmed.starts_with(['|', '#', '`', '<', '!']);
        if is_list_item || is_skipped {
            faults.extend(long_sentence(&paragraph).map(|words| too_long(name, start, words)));
            paragraph.clear();
            start = number;
        }
        if !is_skipped {
            paragraph.push(' ');
            paragraph.push_str(trimmed);
        }
    }
    faults
}

/// The number of words in the first sentence that is too long.
fn long_sentence(paragraph: &str) -> Option<usize> {
    let sentences = paragraph.split_inclusive(['.', '?', '!', ':', ';']);
    let mut words = 0;
    for sentence in sentences {
        words += sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
        if words > SENTENCE_WORDS_MAX {
            return Some(words);
        }
        // A period inside a name or a number also resets the count, so some long sentences are not detected.
        words = 0;
    }
    None
}

fn too_long(name: &str, line: usize, words: usize) -> String {
    format!(
        "{name}:{line}: a sentence in this paragraph has {words} words; the limit is {SENTENCE_WORDS_MAX}"
    )
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                collect(&path, files)?;
            }
        } else if EXTENSIONS.iter().any(|extension| path.extension().is_some_and(|found| found == *extension))
            && name != "api.gen.ts"
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_as_whole_words() {
        let marked = format!("// {} calls again", MARKERS[0]);
        assert_eq!(find_markers("a.rs", &marked).len(), 1);
        assert!(find_markers("a.rs", "let x_nobody_y = 1; // any_body").is_empty());
    }

    #[test]
    fn long_sentences_are_found_outside_tables_and_code() {
        let long = "word ".repeat(SENTENCE_WORDS_MAX + 1);
        assert_eq!(find_long_sentences("a.md", &long).len(), 1);
        assert!(find_long_sentences("a.md", &format!("| {long} |\n```\n{long}\n```\n")).is_empty());
        assert!(
            find_long_sentences("a.md", &format!("{}. {}.", "word ".repeat(30), "word ".repeat(30)))
                .is_empty()
        );
    }
}
