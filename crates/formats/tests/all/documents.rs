//! Formats that are documents or replace what they said: gemini-cli, opencode, role files, plain messages.

use sapwood_core::Kind;
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{lines, take, take_again};

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
fn gemini_a_repeated_id_replaces_and_a_result_is_inside_its_call() {
    let open = json!({ "content": "I look", "model": "gemini-test", "thoughts": [{ "subject": "Plan", "description": "look first" }],
        "toolCalls": [{ "id": "c1", "name": "ls", "args": { "p": "." }, "status": "executing" }] });
    let done = json!({ "content": "I look", "model": "gemini-test", "thoughts": [{ "subject": "Plan", "description": "look first" }],
        "tokens": { "input": 100, "output": 10, "cached": 40, "thoughts": 5, "total": 115 },
        "toolCalls": [{ "id": "c1", "name": "ls", "args": { "p": "." }, "status": "success",
            "result": [{ "functionResponse": { "id": "c1", "name": "ls", "response": { "output": "a.txt" } } }] }] });
    let taken = take(
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
    assert_eq!(taken.context(), ["u:hello", "r:**Plan** look first a:I look C:ls(c1)", "t:a.txt"]);
    let spend = taken.spend();
    assert_eq!((spend.calls, spend.usage.input, spend.usage.cache_read, spend.usage.output), (1, 60, 40, 15));
    assert_eq!(taken.count(Kind::CustomInfo), 2, "what the screen was told, and a command");
}

#[test]
fn gemini_rewind_removes_that_id_and_all_after_and_keeps_them_as_a_branch() {
    let say = |id: &str, kind: &str, text: &str| gemini(id, kind, json!({ "content": text }));
    let values = [
        gemini_header(),
        say("a", "user", "one"),
        say("b", "gemini", "two"),
        say("c", "user", "three"),
        say("d", "gemini", "four"),
        json!({ "$rewindTo": "c" }),
        say("e", "user", "five"),
    ];
    let taken = take(Format::GeminiCli, lines(&values));
    assert_eq!(taken.context(), ["u:one", "a:two", "u:five"]);
    assert_eq!(taken.log.entries().filter(|entry| entry.body.text() == "four").count(), 1);
    let all = take(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            say("a", "user", "one"),
            json!({ "$rewindTo": "zz" }),
            say("b", "user", "two"),
        ]),
    );
    assert_eq!(all.context(), ["u:two"], "an id that is not there removes all");
    assert_eq!(take_again(Format::GeminiCli, taken.log, lines(&values)).added, 0);
}

#[test]
fn gemini_set_patches_the_session_and_replaces_all_messages() {
    let say = |id: &str, kind: &str, text: &str| gemini(id, kind, json!({ "content": text }));
    let taken = take(
        Format::GeminiCli,
        lines(&[
            gemini_header(),
            say("a", "user", "one"),
            say("b", "gemini", "two"),
            json!({ "$set": { "summary": "Counting" } }),
            json!({ "$set": { "messages": [say("s", "user", "what happened"), say("b", "gemini", "two")] } }),
            say("c", "user", "three"),
        ]),
    );
    assert_eq!(taken.context(), ["u:what happened", "a:two", "u:three"]);
    assert_eq!(taken.count(Kind::SessionNamed), 1);
    assert_eq!(taken.log.entries().filter(|entry| entry.body.text() == "one").count(), 1);
}

#[test]
fn gemini_old_recordings_are_one_document() {
    let mut document = gemini_header();
    document["messages"] = json!([
        gemini("a", "user", json!({ "content": "one" })),
        gemini("b", "gemini", json!({ "content": "two" }))
    ]);
    let taken = take(Format::GeminiCli, serde_json::to_string_pretty(&document).unwrap());
    assert_eq!(taken.context(), ["u:one", "a:two"]);
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
    let taken = take(Format::OpenCode, lines(&rows));
    assert_eq!(taken.context(), ["u:so far", "u:and now", "a:done"]);
    assert_eq!(taken.codes(), []);
    let spend = taken.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.output, spend.cost_nano_usd),
        (1, 10, 3, 2_000_000)
    );
    let at_first = taken.log.entries().find(|entry| entry.meta.kind == Kind::ToolResult).unwrap();
    let before = taken.log.context_at(at_first.meta.seq);
    assert_eq!(before.messages.len(), 3);
    assert_eq!(taken.log.entries().next().unwrap().body.text(), "Shop");
    assert_eq!(take_again(Format::OpenCode, taken.log, lines(&rows)).added, 0);
}

#[test]
fn role_files_put_what_was_archived_before_what_came_since() {
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
    let taken = take(Format::RoleFiles, &text);
    assert_eq!(taken.context(), ["u:so far", "u:next", "a:I look C:read(c1)", "t:words", "a:done"]);
    assert_eq!(taken.codes(), []);
    assert_eq!(taken.log.context().system.as_deref(), Some("You own it."));
    let session = taken.session.as_ref().unwrap();
    assert_eq!((session.id.as_str(), session.agent.as_deref()), ("flow-1__owner_2", Some("owner_2")));
    assert_eq!(taken.log.entries().filter(|entry| entry.body.text() == "answer").count(), 1);
    assert_eq!(take_again(Format::RoleFiles, taken.log, &text).added, 0);
}

#[test]
fn plain_messages_of_openai_are_taken() {
    let document = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }] },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "ls", "arguments": "{\"p\":\".\"}" } }] },
        { "role": "tool", "tool_call_id": "c1", "content": "files" },
        { "role": "assistant", "content": "done" },
    ]);
    let taken = take(Format::Messages, document.to_string());
    assert_eq!(taken.context(), ["u:look m:image/png 8", "C:ls(c1)", "t:files", "a:done"]);
    assert_eq!(taken.log.context().system.as_deref(), Some("Be brief."));
}

#[test]
fn plain_messages_of_anthropic_are_taken() {
    let document = json!({ "model": "claude-test", "system": "Be brief.", "messages": [
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": [{ "type": "text", "text": "I look" }, { "type": "tool_use", "id": "c1", "name": "ls", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": [{ "type": "text", "text": "files" }] }, { "type": "text", "text": "thanks" }] },
    ] });
    let taken = take(Format::Messages, document.to_string());
    assert_eq!(taken.context(), ["u:look", "a:I look C:ls(c1)", "t:files", "u:thanks"]);
    let context = taken.log.context();
    assert_eq!(
        (context.system.as_deref(), context.model.as_deref()),
        (Some("Be brief."), Some("claude-test"))
    );
}

#[test]
fn a_message_a_line_grows_and_an_edited_one_is_a_branch() {
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    let first = take(Format::Messages, lines(&[say("user", "one"), say("assistant", "two")]));
    let grown = take_again(
        Format::Messages,
        first.log,
        lines(&[say("user", "one"), say("assistant", "two"), say("user", "three")]),
    );
    assert_eq!((grown.added, grown.context().len()), (1, 3));
    let edited =
        take_again(Format::Messages, grown.log, lines(&[say("user", "one"), say("assistant", "other")]));
    assert_eq!(edited.context(), ["u:one", "a:other"]);
    assert_eq!(edited.log.entries().filter(|entry| entry.body.text() == "three").count(), 1);
}

#[test]
fn gemini_going_back_again_and_again_looks_only_at_what_is_new() {
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
    let taken = take(Format::GeminiCli, lines(&values));
    assert_eq!((taken.codes(), taken.context().len()), (Vec::new(), 1_501));
    assert_eq!(taken.log.entries().filter(|entry| entry.body.text().starts_with("try ")).count(), 1_500);
}
