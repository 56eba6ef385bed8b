//! Formats that are documents or rewrite earlier messages: gemini-cli, opencode, role files, plain messages.

use sapwood_core::Kind;
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{import, import_again, lines};

fn gemini(id: &str, kind: &str, more: Value) -> Value {
    let mut record = json!({ "id": id, "timestamp": "2026-04-05T06:07:08.000Z", "type": kind });
    for (key, value) in more.as_object().unwrap() {
        record[key] = value.clone();
    }
    record
}

fn gemini_header() -> Value {
    json!({ "sessionId": "gem-1", "projectHash": "abc", "startTime": "2026-04-05T06:07:00.000Z", "lastUpdated": "x", "kind": "main" })
}

#[test]
fn gemini_a_repeated_id_replaces_the_message() {
    let open = json!({ "content": "I look", "model": "gemini-test", "thoughts": [{ "subject": "Plan", "description": "look first" }],
        "toolCalls": [{ "id": "c1", "name": "ls", "args": { "p": "." }, "status": "executing" }] });
    let done = json!({ "content": "I look", "model": "gemini-test", "thoughts": [{ "subject": "Plan", "description": "look first" }],
        "tokens": { "input": 100, "output": 10, "cached": 40, "thoughts": 5, "total": 115 },
        "toolCalls": [{ "id": "c1", "name": "ls", "args": { "p": "." }, "status": "success",
            "result": [{ "functionResponse": { "id": "c1", "name": "ls", "response": { "output": "a.txt" } } }] }] });
    let imported = import(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            gemini("i", "info", json!({ "content": "welcome" })),
            gemini("a", "user", json!({ "content": [{ "text": "hello" }] })),
            gemini("b", "gemini", open),
            gemini("b", "gemini", done),
            gemini("c", "user", json!({ "content": "/stats" })),
        ]),
    );
    assert_eq!(imported.context(), ["u:hello", "r:**Plan** look first a:I look C:ls(c1)", "t:a.txt"]);
    let spend = imported.spend();
    assert_eq!((spend.calls, spend.usage.input, spend.usage.cache_read, spend.usage.output), (1, 60, 40, 15));
    assert_eq!(imported.count(Kind::CustomInfo), 2, "a screen message and a command");
}

#[test]
fn gemini_a_rewind_keeps_the_removed_messages_as_a_branch() {
    let message = |id: &str, kind: &str, text: &str| gemini(id, kind, json!({ "content": text }));
    let values = [
        gemini_header(),
        message("a", "user", "one"),
        message("b", "gemini", "two"),
        message("c", "user", "three"),
        message("d", "gemini", "four"),
        json!({ "$rewindTo": "c" }),
        message("e", "user", "five"),
    ];
    let imported = import(Format::GeminiCli, lines(&values));
    assert_eq!(imported.context(), ["u:one", "a:two", "u:five"]);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "four").count(), 1);
    let all = import(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            message("a", "user", "one"),
            json!({ "$rewindTo": "zz" }),
            message("b", "user", "two"),
        ]),
    );
    assert_eq!(all.context(), ["u:two"], "an unknown id removes all");
    assert_eq!(import_again(Format::GeminiCli, imported.log, lines(&values)).added, 0);
}

#[test]
fn gemini_set_patches_the_session_and_replaces_all_messages() {
    let message = |id: &str, kind: &str, text: &str| gemini(id, kind, json!({ "content": text }));
    let imported = import(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            message("a", "user", "one"),
            message("b", "gemini", "two"),
            json!({ "$set": { "summary": "Counting" } }),
            json!({ "$set": { "messages": [message("s", "user", "what happened"), message("b", "gemini", "two")] } }),
            message("c", "user", "three"),
        ]),
    );
    assert_eq!(imported.context(), ["u:what happened", "a:two", "u:three"]);
    assert_eq!(imported.count(Kind::SessionNamed), 1);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "one").count(), 1);
}

#[test]
fn gemini_old_recordings_are_one_document() {
    let mut document = gemini_header();
    document["messages"] = json!([
        gemini("a", "user", json!({ "content": "one" })),
        gemini("b", "gemini", json!({ "content": "two" }))
    ]);
    let imported = import(Format::GeminiCli, serde_json::to_string_pretty(&document).unwrap());
    assert_eq!(imported.context(), ["u:one", "a:two"]);
}

#[test]
fn opencode_rows_become_messages_results_and_compactions() {
    let message = |id: &str, data: Value| json!({ "table": "message", "id": id, "time_created": 1_767_323_045_678u64, "data": data });
    let part = |id: &str, data: Value| json!({ "table": "part", "id": id, "data": data });
    let tokens = json!({ "input": 10, "output": 2, "reasoning": 1, "cache": { "read": 5, "write": 0 } });
    let rows = [
        json!({ "table": "session", "id": "ses_1", "parent_id": null, "title": "Shop", "directory": "/work", "time_created": 1_767_323_045_000u64 }),
        message("msg_1", json!({ "role": "user", "model": { "providerID": "p", "modelID": "m1" } })),
        part("prt_1", json!({ "type": "text", "text": "hello" })),
        message(
            "msg_2",
            json!({ "role": "assistant", "modelID": "m1", "providerID": "p", "cost": 0.002, "tokens": tokens, "finish": "tool-calls" }),
        ),
        part("prt_2", json!({ "type": "step-start" })),
        part("prt_3", json!({ "type": "reasoning", "text": "hm" })),
        part(
            "prt_4",
            json!({ "type": "tool", "callID": "c1", "tool": "read", "state": { "status": "completed", "input": { "p": "a" }, "output": "words", "time": { "start": 1000, "end": 1250 } } }),
        ),
        part("prt_5", json!({ "type": "step-finish", "cost": 0.002, "tokens": tokens })),
        part("prt_6", json!({ "type": "snapshot", "snapshot": "x" })),
        message("msg_3", json!({ "role": "user" })),
        part("prt_7", json!({ "type": "text", "text": "and now" })),
        message("msg_4", json!({ "role": "user" })),
        part("prt_8", json!({ "type": "compaction", "auto": true, "tail_start_id": "msg_3" })),
        message("msg_5", json!({ "role": "assistant", "modelID": "m1", "summary": true, "finish": "stop" })),
        part("prt_9", json!({ "type": "text", "text": "so far" })),
        message("msg_6", json!({ "role": "assistant", "modelID": "m1", "finish": "stop" })),
        part("prt_a", json!({ "type": "text", "text": "done" })),
    ];
    let imported = import(Format::OpenCode, lines(&rows));
    assert_eq!(imported.context(), ["u:so far", "u:and now", "a:done"]);
    assert_eq!(imported.codes(), []);
    let spend = imported.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.output, spend.cost_nano_usd),
        (1, 10, 3, 2_000_000)
    );
    let at_first = imported.log.entries().find(|entry| entry.meta.kind == Kind::ToolResult).unwrap();
    let before = imported.log.context_at(at_first.meta.seq);
    assert_eq!(before.messages.len(), 3);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "Shop").count(), 1);
    assert_eq!(import_again(Format::OpenCode, imported.log, lines(&rows)).added, 0);
}

#[test]
fn role_files_put_archived_messages_before_later_messages() {
    let summary = json!({ "role": "user", "content": "so far" });
    let document = json!({
        "roleName": "owner_2", "logicalSessionId": "flow-1__owner_2", "isActive": true, "systemPrompt": "You own it.",
        "latestContextUsage": 1234, "currentNodeId": "n2", "currentNodeContext": { "nodeId": "n2", "exchanges": [{ "role": "user", "content": "next" }] },
        "transcriptHistory": [
            summary,
            { "role": "user", "content": "next" },
            { "role": "assistant_tool_calls", "text": "I look", "calls": [{ "id": "c1", "name": "read", "input": { "p": "a" } }] },
            { "role": "tool_result", "callId": "c1", "toolName": "read", "content": "words", "isError": false },
            { "role": "assistant", "content": "done" },
        ],
        "compactionArchives": [{
            "id": "x", "trigger": "auto", "nodeId": "n1", "compactedAt": "2026-05-06T07:08:09.000Z",
            "archivedTranscriptHistory": [{ "role": "user", "content": "first" }, { "role": "assistant", "content": "answer" }],
            "replacementMessage": summary,
        }],
    });
    let text = serde_json::to_string_pretty(&document).unwrap();
    let imported = import(Format::RoleFiles, &text);
    assert_eq!(imported.context(), ["u:so far", "u:next", "a:I look C:read(c1)", "t:words", "a:done"]);
    assert_eq!(imported.codes(), []);
    assert_eq!(imported.log.context().system.as_deref(), Some("You own it."));
    let session = imported.session.as_ref().unwrap();
    assert_eq!((session.id.as_str(), session.agent.as_deref()), ("flow-1__owner_2", Some("owner_2")));
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "answer").count(), 1);
    assert_eq!(import_again(Format::RoleFiles, imported.log, &text).added, 0);
}

#[test]
fn plain_openai_messages_are_imported() {
    let document = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }] },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "ls", "arguments": "{\"p\":\".\"}" } }] },
        { "role": "tool", "tool_call_id": "c1", "content": "files" },
        { "role": "assistant", "content": "done" },
    ]);
    let imported = import(Format::Messages, document.to_string());
    assert_eq!(imported.context(), ["u:look m:image/png 8", "C:ls(c1)", "t:files", "a:done"]);
    assert_eq!(imported.log.context().system.as_deref(), Some("Be brief."));
}

#[test]
fn plain_anthropic_messages_are_imported() {
    let document = json!({ "model": "claude-test", "system": "Be brief.", "messages": [
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": [{ "type": "text", "text": "I look" }, { "type": "tool_use", "id": "c1", "name": "ls", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": [{ "type": "text", "text": "files" }] }, { "type": "text", "text": "thanks" }] },
    ] });
    let imported = import(Format::Messages, document.to_string());
    assert_eq!(imported.context(), ["u:look", "a:I look C:ls(c1)", "t:files", "u:thanks"]);
    let context = imported.log.context();
    assert_eq!(
        (context.system.as_deref(), context.model.as_deref()),
        (Some("Be brief."), Some("claude-test"))
    );
}

#[test]
fn new_message_lines_extend_the_session_and_edited_lines_branch() {
    let message = |role: &str, text: &str| json!({ "role": role, "content": text });
    let first = import(Format::Messages, lines(&[message("user", "one"), message("assistant", "two")]));
    let grown = import_again(
        Format::Messages,
        first.log,
        lines(&[message("user", "one"), message("assistant", "two"), message("user", "three")]),
    );
    assert_eq!((grown.added, grown.context().len()), (1, 3));
    let edited = import_again(
        Format::Messages,
        grown.log,
        lines(&[message("user", "one"), message("assistant", "other")]),
    );
    assert_eq!(edited.context(), ["u:one", "a:other"]);
    assert_eq!(edited.log.entries().filter(|entry| entry.body.text() == "three").count(), 1);
}

#[test]
fn gemini_repeated_rewinds_process_only_new_messages() {
    let text = "word ".repeat(400);
    let mut values = vec![gemini_header()];
    for number in 0..1_500 {
        values.push(gemini(&format!("m{number}"), "user", json!({ "content": format!("{number} {text}") })));
    }
    for number in 0..1_500 {
        values.push(gemini("again", "user", json!({ "content": format!("try {number}") })));
        values.push(json!({ "$rewindTo": "again" }));
    }
    values.push(gemini("last", "user", json!({ "content": "last" })));
    let imported = import(Format::GeminiCli, lines(&values));
    assert_eq!((imported.codes(), imported.context().len()), (Vec::new(), 1_501));
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text().starts_with("try ")).count(), 1_500);
}

fn message(id: &str, kind: &str, text: &str) -> Value {
    gemini(id, kind, json!({ "content": text }))
}

#[test]
fn gemini_a_message_that_grew_between_two_imports_counts_once() {
    let tokens = json!({ "input": 100, "output": 10, "cached": 0, "thoughts": 0, "total": 110 });
    let rows = |text: &str| {
        let answer = json!({ "content": text, "model": "g", "tokens": tokens });
        lines(&[gemini_header(), message("a", "user", "q"), gemini("b", "gemini", answer)])
    };
    let first = import(Format::GeminiCli, rows("par"));
    let second = import_again(Format::GeminiCli, first.log, rows("partial, and done"));
    assert_eq!(second.context(), ["u:q", "a:partial, and done"]);
    assert_eq!((second.spend().calls, second.spend().usage.input, second.spend().usage.output), (1, 100, 10));
    assert_eq!(import_again(Format::GeminiCli, second.log, rows("partial, and done")).added, 0);
}

#[test]
fn gemini_messages_set_again_after_others_count_once() {
    let answer = json!({ "content": "two", "tokens": { "input": 9, "output": 1 } });
    let answer = gemini("b", "gemini", answer);
    let all = json!({ "$set": { "messages": [message("s", "user", "what happened"), answer] } });
    let imported = import(
        Format::GeminiCli,
        lines(&[gemini_header(), message("a", "user", "one"), answer.clone(), all]),
    );
    assert_eq!(imported.context(), ["u:what happened", "a:two"]);
    assert_eq!((imported.spend().calls, imported.spend().usage.input), (1, 9));
}

#[test]
fn gemini_a_hidden_command_is_only_in_the_log() {
    let imported = import(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            message("a", "user", "/help me"),
            message("b", "user", "<session_context>today</session_context>"),
            message("c", "user", "one"),
        ]),
    );
    assert_eq!(imported.context(), ["u:one"]);
    let kept: Vec<String> = imported
        .log
        .entries()
        .filter_map(|entry| match &entry.body {
            sapwood_core::Body::CustomInfo(info) if info.custom_type == "gemini-cli:user" => {
                Some(info.data.get().to_owned())
            }
            _ => None,
        })
        .collect();
    assert!(kept[0].contains("/help me") && kept[1].contains("today"), "{kept:?}");
}

#[test]
fn gemini_an_old_recording_is_imported() {
    let text = include_str!("../fixtures/gemini-cli-document.json");
    let imported = import(Format::GeminiCli, text);
    assert_eq!(imported.codes(), []);
    assert_eq!(
        imported.context(),
        [
            "u:What is in this folder?",
            "r:**Listing** I list it. C:list_directory(ls-1)",
            "t:notes.md",
            "a:One file: notes.md."
        ]
    );
    assert_eq!((imported.spend().calls, imported.spend().usage.input), (2, 900));
    assert_eq!(import_again(Format::GeminiCli, imported.log, text).added, 0);
}

#[test]
fn gemini_a_torn_old_recording_keeps_its_complete_messages() {
    let text = include_str!("../fixtures/gemini-cli-document.json");
    let cut = text.find("One file").unwrap();
    let imported = import(Format::GeminiCli, &text[..cut]);
    assert_eq!(imported.context().last().unwrap(), "t:notes.md");
    assert_eq!(imported.codes(), [(text[..cut].lines().count() as u64, "import.torn")]);
    let nothing = import(Format::GeminiCli, "{\n");
    assert!(nothing.session.is_none() && nothing.added == 0);
}

#[test]
fn gemini_a_file_larger_than_the_buffer_can_be_rewound_and_replaced() {
    let text = "word ".repeat(40_000);
    let mut values = vec![gemini_header()];
    for number in 0..120 {
        values.push(message(&format!("m{number}"), "user", &format!("{number} {text}")));
    }
    values.push(message("m3", "user", "three, said otherwise"));
    values.push(message("m119", "user", "last, said otherwise"));
    let whole = import(Format::GeminiCli, lines(&values));
    let context = whole.context();
    assert_eq!((whole.codes(), context.len()), (vec![], 120));
    assert_eq!(context[119], "u:last, said otherwise");
    assert!(context[3].starts_with("u:3 word"), "the flushed version stays on the path");
    assert_eq!(whole.log.entries().filter(|entry| entry.body.text() == "three, said otherwise").count(), 1);
    values.push(json!({ "$rewindTo": "m2" }));
    values.push(message("n", "user", "from there"));
    let back = import_again(Format::GeminiCli, whole.log, lines(&values));
    let context = back.context();
    assert_eq!((context.len(), context[2].as_str()), (3, "u:from there"));
}

#[test]
fn messages_a_system_message_after_the_model_is_the_system_prompt() {
    let document = json!({ "model": "gpt-test", "messages": [
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }, { "role": "system", "content": "Now be long." } ] });
    let imported = import(Format::Messages, document.to_string());
    let context = imported.log.context();
    assert_eq!((context.system.as_deref(), context.model.as_deref()), (Some("Be brief."), Some("gpt-test")));
    assert_eq!((imported.context()[0].as_str(), imported.count(Kind::SystemNote)), ("u:hello", 1));
}

#[test]
fn messages_a_damaged_document_keeps_its_valid_part() {
    let document = json!([
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "mq1" }, { "role": "assistant", "content": "ma1" } ]);
    let pretty = serde_json::to_string_pretty(&document).unwrap();
    let cut = pretty.find("ma1").unwrap();
    let torn = import(Format::Messages, &pretty[..cut]);
    assert_eq!(torn.context(), ["u:mq1"]);
    assert_eq!(torn.codes(), [(pretty[..cut].lines().count() as u64, "import.torn")]);
    for text in [document.to_string(), pretty.clone()] {
        let marked = [b"\xef\xbb\xbf", text.as_bytes()].concat();
        assert_eq!(import(Format::Messages, marked).context(), ["u:mq1", "a:ma1"]);
        let mut broken = text.clone().into_bytes();
        broken[text.find("mq1").unwrap()] = 0xff;
        let broken = import(Format::Messages, broken);
        assert_eq!(broken.context(), ["u:\u{fffd}q1", "a:ma1"]);
        assert_eq!(broken.codes()[0].1, "import.mended");
        let half = import(Format::Messages, text.replace("mq1", "mq\\ud83d"));
        assert_eq!((half.context()[0].as_str(), half.codes()[0].1), ("u:mq\u{fffd}", "import.mended"));
    }
    let object = json!({ "model": "m", "messages": document }).to_string();
    let torn = import(Format::Messages, &object[..object.find("ma1").unwrap()]);
    assert_eq!((torn.context(), torn.codes()), (vec!["u:mq1".to_owned()], vec![(1, "import.torn")]));
}

#[test]
fn a_complete_json_first_line_means_one_record_per_line() {
    for format in [Format::Messages, Format::GeminiCli] {
        assert!(!format.is_document(b"{\"role\":\"user\",\"content\":\"x\"}\n"));
        assert!(!format.is_document(b"\xef\xbb\xbf[1]\r\n"));
        assert!(format.is_document(b"{\n") && format.is_document(b"[{\"role\":\"user\"},\n"));
    }
    assert!(Format::RoleFiles.is_document(b"{}") && !Format::ClaudeCode.is_document(b"{"));
    let torn_first = "{\"role\":\"user\",\"con\n{\"role\":\"user\",\"content\":\"one\"}\n{\"role\":\"assistant\",\"content\":\"two\"}\n";
    let imported = import(Format::Messages, torn_first);
    assert_eq!(
        (imported.context(), imported.codes()),
        (vec!["u:one".to_owned(), "a:two".to_owned()], vec![(1, "import.bad_line")])
    );
}

#[test]
fn a_source_without_times_uses_the_file_time() {
    use sapwood_core::TimestampMs;
    use sapwood_formats::import::reader;
    use sapwood_formats::import::steps::StepBatch;
    let mut batch = StepBatch::of_file(TimestampMs(1_767_323_045_678));
    let mut messages = reader(Format::Messages, "a.jsonl").unwrap();
    messages.push_line(b"{\"role\":\"user\",\"content\":\"one\"}\n", 1, &mut batch);
    assert_eq!(batch.session.as_ref().unwrap().at, TimestampMs(1_767_323_045_678));
    let mut dated = StepBatch::of_file(TimestampMs(1_767_323_045_678));
    let mut gemini = reader(Format::GeminiCli, "a.jsonl").unwrap();
    gemini.push_line(format!("{}\n", gemini_header()).as_bytes(), 1, &mut dated);
    assert_eq!(
        dated.session.as_ref().unwrap().at,
        TimestampMs(1_775_369_220_000),
        "the recording's own time is used"
    );
}

#[test]
fn invalid_titles_are_made_to_fit() {
    let long = "x".repeat(500);
    for (title, fit) in
        [("Shop\nand more\t", Some("Shop and more")), (&long, Some(&long[..400])), (" \n ", None)]
    {
        let messages = json!({ "title": title, "messages": [{ "role": "user", "content": "hello" }] });
        let imported = import(Format::Messages, messages.to_string());
        assert_eq!(imported.session.unwrap().title.as_deref(), fit);
        let header = json!({ "type": "session", "version": 3, "id": "s-1", "name": title });
        let info = json!({ "type": "session_info", "id": "b", "parentId": "a", "name": title });
        let said = json!({ "type": "message", "id": "a", "parentId": null, "message": { "role": "user", "content": "hi" } });
        let session = json!({ "type": "user", "uuid": "u", "sessionId": "s-1", "message": { "role": "user", "content": "hi" } });
        let custom = json!({ "type": "custom-title", "customTitle": title, "sessionId": "s-1" });
        let row = json!({ "table": "session", "id": "ses_1", "title": title });
        let message = json!({ "table": "message", "id": "m", "data": { "role": "user" } });
        let part = json!({ "table": "part", "id": "p", "data": { "type": "text", "text": "hi" } });
        for (format, values) in [
            (Format::Pi, vec![header, said, info]),
            (Format::ClaudeCode, vec![session, custom]),
            (Format::OpenCode, vec![row, message, part]),
        ] {
            let imported = import(format, lines(&values));
            let named = imported.log.entries().filter(|entry| entry.meta.kind == Kind::SessionNamed);
            let titles: Vec<String> = named.map(|entry| entry.body.text()).collect();
            assert_eq!(titles.first().map(String::as_str), fit, "{}", format.as_str());
            assert_eq!(import_again(format, imported.log, lines(&values)).added, 0, "{}", format.as_str());
        }
    }
}
