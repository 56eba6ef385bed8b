//! Splits a command line into words without a shell. Pure. Quotes and backslashes work as in a shell. Nothing is
//! expanded. Syntax that only a shell could execute is an error instead of an argument.

/// Characters that are shell syntax outside of quotes.
const OPERATORS: &[char] = &[';', '&', '|', '<', '>', '`', '(', ')', '\n', '\r'];
/// Maximum number of words of a command, and maximum size of all words, in bytes.
pub const WORDS_MAX: usize = 1_000;
pub const LINE_BYTES_MAX: usize = 100_000;

/// Split a command line into words.
pub fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => take_quoted(c, &mut chars, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("the command ends in a backslash")?),
            c if OPERATORS.contains(&c) => {
                return Err(format!("there is no shell, so {c:?} is not supported"));
            }
            '$' if matches!(chars.peek(), Some('(' | '{')) => {
                return Err("there is no shell, so $ is not expanded".to_owned());
            }
            ' ' | '\t' => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn take_quoted(quote: char, chars: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), String> {
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => return Ok(()),
            '\\' if quote == '"' => match chars.next() {
                Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                Some(other) => word.extend(['\\', other]),
                None => break,
            },
            c => word.push(c),
        }
    }
    Err(format!("the quote {quote} is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_words_like_a_shell() {
        for (line, expected) in [
            ("git status", vec!["git", "status"]),
            ("  a   b\tc ", vec!["a", "b", "c"]),
            ("echo 'a b' \"c d\" e\\ f", vec!["echo", "a b", "c d", "e f"]),
            ("echo '' \"\"", vec!["echo", "", ""]),
            ("echo 'a'\"b\"c", vec!["echo", "abc"]),
            ("echo \"\\\"x\\\" \\n\"", vec!["echo", "\"x\" \\n"]),
            ("echo '; rm x' '$(id)' \"a|b\"", vec!["echo", "; rm x", "$(id)", "a|b"]),
            ("echo *.rs ~ $HOME", vec!["echo", "*.rs", "~", "$HOME"]),
        ] {
            assert_eq!(split_words(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn rejects_shell_syntax() {
        for line in
            ["a; b", "a && b", "a | b", "a > f", "a < f", "a `b`", "a $(b)", "a ${B}", "a\nb", "(a)", "a &"]
        {
            assert!(split_words(line).unwrap_err().contains("no shell"), "{line}");
        }
        for line in ["echo 'a", "echo \"a", "echo a\\"] {
            assert!(split_words(line).is_err(), "{line}");
        }
    }
}
