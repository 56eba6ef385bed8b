//! Compares a new statement with known memories: is it a repetition, a contradiction, or new? The comparison uses words
//! only, so it may miss relations that a person would see. In that case both statements are kept.

use std::collections::BTreeSet;

use super::text_similarity::{is_negation, stems, words};
use super::{Candidate, Tone};
use crate::id::MemoryId;
use crate::port::memory::{Memory, MemoryKind};

/// Minimum share of common stems for two texts to count as repetitions.
const SAME_SHARE: f64 = 0.85;
/// Minimum share of common stems, relative to the shorter text, for a correction to replace a memory.
const CORRECTED_SHARE: f64 = 0.5;
const CORRECTED_STEMS_MIN: usize = 2;

/// The relation of a new statement to known memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    New,
    /// Repeats this memory.
    Strengthens(MemoryId),
    /// Contradicts this memory and replaces it.
    Supersedes(MemoryId),
}

/// Verbs that link a subject to its description.
const LINKS: &[&str] = &[
    "is", "are", "was", "were", "runs", "run", "lives", "live", "uses", "use", "starts", "ends", "costs",
    "listens", "belongs", "expires", "closes", "opens", "prefer", "prefers", "works", "work", "has", "moved",
    "switched",
];
/// Verbs that allow only one object at a time, so that a second object replaces the first.
const SINGULAR: &[&str] = &["live", "work", "moved", "born"];
/// Prepositions that introduce the purpose of a statement.
const PURPOSES: &[&str] = &["for", "in", "when", "on"];

/// A parsed statement.
struct Statement {
    kind: MemoryKind,
    words: Vec<String>,
    all: BTreeSet<String>,
    numbers: BTreeSet<String>,
    is_negated: bool,
    /// The subject and its description.
    slot: Option<(BTreeSet<String>, BTreeSet<String>)>,
    /// The preferred option and the alternative.
    preference: Option<(BTreeSet<String>, BTreeSet<String>)>,
}

/// The relation of a candidate to current memories. A repetition of any memory takes precedence over a
/// contradiction. A contradiction never counts as a repetition, although it often repeats all but one word.
pub fn relate<'a>(candidate: &Candidate, known: impl Iterator<Item = &'a Memory> + Clone) -> Relation {
    let new = Statement::read(candidate.kind, &candidate.text);
    let parse = |memory: &Memory| Statement::read(memory.kind, &memory.text);
    if let Some(memory) = known.clone().find(|memory| new.repeats(&parse(memory))) {
        return Relation::Strengthens(memory.id);
    }
    if let Some(memory) = known.clone().find(|memory| new.contradicts(&parse(memory))) {
        return Relation::Supersedes(memory.id);
    }
    if candidate.tone == Tone::Corrects {
        let corrected = known.map(|memory| (new.overlap_with(&parse(memory)), memory));
        let best = corrected.filter(|(share, _)| *share >= CORRECTED_SHARE);
        if let Some((_, memory)) = best.max_by(|(one, _), (other, _)| one.total_cmp(other)) {
            return Relation::Supersedes(memory.id);
        }
    }
    Relation::New
}

fn set(stems: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    stems.into_iter().collect()
}

impl Statement {
    fn read(kind: MemoryKind, text: &str) -> Self {
        let words = words(text);
        let is_number = |word: &String| word.bytes().any(|byte| byte.is_ascii_digit());
        let mut all = set(stems(text));
        let mut numbers = set(words.iter().filter(|word| is_number(word)).cloned());
        if kind == MemoryKind::ErrorPattern {
            // Ignore the line numbers, ports and times in errors: they differ each time.
            numbers.clear();
            all.retain(|stem| !is_number(stem));
        }
        Self {
            kind,
            all,
            numbers,
            // "Never" and "not" together count as one negation, as in colloquial English.
            is_negated: words.iter().any(|word| is_negation(word)),
            slot: slot_of(&words),
            preference: preference_of(&words),
            words,
        }
    }

    fn repeats(&self, other: &Self) -> bool {
        if self.words == other.words {
            return true;
        }
        let common = self.all.intersection(&other.all).count() as f64;
        let union = self.all.union(&other.all).count().max(1) as f64;
        let differs =
            self.slot.as_ref().zip(other.slot.as_ref()).is_some_and(|(one, other)| differ(one, other));
        (self.kind == MemoryKind::ErrorPattern) == (other.kind == MemoryKind::ErrorPattern)
            && self.is_negated == other.is_negated
            && self.numbers == other.numbers
            && !differs
            && !self.reverses_preference_of(other)
            && common / union >= SAME_SHARE
    }

    fn contradicts(&self, other: &Self) -> bool {
        if self.kind == MemoryKind::ErrorPattern || other.kind == MemoryKind::ErrorPattern {
            return false;
        }
        let common = self.all.intersection(&other.all).count() as f64;
        let union = self.all.union(&other.all).count().max(1) as f64;
        let is_negated_differently = self.is_negated != other.is_negated && common / union >= SAME_SHARE;
        let differs =
            self.slot.as_ref().zip(other.slot.as_ref()).is_some_and(|(one, other)| differ(one, other));
        is_negated_differently || differs || self.reverses_preference_of(other)
    }

    /// Whether the two statements have opposite preferences.
    fn reverses_preference_of(&self, other: &Self) -> bool {
        let Some(((liked, less), (other_liked, other_less))) =
            self.preference.as_ref().zip(other.preference.as_ref())
        else {
            return false;
        };
        liked == other_less && less == other_liked
    }

    fn overlap_with(&self, other: &Self) -> f64 {
        let common = self.all.intersection(&other.all).count();
        match common >= CORRECTED_STEMS_MIN {
            true => common as f64 / self.all.len().min(other.all.len()).max(1) as f64,
            false => 0.0,
        }
    }
}

/// Whether two statements describe the same subject differently. Additional detail is not a contradiction.
fn differ(one: &(BTreeSet<String>, BTreeSet<String>), other: &(BTreeSet<String>, BTreeSet<String>)) -> bool {
    one.0 == other.0 && !one.1.is_subset(&other.1) && !other.1.is_subset(&one.1)
}

/// Split a statement into subject and description. "Our staging database is heron" describes the staging database. "We
/// use Redis for sessions" describes the choice for sessions. "We use Redis" has no subject: several choices are
/// possible.
fn slot_of(words: &[String]) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let link = words.iter().position(|word| LINKS.contains(&word.as_str()))?;
    let verb = &words[link];
    let about = set(stems(&words[..link].join(" ")));
    let predicate = &words[link + 1..];
    if !about.is_empty() {
        let value = set(stems(&predicate.join(" ")));
        return (!value.is_empty()).then_some((about, value));
    }
    let purpose = predicate.iter().rposition(|word| PURPOSES.contains(&word.as_str())).filter(|at| *at > 0);
    if let Some(at) = purpose {
        let (value, purpose) =
            (set(stems(&predicate[..at].join(" "))), set(stems(&predicate[at + 1..].join(" "))));
        let about: BTreeSet<String> = purpose.into_iter().chain([format!("{verb} for")]).collect();
        return (about.len() > 1 && !value.is_empty()).then_some((about, value));
    }
    let value = set(stems(&predicate.join(" ")));
    (SINGULAR.contains(&verb.as_str()) && !value.is_empty()).then(|| (set([format!("i {verb}")]), value))
}

/// Split a preference: "I prefer tabs to spaces" yields tabs and spaces.
fn preference_of(words: &[String]) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let prefers = ["prefer", "prefers", "rather", "use"];
    let start = words.iter().position(|word| prefers.contains(&word.as_str()))?;
    let predicate = &words[start + 1..];
    let over =
        predicate.iter().position(|word| ["over", "to", "than", "instead"].contains(&word.as_str()))?;
    let (liked, less) =
        (set(stems(&predicate[..over].join(" "))), set(stems(&predicate[over + 1..].join(" "))));
    (!liked.is_empty() && !less.is_empty()).then_some((liked, less))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fixture;

    fn relation(new: &str, tone: Tone, known: &str) -> &'static str {
        let candidate = Candidate { kind: MemoryKind::Fact, text: new.to_owned(), entries: Vec::new(), tone };
        match relate(&candidate, [fixture::memory(1, known)].iter()) {
            Relation::New => "new",
            Relation::Strengthens(_) => "same",
            Relation::Supersedes(_) => "instead",
        }
    }

    #[test]
    fn repetitions_contradictions_and_new_statements_are_distinguished() {
        let table = [
            ("Our staging database is heron", "The staging database is called heron", "same"),
            ("Our staging database is heron", "The staging database is osprey", "instead"),
            ("I prefer tabs", "I prefer tabs!", "same"),
            ("I prefer tabs to spaces", "I prefer spaces over tabs", "instead"),
            ("Always squash commits", "Never squash commits", "instead"),
            ("Always squash commits", "Always squash your commits", "same"),
            ("I live in Zurich", "I live in Bern", "instead"),
            ("We use Redis", "We use Postgres", "new"),
            ("We use Redis for sessions", "We use Postgres for sessions", "instead"),
            ("We use Redis for sessions", "We use Redis for queues", "new"),
            ("The build listens on port 8080", "The build listens on port 8081", "instead"),
            ("My dog is called Rex", "My cat is called Tom", "new"),
            ("Invoices are due in 30 days", "Invoices are due in 14 days", "instead"),
        ];
        for (known, new, expected) in table {
            assert_eq!(relation(new, Tone::Plain, known), expected, "{new:?} after {known:?}");
        }
    }

    #[test]
    fn a_correction_replaces_a_similar_memory() {
        let known = "Deploys of the shop happen on Friday evening";
        assert_eq!(relation("Deploys of the shop happen on Tuesday", Tone::Plain, known), "new");
        assert_eq!(relation("Deploys of the shop happen on Tuesday", Tone::Corrects, known), "instead");
        assert_eq!(relation("I like rain", Tone::Corrects, known), "new");
    }
}
