//! opencode's rows: the import of each field, reverted, cleared or damaged data, and growing messages.

use sapwood_core::content::Part;
use sapwood_core::entry::{Body, LeafMoved, Stop, ToolResult, Trigger};
use sapwood_core::fixture::MemLog;
use sapwood_core::{BlobHash, Kind};
use sapwood_formats::import::Format;
use serde_json::{Value, json};

use crate::taking::{ImportResult, import, import_again, lines};

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

fn session(more: Value) -> Value {
    let mut row = json!({ "table": "session", "id": "ses_1", "parent_id": null, "title": "Shop",
        "directory": "/work", "time_created": 1_767_323_045_000u64 });
    for (key, value) in more.as_object().unwrap() {
        row[key] = value.clone();
    }
    row
}

fn message(id: &str, data: Value) -> Value {
    json!({ "table": "message", "id": id, "time_created": 1_767_323_045_678u64, "data": data })
}

fn part(id: &str, data: Value) -> Value {
    json!({ "table": "part", "id": id, "data": data })
}

fn text(id: &str, text: &str) -> Value {
    part(id, json!({ "type": "text", "text": text }))
}

fn user(id: &str) -> Value {
    message(id, json!({ "role": "user" }))
}

fn tokens(input: u64, output: u64) -> Value {
    json!({ "input": input, "output": output, "reasoning": 0, "cache": { "read": 0, "write": 0 } })
}

fn answer(id: &str, input: u64) -> Value {
    message(id, json!({ "role": "assistant", "modelID": "m", "providerID": "p", "tokens": tokens(input, 1) }))
}

fn tool(id: &str, state: Value) -> Value {
    part(id, json!({ "type": "tool", "callID": "c1", "tool": "read", "state": state }))
}

fn rows(more: &[Value]) -> String {
    lines(&[&[session(json!({})), user("msg_1"), text("prt_1", "look")], more].concat())
}

fn result_of(imported: &ImportResult) -> ToolResult {
    let results = imported.log.entries().filter_map(|entry| match &entry.body {
        Body::ToolResult(result) => Some(result.clone()),
        _ => None,
    });
    results.last().unwrap()
}

#[test]
fn reasoning_is_kept_as_reasoning() {
    let rows = rows(&[
        answer("msg_2", 10),
        part("prt_2", json!({ "type": "reasoning", "text": "hm" })),
        part(
            "prt_3",
            json!({ "type": "reasoning", "text": "", "metadata": { "anthropic": { "redactedData": "x" } } }),
        ),
        text("prt_4", "done"),
    ]);
    let imported = import(Format::OpenCode, rows);
    assert_eq!(
        (imported.codes(), imported.context()),
        (vec![], vec!["u:look".to_owned(), "r:hm r: a:done".to_owned()])
    );
}

#[test]
fn a_tool_part_is_a_call_and_its_state_is_the_result() {
    for (state, shown, is_error) in [
        (
            json!({ "status": "completed", "input": {}, "output": "words", "time": { "start": 1000, "end": 1250 } }),
            "t:words",
            false,
        ),
        (
            json!({ "status": "error", "input": {}, "error": "no such file", "time": { "start": 1000, "end": 1250 } }),
            "t:no such file",
            true,
        ),
    ] {
        let imported = import(Format::OpenCode, rows(&[answer("msg_2", 10), tool("prt_2", state)]));
        assert_eq!(imported.context(), ["u:look", "C:read(c1)", shown]);
        let result = result_of(&imported);
        assert_eq!((result.is_error, result.duration_ms), (is_error, Some(250)));
    }
    for status in ["pending", "running"] {
        let state = json!({ "status": status, "input": {}, "time": { "start": 1000 } });
        let imported = import(Format::OpenCode, rows(&[answer("msg_2", 10), tool("prt_2", state)]));
        assert_eq!(imported.count(Kind::ToolResult), 0, "{status}: there is no result yet");
    }
}

#[test]
fn a_file_part_is_media_and_a_text_file_is_kept_outside_the_tree() {
    let imported = import(
        Format::OpenCode,
        lines(&[
            session(json!({})),
            user("msg_1"),
            text("prt_1", "look"),
            part("prt_2", json!({ "type": "file", "mime": "image/png", "filename": "a.png", "url": PNG })),
            part(
                "prt_3",
                json!({ "type": "file", "mime": "text/plain", "filename": "a.txt", "url": "file:///a.txt" }),
            ),
            part("prt_4", json!({ "type": "text", "text": "the words of a.txt", "synthetic": true })),
            part("prt_5", json!({ "type": "text", "text": "only for the screen", "ignored": true })),
        ]),
    );
    assert_eq!(imported.context(), ["u:look m:image/png 8 u:the words of a.txt"]);
    assert_eq!(imported.count(Kind::CustomInfo), 2, "nothing is lost");
}

#[test]
fn a_step_finish_adds_no_usage() {
    let finish = json!({ "type": "step-finish", "reason": "stop", "cost": 0.5, "tokens": tokens(10, 1) });
    let imported = import(
        Format::OpenCode,
        rows(&[
            answer("msg_2", 10),
            part("prt_2", json!({ "type": "step-start" })),
            text("prt_3", "done"),
            part("prt_4", finish),
        ]),
    );
    let spend = imported.spend();
    assert_eq!((spend.calls, spend.usage.input, spend.usage.output, spend.cost_nano_usd), (1, 10, 1, 0));
    assert_eq!((imported.count(Kind::CustomInfo), imported.codes()), (0, vec![]));
}

fn compacted(tail: Value) -> ImportResult {
    let mut compaction_request = json!({ "type": "compaction", "auto": false });
    compaction_request["tail_start_id"] = tail;
    let summary = json!({ "role": "assistant", "modelID": "m", "summary": true, "tokens": tokens(7, 3), "finish": "stop" });
    import(
        Format::OpenCode,
        rows(&[
            answer("msg_2", 10),
            text("prt_2", "first answer"),
            user("msg_3"),
            text("prt_3", "second"),
            user("msg_4"),
            part("prt_4", compaction_request),
            message("msg_5", summary),
            text("prt_5", "so far"),
            user("msg_6"),
            text("prt_6", "third"),
        ]),
    )
}

#[test]
fn a_compaction_keeps_from_its_tail_start_id() {
    assert_eq!(compacted(json!("msg_3")).context(), ["u:so far", "u:second", "u:third"]);
    assert_eq!(compacted(json!("msg_2")).context(), ["u:so far", "a:first answer", "u:second", "u:third"]);
    assert_eq!(compacted(Value::Null).context(), ["u:so far", "u:third"]);
}

#[test]
fn a_message_with_summary_true_is_a_compaction_with_usage() {
    let imported = compacted(Value::Null);
    let written = imported.log.entries().find_map(|entry| match &entry.body {
        Body::Compaction(compaction) => Some(compaction.clone()),
        _ => None,
    });
    let written = written.unwrap();
    assert_eq!((written.summary.as_deref(), written.trigger), (Some("so far"), Trigger::Manual));
    assert_eq!(written.written_by.unwrap().usage.input, 7);
    assert_eq!(imported.spend().calls, 2);
    let user = json!({ "role": "user", "summary": { "title": "t", "diffs": [] } });
    let other = import(
        Format::OpenCode,
        lines(&[session(json!({})), message("msg_1", user), text("prt_1", "hello")]),
    );
    assert_eq!(other.context(), ["u:hello"], "in a user message, `summary` has another meaning");
}

#[test]
fn reverted_messages_are_in_the_log_but_not_on_the_path() {
    let rest = [
        user("msg_1"),
        text("prt_1", "one"),
        answer("msg_2", 10),
        text("prt_2", "two"),
        user("msg_3"),
        text("prt_3", "three"),
        answer("msg_4", 20),
        text("prt_4", "four"),
    ];
    let with = |revert: Value| lines(&[&[session(json!({ "revert": revert }))], &rest[..]].concat());
    let whole = import(Format::OpenCode, with(Value::Null));
    assert_eq!(whole.context(), ["u:one", "a:two", "u:three", "a:four"]);
    let back = import(Format::OpenCode, with(json!({ "messageID": "msg_3" })));
    assert_eq!(back.context(), ["u:one", "a:two"]);
    assert_eq!(back.log.entries().filter(|entry| entry.body.text() == "four").count(), 1);
    assert_eq!(back.spend(), whole.spend());
    let later = import_again(Format::OpenCode, whole.log, with(json!({ "messageID": "msg_3" })));
    assert_eq!((later.context(), later.codes()), (back.context(), vec![]), "reverted after it was imported");
    let again = import_again(Format::OpenCode, later.log, with(json!({ "messageID": "msg_3" })));
    assert_eq!(again.added, 0);
    let all = import(Format::OpenCode, with(json!({ "messageID": "msg_1" })));
    assert_eq!(all.context(), Vec::<String>::new());
}

#[test]
fn an_undone_revert_restores_the_context() {
    let rest = [
        user("msg_1"),
        text("prt_1", "one"),
        answer("msg_2", 10),
        text("prt_2", "two"),
        text("prt_3", "more"),
        user("msg_3"),
        text("prt_4", "three"),
    ];
    let with = |revert: Value| lines(&[&[session(json!({ "revert": revert }))], &rest[..]].concat());
    for back in [json!({ "messageID": "msg_3" }), json!({ "messageID": "msg_2", "partID": "prt_3" })] {
        let whole = import(Format::OpenCode, with(Value::Null));
        let (all, spend) = (whole.context(), whole.spend());
        let reverted = import_again(Format::OpenCode, whole.log, with(back.clone()));
        let less = reverted.context();
        assert_ne!(less, all);
        let mut log = reverted.log;
        for _ in 0..2 {
            let restored = import_again(Format::OpenCode, log, with(Value::Null));
            assert_eq!((restored.context(), restored.spend(), restored.added), (all.clone(), spend, 1));
            let same = import_again(Format::OpenCode, restored.log, with(Value::Null));
            assert_eq!(same.added, 0);
            let again = import_again(Format::OpenCode, same.log, with(back.clone()));
            assert_eq!((again.context(), again.added), (less.clone(), 1), "reverted once more");
            log = again.log;
        }
        let first = log.entries().find(|entry| entry.meta.kind == Kind::UserMessage).unwrap().meta.id;
        log.push(LeafMoved { to: Some(first) }).unwrap();
        let here = import_again(Format::OpenCode, log, with(Value::Null));
        assert_eq!(
            (here.context(), here.added),
            (vec!["u:one".to_owned()], 0),
            "a leaf moved by the user stays"
        );
    }
}

#[test]
fn an_older_copy_of_the_database_reverts_nothing() {
    let begin = [session(json!({})), user("msg_1"), text("prt_1", "one")];
    let more = [answer("msg_2", 10), text("prt_2", "two")];
    let newer = import(Format::OpenCode, lines(&[&begin[..], &more[..]].concat()));
    let older = import_again(Format::OpenCode, newer.log, lines(&begin));
    assert_eq!((older.context(), older.added), (vec!["u:one".to_owned(), "a:two".to_owned()], 0));
}

#[test]
fn a_restored_title_is_imported_again() {
    let rows =
        |title: &str| lines(&[session(json!({ "title": title })), user("msg_1"), text("prt_1", "hello")]);
    let mut log = MemLog::default();
    let titles = ["A", "B", "A", "A", "B", "A"];
    for (title, added) in titles.into_iter().zip([2, 1, 1, 0, 1, 1]) {
        let imported = import_again(Format::OpenCode, log, rows(title));
        assert_eq!((imported.added, imported.codes()), (added, vec![]));
        log = imported.log;
        let named = log.entries().filter(|entry| entry.meta.kind == Kind::SessionNamed);
        assert_eq!(named.last().unwrap().body.text(), title);
    }
}

#[test]
fn a_partly_reverted_message_keeps_its_earlier_parts() {
    let rows = lines(&[
        session(json!({ "revert": { "messageID": "msg_2", "partID": "prt_3", "snapshot": "x" } })),
        user("msg_1"),
        text("prt_1", "one"),
        answer("msg_2", 10),
        text("prt_2", "two"),
        text("prt_3", "two and a half"),
        user("msg_3"),
        text("prt_4", "three"),
    ]);
    let imported = import(Format::OpenCode, &rows);
    assert_eq!(imported.context(), ["u:one", "a:two"]);
    let spend = imported.spend();
    assert_eq!((spend.calls, spend.usage.input), (1, 10), "one call in two versions");
    assert_eq!(import_again(Format::OpenCode, imported.log, &rows).added, 0);
}

#[test]
fn cleared_output_is_sent_as_a_placeholder_and_kept_as_a_blob() {
    let state = json!({ "status": "completed", "input": {}, "output": "long words",
        "time": { "start": 1000, "end": 1250, "compacted": 2000 }, "attachments": [{ "type": "file", "mime": "image/png", "url": PNG }] });
    let rows = rows(&[answer("msg_2", 10), tool("prt_2", state), user("msg_3"), text("prt_3", "and now")]);
    let imported = import(Format::OpenCode, &rows);
    assert_eq!(
        imported.context(),
        ["u:look", "C:read(c1)", "t:[Old tool result content cleared]", "u:and now"]
    );
    assert_eq!(result_of(&imported).full.unwrap().blob, BlobHash::of(b"long words"));
    assert_eq!(imported.count(Kind::CustomInfo), 1, "the attachment is kept with the part");
    assert_eq!(import_again(Format::OpenCode, imported.log, &rows).added, 0);
}

#[test]
fn output_cleared_between_two_imports_adds_no_usage() {
    let rows = |time: Value| {
        let state = json!({ "status": "completed", "input": {}, "output": "words", "time": time });
        rows(&[answer("msg_2", 10), tool("prt_2", state), answer("msg_3", 20), text("prt_3", "done")])
    };
    let first = import(Format::OpenCode, rows(json!({ "start": 1, "end": 2 })));
    let cleared = rows(json!({ "start": 1, "end": 2, "compacted": 3 }));
    let spend = first.spend();
    let second = import_again(Format::OpenCode, first.log, &cleared);
    assert_eq!(second.context(), ["u:look", "C:read(c1)", "t:[Old tool result content cleared]", "a:done"]);
    assert_eq!(second.spend(), spend);
    assert_eq!(import_again(Format::OpenCode, second.log, &cleared).added, 0);
}

#[test]
fn attachments_of_a_tool_are_media_of_its_result() {
    let state = json!({ "status": "completed", "input": {}, "output": "a picture", "time": { "start": 1, "end": 2 },
        "attachments": [{ "type": "file", "mime": "image/png", "filename": "a.png", "url": PNG }] });
    let imported = import(Format::OpenCode, rows(&[answer("msg_2", 10), tool("prt_2", state)]));
    assert_eq!(imported.context().last().unwrap(), "t:a picture m:image/png 8");
    assert!(
        matches!(&result_of(&imported).parts[1], Part::Media(media) if media.name.as_deref() == Some("a.png"))
    );
}

#[test]
fn a_message_that_grew_between_two_imports_counts_once() {
    let rows = |said: &str, input: u64| rows(&[answer("msg_2", input), text("prt_2", said)]);
    let first = import(Format::OpenCode, rows("so f", 10));
    assert_eq!((first.spend().calls, first.spend().usage.input), (1, 10));
    let second = import_again(Format::OpenCode, first.log, rows("so far", 25));
    assert_eq!(second.context(), ["u:look", "a:so far"]);
    assert_eq!(
        (second.spend().calls, second.spend().usage.input),
        (1, 25),
        "only the additional usage is counted"
    );
    let third = import_again(Format::OpenCode, second.log, rows("so far, so good", 30));
    assert_eq!((third.spend().calls, third.spend().usage.input, third.spend().usage.output), (1, 30, 1));
    assert_eq!(import_again(Format::OpenCode, third.log, rows("so far, so good", 30)).added, 0);
}

#[test]
fn usage_reported_after_the_text_is_counted() {
    let rows = |message: Value| rows(&[message, text("prt_2", "so far")]);
    let mut silent = answer("msg_2", 10);
    silent["data"].as_object_mut().unwrap().remove("tokens");
    let mut log = import(Format::OpenCode, rows(silent.clone())).log;
    for (message, added, calls, input) in
        [(answer("msg_2", 10), 1, 1, 10), (answer("msg_2", 25), 1, 1, 25), (answer("msg_2", 40), 1, 1, 40)]
    {
        let imported = import_again(Format::OpenCode, log, rows(message.clone()));
        assert_eq!(
            (imported.added, imported.context()),
            (added, vec!["u:look".to_owned(), "a:so far".to_owned()])
        );
        assert_eq!((imported.spend().calls, imported.spend().usage.input), (calls, input));
        let again = import_again(Format::OpenCode, imported.log, rows(message));
        assert_eq!((again.added, again.spend().usage.input), (0, input));
        log = again.log;
    }
    let older = import_again(Format::OpenCode, log, rows(silent));
    assert_eq!((older.added, older.spend().usage.input), (0, 40), "an older copy counts nothing");
}

#[test]
fn a_changed_title_is_imported() {
    let rows =
        |title: &str| lines(&[session(json!({ "title": title })), user("msg_1"), text("prt_1", "hello")]);
    let titles = |imported: &ImportResult| -> Vec<String> {
        let named = imported.log.entries().filter(|entry| entry.meta.kind == Kind::SessionNamed);
        named.map(|entry| entry.body.text()).collect()
    };
    let first = import(Format::OpenCode, rows("New session"));
    assert_eq!(titles(&first), ["New session"]);
    let second = import_again(Format::OpenCode, first.log, rows("Shop"));
    assert_eq!((titles(&second), second.added), (vec!["New session".to_owned(), "Shop".to_owned()], 1));
    assert_eq!(import_again(Format::OpenCode, second.log, rows("Shop")).added, 0);
}

#[test]
fn unreadable_data_is_reported_and_becomes_no_message() {
    let fault = |table: &str, id: &str| json!({ "table": table, "id": id, "fault": "its data is not JSON" });
    let imported = import(
        Format::OpenCode,
        lines(&[
            session(json!({})),
            user("msg_1"),
            text("prt_1", "one"),
            fault("message", "msg_2"),
            text("prt_2", "whose words are these"),
            message("msg_3", Value::Null),
            message("msg_4", json!({ "role": 7 })),
            message("msg_5", json!({ "role": "user" })),
            fault("part", "prt_5"),
            text("prt_6", "two"),
        ]),
    );
    assert_eq!(imported.context(), ["u:one", "u:two"]);
    assert_eq!(
        imported.codes(),
        [(4, "import.bad_line"), (6, "import.bad_line"), (7, "import.bad_line"), (9, "import.bad_line")]
    );
    assert!(imported.problems[0].what.to_string().contains("msg_2"), "{}", imported.problems[0]);
}

#[test]
fn a_title_alone_is_not_a_session() {
    assert_eq!(import(Format::OpenCode, lines(&[session(json!({}))])).added, 0);
}

#[test]
fn an_unpaired_surrogate_in_a_row_is_replaced() {
    let rows = rows(&[]).replace("look", "look \\ud83d");
    let imported = import(Format::OpenCode, rows);
    assert_eq!(
        (imported.context(), imported.codes()),
        (vec!["u:look \u{fffd}".to_owned()], vec![(3, "import.mended")])
    );
}

#[test]
fn an_error_answer_is_only_in_the_log() {
    let failed = json!({ "role": "assistant", "modelID": "m", "error": { "name": "APIError", "data": {} } });
    let imported = import(Format::OpenCode, rows(&[message("msg_2", failed), text("prt_2", "half of")]));
    assert_eq!(imported.context(), ["u:look"]);
    let is_error =
        |body: &Body| matches!(body, Body::AssistantMessage(message) if message.stop == Stop::Error);
    assert_eq!(imported.log.entries().filter(|entry| is_error(&entry.body)).count(), 1);
}

/// Build a conversation with a compaction request, its answer, and a later message.
fn compaction_request(summary: Value, said: &str) -> Vec<Value> {
    let mut answer = json!({ "role": "assistant", "modelID": "m", "summary": true, "tokens": tokens(7, 3) });
    answer.as_object_mut().unwrap().extend(summary.as_object().unwrap().clone());
    vec![
        user("msg_2"),
        part("prt_2", json!({ "type": "compaction", "auto": true })),
        message("msg_3", answer),
        text("prt_3", said),
        user("msg_4"),
        text("prt_4", "go on"),
    ]
}

#[test]
fn a_failed_or_interrupted_compaction_keeps_the_context() {
    let failed = json!({ "error": { "name": "APIError", "data": {} } });
    let imported = import(Format::OpenCode, rows(&compaction_request(failed.clone(), "so")));
    assert_eq!(imported.context(), ["u:look", "u:What did we do so far?", "u:go on"]);
    assert_eq!((imported.count(Kind::Compaction), imported.spend().calls), (0, 1));
    let aborted = json!({ "finish": null, "error": { "name": "MessageAbortedError", "data": {} } });
    let imported = import(Format::OpenCode, rows(&compaction_request(aborted, "so")));
    assert_eq!(imported.context(), ["u:look", "u:What did we do so far?", "a:so", "u:go on"]);
    let late = json!({ "finish": "stop", "error": failed["error"] });
    assert_eq!(import(Format::OpenCode, rows(&compaction_request(late, "so"))).count(Kind::Compaction), 0);
}

#[test]
fn a_compaction_finished_between_two_imports_equals_a_fresh_import() {
    let whole = rows(&compaction_request(json!({ "finish": "stop" }), "so far"));
    let fresh = import(Format::OpenCode, &whole);
    assert_eq!(fresh.context(), ["u:so far", "u:go on"]);
    for count in 0..=5 {
        let begun = compaction_request(json!({}), "so");
        let begun = import(Format::OpenCode, rows(&begun[..count]));
        assert_eq!(begun.count(Kind::Compaction), 0);
        let grown = import_again(Format::OpenCode, begun.log, &whole);
        assert_eq!((grown.context(), grown.spend()), (fresh.context(), fresh.spend()), "after {count} rows");
        assert_eq!(import_again(Format::OpenCode, grown.log, &whole).added, 0);
    }
}

#[test]
fn an_unanswered_request_is_imported_with_opencodes_text() {
    let rows = rows(&[
        user("msg_2"),
        part("prt_2", json!({ "type": "compaction", "auto": true })),
        user("msg_3"),
        text("prt_3", "go on"),
    ]);
    assert_eq!(import(Format::OpenCode, rows).context(), ["u:look", "u:What did we do so far?", "u:go on"]);
}
