//! Deterministic text with an exact number of words for the demo model.

/// Maximum number of words per answer.
pub const WORDS_MAX: usize = 20_000;

const SUBJECTS: [&str; 7] = [
    "the old oak",
    "a young birch",
    "the sapwood",
    "a grey heron",
    "the forest",
    "one slow river",
    "the morning fog",
];
const VERBS: [&str; 6] = ["remembers", "carries", "follows", "gathers", "keeps", "outlives"];
const OBJECTS: [&str; 8] = [
    "every ring of the year",
    "the rain of the hills",
    "what the roots have found",
    "a path through bracken",
    "the light between the leaves",
    "all that came before it",
    "a branch for each question",
    "the quiet after the storm",
];

/// Write exactly `count` words, in sentences and paragraphs.
pub fn write_words(count: usize) -> String {
    let count = count.min(WORDS_MAX);
    let mut text = String::new();
    let mut written = 0;
    let mut sentence = 0;
    while written < count {
        let line = format!(
            "{} {} {}",
            SUBJECTS[sentence % SUBJECTS.len()],
            VERBS[(sentence / 2) % VERBS.len()],
            OBJECTS[(sentence * 3 + sentence / 5) % OBJECTS.len()]
        );
        let words: Vec<&str> = line.split(' ').take(count - written).collect();
        written += words.len();
        sentence += 1;
        text.push_str(&capitalise(&words.join(" ")));
        text.push_str(if written == count {
            "."
        } else if sentence % 9 == 0 {
            ".\n\n"
        } else {
            ". "
        });
    }
    text
}

fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
