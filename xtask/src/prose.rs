//! Plain English: no marker words of the dialect this project once had, and no sentence in the docs that is too long to read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Words and phrases that hide the actor or stand for a plain verb. Split, so that this file does not match itself.
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
/// Lines that may keep a marker, by a part of the line: names on the wire, sample data and quotations.
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
/// The most words of a sentence in a paragraph of the docs.
const SENTENCE_WORDS_MAX: usize = 40;
const ENDINGS: &[&str] = &["rs", "ts", "tsx", "mjs", "css", "html", "md", "sql", "toml", "yaml", "yml", "py"];
/// Where prose is, relative to the root.
const PLACES: &[&str] = &["crates", "xtask", "web/src", "web/tests", "docs", "examples", "fuzz"];
const FILES: &[&str] = &["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.toml", "deny.toml"];
/// Directories of data, of dependencies and of generated files.
const SKIPPED: &[&str] = &["target", "node_modules", "fixtures", "seeds", "corpus", "artifacts", "data"];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    for place in PLACES {
        collect(&root.join(place), &mut files)?;
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
                "{name}:{number} has {marker:?}: name the actor, or use a plain verb (docs/STYLE.md)"
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

/// Sentences of paragraphs and list items; tables, headings and code have their own rules.
fn find_long_sentences(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut paragraph, mut start, mut is_code) = (String::new(), 1, false);
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        let trimmed = line.trim_start();
        is_code ^= trimmed.starts_with("```");
        let begins = trimmed.starts_with("- ") || trimmed.starts_with(|char: char| char.is_ascii_digit());
        let is_other = is_code || trimmed.is_empty() || trimmed.starts_with(['|', '#', '`', '<', '!']);
        if begins || is_other {
            faults.extend(long_sentence(&paragraph).map(|words| too_long(name, start, words)));
            paragraph.clear();
            start = number;
        }
        if !is_other {
            paragraph.push(' ');
            paragraph.push_str(trimmed);
        }
    }
    faults
}

/// The number of words of the first sentence that is too long.
fn long_sentence(paragraph: &str) -> Option<usize> {
    let sentences = paragraph.split_inclusive(['.', '?', '!', ':', ';']);
    let mut words = 0;
    for piece in sentences {
        words += piece.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
        if words > SENTENCE_WORDS_MAX {
            return Some(words);
        }
        // A period inside a name or a number does not end a sentence.
        words = 0;
    }
    None
}

fn too_long(name: &str, line: usize, words: usize) -> String {
    format!(
        "{name}:{line} begins a paragraph with a sentence of {words} words; the limit is {SENTENCE_WORDS_MAX}"
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
        } else if ENDINGS.iter().any(|ending| path.extension().is_some_and(|found| found == *ending))
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
