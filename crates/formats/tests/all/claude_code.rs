//! Claude Code transcripts, one special case per test.

use sapwood_core::Kind;
use sapwood_core::entry::{Body, Trigger};
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{ImportResult, import, import_again, lines};

fn record(uuid: &str, parent: Option<&str>, kind: &str, more: Value) -> Value {
    let mut record = json!({
        "type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "c0ffee00-0000-4000-8000-000000000001",
        "timestamp": "2026-02-03T04:05:06.789Z", "cwd": "/work/shop", "isSidechain": false,
    });
    for (key, value) in more.as_object().unwrap() {
        record[key] = value.clone();
    }
    record
}

fn user(uuid: &str, parent: Option<&str>, text: &str) -> Value {
    record(uuid, parent, "user", json!({ "message": { "role": "user", "content": text } }))
}

fn answer(uuid: &str, parent: &str, message: &str, block: Value) -> Value {
    let usage = json!({ "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7 });
    let message = json!({ "id": message, "role": "assistant", "model": "claude-test-1", "content": [block], "usage": usage });
    record(uuid, Some(parent), "assistant", json!({ "message": message }))
}

fn text_answer(uuid: &str, parent: &str, message: &str, text: &str) -> Value {
    answer(uuid, parent, message, json!({ "type": "text", "text": text }))
}

fn call_answer(uuid: &str, parent: &str, message: &str, call: &str) -> Value {
    answer(
        uuid,
        parent,
        message,
        json!({ "type": "tool_use", "id": call, "name": "Read", "input": { "path": "a.txt" } }),
    )
}

fn result(uuid: &str, parent: &str, call: &str, text: &str) -> Value {
    let block = json!({ "type": "tool_result", "tool_use_id": call, "content": text });
    record(uuid, Some(parent), "user", json!({ "message": { "role": "user", "content": [block] } }))
}

fn import_all(values: &[Value]) -> ImportResult {
    import(Format::ClaudeCode, lines(values))
}

#[test]
fn a_response_of_several_records_is_one_entry_and_counts_once() {
    let imported = import_all(&[
        user("u1", None, "read it"),
        answer("a1", "u1", "m1", json!({ "type": "thinking", "thinking": "hm", "signature": "SECRET" })),
        text_answer("a2", "a1", "m1", "I look"),
        call_answer("a3", "a2", "m1", "c1"),
        result("r1", "a3", "c1", "words"),
        text_answer("a4", "r1", "m2", "done"),
    ]);
    assert_eq!(imported.context(), ["u:read it", "r:hm a:I look C:Read(c1)", "t:words", "a:done"]);
    assert_eq!(imported.codes(), []);
    let spend = imported.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.output, spend.usage.cache_read),
        (2, 20, 10, 200)
    );
    assert_eq!(imported.log.context().model.as_deref(), Some("anthropic/claude-test-1"));
    let session = imported.session.unwrap();
    assert_eq!(session.id.as_str(), "c0ffee00-0000-4000-8000-000000000001");
    assert_eq!(session.cwd.as_deref(), Some("/work/shop"));
    for entry in imported.log.entries() {
        assert!(!String::from_utf8(entry.to_record().body).unwrap().contains("SECRET"));
    }
}

#[test]
fn results_of_parallel_calls_form_a_chain() {
    // Each result references the record of its call, and the next message references only one of the results.
    let imported = import_all(&[
        user("u1", None, "both"),
        call_answer("a1", "u1", "m1", "c1"),
        call_answer("a2", "a1", "m1", "c2"),
        result("r1", "a1", "c1", "one"),
        result("r2", "a2", "c2", "two"),
        text_answer("a3", "r1", "m2", "done"),
    ]);
    assert_eq!(imported.context(), ["u:both", "C:Read(c1) C:Read(c2)", "t:one", "t:two", "a:done"]);
}

#[test]
fn a_tool_result_may_precede_the_end_of_its_response() {
    let imported = import_all(&[
        user("u1", None, "both"),
        call_answer("a1", "u1", "m1", "c1"),
        record("p1", Some("a1"), "progress", json!({ "data": { "type": "hook_progress" } })),
        result("r1", "p1", "c1", "one"),
        call_answer("a2", "r1", "m1", "c2"),
        result("r2", "a2", "c2", "two"),
        text_answer("a3", "r2", "m2", "done"),
    ]);
    assert_eq!(imported.context(), ["u:both", "C:Read(c1) C:Read(c2)", "t:one", "t:two", "a:done"]);
    assert_eq!(imported.spend().calls, 2);
}

#[test]
fn a_compact_boundary_and_its_summary_become_a_compaction() {
    let boundary = json!({
        "subtype": "compact_boundary", "parentUuid": null, "logicalParentUuid": "a1",
        "compactMetadata": { "trigger": "auto", "preTokens": 150_000 },
    });
    let mut summary = user("s1", Some("b1"), "what happened");
    summary["isCompactSummary"] = json!(true);
    let imported = import_all(&[
        user("u1", None, "hello"),
        text_answer("a1", "u1", "m1", "hi"),
        record("b1", None, "system", boundary),
        summary,
        user("u2", Some("s1"), "go on"),
        text_answer("a2", "u2", "m2", "gladly"),
    ]);
    assert_eq!(imported.context(), ["u:what happened", "u:go on", "a:gladly"]);
    assert_eq!(
        imported.log.head().leaf,
        Some(sapwood_core::Seq(5)),
        "one path, with the old part before the compaction"
    );
    let Body::Compaction(compaction) = &imported.log.entry(sapwood_core::Seq(3)).body else {
        panic!("no compaction")
    };
    assert_eq!((compaction.trigger, compaction.tokens_before), (Trigger::Pressure, Some(150_000)));
}

#[test]
fn sidechains_and_meta_records_are_not_on_the_main_path() {
    let mut side = user("x1", None, "do a part of it");
    side["isSidechain"] = json!(true);
    let mut side_answer = text_answer("x2", "x1", "mx", "part done");
    side_answer["isSidechain"] = json!(true);
    let mut meta = user("k1", Some("a1"), "Caveat: not for you");
    meta["isMeta"] = json!(true);
    let imported = import_all(&[
        user("u1", None, "hello"),
        text_answer("a1", "u1", "m1", "hi"),
        side,
        side_answer,
        meta,
        user("u2", Some("k1"), "go on"),
    ]);
    assert_eq!(imported.context(), ["u:hello", "a:hi", "u:go on"]);
    assert_eq!(imported.spend().calls, 2, "a subagent's calls are counted, too");
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "part done").count(), 1);
}

#[test]
fn the_leaf_is_the_last_record_on_the_main_path_even_if_a_sidechain_ends_the_file() {
    let mut side = user("x1", None, "aside");
    side["isSidechain"] = json!(true);
    let imported = import_all(&[user("u1", None, "hello"), text_answer("a1", "u1", "m1", "hi"), side]);
    assert_eq!(imported.context(), ["u:hello", "a:hi"]);
}

#[test]
fn rewound_messages_become_a_branch() {
    let imported = import_all(&[
        user("u1", None, "hello"),
        text_answer("a1", "u1", "m1", "hi"),
        user("u2", Some("a1"), "wrong way"),
        text_answer("a2", "u2", "m2", "off we go"),
        user("u3", Some("a1"), "right way"),
    ]);
    assert_eq!(imported.context(), ["u:hello", "a:hi", "u:right way"]);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "off we go").count(), 1);
}

#[test]
fn titles_snapshots_and_unknown_records_are_kept_outside_the_tree() {
    let imported = import_all(&[
        json!({ "type": "summary", "summary": "An old title", "leafUuid": "zz" }),
        json!({ "type": "file-history-snapshot", "messageId": "u1", "snapshot": {} }),
        user("u1", None, "hello"),
        record("n1", Some("u1"), "novelty", json!({ "z": 1, "a": 2 })),
        text_answer("a1", "n1", "m1", "hi"),
        json!({ "type": "custom-title", "customTitle": "Shop", "sessionId": "c0ffee00-0000-4000-8000-000000000001" }),
    ]);
    assert_eq!(imported.context(), ["u:hello", "a:hi"]);
    assert_eq!((imported.count(Kind::CustomInfo), imported.count(Kind::SessionNamed)), (4, 1));
    assert_eq!(imported.codes(), []);
    let kinds: Vec<String> = imported
        .log
        .entries()
        .filter_map(|entry| match &entry.body {
            Body::CustomInfo(info) => Some(info.custom_type.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "claude-code:summary",
            "claude-code:file-history-snapshot",
            "claude-code:novelty",
            "claude-code:custom-title"
        ]
    );
}

#[test]
fn a_subagents_file_is_a_session_that_names_its_parent() {
    let mut first = user("x1", None, "do a part of it");
    first["isSidechain"] = json!(true);
    first["agentId"] = json!("a1b2");
    let mut second = text_answer("x2", "x1", "mx", "part done");
    second["isSidechain"] = json!(true);
    second["agentId"] = json!("a1b2");
    let imported = import_all(&[first, second]);
    assert_eq!(imported.context(), ["u:do a part of it", "a:part done"]);
    let session = imported.session.unwrap();
    assert_eq!(session.id.as_str(), "c0ffee00-0000-4000-8000-000000000001:agent-a1b2");
    assert_eq!(session.parent.unwrap().session.as_str(), "c0ffee00-0000-4000-8000-000000000001");
}

#[test]
fn an_error_answer_is_not_sent_again() {
    let mut failed = text_answer("a1", "u1", "m1", "API Error: overloaded");
    failed["isApiErrorMessage"] = json!(true);
    failed["message"]["model"] = json!("<synthetic>");
    let imported = import_all(&[user("u1", None, "hello"), failed, user("u2", Some("a1"), "again")]);
    assert_eq!(imported.context(), ["u:hello", "u:again"]);
}

#[test]
fn images_become_blobs() {
    let image = json!([{ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" } }, { "type": "text", "text": "look" }]);
    let imported =
        import_all(&[record("u1", None, "user", json!({ "message": { "role": "user", "content": image } }))]);
    assert_eq!(imported.context(), ["m:image/png 8 u:look"]);
}

#[test]
fn importing_again_adds_nothing_and_a_grown_file_extends_the_session() {
    let mut values = vec![
        user("u1", None, "hello"),
        text_answer("a1", "u1", "m1", "hi"),
        json!({ "type": "last-prompt", "sessionId": "c0ffee00-0000-4000-8000-000000000001" }),
    ];
    let first = import_all(&values);
    let again = import_again(Format::ClaudeCode, first.log, lines(&values));
    assert_eq!((again.added, again.skipped), (0, 3));
    values.push(user("u2", Some("a1"), "more"));
    let grown = import_again(Format::ClaudeCode, again.log, lines(&values));
    assert_eq!((grown.added, grown.skipped), (1, 3));
    assert_eq!(grown.context(), ["u:hello", "a:hi", "u:more"]);
}

#[test]
fn a_continued_session_keeps_its_leaf_and_imports_new_records() {
    let mut values = vec![user("u1", None, "hello"), text_answer("a1", "u1", "m1", "hi")];
    let mut first = import_all(&values);
    first
        .log
        .push(sapwood_core::entry::UserMessage {
            parts: vec![sapwood_core::Part::text("continued here")],
            origin: None,
        })
        .unwrap();
    values.push(user("u2", Some("a1"), "continued there"));
    let grown = import_again(Format::ClaudeCode, first.log, lines(&values));
    assert_eq!(grown.context(), ["u:hello", "a:hi", "u:continued here"]);
    assert_eq!(grown.log.entries().filter(|entry| entry.body.text() == "continued there").count(), 1);
    let again = import_again(Format::ClaudeCode, grown.log, lines(&values));
    assert_eq!(again.added, 0);
}

#[test]
fn a_response_imported_before_its_end_counts_once() {
    let values = [
        user("u1", None, "read it"),
        text_answer("a1", "u1", "m1", "I look"),
        call_answer("a2", "a1", "m1", "c1"),
        result("r1", "a2", "c1", "words"),
    ];
    let early = import_all(&values[..2]);
    let whole = import_again(Format::ClaudeCode, early.log, lines(&values));
    assert_eq!(whole.context(), ["u:read it", "a:I look C:Read(c1)", "t:words"]);
    assert_eq!(whole.spend().calls, 1);
}

#[test]
fn results_too_large_to_buffer_are_imported_in_order() {
    let large = "x".repeat(1 << 20);
    let mut values = vec![user("u", None, "go"), call_answer("a0", "u", "m", "c0")];
    for number in 1..20 {
        let (uuid, parent) = (format!("a{number}"), format!("a{}", number - 1));
        values.push(result(&uuid, &parent, "c0", &format!("{number} {large}")));
    }
    values.push(text_answer("end", "a19", "m2", "done"));
    let imported = import_all(&values);
    assert_eq!(imported.codes(), []);
    let results = imported.log.entries().filter(|entry| entry.meta.kind == Kind::ToolResult);
    let numbers: Vec<String> =
        results.map(|entry| entry.body.text().split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(numbers, (1..20).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(imported.context().last().unwrap(), "a:done");
}

#[test]
fn ids_of_any_length_keep_the_tree_intact() {
    let (one, two) = ("1".repeat(1 << 20), "2".repeat(1 << 20));
    let values =
        [user(&one, None, "one"), text_answer(&two, &one, &one, "two"), user("u3", Some(&two), "three")];
    let imported = import_all(&values);
    assert_eq!(imported.codes(), []);
    assert_eq!(imported.context(), ["u:one", "a:two", "u:three"]);
    assert_eq!(import_again(Format::ClaudeCode, imported.log, lines(&values)).added, 0);
}

#[test]
fn a_file_cut_inside_a_response_keeps_its_call_and_final_usage() {
    let counted = |mut record: Value, output: u64| {
        record["message"]["usage"]["output_tokens"] = json!(output);
        record
    };
    let values = [
        user("u1", None, "both"),
        counted(call_answer("a1", "u1", "m1", "c1"), 1),
        result("r1", "a1", "c1", "one"),
        counted(call_answer("a2", "r1", "m1", "c2"), 9),
        result("r2", "a2", "c2", "two"),
        counted(text_answer("b1", "r2", "m2", "done"), 3),
    ];
    let grown = import_again(Format::ClaudeCode, import_all(&values[..3]).log, lines(&values));
    assert_eq!(grown.context(), ["u:both", "C:Read(c1) C:Read(c2)", "t:one", "t:two", "a:done"]);
    let spend = grown.spend();
    assert_eq!((spend.calls, spend.usage.input, spend.usage.output), (2, 20, 12));
    let again = import_again(Format::ClaudeCode, grown.log, lines(&values));
    assert_eq!((again.added, again.spend().usage.output), (0, 12));
}

#[test]
fn a_repeated_record_is_reported_and_changes_nothing() {
    let once = [
        user("u1", None, "hello"),
        text_answer("a1", "u1", "m1", "part A"),
        text_answer("a2", "a1", "m1", "part B"),
        user("u2", Some("a2"), "more"),
        text_answer("a5", "u2", "m5", "five"),
    ];
    for (twice, at) in [(1, 2), (1, 5), (2, 3), (0, 5), (3, 5)] {
        let mut values = once.to_vec();
        values.insert(at, once[twice].clone());
        let imported = import_all(&values);
        assert_eq!(
            imported.context(),
            ["u:hello", "a:part A a:part B", "u:more", "a:five"],
            "{twice} at {at}"
        );
        assert_eq!(imported.codes(), [(at as u64 + 1, "import.duplicate")]);
        assert_eq!(imported.spend().calls, 2);
    }
}

#[test]
fn a_preserved_segment_is_kept_verbatim_after_the_summary() {
    let boundary = |head: &str| {
        json!({
            "subtype": "compact_boundary", "logicalParentUuid": "a2", "compactMetadata": {
                "trigger": "auto", "preTokens": 50,
                "preservedSegment": { "headUuid": head, "anchorUuid": "s1", "tailUuid": "a2" },
            },
        })
    };
    let mut summary = user("s1", Some("b1"), "what happened");
    summary["isCompactSummary"] = json!(true);
    let all = |head: &str| {
        import_all(&[
            user("u1", None, "old"),
            text_answer("a0", "u1", "m0", "old answer"),
            user("u2", Some("a0"), "kept"),
            call_answer("c1", "u2", "m1", "c1"),
            result("r1", "c1", "c1", "words"),
            text_answer("a2", "r1", "m2", "kept answer"),
            record("b1", None, "system", boundary(head)),
            summary.clone(),
            user("u3", Some("a2"), "new"),
            text_answer("a3", "u3", "m3", "new answer"),
        ])
    };
    let behind = ["C:Read(c1)", "t:words", "a:kept answer", "u:new", "a:new answer"];
    assert_eq!(all("u2").context(), [&["u:what happened", "u:kept"][..], &behind].concat());
    let from_call = all("c1");
    assert_eq!(from_call.context(), [&["u:what happened"][..], &behind].concat());
    assert_eq!(from_call.codes(), []);
}

#[test]
fn a_file_starting_with_a_boundary_keeps_its_segment_after_the_summary() {
    let kept = |anchor: &str, uuids: &[&str]| {
        json!({ "subtype": "compact_boundary", "compactMetadata": {
        "preservedSegment": { "headUuid": uuids[0], "anchorUuid": anchor, "tailUuid": uuids[1] },
        "preservedMessages": { "anchorUuid": anchor, "uuids": uuids } } })
    };
    let summary = |uuid: &str, boundary: &str, text: &str| {
        let mut summary = user(uuid, Some(boundary), text);
        summary["isCompactSummary"] = json!(true);
        summary
    };
    let records = [
        record("b1", None, "system", kept("s1", &["p1", "p2"])),
        summary("s1", "b1", "what happened elsewhere"),
        user("p1", Some("s1"), "kept"),
        text_answer("p2", "p1", "m1", "kept answer"),
        user("u1", Some("p2"), "new"),
        text_answer("a1", "u1", "m2", "new answer"),
        // A second compaction: its kept records are written again after it, with another parent.
        record("b2", Some("a1"), "system", kept("s2", &["u1", "a1"])),
        summary("s2", "b2", "all of it"),
        user("u1", Some("s2"), "new"),
        text_answer("a1", "u1", "m2", "new answer"),
        user("u2", Some("a1"), "last"),
    ];
    let first = import_all(&records[..6]);
    assert_eq!(
        first.context(),
        ["u:what happened elsewhere", "u:kept", "a:kept answer", "u:new", "a:new answer"]
    );
    let whole = import_all(&records);
    assert_eq!(whole.context(), ["u:all of it", "u:new", "a:new answer", "u:last"]);
    assert_eq!(whole.spend().calls, 2);
    let grown = import_again(Format::ClaudeCode, first.log, lines(&records));
    assert_eq!((grown.context(), grown.spend()), (whole.context(), whole.spend()));
}

#[test]
fn a_segment_kept_before_its_summary_stays_before_it() {
    let kept = json!({ "headUuid": "u1", "anchorUuid": "b1", "tailUuid": "a1" });
    let named = json!({ "anchorUuid": "b1", "uuids": ["u1", "a1"], "allUuids": ["u1", "a1"] });
    for metadata in [json!({ "preservedSegment": kept }), json!({ "preservedMessages": named })] {
        let boundary =
            json!({ "subtype": "compact_boundary", "logicalParentUuid": "a3", "compactMetadata": metadata });
        let mut summary = user("s1", Some("b1"), "the rest in short");
        summary["isCompactSummary"] = json!(true);
        let records = [
            user("u1", None, "first"),
            call_answer("a0", "u1", "m0", "c1"),
            result("r1", "a0", "c1", "words"),
            text_answer("a1", "r1", "m1", "first answer"),
            user("u2", Some("a1"), "long story"),
            text_answer("a3", "u2", "m2", "long answer"),
            record("b1", None, "system", boundary),
            summary,
            user("u4", Some("s1"), "new"),
            text_answer("a4", "u4", "m3", "new answer"),
        ];
        let whole = import_all(&records);
        let context = [
            "u:first",
            "C:Read(c1)",
            "t:words",
            "a:first answer",
            "u:the rest in short",
            "u:new",
            "a:new answer",
        ];
        assert_eq!((whole.context(), whole.codes()), (context.map(str::to_owned).to_vec(), vec![]));
        let left = whole.log.entries().find_map(|entry| match &entry.body {
            Body::BranchSummary(summary) => summary.from,
            _ => None,
        });
        let long = whole.log.entries().find(|entry| entry.body.text() == "long answer").unwrap();
        assert_eq!(left, Some(long.meta.id), "it refers to the abandoned branch");
        for cut in 1..records.len() {
            let grown = import_again(Format::ClaudeCode, import_all(&records[..cut]).log, lines(&records));
            assert_eq!((grown.context(), grown.spend()), (whole.context(), whole.spend()), "cut at {cut}");
        }
    }
}

#[test]
fn a_response_continued_after_a_user_message_counts_once() {
    let with_output_tokens = |mut record: Value, output: u64| {
        record["message"]["usage"]["output_tokens"] = json!(output);
        record
    };
    let queued = json!({ "attachment": { "type": "queued_command", "prompt": "and mind the tests" } });
    let mixed = json!({ "message": { "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "c1", "content": "words" }, { "type": "text", "text": "go on" }] } });
    let results = [
        vec![result("r1", "a1", "c1", "words"), record("q1", Some("r1"), "attachment", queued)],
        vec![record("q1", Some("a1"), "user", mixed)],
    ];
    for between in results {
        let begin = [user("u1", None, "both"), with_output_tokens(call_answer("a1", "u1", "m1", "c1"), 1)];
        let end = [
            with_output_tokens(call_answer("a2", "q1", "m1", "c2"), 40),
            result("r2", "a2", "c2", "more"),
            with_output_tokens(text_answer("a3", "r2", "m1", "so it is"), 90),
            with_output_tokens(text_answer("a4", "a3", "m2", "done"), 7),
        ];
        let records = [&begin[..], &between, &end].concat();
        let whole = import_all(&records);
        let spend = whole.spend();
        assert_eq!((spend.calls, spend.usage.input, spend.usage.output), (2, 20, 97));
        let context = whole.context();
        assert!(
            context.iter().any(|line| line.contains("C:Read(c2)") && line.contains("so it is")),
            "{context:?}"
        );
        for cut in 1..records.len() {
            let grown = import_again(Format::ClaudeCode, import_all(&records[..cut]).log, lines(&records));
            assert_eq!((grown.context(), grown.spend()), (context.clone(), spend), "cut at {cut}");
            assert_eq!(import_again(Format::ClaudeCode, grown.log, lines(&records)).added, 0);
        }
    }
}

#[test]
fn usage_copied_by_a_fork_counts_in_its_source() {
    let source = "c0ffee00-0000-4000-8000-00000000000a";
    let copied = |mut record: Value| {
        record["forkedFrom"] = json!({ "sessionId": source, "messageUuid": record["uuid"] });
        record
    };
    let imported = import_all(&[
        copied(user("u1", None, "hello")),
        copied(text_answer("a1", "u1", "m1", "hi")),
        user("u2", Some("a1"), "another way"),
        text_answer("a2", "u2", "m2", "gladly"),
    ]);
    assert_eq!(imported.context(), ["u:hello", "a:hi", "u:another way", "a:gladly"]);
    assert_eq!((imported.spend().calls, imported.spend().usage.input), (1, 10));
    assert_eq!(imported.session.unwrap().parent.unwrap().session.as_str(), source);
}

#[test]
fn messages_sent_while_the_agent_works_are_in_the_context() {
    let queued = json!({ "attachment": { "type": "queued_command", "prompt": "and the zebra", "commandMode": "prompt" } });
    let other = json!({ "attachment": { "type": "file", "filename": "a.txt" } });
    let imported = import_all(&[
        user("u1", None, "go"),
        call_answer("a1", "u1", "m1", "c1"),
        result("r1", "a1", "c1", "words"),
        record("q1", Some("r1"), "attachment", queued),
        record("f1", Some("q1"), "attachment", other),
        text_answer("a2", "f1", "m2", "both"),
    ]);
    assert_eq!(imported.context(), ["u:go", "C:Read(c1)", "t:words", "u:and the zebra", "a:both"]);
    let asked = imported.log.entries().find(|entry| entry.body.search_text().contains("zebra")).unwrap();
    assert_eq!((asked.meta.kind, imported.count(Kind::CustomInfo)), (Kind::UserMessage, 1));
}

#[test]
fn a_subagent_is_a_separate_session_with_its_own_calls() {
    let imported = import(Format::ClaudeCode, include_str!("../fixtures/claude-code-helper.jsonl"));
    assert_eq!(
        imported.context(),
        [
            "u:Find where the tax is added.",
            "a:I look in two places. C:Grep(toolu_1) C:Read(toolu_2)",
            "t:cart.py:12",
            "t:def total(): ...",
            "a:In cart.py, line 12.",
        ]
    );
    let spend = imported.spend();
    assert_eq!((spend.calls, spend.usage.output, imported.codes()), (2, 59, vec![]));
    let session = imported.session.unwrap();
    assert_eq!(session.id.as_str(), "c0ffee00-0000-4000-8000-000000000007:agent-b7d1");
    assert_eq!(session.parent.unwrap().session.as_str(), "c0ffee00-0000-4000-8000-000000000007");
}

#[test]
fn a_segment_starting_with_an_attachment_keeps_the_next_entry() {
    for (head, kept) in [("x1", "u:kept"), ("u2", "u:kept"), ("a1", "a:old answer")] {
        let segment = json!({ "headUuid": head, "tailUuid": "a2", "anchorUuid": "s1" });
        let boundary = json!({ "subtype": "compact_boundary", "logicalParentUuid": "a2", "compactMetadata": { "trigger": "auto", "preservedSegment": segment } });
        let summary = json!({ "isCompactSummary": true, "message": { "role": "user", "content": "so far" } });
        let all = [
            user("u1", None, "old"),
            text_answer("a1", "u1", "m1", "old answer"),
            record("x1", Some("a1"), "attachment", json!({ "attachment": { "type": "date_change" } })),
            user("u2", Some("x1"), "kept"),
            text_answer("a2", "u2", "m2", "kept answer"),
            record("b1", None, "system", boundary),
            record("s1", Some("b1"), "user", summary),
            user("u3", Some("a2"), "new"),
        ];
        let fresh = import_all(&all);
        assert_eq!(fresh.context()[..2], ["u:so far", kept], "{head}");
        assert_eq!(fresh.context().last().unwrap(), "u:new");
        for count in 0..all.len() {
            let grown = import_again(Format::ClaudeCode, import_all(&all[..count]).log, lines(&all));
            assert_eq!(grown.context(), fresh.context(), "{head} after {count}");
        }
    }
}

#[test]
fn a_subagents_compaction_does_not_affect_the_main_path() {
    let on_sidechain = |mut record: Value| {
        record["isSidechain"] = json!(true);
        record
    };
    let boundary = |uuid: &str, after: &str, trigger: &str| {
        let more = json!({ "subtype": "compact_boundary", "logicalParentUuid": after, "compactMetadata": { "trigger": trigger } });
        record(uuid, None, "system", more)
    };
    let summary = |uuid: &str, parent: &str, text: &str| {
        let more = json!({ "isCompactSummary": true, "message": { "role": "user", "content": text } });
        record(uuid, Some(parent), "user", more)
    };
    let mut all = vec![
        user("u1", None, "main"),
        on_sidechain(user("x1", None, "side")),
        on_sidechain(text_answer("x2", "x1", "mx", "at work")),
        user("u2", Some("u1"), "second"),
        boundary("b1", "u2", "manual"),
        on_sidechain(boundary("b2", "x2", "auto")),
        on_sidechain(summary("s2", "b2", "the side so far")),
    ];
    let imported = import_all(&all);
    assert_eq!(imported.context(), ["u:main", "u:second"]);
    all.extend([summary("s1", "b1", "so far"), user("u3", Some("s1"), "third")]);
    let fresh = import_all(&all);
    assert_eq!(fresh.context(), ["u:so far", "u:third"]);
    let triggers = fresh.log.entries().filter_map(|entry| match &entry.body {
        Body::Compaction(compaction) => Some(compaction.trigger),
        _ => None,
    });
    assert_eq!(triggers.collect::<Vec<_>>(), [Trigger::Pressure, Trigger::Manual]);
    for count in 0..all.len() {
        let grown = import_again(Format::ClaudeCode, import_all(&all[..count]).log, lines(&all));
        assert_eq!(grown.context(), fresh.context(), "after {count}");
    }
}

#[test]
fn provider_run_tools_become_text_and_leave_no_open_call() {
    let found = json!([
        { "type": "web_search_result", "url": "https://a.example", "title": "A page", "encrypted_content": "SECRET" },
        { "type": "web_search_result", "url": "https://b.example", "title": "Another" },
    ]);
    let fetched = json!({ "type": "web_fetch_result", "url": "https://a.example", "content": { "type": "document",
        "source": { "type": "text", "media_type": "text/plain", "data": "its words" } } });
    let imported = import_all(&[
        user("u1", None, "search"),
        answer(
            "a1",
            "u1",
            "m1",
            json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "query": "trees" } }),
        ),
        answer(
            "a2",
            "a1",
            "m1",
            json!({ "type": "web_search_tool_result", "tool_use_id": "s1", "content": found }),
        ),
        answer(
            "a3",
            "a2",
            "m1",
            json!({ "type": "web_fetch_tool_result", "tool_use_id": "s2", "content": fetched }),
        ),
        answer(
            "a4",
            "a3",
            "m1",
            json!({ "type": "web_search_tool_result", "tool_use_id": "s3",
                "content": { "type": "web_search_tool_result_error", "error_code": "max_uses_exceeded" } }),
        ),
        text_answer("a5", "a4", "m1", "done"),
    ]);
    assert_eq!(imported.codes(), []);
    assert_eq!(
        imported.context(),
        [
            "u:search",
            "a:[web_search: {\"query\":\"trees\"}] a:[web_search result]\nA page: https://a.example\nAnother: https://b.example \
             a:[web_fetch result]\nhttps://a.example\nits words a:[web_search result]\nmax_uses_exceeded a:done",
        ]
    );
}

#[test]
fn a_tool_reference_becomes_text() {
    let found = json!([{ "type": "tool_reference", "tool_name": "WebFetch" }, { "type": "tool_reference", "tool_name": "Edit" }]);
    let block = json!({ "type": "tool_result", "tool_use_id": "c1", "content": found });
    let imported = import_all(&[
        user("u1", None, "look"),
        call_answer("a1", "u1", "m1", "c1"),
        record("r1", Some("a1"), "user", json!({ "message": { "role": "user", "content": [block] } })),
    ]);
    assert_eq!(imported.codes(), []);
    assert_eq!(imported.context().last().unwrap(), "t:[tool: WebFetch] t:[tool: Edit]");
    let odd = json!({ "type": "text", "text": "hi", "title": { "a": 1 }, "stdout": [1], "error_code": 7, "tool_name": null });
    let imported = import_all(&[user("u1", None, "look"), answer("a1", "u1", "m1", odd)]);
    assert_eq!(
        (imported.context().pop(), imported.codes()),
        (Some("a:hi".to_owned()), vec![]),
        "unknown keys are ignored"
    );
}

#[test]
fn a_claude_code_command_is_in_the_context_but_not_the_preview() {
    use sapwood_core::Principal;
    use sapwood_core::project::summary::Summary;
    let imported = import_all(&[
        user("u1", None, "<command-name>/model</command-name>\n<command-args>opus</command-args>"),
        user("u2", Some("u1"), "<local-command-stdout>Set model</local-command-stdout>"),
        user("u3", Some("u2"), "<bash-input>ls</bash-input>"),
        user("u4", Some("u3"), "mend <command-name> in the parser"),
        text_answer("a1", "u4", "m1", "done"),
    ]);
    assert_eq!((imported.context().len(), imported.count(Kind::CustomMessage)), (5, 3));
    let mut summary = Summary::new(imported.session.as_ref().unwrap(), Principal::System);
    imported.log.entries().for_each(|entry| summary.apply(entry));
    assert_eq!(summary.preview.as_deref(), Some("mend <command-name> in the parser"));
}
