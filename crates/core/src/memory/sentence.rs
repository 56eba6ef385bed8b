//! Splits messages into sentences. Code, quotations and questions are skipped, because they are not statements of
//! the author.

/// Maximum length of a sentence in characters, and minimum length in words.
const SENTENCE_CHARS_MAX: usize = 320;
const SENTENCE_WORDS_MIN: usize = 3;
/// Maximum number of sentences per message.
const SENTENCES_MAX: usize = 400;
/// Maximum number of introductory phrases before a sentence.
const LEADS_MAX: usize = 4;
/// Introductory phrases without content.
const LEADS: &[&str] = &[
    "by the way",
    "ok",
    "okay",
    "btw",
    "hey",
    "hi",
    "hello",
    "also",
    "and",
    "but",
    "so",
    "well",
    "yes",
    "yeah",
    "sure",
    "oh",
    "please",
    "thanks",
    "thank you",
    "great",
    "right",
    "fyi",
    "just",
];

/// The statements of a text, each without introductory phrases.
pub fn statements(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code || line.starts_with('>') {
            continue;
        }
        let line = line.trim_start_matches(['-', '*', '•']).trim_start();
        for sentence in split_sentences(line) {
            let sentence = without_leads(sentence);
            let is_statement = !sentence.ends_with('?')
                && sentence.chars().count() <= SENTENCE_CHARS_MAX
                && sentence.split_whitespace().count() >= SENTENCE_WORDS_MIN;
            if is_statement && found.len() < SENTENCES_MAX {
                found.push(sentence.to_owned());
            }
        }
    }
    found
}

/// Split a line after `.`, `!`, `?` and `;` if a space or the end follows, except after an abbreviation.
fn split_sentences(line: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut chars = line.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let is_end = matches!(char, '.' | '!' | '?' | ';')
            && chars.peek().is_none_or(|(_, next)| next.is_whitespace())
            && !ends_in_abbreviation(&line[start..at]);
        if is_end {
            sentences.push(line[start..at + char.len_utf8()].trim());
            start = at + char.len_utf8();
        }
    }
    sentences.push(line[start..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

fn ends_in_abbreviation(text: &str) -> bool {
    ["e.g", "i.e", "etc", "vs", "approx", "Mr", "Mrs", "Dr"]
        .iter()
        .any(|short| text.strip_suffix(short).is_some_and(|rest| !rest.ends_with(char::is_alphanumeric)))
}

fn without_leads(mut sentence: &str) -> &str {
    for _ in 0..LEADS_MAX {
        let found = LEADS.iter().find_map(|lead| after_words(sentence, lead));
        match found {
            Some(rest) if !rest.is_empty() => sentence = rest,
            _ => break,
        }
    }
    sentence
}

/// The text after these leading words and the following punctuation; `None` if the text starts differently.
pub fn after_words<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let head = text.get(..words.len())?;
    let rest = &text[words.len()..];
    let is_whole = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\'' || c == '’');
    (head.eq_ignore_ascii_case(words) && is_whole)
        .then(|| rest.trim_start_matches(|c: char| c.is_whitespace() || ",:;-–—.!".contains(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_split_and_code_quotes_and_questions_skipped() {
        let text = "Hi, please remember that v1.2 ships on Friday. Is that ok? I prefer tabs; thanks!\n\
                    > I never said this to anyone\n```\nlet always = never_mind_this;\n```\n- We use Postgres e.g. for billing.";
        let expected =
            ["remember that v1.2 ships on Friday.", "I prefer tabs;", "We use Postgres e.g. for billing."];
        assert_eq!(statements(text), expected);
    }

    #[test]
    fn only_whole_words_match() {
        assert_eq!(after_words("Actually, it is red", "actually"), Some("it is red"));
        assert_eq!(after_words("Nothing here", "no"), None);
        assert_eq!(after_words("é", "a"), None);
    }
}
