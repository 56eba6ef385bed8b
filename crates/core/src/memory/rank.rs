//! Ranks memories for a question without a model. Rare words count more than common ones, inflected forms count as the
//! same word, and synonyms and similar spellings count less. If question and memory have embeddings of the same model,
//! the cosine similarity counts as much as the words.

use std::collections::{BTreeSet, HashMap};

use super::text_similarity::{Lexicon, stems, trigram_similarity, trigrams};
use crate::port::memory::{Embedding, Memory};

/// The weight of a synonym, and the maximum weight of a similar spelling.
const SYNONYM_WEIGHT: f64 = 0.6;
const SPELLING_WEIGHT_MAX: f64 = 0.8;
/// Minimum similarity for two words to count as spellings of the same word.
const SPELLING_SIMILARITY_MIN: f64 = 0.6;
/// Minimum score for a memory to match.
const SCORE_MIN: f64 = 0.12;
/// Minimum cosine similarity. Lower values are ignored.
const COSINE_MIN: f64 = 0.35;
/// Maximum bonus for support. It matters only between similar scores.
const STRENGTH_BONUS_MAX: f64 = 0.05;

/// A memory and its score, from 0 to about 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked<'a> {
    pub memory: &'a Memory,
    pub score: f64,
}

/// Find the matching memories, best first. Memories with equal scores are sorted newest first.
pub fn rank<'a>(
    question: &str,
    question_embedding: Option<&Embedding>,
    memories: &'a [Memory],
) -> Vec<Ranked<'a>> {
    let texts: Vec<BTreeSet<String>> =
        memories.iter().map(|memory| stems(&memory.text).into_iter().collect()).collect();
    let vocabulary = Vocabulary::of(&texts);
    let terms: Vec<QueryTerm> = stems(question).into_iter().map(|stem| vocabulary.weigh(stem)).collect();
    let all: f64 = terms.iter().map(|term| term.weight).sum();
    let mut ranked: Vec<Ranked<'a>> = memories
        .iter()
        .zip(&texts)
        .filter_map(|(memory, text)| {
            let words =
                if all > 0.0 { terms.iter().map(|term| term.score_in(text)).sum::<f64>() / all } else { 0.0 };
            let score = score(words, similarity(question_embedding, memory))?;
            let strength = STRENGTH_BONUS_MAX * (1.0 - 1.0 / memory.strength() as f64);
            Some(Ranked { memory, score: score + strength })
        })
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.memory.id.cmp(&a.memory.id)));
    ranked
}

fn score(words: f64, similarity: Option<f64>) -> Option<f64> {
    match similarity {
        Some(similarity) if similarity >= COSINE_MIN => Some((words + similarity) / 2.0),
        Some(_) | None => (words >= SCORE_MIN).then_some(words),
    }
}

fn similarity(question_embedding: Option<&Embedding>, memory: &Memory) -> Option<f64> {
    let (question_embedding, known) = (question_embedding?, memory.embedding.as_ref()?);
    (question_embedding.model == known.model)
        .then(|| cosine(&question_embedding.numbers, &known.numbers))
        .flatten()
}

/// The cosine similarity of two embeddings; `None` if their dimensions differ.
pub fn cosine(one: &[i8], other: &[i8]) -> Option<f64> {
    if one.len() != other.len() {
        return None;
    }
    let product =
        |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum::<i64>() as f64;
    let length = (product(one, one) * product(other, other)).sqrt();
    (length > 0.0).then(|| product(one, other) / length)
}

/// Quantise an embedding to small integers. The largest absolute value becomes 127.
pub fn quantise(numbers: &[f32]) -> Vec<i8> {
    let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
    let scale = if largest.is_finite() && largest > 0.0 { 127.0 / largest } else { 0.0 };
    numbers.iter().map(|number| (number * scale).round().clamp(-127.0, 127.0) as i8).collect()
}

/// A word of the question, its weight, and the memory stems that match it.
struct QueryTerm {
    weight: f64,
    counts: HashMap<String, f64>,
}

impl QueryTerm {
    fn score_in(&self, text: &BTreeSet<String>) -> f64 {
        let best =
            text.iter().filter_map(|stem| self.counts.get(stem)).fold(0f64, |best, weight| best.max(*weight));
        best * self.weight
    }
}

/// The stems of all memories, with their document frequencies.
struct Vocabulary {
    texts: usize,
    counts: HashMap<String, usize>,
    lexicon: Lexicon,
}

impl Vocabulary {
    fn of(texts: &[BTreeSet<String>]) -> Self {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for stem in texts.iter().flatten() {
            *counts.entry(stem.clone()).or_default() += 1;
        }
        Self { texts: texts.len(), counts, lexicon: Lexicon::default() }
    }

    fn rarity(&self, occurs: usize) -> f64 {
        let (texts, occurs) = (self.texts as f64, occurs as f64);
        (1.0 + (texts - occurs + 0.5) / (occurs + 0.5)).ln()
    }

    fn weigh(&self, term: String) -> QueryTerm {
        let spelling = trigrams(&term);
        let mut counts = HashMap::new();
        for stem in self.counts.keys() {
            let weight = if *stem == term {
                1.0
            } else if self.lexicon.are_synonyms(stem, &term) {
                SYNONYM_WEIGHT
            } else {
                let similarity = trigram_similarity(&spelling, &trigrams(stem));
                if similarity < SPELLING_SIMILARITY_MIN { 0.0 } else { SPELLING_WEIGHT_MAX * similarity }
            };
            if weight > 0.0 {
                counts.insert(stem.clone(), weight);
            }
        }
        // A word that occurs in no memory gets the rarity of its rarest match, or else of a word that occurs
        // in half of the memories, so that filler words do not dominate.
        let rarest_match = counts.keys().filter_map(|stem| self.counts.get(stem)).min().copied();
        let weight = match self.counts.get(&term).copied().or(rarest_match) {
            Some(occurs) => self.rarity(occurs),
            None => self.rarity(self.texts.div_ceil(2)),
        };
        QueryTerm { weight, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fixture;

    fn memories(texts: &[&str]) -> Vec<Memory> {
        texts.iter().zip(0..).map(|(text, number)| fixture::memory(number, text)).collect()
    }

    fn best<'a>(question: &str, memories: &'a [Memory]) -> Option<&'a str> {
        rank(question, None, memories).first().map(|ranked| ranked.memory.text.as_str())
    }

    #[test]
    fn a_paraphrased_question_finds_its_answer() {
        let known = memories(&[
            "Our staging database is called heron",
            "I prefer tabs to spaces",
            "We deploy on Thursdays after the standup",
            "I am allergic to peanuts",
            "My dog is called Rex",
        ]);
        let table = [
            ("which db do we have for staging?", Some(0)),
            ("how should I indent this file?", Some(1)),
            ("what day do releases go out?", Some(2)),
            ("any food allergies?", Some(3)),
            ("name of the pet", Some(4)),
            ("quantum chromodynamics", None),
            ("", None),
            ("the of and", None),
        ];
        for (question, expected) in table {
            let expected = expected.map(|at: usize| known[at].text.as_str());
            assert_eq!(best(question, &known), expected, "{question}");
        }
    }

    #[test]
    fn an_embedding_of_the_same_model_counts_and_of_another_does_not() {
        let mut known = memories(&["one", "two"]);
        let of =
            |model: &str, numbers: &[f32]| Embedding { model: model.to_owned(), numbers: quantise(numbers) };
        known[1].embedding = Some(of("m", &[1.0, 0.1]));
        assert_eq!(rank("zzz", Some(&of("m", &[1.0, 0.0])), &known).len(), 1);
        assert!(rank("zzz", Some(&of("other", &[1.0, 0.0])), &known).is_empty());
        assert!(rank("zzz", Some(&of("m", &[1.0])), &known).is_empty());
        assert!(rank("zzz", Some(&of("m", &[0.0, 1.0])), &known).is_empty(), "orthogonal");
        assert_eq!(quantise(&[f32::NAN, 0.0]), [0, 0]);
    }
}
