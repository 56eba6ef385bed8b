//! The notation: scripts produce the expected entries, and random scripts cover all features.

use std::collections::BTreeSet;

use sapwood_core::entry::{Kind, Stop, Strategy};
use sapwood_core::fixture::{MemLog, Notation, drafts, random_drafts, random_script};
use sapwood_core::{Body, Seq};

fn kinds(script: &str) -> Vec<Kind> {
    drafts(script).iter().map(|draft| draft.body.kind()).collect()
}

#[test]
fn each_letter_is_an_entry() {
    use Kind::*;
    let script = "u1 a2 C3(x) A4(y) t5(x) n6 x7 K8(s,1) B9(b) M(m) H(h) S(a,b) Y(y) N(n) L→1 1=x [ ]";
    let expected = [
        UserMessage,
        AssistantMessage,
        AssistantMessage,
        AssistantMessage,
        ToolResult,
        SystemNote,
        CustomMessage,
        Compaction,
        BranchSummary,
        ModelChanged,
        ThinkingChanged,
        SkillsChanged,
        ContextChanged,
        SessionNamed,
        LeafMoved,
        Label,
        TurnStarted,
        TurnEnded,
    ];
    assert_eq!(kinds(script), expected);
}

#[test]
fn numbers_are_names_and_not_seqs() {
    let log = MemLog::of("u7 N(x) a3");
    assert_eq!((log.seq(7), log.seq(3)), (Seq(1), Seq(3)));
}

#[test]
fn a_text_may_contain_spaces_commas_and_parentheses() {
    let log = MemLog::of("u1(one, two (three) four) K2(a, b,1)");
    assert_eq!(log.entry(Seq(1)).body.text(), "one, two (three) four");
    let Body::Compaction(compaction) = &log.entry(Seq(2)).body else { panic!("no compaction") };
    assert_eq!((compaction.summary.as_deref(), compaction.first_kept), (Some("a, b"), Some(log.id(1))));
}

#[test]
fn a_compaction_without_a_summary_is_a_trim() {
    let log = MemLog::of("u1 K2(,1) K3(s) K4()");
    let found = log.entries().skip(1).map(|entry| match &entry.body {
        Body::Compaction(c) => (c.strategy, c.summary.is_some(), c.first_kept.is_some()),
        other => panic!("{other:?}"),
    });
    let found: Vec<_> = found.collect();
    let expected =
        [(Strategy::Trim, false, true), (Strategy::Truncate, true, false), (Strategy::Trim, false, false)];
    assert_eq!(found, expected);
}

#[test]
fn an_answer_may_have_a_model_and_an_error() {
    let drafts = drafts("a1@vendor/model-1.5! a2! C3(x)@m a4");
    let read: Vec<_> = drafts
        .iter()
        .map(|draft| match &draft.body {
            Body::AssistantMessage(message) => {
                (message.model.as_deref(), message.stop, message.usage.is_some())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (Some("vendor/model-1.5"), Stop::Error, true),
        (None, Stop::Error, false),
        (Some("m"), Stop::ToolUse, true),
        (None, Stop::Stop, false),
    ];
    assert_eq!(read, expected);
}

#[test]
fn entries_between_the_brackets_belong_to_the_turn() {
    let turns: Vec<_> = drafts("u1 [ u2 N(x) | u3 ]failed u4 [ u5").iter().map(|draft| draft.turn).collect();
    let (first, second) = (turns[1], turns[7]);
    assert!(first.is_some() && second.is_some() && first != second);
    assert_eq!(turns, [None, first, first, first, None, first, None, second, second]);
}

#[test]
fn mistakes_in_a_script_are_reported() {
    let error = |script: &str| Notation::default().read(script).unwrap_err();
    for (script, token) in [
        ("u1 q2", "q2"),
        ("u1 a1", "a1"),
        ("u1 ]", "]"),
        ("[ ]odd", "]odd"),
        ("t1", "t1"),
        ("u1(open", "u1(open"),
        ("u1x", "u1x"),
        ("L→x", "L→x"),
    ] {
        assert_eq!(error(script).token, token, "{}", error(script));
    }
}

#[test]
fn both_arrows_are_accepted() {
    assert_eq!(drafts("u1 L→1 L→none"), drafts("u1 L->1 L->none"));
}

#[test]
fn a_seed_always_gives_the_same_session() {
    assert_eq!(random_script(42, 200), random_script(42, 200));
    assert_ne!(random_script(42, 200), random_script(43, 200));
    assert_eq!(random_drafts(42, 200), random_drafts(42, 200));
    assert!(random_script(9, 400).starts_with(&random_script(9, 100)));
}

#[test]
fn random_sessions_are_valid_and_cover_all_features() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let script = random_script(seed, 60);
        let log = MemLog::of(&script);
        seen.extend(log.entries().map(|entry| entry.meta.kind));
    }
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| !seen.contains(kind)).collect();
    use Kind::*;
    // The notation cannot express entries that need a blob, another session, a person or an engine.
    let expected = [
        Graft,
        CustomInfo,
        Round,
        ApprovalAsked,
        ApprovalAnswered,
        ArtifactPut,
        MemberChanged,
        StateChanged,
        Exported,
        InputQueued,
        InputTaken,
        CancelAsked,
        TurnTerms,
        UsageReported,
        PressureChanged,
        FlowEvent,
        FlowAssigned,
        HookRan,
        TriggerEvent,
        MemoryLearned,
        Configured,
        ContextSet,
        LimitsChanged,
    ];
    assert_eq!(missing, expected.iter().collect::<Vec<_>>());
    let all: String = (0..50).map(|seed| random_script(seed, 60) + " ").collect();
    for feature in
        ["(stray", "L→none", "]failed", "]cancelled", "]limited", " | ", "@small", "(,", "=good", "= ", "!"]
    {
        assert!(all.contains(feature), "no random script has {feature:?}");
    }
}

#[test]
fn random_contexts_show_missing_stray_and_duplicate_results() {
    let contexts = (0..50).map(|seed| {
        let log = MemLog::of(&random_script(seed, 80));
        let results = log
            .path_seqs(log.head().leaf)
            .into_iter()
            .filter(|s| log.entry(*s).meta.kind == Kind::ToolResult);
        (log.show(&log.context()), results.count())
    });
    let contexts: Vec<(String, usize)> = contexts.collect();
    assert!(contexts.iter().any(|(shown, _)| shown.contains("?(")));
    assert!(contexts.iter().any(|(shown, results)| shown.matches(" t").count() < *results));
}
