//! Codex rollouts, one special case per test.

use sapwood_core::{Body, Kind};
use sapwood_formats::import::Format;
use sapwood_formats::import::codex::Importer;
use serde_json::{Value, json};

use crate::taking::{ImportResult, import, import_again, lines};

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

fn import_all(values: &[Value]) -> ImportResult {
    import(Format::Codex, lines(values))
}

#[test]
fn repeated_events_are_imported_once() {
    let imported = import_all(&[
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
    assert_eq!(imported.context(), ["u:hello", "r:thinking a:hi"]);
    assert_eq!(imported.codes(), []);
    let context = imported.log.context();
    assert_eq!(context.system.as_deref(), Some("Be brief."));
    assert_eq!((context.model.as_deref(), context.thinking.as_str()), (Some("gpt-test"), "high"));
    assert!(
        imported
            .log
            .entries()
            .all(|entry| !String::from_utf8(entry.to_record().body).unwrap().contains("SECRET"))
    );
}

#[test]
fn token_counts_are_cumulative_and_follow_the_tool_results() {
    let imported = import_all(&[
        meta(),
        user("list"),
        call("c1"),
        output("c1", "a.txt"),
        tokens(100, 40, 10),
        tokens(100, 40, 10),
        assistant("one file"),
        tokens(250, 140, 15),
    ]);
    assert_eq!(imported.context(), ["u:list", "C:shell(c1)", "t:a.txt", "a:one file"]);
    let spend = imported.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.cache_read, spend.usage.output),
        (2, 110, 140, 15)
    );
}

#[test]
fn a_replacement_history_becomes_the_context() {
    let kept = json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "the goal" }] });
    let summary = json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "summary: half done" }] });
    let imported = import_all(&[
        meta(),
        user("the goal"),
        assistant("working"),
        line("compacted", json!({ "message": "half done", "replacement_history": [kept, summary] })),
        event(json!({ "type": "context_compacted" })),
        user("go on"),
        assistant("finished"),
    ]);
    assert_eq!(imported.context(), ["u:the goal", "u:summary: half done", "u:go on", "a:finished"]);
    assert_eq!(imported.count(Kind::Compaction), 1);
}

#[test]
fn an_old_compaction_repeats_the_user_messages_and_its_own_message() {
    let imported = import_all(&[
        meta(),
        user("<environment_context>x</environment_context>"),
        user("the goal"),
        assistant("working"),
        line("compacted", json!({ "message": "half done" })),
        user("go on"),
    ]);
    assert_eq!(imported.context(), ["u:the goal", "u:half done", "u:go on"]);
}

#[test]
fn a_rollback_drops_turns_and_keeps_them_as_a_branch() {
    let imported = import_all(&[
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
    assert_eq!(imported.context(), ["u:one", "a:first", "u:another two"]);
    assert_eq!(imported.log.entries().filter(|entry| entry.body.text() == "third").count(), 1);
    let ended = import_all(&[
        meta(),
        user("one"),
        assistant("first"),
        event(json!({ "type": "thread_rolled_back", "num_turns": 9 })),
    ]);
    assert_eq!(ended.context(), Vec::<String>::new());
}

#[test]
fn custom_calls_shells_and_structured_outputs_are_tool_calls() {
    let imported = import_all(&[
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
        imported.context(),
        ["u:patch", "C:apply_patch(c1)", "t:applied", "C:local_shell(c2)", "t:files"]
    );
    assert_eq!(imported.count(Kind::CustomInfo), 1);
}

#[test]
fn a_fork_inherits_its_base_up_to_the_ordinal_without_usage() {
    use sapwood_formats::import::Reader;
    use sapwood_formats::import::steps::StepBatch;
    let mut own = meta();
    own["payload"]["id"] = json!("0199aaaa-0000-7000-8000-000000000002");
    own["payload"]["history_base"] =
        json!({ "thread_id": "0199aaaa-0000-7000-8000-000000000001", "end_ordinal_exclusive": 4 });
    let base = Importer::base_of(own.to_string().as_bytes()).unwrap();
    assert_eq!(
        (base.thread_id.as_str(), base.end_ordinal_exclusive),
        ("0199aaaa-0000-7000-8000-000000000001", 4)
    );
    let (mut importer, mut batch) = (Importer::default(), StepBatch::default());
    importer.push_line(own.to_string().as_bytes(), 1, &mut batch);
    for (number, value) in
        [meta(), user("shared"), assistant("yes"), tokens(9, 0, 9), user("not shared")].iter().enumerate()
    {
        importer.push_inherited(value.to_string().as_bytes(), number as u64 + 1, 4, &mut batch);
    }
    importer.push_line(user("own").to_string().as_bytes(), 2, &mut batch);
    importer.finish(&mut batch);
    let texts: Vec<String> = batch
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            sapwood_formats::import::steps::StepAction::Add { body, .. } => {
                Some(body.text()).filter(|text| !text.is_empty())
            }
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["shared", "yes", "own"]);
    let session = batch.session.unwrap();
    assert_eq!(session.id.as_str(), "0199aaaa-0000-7000-8000-000000000002");
    assert_eq!(session.parent.unwrap().session.as_str(), "0199aaaa-0000-7000-8000-000000000001");
}

#[test]
fn a_rollout_that_grew_extends_the_session() {
    let mut values = vec![meta(), user("one"), call("c1"), output("c1", "x"), tokens(10, 0, 1)];
    let first = import_all(&values);
    values.extend([assistant("done"), tokens(20, 0, 2)]);
    let grown = import_again(Format::Codex, first.log, lines(&values));
    assert_eq!(grown.context(), ["u:one", "C:shell(c1)", "t:x", "a:done"]);
    assert_eq!(grown.added, 1);
    assert_eq!(import_again(Format::Codex, grown.log, lines(&values)).added, 0);
}

#[test]
fn an_endless_response_is_split_without_loss() {
    let said: Vec<Value> =
        (0..24).map(|number| assistant(&format!("{number} {}", "x".repeat(1 << 20)))).collect();
    let imported = import(Format::Codex, lines(&[vec![meta(), user("go")], said].concat()));
    assert_eq!(imported.codes(), []);
    let context = imported.context().join(" ");
    assert!((0..24).all(|number| context.contains(&format!("a:{number} x"))));
    assert!(imported.count(Kind::AssistantMessage) < 5, "most parts are merged");
}

#[test]
fn too_many_results_to_buffer_still_follow_their_call() {
    let result = |number: usize, text: &str| {
        item(json!({ "type": "function_call_output", "call_id": format!("c{number}"), "output": text }))
    };
    for (count, text) in [(5_000, "x".to_owned()), (20, "x".repeat(1 << 20))] {
        let results: Vec<Value> = (0..count).map(|number| result(number, &text)).collect();
        let imported =
            import(Format::Codex, lines(&[vec![meta(), user("go"), call("c0")], results].concat()));
        assert_eq!(imported.codes(), []);
        assert_eq!(imported.count(Kind::ToolResult), count);
        let kinds: Vec<Kind> = imported.log.entries().map(|entry| entry.meta.kind).collect();
        let answered = kinds.iter().position(|kind| *kind == Kind::AssistantMessage);
        assert!(answered < kinds.iter().position(|kind| *kind == Kind::ToolResult));
    }
}

#[test]
fn repeated_user_messages_in_compactions_are_bounded() {
    let words = "w".repeat(79_000);
    let compacted: Vec<Value> = (0..950).map(|_| line("compacted", json!({ "message": "so far" }))).collect();
    let text = lines(&[vec![meta(), user(&words)], compacted].concat());
    let imported = import(Format::Codex, &text);
    let bytes: usize = imported.log.entries().map(|entry| entry.body.text().len()).sum();
    assert!(bytes < 65 << 20, "{} bytes became {bytes}", text.len());
    assert!(imported.codes().iter().any(|(_, code)| *code == "import.left_out"));
    let short = |number: u32| [user(&number.to_string()), line("compacted", json!({ "message": "so far" }))];
    let text = lines(&[vec![meta()], (0..1_500).flat_map(short).collect()].concat());
    let entries = import(Format::Codex, &text).log.entries().count();
    assert!(entries < 350_000, "{} bytes became {entries} entries", text.len());
}

fn counted(total: (u64, u64), last: (u64, u64)) -> Value {
    let tokens = |(input, output): (u64, u64)| json!({ "input_tokens": input, "output_tokens": output });
    let info = json!({ "total_token_usage": tokens(total), "last_token_usage": tokens(last) });
    event(json!({ "type": "token_count", "info": info }))
}

fn spend_of(imported: &ImportResult) -> (u64, u64, u64) {
    let spend = imported.spend();
    (spend.calls, spend.usage.input, spend.usage.output)
}

#[test]
fn counts_without_a_pending_response_are_counted() {
    let values = [
        meta(),
        user("hello"),
        tokens(10, 0, 1),
        tokens(30, 0, 3),
        assistant("hi"),
        tokens(60, 0, 6),
        tokens(100, 0, 10),
    ];
    let imported = import_all(&values);
    assert_eq!(spend_of(&imported), (4, 100, 10));
    assert_eq!(imported.context(), ["u:hello", "a:hi"]);
    assert_eq!(import_again(Format::Codex, imported.log, lines(&values)).added, 0);
}

#[test]
fn the_usage_of_a_compaction_is_recorded_with_it() {
    let compacted = line("compacted", json!({ "message": "half done" }));
    let values = [meta(), user("hello"), assistant("hi"), tokens(60, 0, 6), tokens(100, 0, 10), compacted];
    let imported = import_all(&values);
    let usages = imported.log.entries().filter_map(|entry| match &entry.body {
        sapwood_core::Body::Compaction(compaction) => compaction.written_by.clone(),
        _ => None,
    });
    let usages: Vec<_> = usages.collect();
    assert_eq!((usages.len(), usages[0].calls, usages[0].usage.input, usages[0].usage.output), (1, 1, 40, 4));
    assert_eq!(spend_of(&imported), (2, 100, 10));
    let early = import_all(&values[..5]);
    assert_eq!(spend_of(&early), (2, 100, 10));
    assert_eq!(spend_of(&import_again(Format::Codex, early.log, lines(&values))), (2, 100, 10));
}

#[test]
fn a_count_written_after_the_first_import_is_added() {
    let values =
        [meta(), user("list"), call("c1"), output("c1", "x"), tokens(100, 40, 10), assistant("done")];
    let early = import_all(&values[..4]);
    assert_eq!(spend_of(&early), (0, 0, 0));
    let grown = import_again(Format::Codex, early.log, lines(&values));
    assert_eq!(spend_of(&grown), (1, 60, 10));
    assert_eq!(grown.context(), ["u:list", "C:shell(c1)", "t:x", "a:done"]);
    assert_eq!(grown.count(Kind::AssistantMessage), 2, "existing entries are not written again");
    let again = import_again(Format::Codex, grown.log, lines(&values));
    assert_eq!((again.added, spend_of(&again)), (0, (1, 60, 10)));
}

/// Import a fork. The lines of its base, if given, are passed first.
fn fork(base: Option<&[Value]>, own: &[Value], log: sapwood_core::fixture::MemLog) -> ImportResult {
    crate::taking::import_with(Format::Codex, log, |batch| {
        use sapwood_formats::import::Reader;
        let mut importer = Importer::default();
        importer.push_line(own[0].to_string().as_bytes(), 1, batch);
        for (number, value) in base.into_iter().flatten().enumerate() {
            importer.push_inherited(value.to_string().as_bytes(), number as u64 + 1, u64::MAX, batch);
        }
        for (number, value) in own.iter().enumerate().skip(1) {
            importer.push_line(value.to_string().as_bytes(), number as u64 + 1, batch);
        }
        importer.finish(batch);
    })
}

#[test]
fn a_fork_counts_its_calls_once_with_or_without_its_base() {
    let model = line("turn_context", json!({ "model": "gpt-test" }));
    let base = [meta(), model.clone(), user("shared"), assistant("yes"), counted((600, 60), (600, 60))];
    let mut first = meta();
    first["payload"]["id"] = json!("0199aaaa-0000-7000-8000-000000000002");
    first["payload"]["history_base"] =
        json!({ "thread_id": "0199aaaa-0000-7000-8000-000000000001", "end_ordinal_exclusive": 99 });
    let own = [
        first,
        model,
        user("own"),
        assistant("mine"),
        counted((700, 70), (100, 10)),
        assistant("more"),
        counted((710, 71), (10, 1)),
        counted((720, 72), (10, 1)),
    ];
    let with = fork(Some(&base), &own, Default::default());
    assert_eq!(with.context(), ["u:shared", "a:yes", "u:own", "a:mine", "a:more"]);
    assert_eq!(spend_of(&with), (3, 120, 12));
    for known in [4, 5, 6, 7, 8] {
        let without = fork(None, &own[..known], Default::default());
        let later = fork(Some(&base), &own, without.log);
        assert_eq!(later.context(), with.context(), "{known}");
        assert_eq!(spend_of(&later), (3, 120, 12), "{known}");
        assert_eq!(fork(Some(&base), &own, later.log).added, 0, "{known}");
    }
    assert_eq!(
        spend_of(&fork(None, &own, Default::default())),
        (3, 120, 12),
        "the base's total is not counted in the fork"
    );
}

#[test]
fn a_turn_context_sets_provider_model_and_effort() {
    let mut first = meta();
    first["payload"]["model_provider"] = json!("openai");
    let context =
        |model: &str, effort: &str| line("turn_context", json!({ "model": model, "effort": effort }));
    let imported = import_all(&[
        first,
        context("gpt-a", "low"),
        user("one"),
        assistant("first"),
        context("gpt-a", "low"),
        user("two"),
        context("gpt-b", "high"),
        assistant("second"),
    ]);
    let settings = imported.log.context();
    assert_eq!((settings.model.as_deref(), settings.thinking.as_str()), (Some("openai/gpt-b"), "high"));
    assert_eq!((imported.count(Kind::ModelChanged), imported.count(Kind::ThinkingChanged)), (2, 2));
    let models: Vec<String> = imported
        .log
        .entries()
        .filter_map(|entry| match &entry.body {
            sapwood_core::Body::AssistantMessage(answer) => answer.model.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(models, ["openai/gpt-a", "openai/gpt-b"]);
}

#[test]
fn ordinals_limit_the_base_and_default_to_line_numbers() {
    use sapwood_formats::import::Reader;
    use sapwood_formats::import::steps::StepBatch;
    let numbered = |mut value: Value, ordinal: u64| {
        value["ordinal"] = json!(ordinal);
        value
    };
    // If a rollout was itself truncated, its ordinals differ from its line numbers.
    let base =
        [numbered(meta(), 0), numbered(user("one"), 10), numbered(assistant("two"), 11), user("line 3")];
    for (end, expected) in [(3, vec![]), (11, vec!["one", "line 3"]), (12, vec!["one", "two", "line 3"])] {
        let (mut importer, mut batch) = (Importer::default(), StepBatch::default());
        for (number, value) in base.iter().enumerate() {
            importer.push_inherited(value.to_string().as_bytes(), number as u64 + 1, end, &mut batch);
        }
        importer.finish(&mut batch);
        let texts = batch.steps.iter().filter_map(|step| match &step.action {
            sapwood_formats::import::steps::StepAction::Add { body, .. } => Some(body.text()),
            _ => None,
        });
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        assert_eq!(texts, expected, "up to {end}");
    }
}

#[test]
fn a_rollback_after_an_old_compaction_is_imported() {
    let imported = import(Format::Codex, include_str!("../fixtures/codex-old-compaction.jsonl"));
    assert_eq!(imported.codes(), []);
    assert_eq!(imported.context(), ["u:Count the files.", "u:There are two files."]);
    let spend = imported.spend();
    assert_eq!(
        (spend.calls, spend.usage.input, spend.usage.cache_read, spend.usage.output),
        (5, 1600, 2300, 130)
    );
}

#[test]
fn records_copied_by_an_older_fork_count_in_its_source() {
    let source = "0199aaaa-0000-7000-8000-000000000001";
    let own = line(
        "session_meta",
        json!({ "id": "0199aaaa-0000-7000-8000-000000000002", "forked_from_id": source }),
    );
    let copied = [own, meta(), user("one"), assistant("first"), counted((10, 1), (10, 1)), user("two")];
    let copied = [&copied[..], &[assistant("second"), counted((30, 3), (20, 2))]].concat();
    let later = |mut record: Value, second: u64| {
        record["timestamp"] = json!(format!("2026-03-04T06:00:{second:02}.000Z"));
        record
    };
    let mine = [later(user("three"), 0), later(assistant("third"), 3), later(counted((60, 6), (30, 3)), 3)];
    let whole = import_all(&[&copied[..], &mine].concat());
    let said = ["u:one", "a:first", "u:two", "a:second", "u:three", "a:third"];
    assert_eq!((whole.context(), spend_of(&whole)), (said.map(str::to_owned).to_vec(), (1, 30, 3)));
    let grown = import_again(Format::Codex, import_all(&copied).log, lines(&[&copied[..], &mine].concat()));
    assert_eq!((grown.context(), spend_of(&grown)), (whole.context(), (1, 30, 3)));
}

fn rolled_back(turns: u64) -> Value {
    event(json!({ "type": "thread_rolled_back", "num_turns": turns }))
}

/// Import every prefix and then the whole file. The context and the usage must equal those of a fresh import.
fn import_grown(values: &[Value]) -> ImportResult {
    let fresh = import_all(values);
    for count in 0..values.len() {
        let grown = import_again(Format::Codex, import_all(&values[..count]).log, lines(values));
        assert_eq!(grown.context(), fresh.context(), "after {count}");
        assert_eq!(grown.spend(), fresh.spend(), "after {count}");
        assert_eq!(import_again(Format::Codex, grown.log, lines(values)).added, 0, "after {count}");
    }
    fresh
}

#[test]
fn a_rollback_drops_codex_messages_before_the_turn_except_the_first() {
    let developer = |text: &str| {
        let content = json!([{ "type": "input_text", "text": text }]);
        item(json!({ "type": "message", "role": "developer", "content": content }))
    };
    let values = [
        meta(),
        user("<environment_context>a</environment_context>"),
        line("turn_context", json!({ "model": "gpt-a", "effort": "low" })),
        user("one"),
        assistant("first"),
        developer("<permissions instructions>new</permissions instructions>"),
        user("<environment_context>b</environment_context>"),
        line("turn_context", json!({ "model": "gpt-b", "effort": "high" })),
        user("two"),
        assistant("second"),
        rolled_back(1),
    ];
    let environment = "u:<environment_context>a</environment_context>";
    let imported = import_grown(&values);
    assert_eq!(imported.context(), [environment, "u:one", "a:first"]);
    let context = imported.log.context();
    assert_eq!((context.model.as_deref(), context.thinking.as_str()), (Some("gpt-b"), "high"));
    let all = import_grown(&[&values[..10], &[rolled_back(2), user("anew")]].concat());
    assert_eq!(all.context(), [environment, "u:anew"]);
}

#[test]
fn messages_repeated_by_an_old_compaction_can_be_rolled_back() {
    let compacted = || line("compacted", json!({ "message": "so far" }));
    let values = [
        meta(),
        user("one"),
        assistant("first"),
        user("two"),
        assistant("second"),
        compacted(),
        user("three"),
        assistant("third"),
        rolled_back(2),
    ];
    assert_eq!(import_grown(&values).context(), ["u:one", "u:two"], "the summary counts as a turn, too");
    let values = [&values[..6], &[rolled_back(1), user("three")]].concat();
    assert_eq!(import_grown(&values).context(), ["u:one", "u:two", "u:three"]);
    let values = [&values[..6], &[rolled_back(2), user("three"), compacted()]].concat();
    assert_eq!(
        import_grown(&values).context(),
        ["u:one", "u:three", "u:so far"],
        "each dropped turn drops its text"
    );
}

/// Import a rollout with the available bases, oldest first.
fn fork_of(bases: &[&[Value]], own: &[Value], log: sapwood_core::fixture::MemLog) -> ImportResult {
    crate::taking::import_with(Format::Codex, log, |batch| {
        use sapwood_formats::import::Reader;
        let mut importer = Importer::default();
        importer.push_line(own[0].to_string().as_bytes(), 1, batch);
        for (number, value) in bases.iter().flat_map(|base| base.iter().enumerate()) {
            importer.push_inherited(value.to_string().as_bytes(), number as u64 + 1, u64::MAX, batch);
        }
        for (number, value) in own.iter().enumerate().skip(1) {
            importer.push_line(value.to_string().as_bytes(), number as u64 + 1, batch);
        }
        importer.finish(batch);
    })
}

#[test]
fn a_fork_of_forks_counts_its_calls_once_for_any_bases() {
    let begin = |number: usize| {
        let id = |number: usize| format!("0199aaaa-0000-7000-8000-00000000000{number}");
        let mut first = meta();
        first["payload"]["id"] = json!(id(number));
        if number > 1 {
            let base = json!({ "thread_id": id(number - 1), "end_ordinal_exclusive": 99 });
            first["payload"]["history_base"] = base;
        }
        first
    };
    let model = line("turn_context", json!({ "model": "gpt-test" }));
    let turn = |number: usize| {
        let total = (number as u64 * 100, number as u64 * 10);
        let name = format!("ask {number}");
        vec![begin(number), model.clone(), user(&name), assistant("yes"), counted(total, (100, 10))]
    };
    let (oldest, middle, newest) = (turn(1), turn(2), turn(3));
    let bases = [&oldest[..], &middle, &newest];
    let mut own = turn(4);
    // A token count before a compaction, without a pending response, belongs to the compaction.
    own.extend([counted((450, 45), (50, 5)), line("compacted", json!({ "message": "so far" }))]);
    own.extend([assistant("more"), counted((500, 50), (50, 5))]);
    let whole = fork_of(&bases, &own, Default::default());
    assert_eq!(spend_of(&whole), (3, 200, 20));
    // The oldest bases may be missing: a reader searches for bases from the nearest to the oldest.
    for path in [&[3, 0][..], &[2, 0], &[1, 0], &[3, 2, 1, 0], &[3, 1, 0], &[2, 2, 0, 0]] {
        let mut log = sapwood_core::fixture::MemLog::default();
        for missing in path {
            let imported = fork_of(&bases[*missing..], &own, log);
            assert_eq!(spend_of(&imported), (3, 200, 20), "{missing} of {path:?}");
            log = imported.log;
        }
        let last = fork_of(&bases, &own, log);
        assert_eq!((last.added, last.context()), (0, whole.context()), "{path:?}");
    }
    for (missing, known) in (0..=3).flat_map(|missing| (1..=own.len()).map(move |known| (missing, known))) {
        let begun = fork_of(&bases[missing..], &own[..known], Default::default());
        let grown = fork_of(&bases, &own, begun.log);
        let after = format!("{known} lines without {missing} bases");
        assert_eq!((grown.context(), spend_of(&grown)), (whole.context(), (3, 200, 20)), "{after}");
        assert_eq!(fork_of(&bases, &own, grown.log).added, 0, "{after}");
    }
}

#[test]
fn a_separate_count_uses_the_model_of_its_turn() {
    let context = |model: &str| line("turn_context", json!({ "cwd": "/work", "model": model }));
    let file = [
        meta(),
        context("first"),
        user("one"),
        assistant("two"),
        tokens(10, 0, 1),
        tokens(30, 0, 2),
        context("second"),
        user("three"),
    ];
    let billed = |imported: &ImportResult| -> Vec<String> {
        let infos = imported.log.entries().filter_map(|entry| match &entry.body {
            Body::UsageReported(usage) => Some(usage.data.get().to_owned()),
            _ => None,
        });
        infos
            .map(|data| serde_json::from_str::<Value>(&data).unwrap()["model"].as_str().unwrap().to_owned())
            .collect()
    };
    let fresh = import_all(&file);
    let grown = import_again(Format::Codex, import_all(&file[..6]).log, lines(&file));
    assert_eq!((billed(&fresh), billed(&grown)), (vec!["first".to_owned()], vec!["first".to_owned()]));
}
