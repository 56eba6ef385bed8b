//! Memory extraction by rules, and parsing of a model's answer.

use proptest::prelude::*;
use sapwood_core::entry::{AssistantMessage, Kind, Meta, UserMessage};
use sapwood_core::memory::compare::{Relation, relate};
use sapwood_core::memory::prompt::memory_section;
use sapwood_core::memory::rank::rank;
use sapwood_core::memory::{Tone, is_storable, llm_extract, rules};
use sapwood_core::port::memory::{Belongs, Learned, Memory, MemoryKind};
use sapwood_core::{Body, Entry, EntryId, MemoryId, Part, Principal, Seq, TimestampMs};

use super::cases_of;

fn ana() -> Principal {
    "user:ana".parse().unwrap()
}

fn entry(number: u32, by: &str, body: Body) -> Entry {
    let at = TimestampMs(i64::from(number));
    let kind: Kind = body.kind();
    let id = EntryId::mint(at, u128::from(number));
    let by = by.parse().unwrap();
    Entry { meta: Meta { seq: Seq(number), id, parent: None, at, by, turn: None, kind }, body }
}

fn user_entry(number: u32, by: &str, text: &str) -> Entry {
    entry(number, by, UserMessage { parts: vec![Part::text(text)], origin: None }.into())
}

fn assistant_entry(number: u32, text: &str) -> Entry {
    let parts = vec![Part::text(text)];
    let message =
        AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop: Default::default() };
    entry(number, "agent:default", message.into())
}

fn extracted(text: &str) -> Vec<(MemoryKind, String)> {
    let entries = [user_entry(1, "user:ana", text)];
    rules::extract(&entries, &ana()).into_iter().map(|candidate| (candidate.kind, candidate.text)).collect()
}

#[test]
fn sentences_with_known_openings_are_kept() {
    use MemoryKind::{Decision, Fact, Preference};
    let table = [
        ("Please remember that the VPN drops at noon.", Fact, "The VPN drops at noon"),
        ("ok, also note that prices exclude tax", Fact, "Prices exclude tax"),
        ("I prefer tabs; spaces break my screen reader.", Preference, "I prefer tabs"),
        ("From now on, answer in French.", Preference, "Answer in French"),
        ("Never touch the vendor folder!", Preference, "Never touch the vendor folder"),
        ("Always run the linter first", Preference, "Always run the linter first"),
        ("We decided to drop IE support.", Decision, "We decided to drop IE support"),
        ("Let's go with option B.", Decision, "Let's go with option B"),
        ("My name is Ana Bell.", Fact, "My name is Ana Bell"),
        ("Our payroll server is called mint.", Fact, "Our payroll server is called mint"),
        ("The wiki is hosted at Hetzner.", Fact, "The wiki is hosted at Hetzner"),
        ("I work as a nurse.", Fact, "I work as a nurse"),
        ("Actually, we use pnpm.", Fact, "We use pnpm"),
    ];
    for (said, kind, text) in table {
        assert_eq!(extracted(said).first(), Some(&(kind, text.to_owned())), "{said}");
    }
}

#[test]
fn small_talk_questions_code_and_quotations_are_not_kept() {
    let nothing = [
        "Hello there, how are you?",
        "Can you always check this?",
        "Do I prefer tabs?",
        "Fix the failing test please.",
        "> I prefer tabs over spaces\n\nwhat do you think of this quote?",
        "```\n# always remember that this is code\n```",
        "the file is broken again",
        "No, that does not work.",
        "remember?",
        "",
        "My God, what happened here",
        "I never.",
    ];
    for said in nothing {
        assert_eq!(extracted(said), [], "{said}");
    }
}

#[test]
fn corrections_are_recognized_and_other_members_are_ignored() {
    let entries = [
        user_entry(1, "user:ana", "No, our staging server is heron."),
        user_entry(2, "user:bob", "I prefer coffee."),
        user_entry(3, "system", "I prefer tea."),
    ];
    let found = rules::extract(&entries, &ana());
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].tone, found[0].entries[0]), (Tone::Corrects, entries[0].meta.id));
    assert_eq!(found[1].text, "I prefer tea", "injected text counts as the owner's");
}

#[test]
fn a_long_conversation_is_bounded() {
    let entries: Vec<Entry> =
        (1..500).map(|n| user_entry(n, "user:ana", &format!("Remember that box {n} is green."))).collect();
    assert_eq!(rules::extract(&entries, &ana()).len(), sapwood_core::memory::CANDIDATES_MAX);
    let shown = llm_extract::number_lines(&entries, &ana()).unwrap();
    assert!(shown.text.len() < 80 << 10);
}

#[test]
fn a_models_answer_must_cite_lines_including_one_of_the_owner() {
    let entries = [
        user_entry(1, "user:ana", "I moved to Bern."),
        assistant_entry(2, "Noted."),
        user_entry(3, "user:bob", "me too"),
    ];
    let shown = llm_extract::number_lines(&entries, &ana()).unwrap();
    assert_eq!(shown.text, "1 user: I moved to Bern.\n2 assistant: Noted.\n3 another person: me too\n");
    let answer =
        r#"{"memories":[{"kind":"fact","text":"The user lives in Bern.","lines":[1,2],"corrects":true}]}"#;
    for wrapped in [answer.to_owned(), format!("```json\n{answer}\n```")] {
        let read = llm_extract::parse_answer(&shown, &wrapped).unwrap();
        assert_eq!((read[0].entries.len(), read[0].tone), (2, Tone::Corrects));
    }
    for bad in [
        "",
        "{}",
        r#"{"memories":[{"kind":"fact","text":"x","lines":[2]}]}"#,
        r#"{"memories":[{"kind":"fact","text":"x","lines":[0]}]}"#,
        r#"{"memories":[{"kind":"fact","text":"x","lines":[3]}]}"#,
        r#"{"memories":[{"kind":"fact","text":" ","lines":[1]}]}"#,
        r#"{"memories":[{"kind":"fact","text":"x","lines":[1],"extra":1}]}"#,
    ] {
        assert!(llm_extract::parse_answer(&shown, bad).is_err(), "{bad}");
    }
    let long = format!(r#"{{"memories":[{{"kind":"fact","text":"{}","lines":[1]}}]}}"#, "x".repeat(500));
    assert!(llm_extract::parse_answer(&shown, &long).is_err());
    let secret = r#"{"memories":[{"kind":"fact","text":"The password is hunter2","lines":[1]}]}"#;
    assert_eq!(llm_extract::parse_answer(&shown, secret).unwrap(), [], "a secret is left out");
    assert!(llm_extract::number_lines(&entries[1..], &ana()).is_none(), "no line of the owner");
}

fn memory(number: i64, text: &str) -> Memory {
    Memory {
        id: MemoryId::mint(TimestampMs(number), 1),
        belongs: Belongs::To(ana()),
        kind: MemoryKind::Fact,
        text: text.to_owned(),
        sources: Vec::new(),
        learned: Learned::ByRules,
        by: ana(),
        version: 1,
        created_at: TimestampMs(1),
        updated_at: TimestampMs(1),
        superseded_by: None,
        embedding: None,
    }
}

proptest! {
    #![proptest_config(cases_of(400))]

    /// Extraction accepts any text.
    #[test]
    fn any_text_is_accepted(texts in prop::collection::vec(".{0,120}|[a-zI' .!?,]{0,80}|(I prefer|remember that|my) .{0,60}", 1..6)) {
        let entries: Vec<Entry> = texts.iter().zip(1..).map(|(text, n)| user_entry(n, "user:ana", text)).collect();
        let found = rules::extract(&entries, &ana());
        let known: Vec<Memory> = texts.iter().zip(1..).map(|(text, n)| memory(n, text)).collect();
        for candidate in &found {
            prop_assert!(is_storable(&candidate.text) && !candidate.text.trim().is_empty());
            let _ = relate(candidate, known.iter());
            // A second extraction finds the memory already known.
            let again = memory(9, &candidate.text);
            prop_assert_eq!(relate(candidate, [again.clone()].iter()), Relation::Strengthens(again.id));
        }
        for text in &texts {
            for ranked in rank(text, None, &known) {
                prop_assert!(ranked.score.is_finite() && ranked.score > 0.0);
            }
        }
        let section = memory_section(&known, 400).unwrap_or_default();
        prop_assert!(section.len() <= 1_600 && section.matches("</memories>").count() <= 1);
    }
}
