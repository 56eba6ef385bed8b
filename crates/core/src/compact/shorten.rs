//! Shortens texts at character boundaries: a message to one line, an output to its first line, or a long output to its
//! head, tail and error lines.

/// Words that identify error lines. Error lines are kept.
const ERROR_WORDS: &[&str] = &[
    "error",
    "warning",
    "panic",
    "fail",
    "exception",
    "traceback",
    "fatal",
    "assert",
    "denied",
    "not found",
];
/// Maximum length of an error line, in characters.
const ERROR_LINE_CHARS_MAX: usize = 240;

/// The first `chars` characters of a text.
pub fn head(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// The last `chars` characters of a text.
pub fn tail(text: &str, chars: usize) -> &str {
    match chars.checked_sub(1) {
        None => "",
        Some(back) => text.char_indices().nth_back(back).map_or(text, |(start, _)| &text[start..]),
    }
}

/// Convert a text to one line of at most `chars_max` characters, plus `…` if it was cut. Runs of whitespace
/// become one space.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::with_capacity(chars_max.min(text.len()) + 4);
    // Count while writing: a text may be megabytes long, and only its beginning is needed.
    let mut used = 0;
    for word in text.split_whitespace() {
        let gap = usize::from(!line.is_empty());
        let remaining = chars_max.saturating_sub(used + gap);
        let fitting = head(word, remaining);
        if !fitting.is_empty() {
            line.push_str(if gap == 1 { " " } else { "" });
            line.push_str(fitting);
            used += gap + fitting.chars().count();
        }
        if fitting.len() < word.len() {
            line.push('…');
            return line;
        }
    }
    line
}

/// The first non-empty line of at most `chars_max` characters, plus `…` if it was cut.
pub fn first_line(text: &str, chars_max: usize) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let fitting = head(line, chars_max);
    if fitting.len() < line.len() { format!("{fitting}…") } else { fitting.to_owned() }
}

/// Shorten an output to about `chars_max` characters: its head, its tail, and the error lines between them. A note
/// states how much was snipped. `None` if the output is short enough.
pub fn shorten_output(text: &str, chars_max: usize) -> Option<String> {
    let chars = text.chars().count();
    if chars <= chars_max {
        return None;
    }
    // Reserve space for the snip note.
    let available = chars_max.saturating_sub(40);
    let (start, end) = (head(text, available / 3), tail(text, available / 3));
    let middle = &text[start.len()..text.len() - end.len()];
    let (errors, kept_chars) = error_lines(middle, available / 3);
    let snipped = middle.chars().count() - kept_chars;
    let mut short = String::with_capacity(chars_max + 64);
    short.push_str(start);
    short.push_str(&format!("\n[… {snipped} of {chars} characters snipped …]\n"));
    short.push_str(&errors);
    short.push_str(end);
    Some(short)
}

/// The error lines, up to `chars_max` characters, and their length without line breaks.
fn error_lines(text: &str, chars_max: usize) -> (String, usize) {
    let (mut lines, mut used, mut kept) = (String::new(), 0, 0);
    for line in text.lines() {
        let lower = head(line, ERROR_LINE_CHARS_MAX).to_lowercase();
        if !ERROR_WORDS.iter().any(|word| lower.contains(word)) {
            continue;
        }
        let line = head(line, ERROR_LINE_CHARS_MAX);
        let chars = line.chars().count();
        if used + chars + 1 > chars_max {
            break;
        }
        lines.push_str(line);
        lines.push('\n');
        used += chars + 1;
        kept += chars;
    }
    (lines, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_respect_character_boundaries() {
        let text = "日本語 und Grüße 🎉 ".repeat(40);
        for chars in 0..60 {
            assert_eq!(head(&text, chars).chars().count(), chars);
            assert_eq!(tail(&text, chars).chars().count(), chars);
            assert!(one_line(&text, chars).chars().count() <= chars + 1);
            assert!(first_line(&text, chars).chars().count() <= chars + 1);
        }
    }

    #[test]
    fn a_shortened_output_keeps_head_tail_and_errors_and_states_the_snipped_size() {
        let mut lines: Vec<String> = (0..400).map(|n| format!("line {n} of the build is fine")).collect();
        lines[200] = "error[E0308]: mismatched types in src/main.rs".to_owned();
        let text = lines.join("\n");
        let short = shorten_output(&text, 600).unwrap();
        assert!(short.chars().count() <= 620, "{}", short.chars().count());
        assert!(short.starts_with("line 0 of"), "{short}");
        assert!(short.ends_with("line 399 of the build is fine"), "{short}");
        assert!(short.contains("error[E0308]: mismatched types"), "{short}");
        assert!(short.contains(&format!("of {} characters snipped", text.chars().count())), "{short}");
        assert_eq!(shorten_output("short", 600), None);
    }
}
