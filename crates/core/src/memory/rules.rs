//! Memory extraction without a model: sentences with typical openings, such as "remember that", and repeated tool
//! errors. The rules are deterministic and conservative: missed memories can be added manually.

use std::collections::HashMap;

use super::sentence::{after_words, statements};
use super::text_similarity::words;
use super::{CANDIDATES_MAX, Candidate, Tone, is_from_owner, is_storable};
use crate::content::Part;
use crate::entry::{Body, Entry, ToolResult};
use crate::id::EntryId;
use crate::port::memory::MemoryKind;
use crate::scope::Principal;

/// Which part of a matching sentence is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeptText {
    Whole,
    /// The text after the cue.
    Rest,
}

use KeptText::{Rest, Whole};
use MemoryKind::{Decision, Fact, Preference};

/// Openings of sentences that are worth keeping. The first match counts.
const CUES: &[(&str, MemoryKind, KeptText)] = &[
    ("remember that", Fact, Rest),
    ("remember to", Preference, Rest),
    ("remember", Fact, Rest),
    ("keep in mind that", Fact, Rest),
    ("keep in mind", Fact, Rest),
    ("don't forget that", Fact, Rest),
    ("do not forget that", Fact, Rest),
    ("don't forget", Fact, Rest),
    ("note that", Fact, Rest),
    ("for the record", Fact, Rest),
    ("for future reference", Fact, Rest),
    ("i prefer", Preference, Whole),
    ("i'd prefer", Preference, Whole),
    ("i would prefer", Preference, Whole),
    ("i'd rather", Preference, Whole),
    ("i always", Preference, Whole),
    ("i never", Preference, Whole),
    ("i like", Preference, Whole),
    ("i love", Preference, Whole),
    ("i hate", Preference, Whole),
    ("i dislike", Preference, Whole),
    ("i don't like", Preference, Whole),
    ("i do not like", Preference, Whole),
    ("i can't stand", Preference, Whole),
    ("i want you to always", Preference, Whole),
    ("i want you to never", Preference, Whole),
    ("always", Preference, Whole),
    ("never", Preference, Whole),
    ("from now on", Preference, Rest),
    ("in future", Preference, Rest),
    ("in the future", Preference, Rest),
    ("my favourite", Preference, Whole),
    ("my favorite", Preference, Whole),
    ("my preference is", Preference, Whole),
    ("call me", Preference, Whole),
    ("we decided", Decision, Whole),
    ("we've decided", Decision, Whole),
    ("we have decided", Decision, Whole),
    ("i decided", Decision, Whole),
    ("i've decided", Decision, Whole),
    ("we agreed", Decision, Whole),
    ("we chose", Decision, Whole),
    ("we settled on", Decision, Whole),
    ("let's go with", Decision, Whole),
    ("let us go with", Decision, Whole),
    ("we'll go with", Decision, Whole),
    ("we will go with", Decision, Whole),
    ("we're going with", Decision, Whole),
    ("the decision is", Decision, Whole),
    ("decision", Decision, Rest),
    ("my name is", Fact, Whole),
    ("i am a", Fact, Whole),
    ("i am an", Fact, Whole),
    ("i am the", Fact, Whole),
    ("i am allergic", Fact, Whole),
    ("i'm a", Fact, Whole),
    ("i'm an", Fact, Whole),
    ("i'm the", Fact, Whole),
    ("i'm allergic", Fact, Whole),
    ("i work", Fact, Whole),
    ("i live", Fact, Whole),
    ("i use", Fact, Whole),
    ("i speak", Fact, Whole),
    ("i was born", Fact, Whole),
    ("i moved to", Fact, Whole),
    ("i own", Fact, Whole),
    ("i drive", Fact, Whole),
    ("i play", Fact, Whole),
    ("i drink", Fact, Whole),
    ("i take", Fact, Whole),
    ("we use", Fact, Whole),
    ("we run", Fact, Whole),
    ("we deploy", Fact, Whole),
    ("we host", Fact, Whole),
    ("we store", Fact, Whole),
    ("we ship", Fact, Whole),
    ("we release", Fact, Whole),
    ("we keep", Fact, Whole),
    ("we meet", Fact, Whole),
    ("we target", Fact, Whole),
    ("we moved", Fact, Whole),
    ("we switched", Fact, Whole),
];

/// Openings of sentences that correct an earlier statement.
const CORRECTIONS: &[&str] = &[
    "no",
    "nope",
    "actually",
    "correction",
    "that's wrong",
    "that is wrong",
    "that's not right",
    "not quite",
    "wrong",
    "i meant",
    "i mean",
    "sorry",
];

/// Stative verbs, which describe a possession or property of the speaker.
const STATIVES: &[&str] = &[
    "is", "are", "was", "runs", "run", "lives", "live", "uses", "use", "has", "have", "works", "starts",
    "ends", "costs", "needs", "listens", "belongs", "expires", "closes", "opens", "plays", "sits", "takes",
    "goes", "speaks",
];
/// Number of leading words among which a stative verb must occur.
const STATIVE_WORDS_MAX: usize = 8;
/// A sentence that starts with "the" is a fact only if it contains one of these phrases.
const NAMING: &[&str] = &[
    "is called",
    "is named",
    "are called",
    "lives in",
    "lives at",
    "lives on",
    "runs on",
    "is hosted",
    "listens on",
    "is at",
    "is on",
    "is stored",
    "is kept",
    "belongs to",
    "is owned",
    "is due",
    "starts at",
    "starts on",
];

/// Extract up to [`CANDIDATES_MAX`] statements and error patterns from these entries.
pub fn extract(entries: &[Entry], owner: &Principal) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for entry in entries.iter().filter(|entry| is_from_owner(entry, owner)) {
        for statement in statements(&entry.body.text()) {
            found.extend(candidate_of(&statement, entry.meta.id));
        }
    }
    found.extend(error_patterns(entries));
    found.retain(|candidate| is_storable(&candidate.text));
    found.truncate(CANDIDATES_MAX);
    found
}

fn candidate_of(statement: &str, entry: EntryId) -> Option<Candidate> {
    let corrected = CORRECTIONS.iter().find_map(|cue| after_words(statement, cue));
    let (statement, tone) = match corrected {
        Some(rest) => (rest, Tone::Corrects),
        None => (statement, Tone::Plain),
    };
    let (kind, text) =
        match_cue(statement).or_else(|| match_fact(statement).map(|kind| (kind, statement)))?;
    let text = normalize(text)?;
    Some(Candidate { kind, text, entries: vec![entry], tone })
}

fn match_cue(statement: &str) -> Option<(MemoryKind, &str)> {
    CUES.iter().find_map(|(cue, kind, keep)| {
        let rest = after_words(statement, cue)?;
        Some((*kind, if *keep == Rest { rest } else { statement }))
    })
}

/// Whether the statement is a fact: it starts with "my" or "our" and has a stative verb, or it starts with
/// "the" and has a naming phrase.
fn match_fact(statement: &str) -> Option<MemoryKind> {
    let first = ["my", "our"].iter().find_map(|cue| after_words(statement, cue));
    if let Some(rest) = first {
        let leading: Vec<String> = words(rest).into_iter().take(STATIVE_WORDS_MAX).collect();
        let position = leading.iter().position(|word| STATIVES.contains(&word.as_str()))?;
        return (position > 0).then_some(Fact);
    }
    after_words(statement, "the")?;
    let lower = statement.to_lowercase();
    NAMING.iter().any(|naming| lower.contains(&format!(" {naming} "))).then_some(Fact)
}

/// Normalize a sentence: no final punctuation, capitalized. `None` if it has fewer than two words.
fn normalize(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches([';', '.', '!', ',', ':']).trim_end();
    let mut chars = text.chars();
    let first = chars.next()?;
    (words(text).len() >= 2).then(|| first.to_uppercase().chain(chars).collect())
}

/// Number of occurrences from which an error counts as a pattern.
const ERRORS_MIN: usize = 2;
/// Maximum length of an error, in characters.
const ERROR_CHARS_MAX: usize = 200;
/// Maximum length of the input of the successful call, in characters.
const INPUT_CHARS_MAX: usize = 160;

struct RepeatedError {
    tool: String,
    /// The first line of the latest occurrence.
    shown: String,
    entries: Vec<EntryId>,
    /// The input of the next successful call.
    fixed_by: Option<String>,
}

/// Find repeated errors of one tool, and the input of the next successful call.
fn error_patterns(entries: &[Entry]) -> Vec<Candidate> {
    let mut inputs: HashMap<&str, (&str, &str)> = HashMap::new();
    let mut errors: Vec<(String, RepeatedError)> = Vec::new();
    for entry in entries {
        for call in entry.body.parts().iter().filter_map(Part::as_tool_call) {
            inputs.insert(&call.call_id, (&call.name, call.input.get()));
        }
        let Body::ToolResult(result) = &entry.body else { continue };
        let call = inputs.get(result.call_id.as_str());
        let Some(tool) = result.tool.as_deref().or(call.map(|(name, _)| *name)) else { continue };
        match result.is_error {
            true => record_error(&mut errors, tool, result, entry.meta.id),
            false => {
                let input = call.map(|(_, input)| cut(input, INPUT_CHARS_MAX));
                let open =
                    errors.iter_mut().filter(|(_, error)| error.tool == tool && error.fixed_by.is_none());
                open.for_each(|(_, error)| error.fixed_by.clone_from(&input));
            }
        }
    }
    errors
        .into_iter()
        .filter(|(_, error)| error.entries.len() >= ERRORS_MIN)
        .map(|(_, error)| pattern_of(error))
        .collect()
}

fn record_error(errors: &mut Vec<(String, RepeatedError)>, tool: &str, result: &ToolResult, entry: EntryId) {
    let text = crate::content::joined_text(&result.parts);
    let Some(line) = text.lines().map(str::trim).find(|line| !line.is_empty()) else { return };
    let signature = format!("{tool}\n{}", line.replace(|c: char| c.is_ascii_digit(), "#"));
    let shown = cut(line, ERROR_CHARS_MAX);
    let position = errors.iter().position(|(known, _)| *known == signature);
    match position {
        Some(position) => {
            let (_, error) = &mut errors[position];
            error.entries.push(entry);
            error.shown = shown;
            // The same error occurred again, so the apparent fix did not work.
            error.fixed_by = None;
        }
        None if errors.len() < CANDIDATES_MAX => {
            let error = RepeatedError { tool: tool.to_owned(), shown, entries: vec![entry], fixed_by: None };
            errors.push((signature, error));
        }
        None => {}
    }
}

fn pattern_of(error: RepeatedError) -> Candidate {
    let fixed_by = error.fixed_by.map(|input| format!("; it worked with {input}")).unwrap_or_default();
    let text = format!("The tool {} failed repeatedly with {:?}{fixed_by}", error.tool, error.shown);
    Candidate { kind: MemoryKind::ErrorPattern, text, entries: error.entries, tone: Tone::Plain }
}

fn cut(text: &str, chars_max: usize) -> String {
    let mut cut: String = text.chars().take(chars_max).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}
