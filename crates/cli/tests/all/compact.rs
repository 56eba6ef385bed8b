//! Compaction through the command line, on each persistent store.

use serde_json::{Value, json};

use crate::harness::{World, on_each_store};

fn chat(world: &World, count: usize) -> String {
    let session = world.json(&["new"])["id"].as_str().unwrap().to_owned();
    let lines: String = (0..count)
        .map(|n| format!("{}\n", json!({ "role": "user", "content": format!("message {n}") })))
        .collect();
    let ran = world.run_with(&["inject", &session, "--message", "-"], lines.as_bytes());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    session
}

fn tool_round(world: &World, session: &str, call: &str, output: &str) {
    let asked = json!({ "role": "assistant", "content": [
        { "type": "tool_call", "call_id": call, "name": "read_file", "input": { "path": "src/a.rs" } }] });
    let result = json!({ "role": "tool", "tool_call_id": call, "content": output });
    world.ok(&["inject", session, "--message", &asked.to_string()]);
    world.ok(&["inject", session, "--message", &result.to_string()]);
}

fn messages(context: &Value) -> &Vec<Value> {
    context["messages"].as_array().unwrap()
}

#[test]
fn twenty_messages_compact_to_a_summary_and_six_and_are_restored_byte_for_byte() {
    on_each_store(|world| {
        let session = chat(world, 20);
        let before = world.ok(&["context", &session, "--json"]);
        let args = ["compact", &session, "--keep-last", "6", "--compact-strategy", "truncate"];
        let dry = world.json(&[&args[..], &["--dry-run"]].concat());
        assert_eq!((&dry["kept"], &dry["archived"], &dry["dry_run"]), (&json!(7), &json!(14), &json!(true)));
        assert_eq!(world.ok(&["context", &session, "--json"]), before);
        let done = world.json(&args);
        assert_eq!((&done["kept"], &done["archived"]), (&json!(7), &json!(14)));
        assert!(done["tokens_before"].is_u64() && done["tokens_after"].is_u64(), "{done}");
        let context = world.json(&["context", &session]);
        assert_eq!(messages(&context).len(), 7);
        assert!(
            messages(&context)[0]["text"].as_str().unwrap().contains("14 earlier messages were archived")
        );
        assert_eq!(world.json(&args)["archived"], 0, "a second compaction archived messages");
        let archives = world.lines(&["archives", &session]);
        assert_eq!((&archives[0]["archived"], &archives[0]["strategy"]), (&json!(14), &json!("truncate")));
        assert_eq!(world.ok(&["context", &session, "--at", "20", "--json"]), before);
        assert_eq!(world.json(&["uncompact", &session])["kept"], 20);
        assert_eq!(world.ok(&["context", &session, "--json"]), before);
        assert_eq!(world.fail(3, &["uncompact", &session])["code"], "session.not_compacted");
        assert_eq!(world.json(&["doctor"])["findings"], json!([]));
    });
}

#[test]
fn four_messages_are_not_compacted_to_six() {
    on_each_store(|world| {
        let session = chat(world, 4);
        let done = world.json(&["compact", &session, "--keep-last", "6"]);
        assert_eq!((&done["kept"], &done["archived"], done.get("seq")), (&json!(4), &json!(0), None));
        assert_eq!(world.lines(&["events", &session]).len(), 4);
    });
}

#[test]
fn a_call_stays_with_its_result_and_long_output_is_masked() {
    on_each_store(|world| {
        let session = world.session(&["u:look", "a:I will read the whole file."]);
        let long: Vec<String> = (0..62).map(|n| format!("line {n}")).collect();
        tool_round(world, &session, "x", &long.join("\n"));
        world.add_messages(&session, &["a:It is fine.", "u:and now"]);
        tool_round(world, &session, "y", &long.join("\n"));
        let args = ["compact", &session, "--keep-last", "2", "--tool-output-max-chars", "100"];
        let done = world.json(&args);
        assert!(done["tokens_after"].as_u64() < done["tokens_before"].as_u64(), "{done}");
        let context = world.json(&["context", &session]);
        let roles: Vec<&str> = messages(&context).iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "user", "assistant", "tool"]);
        assert_eq!(messages(&context)[2]["parts"][0]["call_id"], "y");
        let summary = messages(&context)[0]["text"].as_str().unwrap();
        assert!(summary.contains("I will read the whole file.") && summary.contains("62 lines"), "{summary}");
        assert!(summary.contains("Files read: src/a.rs"), "{summary}");
        assert!(messages(&context)[3]["text"].as_str().unwrap().contains("snipped"));
    });
}

#[test]
fn every_option_has_its_effect() {
    let world = World::new("sqlite");
    let session = chat(&world, 20);
    let dry = |options: &[&str]| {
        world.json(&[&["compact", &session, "--dry-run", "--compact-strategy", "truncate"], options].concat())
    };
    assert_eq!(dry(&[])["kept"], 13, "12 messages and the summary");
    assert_eq!(dry(&["--keep-recent-tokens", "9"])["kept"], 4);
    assert_eq!(dry(&["--keep-last", "2", "--token-threshold", "1000"])["archived"], 0);
    assert_eq!(dry(&["--keep-last", "2", "--token-threshold", "10"])["archived"], 18);
    let limited = dry(&["--keep-last", "15", "--hard-limit-tokens", "40"]);
    assert!(limited["tokens_after"].as_u64().unwrap() <= 40, "{limited}");
    world.ok(&[
        "compact",
        &session,
        "--keep-last",
        "2",
        "--keep-first",
        "1",
        "--instructions",
        "mind the gap",
    ]);
    let summary = world.texts(&session, None)[0].clone();
    assert!(
        summary.contains("word for word ──\nuser: message 0") && summary.contains("mind the gap"),
        "{summary}"
    );
}

#[test]
fn invalid_options_are_named_and_nothing_is_written() {
    on_each_store(|world| {
        let session = chat(world, 20);
        for (args, name) in [
            (&["--keep-last", "-1"][..], "--keep-last"),
            (&["--keep-recent-tokens", "x"], "--keep-recent-tokens"),
            (&["--bogus", "1"], "--bogus"),
            (&["--compact-strategy", "zip"], "compact_strategy"),
            (&["--compact-strategy", "custom"], "compact_strategy"),
            (&["--hard-limit-strategy", "truncate"], "hard_limit_strategy"),
            (&["--tool-output-max-chars", "5"], "tool_output_max_chars"),
        ] {
            let error = world.fail(2, &[&["compact", &session], args].concat());
            assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        }
        let idle = world.fail(2, &["compact", &session, "--model", "demo"]);
        assert!(idle["message"].as_str().unwrap().contains("--model demo"), "{idle}");
        assert_eq!(world.fail(3, &["compact", "ghost"])["code"], "session.not_found");
        assert_eq!(world.lines(&["events", &session]).len(), 20);
    });
}

#[test]
fn a_model_writes_the_summary_with_the_llm_strategy() {
    on_each_store(|world| {
        let session = chat(world, 20);
        let llm = ["compact", &session, "--keep-last", "6", "--compact-strategy", "llm", "--model", "demo"];
        assert_eq!(world.json(&llm)["kept"], 7);
        let archive = &world.lines(&["archives", &session])[0];
        assert_eq!(
            (&archive["strategy"], &archive["instead_of"]),
            (&json!("llm"), &Value::Null),
            "{archive}"
        );
    });
}

#[test]
fn a_session_is_pruned_once_it_has_been_inactive_for_long_enough() {
    on_each_store(|world| {
        let session = chat(world, 20);
        assert_eq!(world.json(&["prune", &session, "--inactive-for", "30d"])["archived"], 0);
        let dry = world.json(&["prune", &session, "--inactive-for", "0s", "--dry-run"]);
        assert_eq!((&dry["kept"], &dry["archived"]), (&json!(12), &json!(8)));
        assert_eq!(world.texts(&session, None).len(), 20);
        assert_eq!(world.json(&["prune", &session, "--inactive-for", "0s", "--keep-last", "5"])["kept"], 5);
        assert_eq!(world.texts(&session, None)[0], "message 15");
        let archives = world.lines(&["archives", &session]);
        assert_eq!(
            (&archives[0]["strategy"], &archives[0]["trigger"]),
            (&json!("prune"), &json!("inactivity"))
        );
        assert!(world.fail(2, &["prune", &session, "--inactive-for", "30"])["message"].is_string());
        assert_eq!(world.json(&["info", &session])["context"]["state"], "pruned");
    });
}

#[test]
fn prune_all_prunes_every_inactive_session_and_a_dry_run_lists_them() {
    on_each_store(|world| {
        let (long, other, short) = (chat(world, 20), chat(world, 15), chat(world, 3));
        let all = ["prune", "--all", "--inactive-for", "0s", "--keep-last", "10"];
        let mut lines = world.lines(&[&all[..], &["--dry-run"]].concat());
        lines.sort_by_key(|line| line["archived"].as_u64());
        let rows: Vec<_> =
            lines.iter().map(|line| (line["session"].as_str(), line["archived"].as_u64())).collect();
        assert_eq!(rows, [(Some(&*other), Some(5)), (Some(&*long), Some(10))]);
        assert_eq!(world.texts(&long, None).len(), 20, "the dry run pruned messages");
        assert_eq!(world.lines(&all).len(), 2);
        let lengths = [&long, &other, &short].map(|session| world.texts(session, None).len());
        assert_eq!(lengths, [10, 10, 3]);
        assert!(world.lines(&all).is_empty());
        assert_eq!(world.run(&["prune", "--inactive-for", "0s"]).status, Some(2));
    });
}

#[test]
fn pressure_levels_are_configurable() {
    let world = World::new("sqlite");
    let levels = |text: &str| std::fs::write(world.path("sapwood.toml"), text).unwrap();
    levels("[pressure]\nyellow_percent = 80\norange_percent = 70\n");
    assert_eq!(world.fail(2, &["ls"])["code"], "config.invalid");
    levels("[pressure]\nyellow_percnt = 80\n");
    assert!(world.fail(2, &["ls"])["message"].as_str().unwrap().contains("yellow_percnt"));
    levels("[pressure]\nyellow_percent = 1\norange_percent = 2\nred_percent = 100\n");
    let long = "and so on ".repeat(2_000);
    let id = world.ok(&["new"]);
    world.ok(&["send", &id, &long]);
    let of = |id: &str| {
        let events = world.lines(&["events", id]);
        events.iter().any(|event| event["type"] == "session:pressure")
    };
    assert!(of(&id), "no pressure event was sent");
    levels("");
    let id = world.ok(&["new"]);
    world.ok(&["send", &id, &long]);
    assert!(!of(&id));
}
