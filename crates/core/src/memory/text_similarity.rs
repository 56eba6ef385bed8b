//! Text similarity of memories: tokenizing, case folding, stop words, stemming, synonyms and spelling
//! similarity. The rules are for English and harmless for other languages.

use std::collections::{HashMap, HashSet};

/// Frequent words without content, which are ignored.
const STOP_WORDS: &[&str] = &[
    "a",
    "about",
    "all",
    "also",
    "am",
    "an",
    "and",
    "any",
    "are",
    "as",
    "at",
    "be",
    "been",
    "but",
    "by",
    "can",
    "could",
    "did",
    "do",
    "does",
    "for",
    "from",
    "get",
    "got",
    "had",
    "has",
    "have",
    "how",
    "i",
    "id",
    "if",
    "ill",
    "im",
    "in",
    "into",
    "is",
    "it",
    "its",
    "ive",
    "just",
    "let",
    "lets",
    "may",
    "me",
    "more",
    "my",
    "of",
    "off",
    "on",
    "one",
    "or",
    "our",
    "out",
    "please",
    "shall",
    "should",
    "so",
    "some",
    "such",
    "than",
    "that",
    "thats",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "this",
    "those",
    "to",
    "too",
    "up",
    "us",
    "use",
    "used",
    "uses",
    "using",
    "was",
    "we",
    "were",
    "what",
    "whats",
    "when",
    "where",
    "which",
    "who",
    "whom",
    "whose",
    "why",
    "will",
    "with",
    "would",
    "you",
    "your",
    "actually",
    "always",
    "really",
    "very",
    "now",
    "remember",
    "tell",
    "again",
    "want",
    "like",
    "thing",
    "things",
    "something",
    "anything",
    "does",
    "called",
    "named",
];

/// Words that negate a sentence.
const NEGATIONS: &[&str] = &[
    "not", "no", "never", "dont", "doesnt", "didnt", "isnt", "arent", "wasnt", "wont", "cant", "cannot",
    "without", "neither", "nor", "hate", "dislike", "avoid", "longer", "anymore", "stop",
];

/// Groups of synonyms, one per row. A word may occur in several rows.
const SYNONYMS: &[&[&str]] = &[
    &["database", "db", "datastore", "postgres", "postgresql", "mysql", "sqlite"],
    &["deploy", "deployment", "release", "ship", "rollout", "publish", "live"],
    &["server", "host", "machine", "box", "node", "instance"],
    &["editor", "ide", "vim", "emacs", "vscode"],
    &["language", "rust", "python", "typescript", "javascript", "golang"],
    &["boss", "manager", "lead", "supervisor", "chief"],
    &["colleague", "coworker", "teammate", "team", "workmate"],
    &["meeting", "standup", "call", "sync", "appointment", "conversation"],
    &["bug", "defect", "issue", "error", "fault", "failure", "problem", "crash"],
    &["fix", "repair", "mend", "solve", "resolve", "correct", "workaround", "remedy", "cure"],
    &["test", "check", "verify", "spec"],
    &["repository", "repo", "codebase", "source"],
    &["branch", "trunk", "main", "master"],
    &["folder", "directory", "dir"],
    &["configuration", "config", "setting", "option", "preference"],
    &["indent", "indentation", "tab", "space", "whitespace"],
    &["colour", "color", "theme", "shade"],
    &["dark", "night", "black"],
    &["bright", "light", "white"],
    &["prefer", "favourite", "favorite", "like", "favour", "rather", "love", "fond", "enjoy"],
    &["hate", "dislike", "avoid", "allergic", "allergy", "intolerant"],
    &["home", "live", "reside", "house", "flat", "apartment", "address", "city", "town"],
    &["work", "job", "employ", "employer", "company", "office", "occupation", "profession"],
    &["car", "vehicle", "automobile", "drive"],
    &["bike", "bicycle", "cycle"],
    &["dog", "cat", "pet", "puppy", "kitten", "animal"],
    &["wife", "husband", "spouse", "partner"],
    &["child", "kid", "son", "daughter", "children"],
    &["mother", "father", "parent", "mum", "mom", "dad"],
    &["doctor", "physician", "gp", "dentist"],
    &["food", "eat", "meal", "diet", "dish", "cook", "lunch", "dinner", "breakfast", "snack"],
    &["vegetarian", "vegan", "meat", "plant"],
    &["drink", "coffee", "tea", "beverage"],
    &["birthday", "born", "birth"],
    &["money", "budget", "cost", "price", "spend", "expense", "afford"],
    &["salary", "wage", "pay", "income"],
    &["phone", "mobile", "telephone", "cell"],
    &["email", "mail", "inbox", "message"],
    &["holiday", "vacation", "leave", "trip", "travel"],
    &["train", "rail", "railway", "commute"],
    &["flight", "plane", "fly", "airport"],
    &["begin", "start", "kick", "commence", "open"],
    &["end", "finish", "stop", "close", "deadline", "due"],
    &["fast", "quick", "rapid", "speed", "performance"],
    &["slow", "sluggish", "latency", "lag"],
    &["big", "large", "huge", "size"],
    &["small", "tiny", "little", "short", "brief", "terse", "concise"],
    &["long", "verbose", "detailed", "lengthy"],
    &["log", "logging", "trace", "journal"],
    &["monitor", "dashboard", "metric", "observe", "alert", "grafana"],
    &["cache", "redis", "memcached"],
    &["queue", "broker", "kafka", "rabbitmq", "message"],
    &["secret", "credential", "password", "key", "vault"],
    &["customer", "client", "user", "consumer"],
    &["invoice", "bill", "billing", "payment", "charge"],
    &["order", "purchase", "buy"],
    &["document", "doc", "documentation", "readme", "manual", "wiki"],
    &["comment", "remark", "annotation"],
    &["review", "approve", "approval", "sign"],
    &["merge", "squash", "rebase", "integrate"],
    &["commit", "checkin", "changeset", "push"],
    &["build", "compile", "make"],
    &["pipeline", "ci", "workflow", "action"],
    &["container", "docker", "image", "pod", "kubernetes", "cluster"],
    &["cloud", "aws", "azure", "gcp", "hetzner", "provider"],
    &["region", "zone", "location", "datacenter", "datacentre"],
    &["backup", "snapshot", "copy", "archive", "restore"],
    &["port", "socket", "listen"],
    &["url", "link", "address", "endpoint", "site", "website"],
    &["version", "release", "edition"],
    &["library", "package", "dependency", "crate", "module", "framework"],
    &["function", "method", "procedure", "routine"],
    &["format", "formatter", "style", "layout", "lint", "linter", "prettier"],
    &["ticket", "story", "task", "jira", "issue"],
    &[
        "week",
        "weekly",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
        "day",
        "weekday",
    ],
    &["morning", "evening", "afternoon", "hour", "time", "clock", "am", "pm", "oclock"],
    &[
        "month",
        "january",
        "february",
        "march",
        "april",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
        "date",
    ],
    &["timezone", "zone", "utc", "cet"],
    &["decide", "decision", "choose", "choice", "chose", "pick", "settle", "agree", "select"],
    &["require", "need", "must", "mandatory", "demand"],
    &["delete", "remove", "drop", "erase", "discard"],
    &["keep", "retain", "store", "save", "hold"],
    &["explain", "explanation", "describe", "clarify", "answer", "reply", "respond"],
    &["summary", "summarise", "summarize", "overview", "abstract", "recap"],
    &["picture", "photo", "image", "diagram", "figure"],
    &["music", "song", "band", "instrument", "piano", "guitar", "violin"],
    &["sport", "football", "tennis", "running", "swim", "climb", "hobby"],
    &["book", "novel", "read", "author"],
    &["film", "movie", "cinema", "show", "series"],
    &["school", "university", "study", "college", "degree"],
    &["speak", "talk", "language", "tongue", "german", "french", "english", "spanish"],
    &["size", "fit", "shoe", "shirt"],
    &["owner", "responsible", "maintain", "maintainer", "charge"],
];

/// Minimum length of a word for spelling comparison, in characters.
const SPELLED_CHARS_MIN: usize = 4;

/// Split a text into lower-case runs of letters and digits. Apostrophes are dropped, so "don't" is one word.
pub fn words(text: &str) -> Vec<String> {
    let folded = text.to_lowercase().replace(['\'', '’'], "");
    folded.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

pub fn is_negation(word: &str) -> bool {
    NEGATIONS.contains(&word)
}

/// The distinct stems of a text without stop words and negations, in order.
pub fn stems(text: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let kept =
        words(text).into_iter().filter(|word| !STOP_WORDS.contains(&word.as_str()) && !is_negation(word));
    kept.map(|word| stem(&word)).filter(|stem| seen.insert(stem.clone())).collect()
}

/// Remove a word's endings, so that forms of the same word match.
pub fn stem(word: &str) -> String {
    if word.chars().count() <= 3 || !word.is_ascii() || word.bytes().any(|byte| byte.is_ascii_digit()) {
        return word.to_owned();
    }
    let mut word = without_plural(word);
    word = without_past(&word);
    for _ in 0..ENDINGS_MAX {
        let shorter = ENDINGS.iter().find_map(|(ending, instead)| {
            let root = word.strip_suffix(ending).filter(|root| root.len() >= 4)?;
            Some(format!("{root}{instead}"))
        });
        match shorter {
            Some(shorter) => word = shorter,
            None => break,
        }
    }
    let root = word.strip_suffix('e').filter(|root| root.len() >= 3).unwrap_or(&word);
    match root.strip_suffix('y').filter(|root| root.len() >= 3) {
        Some(root) => format!("{root}i"),
        None => root.to_owned(),
    }
}

/// Maximum number of endings removed from one word.
const ENDINGS_MAX: usize = 3;

/// Endings and their replacements. An ending precedes its own suffixes, because the first match is used.
const ENDINGS: &[(&str, &str)] = &[
    ("ization", "ize"),
    ("isation", "ize"),
    ("ations", "ate"),
    ("ation", "ate"),
    ("ments", ""),
    ("ment", ""),
    ("ences", ""),
    ("ence", ""),
    ("ances", ""),
    ("ance", ""),
    ("ators", "ate"),
    ("ator", "ate"),
    ("fully", ""),
    ("ness", ""),
    ("able", ""),
    ("ible", ""),
    ("ions", ""),
    ("ion", ""),
    ("ise", "ize"),
    ("ly", ""),
    ("er", ""),
    ("or", ""),
];

fn without_plural(word: &str) -> String {
    if let Some(root) = word.strip_suffix("ies").filter(|root| root.len() >= 2) {
        return format!("{root}y");
    }
    for ending in ["sses", "xes", "ches", "shes", "zes"] {
        if word.ends_with(ending) {
            return word[..word.len() - 2].to_owned();
        }
    }
    let is_plural = word.ends_with('s') && !["ss", "us", "is"].iter().any(|end| word.ends_with(end));
    word[..word.len() - usize::from(is_plural)].to_owned()
}

fn without_past(word: &str) -> String {
    let Some(root) = word.strip_suffix("ing").or_else(|| word.strip_suffix("ed")) else {
        return word.to_owned();
    };
    let has_vowel = root.bytes().any(|byte| b"aeiouy".contains(&byte));
    if root.len() < 3 || !has_vowel {
        return word.to_owned();
    }
    let bytes = root.as_bytes();
    let (last, before) = (bytes[bytes.len() - 1], bytes[bytes.len() - 2]);
    let is_doubled = last == before && !b"lsz".contains(&last);
    root[..root.len() - usize::from(is_doubled)].to_owned()
}

/// The synonym groups of each stem.
pub struct Lexicon(HashMap<String, Vec<usize>>);

impl Default for Lexicon {
    fn default() -> Self {
        let mut rows: HashMap<String, Vec<usize>> = HashMap::new();
        for (row, words) in SYNONYMS.iter().enumerate() {
            for word in *words {
                let known = rows.entry(stem(word)).or_default();
                if !known.contains(&row) {
                    known.push(row);
                }
            }
        }
        Self(rows)
    }
}

impl Lexicon {
    pub fn are_synonyms(&self, one: &str, other: &str) -> bool {
        let (Some(one), Some(other)) = (self.0.get(one), self.0.get(other)) else { return false };
        one.iter().any(|row| other.contains(row))
    }
}

/// The trigrams of a stem, including its edges. Empty for short stems, where trigrams are not meaningful.
pub fn trigrams(stem: &str) -> Vec<[char; 3]> {
    let chars: Vec<char> = std::iter::once(' ').chain(stem.chars()).chain(std::iter::once(' ')).collect();
    if chars.len() < SPELLED_CHARS_MIN + 2 {
        return Vec::new();
    }
    let mut grams: Vec<[char; 3]> = chars.windows(3).map(|w| [w[0], w[1], w[2]]).collect();
    grams.sort_unstable();
    grams.dedup();
    grams
}

/// Spelling similarity from 0 to 1: the share of common trigrams.
pub fn trigram_similarity(one: &[[char; 3]], other: &[[char; 3]]) -> f64 {
    if one.is_empty() || other.is_empty() {
        return 0.0;
    }
    let common = one.iter().filter(|gram| other.binary_search(gram).is_ok()).count();
    2.0 * common as f64 / (one.len() + other.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_have_the_same_stem() {
        let families: &[&[&str]] = &[
            &["deploy", "deploys", "deployed", "deploying", "deployment", "deployments"],
            &["prefer", "prefers", "preferred", "preference", "preferences"],
            &["database", "databases"],
            &["city", "cities"],
            &["run", "runs", "running"],
            &["test", "tests", "testing", "tested", "tester"],
            &["decide", "decides", "decided"],
            &["summarise", "summarize"],
        ];
        for family in families {
            let stems: HashSet<String> = family.iter().map(|word| stem(word)).collect();
            assert_eq!(stems.len(), 1, "{family:?}: {stems:?}");
        }
        assert_ne!(stem("address"), stem("addres"));
    }

    #[test]
    fn synonyms_and_similar_spellings_are_recognized() {
        let lexicon = Lexicon::default();
        assert!(lexicon.are_synonyms(&stem("database"), &stem("db")));
        assert!(!lexicon.are_synonyms(&stem("database"), &stem("dog")));
        let like = |one: &str, other: &str| trigram_similarity(&trigrams(one), &trigrams(other));
        assert!(like("kubernetes", "kubernets") > 0.7);
        assert!(like("kubernetes", "zurich") < 0.1);
        assert!(like("cat", "car") < f64::EPSILON, "too short to compare");
    }

    #[test]
    fn stems_exclude_stop_words() {
        assert_eq!(stems("What's the name of our staging database?"), ["nam", "stag", "databas"]);
    }
}
