//! Compaction: where it cuts, what a summary contains, and that nothing is lost between two compactions.

use proptest::prelude::*;
use sapwood_core::compact::{
    Archive, Callbacks, CompactOptions, CompactionOrigin, Digest, Keep, Method, SizeLimit, Snap,
    context_tokens, find_cut, finish, mask, shorten_kept, truncate,
};
use sapwood_core::content::{Json, Part};
use sapwood_core::entry::{
    AssistantMessage, Compaction, LeafMoved, Stop, Strategy as CompactionStrategy, ToolResult, Trigger,
    Usage, UserMessage,
};
use sapwood_core::fixture::{Dice, MemLog, random_script};
use sapwood_core::pressure::{Level, Moment, Pressure, PressureAction, Thresholds};
use sapwood_core::project::context::{Context, Message, Role};
use sapwood_core::tokens::{Estimate, count_in_use};

fn keep_last(count: u32, method: Method) -> CompactOptions {
    CompactOptions { keep_last: Some(count), compact_strategy: method, ..CompactOptions::default() }
}

/// Compact as the engine does, without a store: a cut, a digest, an entry.
fn plan(context: &Context, options: &CompactOptions) -> Option<Compaction> {
    let cut = find_cut(context, options.keep(), Snap::ToUser, &Estimate)?;
    let archive = Archive::at(context, cut, options);
    let digest = match options.compact_strategy {
        Method::ObservationMask => mask(&archive, &Callbacks::default()),
        _ => truncate(&archive, SizeLimit::Half),
    };
    let summary = digest.render(archive.archived, &archive.details, options.instructions.as_deref());
    let shortened = shorten_kept(context, &context.messages[cut.cut..], options, &Callbacks::default());
    let made = CompactionOrigin {
        strategy: options.compact_strategy.strategy(),
        trigger: Trigger::Manual,
        from_hook: false,
        instead_of: None,
    };
    let details = archive.details.clone();
    let mut compaction = finish(context, cut, Some(summary), details, shortened, made);
    compaction.archived = Some(archive.archived);
    Some(compaction)
}

fn compacted(script: &str, keep: u32) -> (MemLog, String) {
    let mut log = MemLog::of(script);
    if let Some(compaction) = plan(&log.context(), &keep_last(keep, Method::Truncate)) {
        log.push(Compaction { summary: Some("S".to_owned()), ..compaction }).unwrap();
    }
    let shown = log.show(&log.context());
    (log, shown)
}

fn user(text: &str) -> UserMessage {
    UserMessage { parts: vec![Part::text(text)], origin: None }
}

fn assistant(text: &str) -> AssistantMessage {
    AssistantMessage {
        parts: vec![Part::text(text)],
        model: None,
        usage: None,
        cost_nano_usd: None,
        stop: Stop::Stop,
    }
}

fn calls(id: &str, tool: &str, input: &str) -> AssistantMessage {
    let parts = vec![Part::tool_call(id, tool, Json::parse(input).unwrap())];
    AssistantMessage { parts, stop: Stop::ToolUse, ..assistant("") }
}

fn result(id: &str, text: &str) -> ToolResult {
    ToolResult {
        call_id: id.to_owned(),
        tool: Some("run".to_owned()),
        parts: vec![Part::text(text)],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    }
}

#[test]
fn twenty_messages_become_a_summary_and_the_last_six() {
    let mut log = MemLog::default();
    for number in 0..20 {
        log.push(user(&format!("message {number}"))).unwrap();
    }
    let plan = plan(&log.context(), &keep_last(6, Method::Truncate)).unwrap();
    assert_eq!(plan.archived, Some(14));
    log.push(plan).unwrap();
    let context = log.context();
    assert_eq!(context.messages.len(), 7);
    let summary = context.messages[0].text();
    assert!(summary.contains("14 earlier messages were archived"), "{summary}");
    for number in 0..14 {
        assert!(summary.contains(&format!("user: message {number}")), "{summary}");
    }
    assert_eq!(context.messages[1].text(), "message 14");
}

#[test]
fn a_context_that_would_be_kept_whole_is_not_compacted() {
    assert_eq!(compacted("u1 u2 u3 u4", 6).1, "u1 u2 u3 u4");
    assert_eq!(compacted("u1 a2", 1).1, "u1 a2", "one exchange only");
    assert_eq!(compacted("", 0).1, "");
}

#[test]
fn a_cut_keeps_calls_with_results_and_prefers_to_start_at_a_user_message() {
    assert_eq!(compacted("u1 a2 u3 C4(x) t5(x)", 2).1, "S u3 C4 t5");
    assert_eq!(compacted("u1 a2 u3 C4(x,y) t5(x) t6(y) a7", 2).1, "S u3 C4 t5 t6 a7");
}

#[test]
fn a_long_turn_is_split_and_summarised_in_two_parts() {
    let rounds: Vec<String> = (0..12).map(|n| format!("C{0}(c{n}) t{1}(c{n})", 10 + n, 50 + n)).collect();
    let log = MemLog::of(&format!("u1(first) a2(done) u3(second) {}", rounds.join(" ")));
    let options = keep_last(4, Method::ObservationMask);
    let context = log.context();
    let cut = find_cut(&context, options.keep(), Snap::ToUser, &Estimate).unwrap();
    assert_eq!(cut.split, Some(2));
    let summary = plan(&context, &options).unwrap().summary.unwrap();
    let digest = Digest::parse(&summary);
    assert!(digest.story.contains("user: first") && !digest.story.contains("second"), "{summary}");
    assert!(digest.turn.starts_with("user: second"), "{summary}");
}

#[test]
fn a_turn_that_is_split_twice_stays_one_turn() {
    let rounds = |from: u32, to: u32| -> String {
        let round = |n| format!("C{0}(c{n}) t{1}(c{n})", 10 + n, 100 + n);
        (from..to).map(round).collect::<Vec<_>>().join(" ")
    };
    let options = keep_last(4, Method::ObservationMask);
    let mut log = MemLog::of(&format!("u1(old) a2 u3(task) {}", rounds(0, 12)));
    let first = plan(&log.context(), &options).unwrap();
    log.push(first).unwrap();
    log.write(&rounds(12, 24));
    let second = plan(&log.context(), &options).unwrap();
    let digest = Digest::parse(second.summary.as_deref().unwrap());
    assert!(digest.story.contains("user: old") && !digest.story.contains("task"), "{digest:?}");
    assert!(digest.turn.starts_with("user: task"), "{digest:?}");
    assert!(digest.turn.contains("c0") && digest.turn.contains("c20"), "{digest:?}");
    assert_eq!(second.archived, Some(3 + 48 - 4));
}

#[test]
fn nothing_is_lost_between_two_compactions() {
    let mut log = MemLog::of("u1(one) a2(two) u3(three) a4(four) u5(five) a6(six)");
    for _ in 0..2 {
        let next = plan(&log.context(), &keep_last(2, Method::Truncate)).unwrap();
        log.push(next).unwrap();
        log.write(
            "u7(seven) a8(eight)".replace('7', &log.head().seq.to_string()).replace("a8", "a").as_str(),
        );
    }
    let context = log.context();
    let all: String = context.messages.iter().map(Message::text).collect::<Vec<_>>().join("\n");
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight"] {
        assert!(all.contains(word), "{word} is missing: {all}");
    }
}

#[test]
fn masking_keeps_assistant_text_and_the_first_line_of_long_output() {
    let mut log = MemLog::default();
    let said = "I decided to use a queue.\nIt has\nseveral lines, all of which stay.";
    let long: Vec<String> = (0..62).map(|n| format!("line {n} ünïcödé")).collect();
    log.push(user("look")).unwrap();
    log.push(assistant(said)).unwrap();
    log.push(calls("x", "run", r#"{"path":"a.rs"}"#)).unwrap();
    log.push(result("x", &long.join("\n"))).unwrap();
    log.push(calls("y", "run", "{}")).unwrap();
    log.push(result("y", "short")).unwrap();
    log.push(calls("z", "run", "{}")).unwrap();
    log.push(result("z", &format!("{}\nend", "é".repeat(500)))).unwrap();
    log.push(user("next")).unwrap();
    let summary = plan(&log.context(), &keep_last(1, Method::ObservationMask)).unwrap().summary.unwrap();
    assert!(summary.contains(said), "{summary}");
    assert!(summary.contains("run: line 0 ünïcödé [masked: 62 lines"), "{summary}");
    assert!(!summary.contains("line 1 "), "{summary}");
    assert!(summary.contains("run: short"), "{summary}");
    assert!(summary.contains("éé…"), "{summary}");
}

#[test]
fn every_compaction_keeps_the_first_messages_verbatim() {
    let long = "the whole task, ".repeat(40);
    let mut log = MemLog::default();
    log.push(user(&long)).unwrap();
    for number in 0..20 {
        log.push(user(&format!("message {number} {}", "and so on ".repeat(30)))).unwrap();
    }
    let options = CompactOptions { keep_first: 1, ..keep_last(4, Method::Truncate) };
    for _ in 0..3 {
        let next = plan(&log.context(), &options).unwrap();
        let summary = next.summary.clone().unwrap();
        assert!(summary.contains(long.trim_end()), "{summary}");
        assert_eq!(summary.matches("the whole task").count(), 40, "{summary}");
        log.push(next).unwrap();
        for number in 0..5 {
            log.push(user(&format!("later {number}"))).unwrap();
        }
    }
}

#[test]
fn the_token_limit_applies_but_the_last_message_is_always_kept() {
    let mut log = MemLog::default();
    for _ in 0..10 {
        log.push(user(&"x".repeat(400))).unwrap();
    }
    let keep = |tokens| Keep { messages: None, tokens: Some(tokens) };
    let kept = |tokens| {
        let context = log.context();
        let cut = find_cut(&context, keep(tokens), Snap::ToUser, &Estimate);
        cut.map_or(10, |cut| 10 - cut.cut)
    };
    assert_eq!((kept(1_000), kept(999), kept(300), kept(1)), (10, 9, 3, 1));
}

#[test]
fn kept_long_results_are_shortened_and_can_be_restored() {
    let mut log = MemLog::default();
    let long = (0..300).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
    for text in ["old", "older"] {
        log.push(user(text)).unwrap();
        log.push(assistant("done")).unwrap();
    }
    log.push(user("look")).unwrap();
    log.push(calls("x", "run", "{}")).unwrap();
    log.push(result("x", &long)).unwrap();
    let before = log.context();
    let options = CompactOptions { tool_output_max_chars: Some(200), ..keep_last(5, Method::Truncate) };
    let next = plan(&before, &options).unwrap();
    assert_eq!(next.shortened.len(), 1);
    let leaf = log.entry(log.head().leaf.unwrap()).meta.id;
    log.push(next).unwrap();
    let shown = log.context().messages.last().unwrap().text();
    assert!(shown.chars().count() <= 220 && shown.contains("characters snipped"), "{shown}");
    assert!(shown.starts_with("line 0") && shown.ends_with("line 299"), "{shown}");
    // The result stays shortened after another compaction that keeps the result, and after a trim.
    let again = plan(&log.context(), &keep_last(3, Method::Truncate)).unwrap();
    let trimmed = sapwood_core::trim::plan_trim(&log.context(), 3).unwrap();
    for next in [again, trimmed] {
        let mut log = log.clone();
        log.push(next).unwrap();
        assert_eq!(log.context().messages.last().unwrap().text(), shown);
    }
    log.push(LeafMoved { to: Some(leaf) }).unwrap();
    assert_eq!(log.context(), before);
}

#[test]
fn files_and_marked_items_are_carried_from_one_compaction_to_the_next() {
    let mut log = MemLog::default();
    log.push(user("go")).unwrap();
    log.push(calls("x", "read_file", r#"{"path":"src/a.rs"}"#)).unwrap();
    log.push(result("x", "fn a() {}")).unwrap();
    log.push(calls("y", "edit_file", r#"{"path":"src/b.rs"}"#)).unwrap();
    log.push(result("y", "ok")).unwrap();
    log.push(assistant("Decision: keep the cache\nTODO: document it")).unwrap();
    for round in 0..3 {
        log.push(user(&format!("round {round}"))).unwrap();
        log.push(assistant(&"words ".repeat(100))).unwrap();
        let next = plan(&log.context(), &keep_last(2, Method::Truncate)).unwrap();
        assert_eq!(next.details.files_read, ["src/a.rs"]);
        assert_eq!(next.details.files_changed, ["src/b.rs"]);
        assert_eq!(next.details.decisions, ["keep the cache"]);
        assert_eq!(next.details.open_items, ["document it"]);
        assert!(next.summary.as_deref().unwrap().contains("keep the cache"));
        log.push(next).unwrap();
    }
}

#[test]
fn options_from_json_are_strict_and_name_the_key() {
    let parse = |text: &str| CompactOptions::from_json(&serde_json::from_str(text).unwrap());
    for (text, key) in [
        (r#"{"bogus":1}"#, "bogus"),
        (r#"{"keep_last":-1}"#, "keep_last"),
        (r#"{"keep_last":1.5}"#, "keep_last"),
        (r#"{"keep_last":"6"}"#, "keep_last"),
        (r#"{"keep_recent_tokens":-5}"#, "keep_recent_tokens"),
        (r#"{"keep_first":null}"#, "keep_first"),
        (r#"{"token_threshold":true}"#, "token_threshold"),
        (r#"{"tool_output_max_chars":3}"#, "tool_output_max_chars"),
        (r#"{"compact_strategy":"zip"}"#, "compact_strategy"),
        (r#"{"compact_strategy":1}"#, "compact_strategy"),
        (r#"{"hard_limit_tokens":0}"#, "hard_limit_tokens"),
        (r#"{"hard_limit_strategy":"truncate"}"#, "hard_limit_strategy"),
        (r#"{"instructions":["x"]}"#, "instructions"),
        (r#"{"instructions":" "}"#, "instructions"),
        (r#"[1]"#, "options"),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.key, key, "{text}");
        assert!(error.to_string().starts_with(key), "{error}");
    }
    let options = parse(
        r#"{"keep_last":6,"compact_strategy":"truncate","hard_limit_tokens":9,"hard_limit_strategy":"llm"}"#,
    )
    .unwrap();
    assert_eq!((options.keep_last, options.compact_strategy), (Some(6), Method::Truncate));
    assert_eq!(options.hard_limit_strategy, Some(Method::Llm));
}

#[test]
fn pressure_thresholds_are_exact() {
    let level = |used: u64| Pressure::measure(used, Some(1_000), Thresholds::default()).unwrap().level;
    let levels = [499, 500, 749, 750, 900, 901].map(level);
    use Level::{Green, Orange, Red, Yellow};
    assert_eq!(levels, [Green, Yellow, Yellow, Orange, Orange, Red]);
    assert_eq!(Pressure::measure(9_000, None, Thresholds::default()), None);
    assert_eq!(Pressure::measure(9_000, Some(0), Thresholds::default()), None);
    let own = Thresholds { yellow_percent: 10, orange_percent: 20, red_percent: 30 };
    assert_eq!(Pressure::measure(301, Some(1_000), own.check().unwrap()).unwrap().level, Red);
    assert!(Thresholds { yellow_percent: 80, ..Thresholds::default() }.check().is_err());
}

#[test]
fn each_pressure_level_has_its_own_action() {
    let action = |used: u64, moment| {
        Pressure::measure(used, Some(1_000), Thresholds::default()).unwrap().action_at(moment)
    };
    assert_eq!(action(100, Moment::AfterTurn), PressureAction::Nothing);
    assert_eq!(action(600, Moment::AfterTurn), PressureAction::Mask);
    assert_eq!(action(600, Moment::BeforeCall), PressureAction::Nothing);
    assert_eq!(action(800, Moment::AfterTurn), PressureAction::Summarise);
    assert_eq!(action(950, Moment::BeforeCall), PressureAction::SummariseAndWarn);
}

#[test]
fn usage_counts_the_providers_report_with_cache_and_later_messages() {
    let mut log = MemLog::default();
    log.push(user("hello")).unwrap();
    let usage = Usage { input: 1_000, output: 10, cache_read: 7_000, cache_write: 1_000, reasoning: 5 };
    log.push(AssistantMessage { usage: Some(usage), ..assistant("hi") }).unwrap();
    assert_eq!(count_in_use(&log.context(), 0, &Estimate), 9_010);
    log.push(user(&"x".repeat(40))).unwrap();
    assert_eq!(count_in_use(&log.context(), 0, &Estimate), 9_020);
    // Usage reported before a compaction does not apply after it.
    log.push(Compaction {
        summary: Some("s".to_owned()),
        ..Compaction::new(CompactionStrategy::Truncate, Trigger::Manual)
    })
    .unwrap();
    let framed = log.context().messages[0].tokens();
    assert_eq!(count_in_use(&log.context(), 100, &Estimate), 100 + framed);
}

#[test]
fn the_whole_request_counts() {
    let mut log = MemLog::of("Y(12345678)");
    let mut said = calls("x", "run", r#"{"a":1}"#);
    said.parts
        .push(Part::Reasoning(sapwood_core::content::Reasoning { text: "think".repeat(8), redacted: false }));
    log.push(said).unwrap();
    log.push(result("x", "12345678")).unwrap();
    // Tokens: system 2, name 1, input 2, reasoning 10, result 2, tools 50.
    assert_eq!(count_in_use(&log.context(), 50, &Estimate), 67);
}

fn random_options(dice: &mut Dice) -> CompactOptions {
    let mut options = keep_last(dice.below(8) as u32, Method::Truncate);
    if dice.one_in(2) {
        options.compact_strategy = Method::ObservationMask;
    }
    if dice.one_in(3) {
        options.keep_last = None;
        options.keep_recent_tokens = Some(dice.below(40) as u64);
    }
    options.keep_first = dice.below(4) as u32;
    options.tool_output_max_chars = dice.one_in(2).then_some(80);
    options
}

/// Whether every call is directly followed by its result, and every result has a call.
fn is_well_formed(context: &Context) -> bool {
    let mut rest = context.messages.iter();
    while let Some(message) = rest.next() {
        if message.answers.is_some() {
            return false;
        }
        for call in message.parts.iter().filter_map(Part::as_tool_call) {
            let answers = rest.next().and_then(|next| next.answers.as_ref());
            if answers.is_none_or(|answers| answers.call_id != call.call_id) {
                return false;
            }
        }
    }
    true
}

proptest! {
    #![proptest_config(super::cases_of(400))]

    #[test]
    fn a_compacted_context_is_well_formed_and_undoing_restores_it(seed: u64, len in 0_usize..80) {
        // A cut inside a failed turn makes its user message visible again, so failed turns have separate tests.
        let mut log = MemLog::of(&random_script(seed, len).replace("]failed", "]"));
        let mut dice = Dice::new(seed);
        let options = random_options(&mut dice);
        let before = log.context();
        let Some(compaction) = plan(&before, &options) else { return Ok(()) };
        let Some(leaf) = log.head().leaf else { return Ok(()) };
        let path = log.path_seqs(Some(leaf));
        let leaf_id = log.entry(leaf).meta.id;
        if let Some(first) = compaction.first_kept {
            prop_assert!(path.iter().any(|seq| log.entry(*seq).meta.id == first), "first_kept is on the path");
        }
        let (kept, archived) = (compaction.first_kept, compaction.archived.unwrap());
        prop_assert!(archived > 0);
        let shortened = compaction.shortened.clone();
        log.push(compaction).unwrap();
        let after = log.context();
        prop_assert!(is_well_formed(&after));
        prop_assert_eq!(after.messages[0].role, Role::User);
        // I7: the summary covers the messages that are not kept, and kept messages are unchanged and in order.
        let real = |context: &Context| context.messages.iter().filter(|m| m.entry.is_some()).count();
        let older = before.compaction.as_ref().filter(|_| before.summaries() > 0);
        let older = older.and_then(|latest| latest.body.archived).unwrap_or(0);
        let newly_archived = archived - older;
        prop_assert_eq!(real(&after) - 1 + newly_archived as usize, real(&before) - before.summaries());
        let tail = &before.messages[before.messages.len() + 1 - after.messages.len()..];
        for (now, then) in after.messages[1..].iter().zip(tail) {
            prop_assert_eq!(now.entry, then.entry);
            let is_shortened = shortened.iter().any(|s| now.entry.is_some_and(|(_, id)| id == s.entry));
            prop_assert!(is_shortened || now == then);
        }
        prop_assert_eq!(after.messages.get(1).and_then(|m| m.entry).map(|(_, id)| id), kept);
        log.push(LeafMoved { to: Some(leaf_id) }).unwrap();
        prop_assert_eq!(log.context(), before);
    }

    #[test]
    fn a_compacted_context_is_smaller(seed: u64, turns in 4_usize..30, keep in 0_u32..6, masks: bool) {
        let mut dice = Dice::new(seed);
        let mut log = MemLog::default();
        for turn in 0..turns {
            log.push(user(&"Please do this. ".repeat(4 + dice.below(40)))).unwrap();
            let id = format!("c{turn}");
            log.push(calls(&id, "run", "{}")).unwrap();
            log.push(result(&id, &"some output 数字\n".repeat(60 + dice.below(300)))).unwrap();
            log.push(assistant(&"I did it. ".repeat(4 + dice.below(40)))).unwrap();
        }
        let method = if masks { Method::ObservationMask } else { Method::Truncate };
        let mut before = context_tokens(&log.context(), &Estimate);
        while let Some(next) = plan(&log.context(), &keep_last(keep, method)) {
            log.push(next).unwrap();
            let after = context_tokens(&log.context(), &Estimate);
            prop_assert!(after < before, "{} tokens became {}", before, after);
            before = after;
            if dice.one_in(2) {
                break;
            }
        }
    }
}
