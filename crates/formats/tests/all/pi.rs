//! Sessions of pi and operator, one special case per test.

use sapwood_core::Kind;
use sapwood_core::entry::Body;
use sapwood_core::settings::Labels;
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{import, import_again, lines};

fn header() -> Value {
    json!({ "type": "session", "version": 3, "id": "0199bbbb-0000-7000-8000-000000000001", "timestamp": "2026-01-02T03:04:05.000Z", "cwd": "/work" })
}

fn entry(id: &str, parent: Option<&str>, kind: &str, more: Value) -> Value {
    let mut entry =
        json!({ "type": kind, "id": id, "parentId": parent, "timestamp": "2026-01-02T03:04:06.000Z" });
    for (key, value) in more.as_object().unwrap() {
        entry[key] = value.clone();
    }
    entry
}

fn message(id: &str, parent: Option<&str>, message: Value) -> Value {
    entry(id, parent, "message", json!({ "message": message }))
}

fn user(id: &str, parent: Option<&str>, text: &str) -> Value {
    message(id, parent, json!({ "role": "user", "content": text, "timestamp": 1 }))
}

fn assistant(id: &str, parent: &str, text: &str) -> Value {
    let usage = json!({ "input": 10, "output": 2, "cacheRead": 3, "cacheWrite": 4, "totalTokens": 19, "cost": { "total": 0.0015 } });
    message(
        id,
        Some(parent),
        json!({
            "role": "assistant", "content": [{ "type": "text", "text": text }], "provider": "p", "model": "model-a",
            "api": "x", "usage": usage, "stopReason": "stop", "timestamp": 2,
        }),
    )
}

#[test]
fn roles_costs_and_settings_are_imported() {
    let call = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "hm", "thinkingSignature": "SECRET" },
        { "type": "toolCall", "id": "c1", "name": "bash", "arguments": { "command": "ls" } },
    ], "provider": "p", "model": "model-b", "stopReason": "toolUse", "usage": { "input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0 } });
    let result = json!({ "role": "toolResult", "toolCallId": "c1", "toolName": "bash", "content": [{ "type": "text", "text": "a.txt" }], "isError": false });
    let ran = json!({ "role": "bashExecution", "command": "pwd", "output": "/work", "exitCode": 1 });
    let hidden = json!({ "role": "bashExecution", "command": "secret", "output": "x", "exitCode": 0, "excludeFromContext": true });
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            entry("m0", None, "model_change", json!({ "provider": "p", "modelId": "model-a" })),
            entry("t0", Some("m0"), "thinking_level_change", json!({ "thinkingLevel": "high" })),
            user("u1", Some("t0"), "hello"),
            message("a1", Some("u1"), call),
            message("r1", Some("a1"), result),
            message("b1", Some("r1"), ran),
            message("b2", Some("b1"), hidden),
            entry(
                "x1",
                Some("b2"),
                "custom_message",
                json!({ "customType": "note", "content": "mind this", "display": true }),
            ),
            assistant("a2", "x1", "done"),
        ]),
    );
    assert_eq!(
        imported.context(),
        [
            "u:hello",
            "r:hm C:bash(c1)",
            "t:a.txt",
            "u:Ran `pwd`\n```\n/work\n```\n\nCommand exited with code 1",
            "u:mind this",
            "a:done",
        ]
    );
    assert_eq!(imported.codes(), []);
    let context = imported.log.context();
    assert_eq!((context.model.as_deref(), context.thinking.as_str()), (Some("p/model-a"), "high"));
    let spend = imported.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.cache_write, spend.cost_nano_usd),
        (2, 11, 4, 1_500_000)
    );
}

#[test]
fn compactions_and_branch_summaries_refer_to_their_entries() {
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            user("u1", None, "one"),
            assistant("a1", "u1", "two"),
            user("u2", Some("a1"), "three"),
            assistant("a2", "u2", "four"),
            entry(
                "k1",
                Some("a2"),
                "compaction",
                json!({ "summary": "so far", "firstKeptEntryId": "u2", "tokensBefore": 5000 }),
            ),
            user("u3", Some("k1"), "five"),
            entry(
                "s1",
                Some("k1"),
                "branch_summary",
                json!({ "fromId": "u3", "summary": "five went nowhere" }),
            ),
            user("u4", Some("s1"), "six"),
        ]),
    );
    assert_eq!(imported.context(), ["u:so far", "u:three", "a:four", "u:five went nowhere", "u:six"]);
    let from = imported.log.entries().find_map(|entry| match &entry.body {
        Body::BranchSummary(summary) => summary.from,
        _ => None,
    });
    let left = imported.log.entries().find(|entry| entry.body.text() == "five").unwrap();
    assert_eq!(from, Some(left.meta.id));
}

#[test]
fn children_of_a_label_are_attached_to_its_parent() {
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            user("u1", None, "one"),
            entry("l1", Some("u1"), "label", json!({ "targetId": "u1", "label": "start" })),
            entry("n1", Some("l1"), "session_info", json!({ "name": "Shop" })),
            entry("c1", Some("n1"), "custom", json!({ "customType": "ext", "data": { "z": 1, "a": 2 } })),
            assistant("a1", "c1", "two"),
        ]),
    );
    assert_eq!(imported.context(), ["u:one", "a:two"]);
    assert_eq!(
        (imported.count(Kind::Label), imported.count(Kind::SessionNamed), imported.count(Kind::CustomInfo)),
        (1, 1, 1)
    );
    let labels = Labels::fold(imported.log.entries());
    assert_eq!(labels.find("start").count(), 1);
}

#[test]
fn the_leaf_is_the_last_line() {
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            user("u1", None, "one"),
            assistant("a1", "u1", "two"),
            user("u2", Some("a1"), "three"),
            entry("l1", Some("u1"), "label", json!({ "targetId": "a1", "label": "x" })),
        ]),
    );
    assert_eq!(imported.context(), ["u:one"], "the label was set after the leaf was moved");
}

#[test]
fn version_1_is_a_chain_and_its_indexes_include_the_header() {
    let bare = |kind: &str, more: Value| {
        let mut value = entry("", None, kind, more);
        value.as_object_mut().unwrap().remove("id");
        value.as_object_mut().unwrap().remove("parentId");
        value
    };
    let mut first = header();
    first.as_object_mut().unwrap().remove("version");
    let bare_message = |role: &str, text: &str| {
        bare("message", json!({ "message": { "role": role, "content": [{ "type": "text", "text": text }] } }))
    };
    let values = [
        first,
        bare_message("user", "one"),
        bare_message("assistant", "two"),
        bare_message("user", "three"),
        bare("compaction", json!({ "summary": "so far", "firstKeptEntryIndex": 3, "tokensBefore": 10 })),
        bare_message("user", "four"),
    ];
    let imported = import(Format::Pi, lines(&values));
    assert_eq!(imported.context(), ["u:so far", "u:three", "u:four"]);
    assert_eq!(import_again(Format::Pi, imported.log, lines(&values)).added, 0);
}

#[test]
fn version_2_calls_a_custom_message_a_hook_message() {
    let mut first = header();
    first["version"] = json!(2);
    let hook = json!({ "role": "hookMessage", "customType": "h", "content": "from a hook", "display": true });
    let imported =
        import(Format::Pi, lines(&[first, user("u1", None, "one"), message("h1", Some("u1"), hook)]));
    assert_eq!(imported.context(), ["u:one", "u:from a hook"]);
}

#[test]
fn operator_uses_snake_case_and_its_last_leaf_record_sets_the_leaf() {
    let values = [
        json!({ "type": "session_header", "id": "op-1", "timestamp": 1_767_323_045.25, "cwd": "/work" }),
        json!({ "type": "message", "id": "a1", "parent_id": null, "timestamp": 1_767_323_046.5, "message": { "role": "user", "content": "one" } }),
        json!({ "type": "message", "id": "a2", "parent_id": "a1", "timestamp": "2026-01-02T03:04:07Z", "message": { "role": "assistant", "content": [
            { "type": "tool_call", "id": "c1", "name": "ls", "arguments": { "p": "." } }], "stop_reason": "tool_use", "usage": { "input": 5, "output": 1, "cache_read": 2 } } }),
        json!({ "type": "message", "id": "a3", "parent_id": "a2", "timestamp": 3, "message": { "role": "tool_result", "tool_call_id": "c1", "tool_name": "ls", "content": "files" } }),
        json!({ "type": "thinking_level_change", "id": "a4", "parent_id": "a3", "timestamp": 4, "thinking_level": "low" }),
        json!({ "type": "compaction", "id": "a5", "parent_id": "a4", "summary": "so far", "first_kept_entry_id": "a2" }),
        json!({ "type": "message", "id": "a6", "parent_id": "a5", "timestamp": 5, "message": { "role": "user", "content": "late" } }),
        json!({ "type": "branch", "id": "a7", "parent_id": "a5", "timestamp": 6, "summary": "late was left", "from_id": "a6" }),
        json!({ "type": "custom_info", "id": "a8", "parent_id": "a7", "timestamp": 7, "custom_type": "x", "data": [1] }),
        json!({ "type": "leaf", "id": "a9", "parent_id": "a8", "timestamp": 8, "target_id": "a7" }),
    ];
    let imported = import(Format::Operator, lines(&values));
    assert_eq!(imported.context(), ["u:so far", "C:ls(c1)", "t:files", "u:late was left"]);
    assert_eq!(imported.codes(), []);
    assert_eq!(imported.log.context().thinking, "low");
    assert_eq!(imported.session.unwrap().at.0, 1_767_323_045_250);
    assert_eq!(import_again(Format::Operator, imported.log, lines(&values)).added, 0);
}

fn pi_context(more: &[Value]) -> crate::taking::ImportResult {
    import(Format::Pi, lines(&[&[header(), user("u1", None, "one")], more].concat()))
}

#[test]
fn summary_messages_are_imported_as_summaries() {
    let left =
        json!({ "role": "branchSummary", "summary": "that led nowhere", "fromId": "x", "timestamp": 1 });
    let imported = pi_context(&[message("s1", Some("u1"), left)]);
    assert_eq!(imported.context(), ["u:one", "u:that led nowhere"]);
    assert_eq!((imported.count(Kind::BranchSummary), imported.codes()), (1, vec![]));

    let cut =
        json!({ "role": "compactionSummary", "summary": "so far", "tokensBefore": 900, "timestamp": 1 });
    let imported = pi_context(&[message("k1", Some("u1"), cut), user("u2", Some("k1"), "on")]);
    assert_eq!(imported.context(), ["u:so far", "u:on"]);
    let tokens = imported.log.entries().find_map(|entry| match &entry.body {
        Body::Compaction(compaction) => compaction.tokens_before,
        _ => None,
    });
    assert_eq!(tokens, Some(900));
}

#[test]
fn a_user_command_is_in_the_context_unless_excluded() {
    let ran = |more: Value| {
        let mut ran = json!({ "role": "bashExecution", "command": "make", "output": "", "exitCode": 0, "timestamp": 1 });
        ran.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pi_context(&[message("b1", Some("u1"), ran), user("u2", Some("b1"), "two")])
    };
    assert_eq!(ran(json!({})).context(), ["u:one", "u:Ran `make`\n(no output)", "u:two"]);
    let cancelled = ran(json!({ "cancelled": true, "output": "half" }));
    assert_eq!(cancelled.context()[1], "u:Ran `make`\n```\nhalf\n```\n\n(command cancelled)");
    let cut = ran(json!({ "truncated": true, "fullOutputPath": "/tmp/x", "output": "end" }));
    assert!(cut.context()[1].ends_with("[Output truncated. Full output: /tmp/x]"));
    let hidden = ran(json!({ "excludeFromContext": true, "output": "secret" }));
    assert_eq!(hidden.context(), ["u:one", "u:two"]);
    assert_eq!(hidden.count(Kind::CustomInfo), 1, "the command is kept outside the tree");
}

fn answer(stop: &str, cost: Value) -> Value {
    let usage = json!({ "input": 10, "output": 2, "cacheRead": 0, "cacheWrite": 0, "cost": cost });
    let content = json!([{ "type": "text", "text": "words" }]);
    message(
        "a1",
        Some("u1"),
        json!({ "role": "assistant", "content": content, "provider": "p", "model": "m", "usage": usage, "stopReason": stop }),
    )
}

#[test]
fn costs_are_imported_in_billionths_of_a_dollar() {
    for (cost, expected) in [(json!({ "total": 0.0015 }), 1_500_000), (json!({ "total": 0 }), 0)] {
        let spend = pi_context(&[answer("stop", cost.clone())]).spend();
        assert_eq!((spend.calls, spend.cost_nano_usd, spend.unpriced_calls), (1, expected, 0), "{cost}");
    }
    for cost in [Value::Null, json!({ "total": -1.0 })] {
        let unpriced = pi_context(&[answer("stop", cost.clone())]).spend();
        assert_eq!((unpriced.calls, unpriced.unpriced_calls), (1, 1), "{cost}");
    }
}

#[test]
fn stop_reasons_are_imported_and_unsent_answers_are_only_in_the_log() {
    use sapwood_core::entry::Stop;
    let cases = [
        ("stop", Stop::Stop, true),
        ("length", Stop::Length, true),
        ("toolUse", Stop::ToolUse, true),
        ("error", Stop::Error, false),
        ("aborted", Stop::Error, false),
    ];
    for (reason, stop, is_sent) in cases {
        let imported = pi_context(&[answer(reason, Value::Null), user("u2", Some("a1"), "two")]);
        let entry = imported.log.entries().find(|entry| entry.meta.kind == Kind::AssistantMessage).unwrap();
        let Body::AssistantMessage(answer) = &entry.body else { panic!("no answer") };
        assert_eq!((answer.stop, entry.body.text().as_str()), (stop, "words"), "{reason}");
        assert_eq!(imported.context().contains(&"a:words".to_owned()), is_sent, "{reason}");
        assert_eq!(imported.spend().calls, 1, "{reason}");
    }
}

#[test]
fn the_files_of_a_summary_are_imported() {
    let details = json!({ "readFiles": ["a.rs"], "modifiedFiles": ["b.rs", "c.rs"] });
    let imported = pi_context(&[
        entry(
            "k1",
            Some("u1"),
            "compaction",
            json!({ "summary": "s", "firstKeptEntryId": "u1", "details": details }),
        ),
        entry(
            "s1",
            Some("k1"),
            "branch_summary",
            json!({ "summary": "b", "fromId": "u1", "details": details }),
        ),
        entry(
            "s2",
            Some("s1"),
            "branch_summary",
            json!({ "summary": "b", "fromId": "u1", "details": "an extension's" }),
        ),
    ]);
    let files: Vec<(usize, usize)> = imported
        .log
        .entries()
        .filter_map(|entry| match &entry.body {
            Body::Compaction(compaction) => Some(&compaction.details),
            Body::BranchSummary(summary) => Some(&summary.details),
            _ => None,
        })
        .map(|details| (details.files_read.len(), details.files_changed.len()))
        .collect();
    assert_eq!(files, [(1, 2), (1, 2), (0, 0)]);
}

#[test]
fn a_version_2_file_is_imported_completely() {
    let imported = import(Format::Pi, include_str!("../fixtures/pi-v2.jsonl"));
    assert_eq!(
        imported.context(),
        [
            "u:Water the roses.",
            "u:It rained.",
            "a:Not needed.",
            "u:Ran `date`\n```\nMonday\n```",
            "u:And tomorrow?"
        ]
    );
    assert_eq!((imported.codes(), imported.spend().cost_nano_usd), (vec![], 2_000_000));
    assert_eq!(imported.log.context().model.as_deref(), Some("anthropic/claude-haiku-test"));
}

#[test]
fn an_operator_file_with_pis_header_and_iso_times_is_recognised() {
    let text = include_str!("../fixtures/operator-iso.jsonl");
    assert_eq!(sapwood_formats::import::detect::detect(text.as_bytes()), Some(Format::Operator));
    let imported = import(Format::Operator, text);
    assert_eq!((imported.context(), imported.codes()), (vec!["u:Any mail?".to_owned()], vec![]));
    let texts: Vec<String> =
        imported.log.entries().map(|entry| entry.body.text()).filter(|text| !text.is_empty()).collect();
    assert_eq!(texts, ["Any mail?", "None.", "Look again.", "And yesterday?"]);
    assert_eq!(imported.session.unwrap().at.0, 1_767_355_200_000);
}

#[test]
fn usage_copied_from_the_parent_counts_there() {
    let mut fork = header();
    fork["parentSession"] =
        json!("/sessions/2026-01-01T00-00-00-000Z_0199bbbb-0000-7000-8000-000000000000.jsonl");
    fork["timestamp"] = json!("2026-01-03T00:00:00.000Z");
    let copied = [user("aaaaaaa1", None, "one"), assistant("aaaaaaa2", "aaaaaaa1", "first")];
    let later = |mut record: Value| {
        record["timestamp"] = json!("2026-01-03T00:00:05.000Z");
        record
    };
    let own = [
        later(user("aaaaaaa3", Some("aaaaaaa2"), "two")),
        later(assistant("aaaaaaa4", "aaaaaaa3", "second")),
    ];
    let imported = import(Format::Pi, lines(&[&[fork][..], &copied, &own].concat()));
    assert_eq!(imported.context(), ["u:one", "a:first", "u:two", "a:second"]);
    assert_eq!((imported.spend().calls, imported.spend().usage.input), (1, 10));
    let alone = import(Format::Pi, lines(&[&[header()][..], &copied].concat()));
    assert_eq!(alone.spend().calls, 1, "without a fork, all calls count here");
}

/// Build two messages, a record without an entry, two more messages, and a compaction that keeps from that
/// record.
fn kept_from(record: Value) -> Vec<Value> {
    vec![
        header(),
        user("u1", None, "old"),
        assistant("a1", "u1", "old answer"),
        record,
        user("u2", Some("x1"), "kept"),
        entry(
            "s1",
            Some("u2"),
            "compaction",
            json!({ "summary": "so far", "firstKeptEntryId": "x1", "tokensBefore": 9 }),
        ),
        user("u3", Some("s1"), "new"),
    ]
}

#[test]
fn a_compaction_that_keeps_from_a_record_without_an_entry_keeps_the_next_entry() {
    let hidden = json!({ "role": "bashExecution", "command": "x", "output": "o", "exitCode": 0, "excludeFromContext": true });
    for record in [
        entry("x1", Some("a1"), "custom", json!({ "customType": "e", "data": 1 })),
        entry("x1", Some("a1"), "label", json!({ "targetId": "u1", "label": "here" })),
        entry("x1", Some("a1"), "session_info", json!({ "name": "Shop" })),
        message("x1", Some("a1"), hidden),
    ] {
        let all = kept_from(record.clone());
        let fresh = import(Format::Pi, lines(&all));
        assert_eq!(fresh.context(), ["u:so far", "u:kept", "u:new"], "{record}");
        for count in 0..all.len() {
            let grown = import_again(Format::Pi, import(Format::Pi, lines(&all[..count])).log, lines(&all));
            assert_eq!(grown.context(), fresh.context(), "{record} after {count}");
        }
    }
}

#[test]
fn a_compaction_that_keeps_from_a_root_without_an_entry_keeps_the_whole_path() {
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            entry("x1", None, "custom", json!({ "customType": "e", "data": 1 })),
            user("u1", Some("x1"), "one"),
            assistant("a1", "u1", "two"),
            entry("s1", Some("a1"), "compaction", json!({ "summary": "so far", "firstKeptEntryId": "x1" })),
            user("u2", Some("s1"), "three"),
        ]),
    );
    assert_eq!(imported.context(), ["u:so far", "u:one", "a:two", "u:three"]);
}

#[test]
fn a_compaction_that_keeps_from_the_record_before_it_keeps_nothing() {
    let imported = import(
        Format::Pi,
        lines(&[
            header(),
            user("u1", None, "one"),
            entry("x1", Some("u1"), "custom", json!({ "customType": "e", "data": 1 })),
            entry("s1", Some("x1"), "compaction", json!({ "summary": "so far", "firstKeptEntryId": "x1" })),
            user("u2", Some("s1"), "two"),
        ]),
    );
    assert_eq!(imported.context(), ["u:so far", "u:two"]);
}

/// Return the session name for a file without its header, and the parent in a header that references the file.
fn named(format: Format, file: &str) -> (String, String) {
    use sapwood_formats::import::{reader, steps::StepBatch};
    let session = |lines: String, file: &str| {
        let (mut reader, mut batch) = (reader(format, file).unwrap(), StepBatch::default());
        for (number, line) in (1..).zip(lines.split_inclusive('\n')) {
            reader.push_line(line.as_bytes(), number, &mut batch);
        }
        reader.finish(&mut batch);
        batch.session.unwrap()
    };
    let mut fork = header();
    fork["parentSession"] = json!(format!("/home/me/{file}.jsonl"));
    let headless = session(lines(&[user("u1", None, "hello")]), file).id.to_string();
    (headless, session(lines(&[fork]), "x").parent.unwrap().session.to_string())
}

#[test]
fn only_pis_file_names_are_shortened_and_sessions_stay_distinct() {
    let uuid = "0199bbbb-0000-7000-8000-000000000001";
    let both = |name: &str| (name.to_owned(), name.to_owned());
    assert_eq!(named(Format::Pi, &format!("2026-01-02T03-04-05-000Z_{uuid}")), both(uuid));
    for name in ["notes_today", "logs_today", "2026-01-02T03-04-05-000Z_today", "v1_0199bbbb"] {
        assert_eq!(named(Format::Pi, name), both(name));
    }
    for name in ["sess_abc", "profile_abc", &format!("2026-01-02T03-04-05-000Z_{uuid}")] {
        assert_eq!(named(Format::Operator, name), both(name));
    }
}
