//! Files that a chat message mentions as `@path`. Pure, except for the check whether a path is a file.

use std::path::{Path, PathBuf};

/// Maximum number of mentioned files per message.
pub const MENTIONS_MAX: usize = 20;

/// The files that a message mentions, and the mentions that look like paths but name no file.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Mentions {
    pub files: Vec<PathBuf>,
    pub missing: Vec<String>,
}

/// Find the mentions in a message: `@` at the start of a word, followed by a path, or by a path in double quotes. A word
/// that names no file is text, such as a user name.
pub fn find(text: &str, is_file: impl Fn(&Path) -> bool) -> Mentions {
    let mut found = Mentions::default();
    for start in mention_starts(text) {
        let rest = &text[start + 1..];
        let (path, is_quoted) = match rest.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
            Some((path, _)) => (path, true),
            None => (rest.split_whitespace().next().unwrap_or_default(), false),
        };
        match existing(path, is_quoted, &is_file) {
            Some(file) if !found.files.contains(&file) => found.files.push(file),
            Some(_) => {}
            None if is_quoted || path.contains('/') || has_extension(path) => {
                found.missing.push(path.to_owned())
            }
            None => {}
        }
        if found.files.len() + found.missing.len() >= MENTIONS_MAX {
            break;
        }
    }
    found
}

/// The positions of `@` at the start of a word. An address such as ana@example.org is not a mention.
fn mention_starts(text: &str) -> Vec<usize> {
    let is_start = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|letter| letter.is_whitespace() || matches!(letter, '(' | '['))
    };
    text.match_indices('@').map(|(at, _)| at).filter(|at| is_start(*at)).collect()
}

/// The file that a mention names, without punctuation that belongs to the sentence.
fn existing(path: &str, is_quoted: bool, is_file: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut path = path;
    loop {
        let file = expand(path);
        if !path.is_empty() && is_file(&file) {
            return Some(file);
        }
        path = path.strip_suffix([',', '.', ';', ':', '!', '?', ')', ']']).filter(|_| !is_quoted)?;
    }
}

fn has_extension(path: &str) -> bool {
    Path::new(path.trim_end_matches(['.', ',', '?', '!'])).extension().is_some()
}

/// Replace `~/` by the user's home directory.
fn expand(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentions(text: &str) -> (Vec<String>, Vec<String>) {
        let known = ["report.pdf", "a/b.txt", "my file.md", "Makefile"];
        let found = find(text, |path| known.iter().any(|file| Path::new(file) == path));
        (found.files.iter().map(|path| path.display().to_string()).collect(), found.missing)
    }

    #[test]
    fn files_are_found_and_other_words_are_text() {
        assert_eq!(mentions("read @report.pdf, then (@a/b.txt).").0, ["report.pdf", "a/b.txt"]);
        assert_eq!(mentions("see @\"my file.md\" and @Makefile @Makefile").0, ["my file.md", "Makefile"]);
        assert_eq!(mentions("ask @ana or bob@report.pdf, @ and @@"), (vec![], vec![]));
        assert_eq!(mentions("read @missing.txt and @x/y").1, ["missing.txt", "x/y"]);
    }
}
