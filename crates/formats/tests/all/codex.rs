//! Codex's rollouts, quirk by quirk.

use sapwood_core::Kind;
use sapwood_formats::import::Format;
use sapwood_formats::import::codex::Importer;
use serde_json::{Value, json};

use crate::taking::{Taken, lines, take, take_again};

fn line(kind: &str, payload: Value) -> Value {
    json!({ "timestamp": "2026-03-04T05:06:07.000Z", "type": kind, "payload": payload })
}

fn meta() -> Value {
    line(
        "session_meta",
        json!({ "id": "0199aaaa-0000-7000-8000-000000000001", "timestamp": "2026-03-04T05:06:00Z", "cwd": "/work", "base_instructions": { "text": "Be brief." } }),
    )
}

fn item(payload: Value) -> Value {
    line("response_item", payload)
}

fn user(text: &str) -> Value {
    item(json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] }))
}

fn assistant(text: &str) -> Value {
    item(
        json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": text }] }),
    )
}

fn call(id: &str) -> Value {
    item(
        json!({ "type": "function_call", "name": "shell", "arguments": "{\"cmd\":[\"ls\"]}", "call_id": id }),
    )
}

fn output(id: &str, text: &str) -> Value {
    item(json!({ "type": "function_call_output", "call_id": id, "output": text }))
}

fn event(payload: Value) -> Value {
    line("event_msg", payload)
}

fn tokens(input: u64, cached: u64, out: u64) -> Value {
    let total = json!({ "input_tokens": input, "cached_input_tokens": cached, "output_tokens": out, "reasoning_output_tokens": 0, "total_tokens": input + out });
    event(json!({ "type": "token_count", "info": { "total_token_usage": total, "last_token_usage": total } }))
}

fn take_all(values: &[Value]) -> Taken {
    take(Format::Codex, lines(values))
}

#[test]
fn what_events_say_twice_is_taken_once() {
    let taken = take_all(&[
        meta(),
        line("turn_context", json!({ "cwd": "/work", "model": "gpt-test", "effort": "high" })),
        user("hello"),
        event(json!({ "type": "user_message", "message": "hello" })),
        item(
            json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "thinking" }], "encrypted_content": "SECRET" }),
        ),
        event(json!({ "type": "agent_reasoning", "text": "thinking" })),
        assistant("hi"),
        event(json!({ "type": "agent_message", "message": "hi" })),
    ]);
    assert_eq!(taken.context(), ["u:hello", "r:thinking a:hi"]);
    assert_eq!(taken.codes(), []);
    let context = taken.log.context();
    assert_eq!(context.system.as_deref(), Some("Be brief."));
    assert_eq!((context.model.as_deref(), context.thinking.as_str()), (Some("gpt-test"), "high"));
    assert!(
        taken
            .log
            .entries()
            .all(|entry| !String::from_utf8(entry.to_record().body).unwrap().contains("SECRET"))
    );
}

#[test]
fn token_counts_are_cumulative_and_come_after_the_tools_answer() {
    let taken = take_all(&[
        meta(),
        user("list"),
        call("c1"),
        output("c1", "a.txt"),
        tokens(100, 40, 10),
        tokens(100, 40, 10),
        assistant("one file"),
        tokens(250, 140, 15),
    ]);
    assert_eq!(taken.context(), ["u:list", "C:shell(c1)", "t:a.txt", "a:one file"]);
    let spend = taken.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.cache_read, spend.usage.output),
        (2, 110, 140, 15)
    );
}

#[test]
fn a_replacement_history_is_the_context_from_then_on() {
    let kept = json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "the goal" }] });
    let summary = json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "summary: half done" }] });
    let taken = take_all(&[
        meta(),
        user("the goal"),
        assistant("working"),
        line("compacted", json!({ "message": "half done", "replacement_history": [kept, summary] })),
        event(json!({ "type": "context_compacted" })),
        user("go on"),
        assistant("finished"),
    ]);
    assert_eq!(taken.context(), ["u:the goal", "u:summary: half done", "u:go on", "a:finished"]);
    assert_eq!(taken.count(Kind::Compaction), 1);
}

#[test]
fn an_old_compaction_repeats_the_users_words_and_its_message() {
    let taken = take_all(&[
        meta(),
        user("<environment_context>x</environment_context>"),
        user("the goal"),
        assistant("working"),
        line("compacted", json!({ "message": "half done" })),
        user("go on"),
    ]);
    assert_eq!(taken.context(), ["u:the goal", "u:half done", "u:go on"]);
}

#[test]
fn a_rollback_drops_turns_and_keeps_them_as_a_branch() {
    let taken = take_all(&[
        meta(),
        user("one"),
        assistant("first"),
        user("two"),
        call("c1"),
        output("c1", "x"),
        assistant("second"),
        user("three"),
        assistant("third"),
        event(json!({ "type": "thread_rolled_back", "num_turns": 2 })),
        user("another two"),
    ]);
    assert_eq!(taken.context(), ["u:one", "a:first", "u:another two"]);
    assert_eq!(taken.log.entries().filter(|entry| entry.body.text() == "third").count(), 1);
    let ended = take_all(&[
        meta(),
        user("one"),
        assistant("first"),
        event(json!({ "type": "thread_rolled_back", "num_turns": 9 })),
    ]);
    assert_eq!(ended.context(), Vec::<String>::new());
}

#[test]
fn custom_calls_shells_and_structured_outputs_are_tools_too() {
    let taken = take_all(&[
        meta(),
        user("patch"),
        item(
            json!({ "type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c1", "status": "completed" }),
        ),
        item(
            json!({ "type": "custom_tool_call_output", "call_id": "c1", "output": { "content": "applied", "success": false } }),
        ),
        item(
            json!({ "type": "local_shell_call", "call_id": "c2", "action": { "type": "exec", "command": ["ls"] } }),
        ),
        item(
            json!({ "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "files" }] }),
        ),
        item(json!({ "type": "ghost_snapshot", "ghost_commit": {} })),
    ]);
    assert_eq!(
        taken.context(),
        ["u:patch", "C:apply_patch(c1)", "t:applied", "C:local_shell(c2)", "t:files"]
    );
    assert_eq!(taken.count(Kind::CustomInfo), 1);
}

#[test]
fn a_fork_names_its_base_and_inherits_up_to_its_ordinal_without_the_cost() {
    use sapwood_formats::import::Reader;
    use sapwood_formats::import::harvest::Harvest;
    let mut own = meta();
    own["payload"]["id"] = json!("0199aaaa-0000-7000-8000-000000000002");
    own["payload"]["history_base"] =
        json!({ "thread_id": "0199aaaa-0000-7000-8000-000000000001", "end_ordinal_exclusive": 4 });
    let base = Importer::base_of(own.to_string().as_bytes()).unwrap();
    assert_eq!(
        (base.thread_id.as_str(), base.end_ordinal_exclusive),
        ("0199aaaa-0000-7000-8000-000000000001", 4)
    );
    let (mut importer, mut harvest) = (Importer::default(), Harvest::default());
    importer.push_line(own.to_string().as_bytes(), 1, &mut harvest);
    for (number, value) in
        [meta(), user("shared"), assistant("yes"), tokens(9, 0, 9), user("not shared")].iter().enumerate()
    {
        importer.push_inherited(value.to_string().as_bytes(), number as u64 + 1, 4, &mut harvest);
    }
    importer.push_line(user("own").to_string().as_bytes(), 2, &mut harvest);
    importer.finish(&mut harvest);
    let texts: Vec<String> = harvest
        .steps
        .iter()
        .filter_map(|step| match &step.act {
            sapwood_formats::import::harvest::Act::Add { body, .. } => {
                Some(body.text()).filter(|text| !text.is_empty())
            }
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["shared", "yes", "own"]);
    let session = harvest.session.unwrap();
    assert_eq!(session.id.as_str(), "0199aaaa-0000-7000-8000-000000000002");
    assert_eq!(session.parent.unwrap().session.as_str(), "0199aaaa-0000-7000-8000-000000000001");
}

#[test]
fn a_rollout_that_grew_extends_the_session() {
    let mut values = vec![meta(), user("one"), call("c1"), output("c1", "x"), tokens(10, 0, 1)];
    let first = take_all(&values);
    values.extend([assistant("done"), tokens(20, 0, 2)]);
    let grown = take_again(Format::Codex, first.log, lines(&values));
    assert_eq!(grown.context(), ["u:one", "C:shell(c1)", "t:x", "a:done"]);
    assert_eq!(grown.added, 1);
    assert_eq!(take_again(Format::Codex, grown.log, lines(&values)).added, 0);
}

#[test]
fn a_response_that_does_not_end_is_cut_and_nothing_of_it_is_lost() {
    let said: Vec<Value> =
        (0..24).map(|number| assistant(&format!("{number} {}", "x".repeat(1 << 20)))).collect();
    let taken = take(Format::Codex, lines(&[vec![meta(), user("go")], said].concat()));
    assert_eq!(taken.codes(), []);
    let context = taken.context().join(" ");
    assert!((0..24).all(|number| context.contains(&format!("a:{number} x"))));
    assert!(taken.count(Kind::AssistantMessage) < 5, "most of it is still joined");
}

#[test]
fn results_that_are_more_than_can_be_held_stand_behind_their_call() {
    let result = |number: usize, text: &str| {
        item(json!({ "type": "function_call_output", "call_id": format!("c{number}"), "output": text }))
    };
    for (count, text) in [(5_000, "x".to_owned()), (20, "x".repeat(1 << 20))] {
        let results: Vec<Value> = (0..count).map(|number| result(number, &text)).collect();
        let taken = take(Format::Codex, lines(&[vec![meta(), user("go"), call("c0")], results].concat()));
        assert_eq!(taken.codes(), []);
        assert_eq!(taken.count(Kind::ToolResult), count);
        let kinds: Vec<Kind> = taken.log.entries().map(|entry| entry.meta.kind).collect();
        let answered = kinds.iter().position(|kind| *kind == Kind::AssistantMessage);
        assert!(answered < kinds.iter().position(|kind| *kind == Kind::ToolResult));
    }
}

#[test]
fn compactions_that_repeat_the_users_words_do_not_blow_up_a_small_file() {
    let words = "w".repeat(79_000);
    let compacted: Vec<Value> = (0..950).map(|_| line("compacted", json!({ "message": "so far" }))).collect();
    let text = lines(&[vec![meta(), user(&words)], compacted].concat());
    let taken = take(Format::Codex, &text);
    let bytes: usize = taken.log.entries().map(|entry| entry.body.text().len()).sum();
    assert!(bytes < 65 << 20, "{} bytes became {bytes}", text.len());
    assert!(taken.codes().iter().any(|(_, code)| *code == "import.left_out"));
}
