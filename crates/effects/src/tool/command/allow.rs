//! The allowlist of commands that an agent may run. Pure.
//!
//! A pattern is a command line. It is compared word by word with the actual arguments, so that quotes or separators
//! inside an argument cannot make one command look like another. In a word, `*`, `?` and `[…]` match characters of
//! that argument except a slash, which only `**` matches. A single `*` as the last word matches any further
//! arguments. A word that begins with a wildcard does not match an argument that begins with `-`, because that could
//! be an unintended option.

use globset::{GlobBuilder, GlobMatcher};

use super::words::split_words;

/// As the last word of a pattern, matches any further arguments.
const REST: &str = "*";
const WILD: &[char] = &['*', '?', '[', '{'];

/// The allowed commands of one grant.
pub struct Allowlist(Vec<Pattern>);

struct Pattern {
    text: String,
    words: Vec<WordPattern>,
    extra: ExtraArguments,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtraArguments {
    None,
    Any,
}

enum WordPattern {
    Exact(String),
    Glob { glob: GlobMatcher, start: GlobStart },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GlobStart {
    Wild,
    Fixed,
}

impl Allowlist {
    /// Parse the patterns. The error contains the invalid pattern and the reason.
    pub fn read(patterns: &[String]) -> Result<Self, (String, String)> {
        let read = |text: &String| Pattern::read(text).map_err(|why| (text.clone(), why));
        patterns.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub fn allows(&self, command: &[String]) -> bool {
        self.0.iter().any(|pattern| pattern.matches(command))
    }

    /// The patterns as text for the error message of a refused command.
    pub fn describe(&self) -> String {
        self.0.iter().map(|pattern| pattern.text.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl Pattern {
    fn read(text: &str) -> Result<Self, String> {
        let mut words = split_words(text)?;
        let mut extra = ExtraArguments::None;
        if words.len() > 1 && words.last().is_some_and(|word| word == REST) {
            words.pop();
            extra = ExtraArguments::Any;
        }
        if words.is_empty() || words[0].is_empty() {
            return Err("the program is missing".to_owned());
        }
        if words[0].starts_with(WILD) {
            return Err("it matches every program: name a specific program".to_owned());
        }
        let words = words.iter().map(|word| WordPattern::read(word)).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), words, extra })
    }

    fn matches(&self, command: &[String]) -> bool {
        let is_long_enough = match self.extra {
            ExtraArguments::None => command.len() == self.words.len(),
            ExtraArguments::Any => command.len() >= self.words.len(),
        };
        is_long_enough && self.words.iter().zip(command).all(|(word, argument)| word.matches(argument))
    }
}

impl WordPattern {
    fn read(word: &str) -> Result<Self, String> {
        if !word.contains(WILD) {
            return Ok(WordPattern::Exact(word.to_owned()));
        }
        let glob = GlobBuilder::new(word).literal_separator(true).backslash_escape(false).build();
        let glob = glob.map_err(|why| why.to_string())?.compile_matcher();
        let start = if word.starts_with(WILD) { GlobStart::Wild } else { GlobStart::Fixed };
        Ok(WordPattern::Glob { glob, start })
    }

    fn matches(&self, argument: &str) -> bool {
        match self {
            WordPattern::Exact(word) => word == argument,
            WordPattern::Glob { start: GlobStart::Wild, .. } if argument.starts_with('-') => false,
            // `..` could escape the directory of the glob.
            WordPattern::Glob { .. } if argument.split('/').any(|part| part == "..") => false,
            WordPattern::Glob { glob, .. } => glob.is_match(argument),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(pattern: &str, command: &[&str]) -> bool {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        Allowlist::read(&[pattern.to_owned()]).unwrap_or_else(|_| panic!("{pattern}")).allows(&command)
    }

    #[test]
    fn a_pattern_without_wildcards_matches_one_exact_command() {
        assert!(allows("git status", &["git", "status"]));
        assert!(allows("echo 'a b'", &["echo", "a b"]));
        for other in [
            &["git"][..],
            &["git", "status", "-s"],
            &["git status"],
            &["GIT", "status"],
            &["/usr/bin/git", "status"],
            &["./git", "status"],
            &["git", "status;rm"],
        ] {
            assert!(!allows("git status", other), "{other:?}");
        }
        assert!(allows("cargo", &["cargo"]) && !allows("cargo", &["cargo", "run"]));
    }

    #[test]
    fn a_star_at_the_end_matches_any_further_arguments() {
        assert!(allows("git log *", &["git", "log"]));
        assert!(allows("git log *", &["git", "log", "--all", "a/b"]));
        assert!(!allows("git log *", &["git", "push", "log"]));
        assert!(!allows("git log *", &["git", "log2"]));
    }

    #[test]
    fn wildcards_stay_within_their_argument_and_directory() {
        assert!(allows("cat src/*.rs", &["cat", "src/a.rs"]));
        for escape in [
            &["cat", "src/a", "b.rs"][..],
            &["cat", "src/../secret.rs"],
            &["cat", "src/a/b.rs"],
            &["cat", "src/a.rs", "x"],
        ] {
            assert!(!allows("cat src/*.rs", escape), "{escape:?}");
        }
        assert!(allows("cat src/**", &["cat", "src/a/b.rs"]) && !allows("cat src/**", &["cat", "src/../x"]));
        assert!(
            !allows("sort *.txt", &["sort", "--output=a.txt"]) && allows("sort *.txt", &["sort", "a.txt"])
        );
    }

    #[test]
    fn a_pattern_that_matches_every_program_or_none_is_rejected() {
        for pattern in ["*", "* *", "?", "", "  ", "a; b", "a 'b", "a [b"] {
            assert!(Allowlist::read(&[pattern.to_owned()]).is_err(), "{pattern:?}");
        }
    }
}
