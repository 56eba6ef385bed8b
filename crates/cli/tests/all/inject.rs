//! Injecting valid and invalid messages, from options and from stdin.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::harness::{CommandResult, World, on_each_store, parse_lines};

fn inject_lines(world: &World, session: &str, extra: &[&str], stdin: &[u8]) -> CommandResult {
    world.run_with(&[&["inject", session, "--message", "-", "--json"], extra].concat(), stdin)
}

fn many(count: usize) -> String {
    (1..=count).map(|n| format!("{{\"role\":\"user\",\"content\":\"message {n}\"}}\n")).collect()
}

#[test]
fn each_message_is_acknowledged_in_order() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let ran = inject_lines(world, &session, &[], many(2_500).as_bytes());
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let acks = parse_lines(&ran.out());
        let seqs: Vec<u64> = acks.iter().map(|ack| ack["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, (1..=2_500).collect::<Vec<u64>>());
        assert!(acks.iter().all(|ack| ack["id"].as_str().unwrap().len() == 36));
        let context = world.json(&["context", &session]);
        assert_eq!(context["messages"][2_499]["text"], "message 2500");
        assert_eq!(context["messages"][2_499]["entry"], acks[2_499]["id"]);
    });
}

#[test]
fn a_message_is_acknowledged_before_the_next_message_is_sent() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let mut child = world.spawn(&["inject", &session, "--message", "-", "--json"]);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for expected in 1..=3 {
            writeln!(stdin, r#"{{"role":"user","content":"hello"}}"#).unwrap();
            let mut ack = String::new();
            stdout.read_line(&mut ack).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&ack).unwrap()["seq"], expected);
            assert_eq!(world.json(&["info", &session])["head"]["seq"], expected);
        }
        drop(stdin);
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn a_bad_line_is_named_and_nothing_after_it_is_written() {
    on_each_store(|world| {
        let good = r#"{"role":"user","content":"good"}"#;
        for (bad, code) in [
            ("{not json", "input.invalid"),
            (r#"{"content":"no role"}"#, "input.role"),
            (r#"{"role":"wizard","content":"x"}"#, "input.role"),
            (r#"{"role":"user","content":"x","colour":"red"}"#, "input.unknown_key"),
            (r#"{"role":"user"}"#, "input.invalid"),
            ("[]", "input.invalid"),
            ("null", "input.invalid"),
        ] {
            let session = world.session(&[]);
            let ran = inject_lines(world, &session, &[], format!("{good}\n\n{bad}\n{good}\n").as_bytes());
            assert_eq!(ran.status, Some(2), "{bad}: {}", ran.stderr);
            assert_eq!(parse_lines(&ran.out()).len(), 1, "{bad}");
            let error = ran.error();
            assert_eq!(error["code"], code, "{bad}");
            assert!(error["message"].as_str().unwrap().starts_with("line 3: "), "{error}");
            assert_eq!(world.texts(&session, None), ["good"]);
        }
    });
}

#[test]
fn invalid_utf_8_is_refused_as_text_and_as_json() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let ran = inject_lines(world, &session, &[], b"{\"role\":\"user\",\"content\":\"\xff\xfe\"}\n");
        assert_eq!((ran.status, &ran.error()["code"]), (Some(2), &json!("input.invalid")));
        let ran = world.run_with(&["inject", &session, "--role", "user", "--text", "-", "--json"], b"ab\xff");
        assert_eq!((ran.status, &ran.error()["code"]), (Some(2), &json!("input.invalid")));
        assert!(ran.error()["message"].as_str().unwrap().contains("byte 2"));
        assert_eq!(world.json(&["info", &session])["head"]["seq"], 0);
    });
}

#[test]
fn a_line_over_the_limit_is_refused_and_a_large_line_is_accepted() {
    let world = World::new("sqlite");
    let session = world.session(&[]);
    let line = |bytes: usize| format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(bytes));
    let ran = inject_lines(&world, &session, &[], line(17 << 20).as_bytes());
    assert_eq!((ran.status, &ran.error()["code"]), (Some(2), &json!("input.too_large")));
    assert!(ran.error()["message"].as_str().unwrap().contains("line 1"));
    let ran = inject_lines(&world, &session, &[], line(8 << 20).as_bytes());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert_eq!(world.texts(&session, None)[0].len(), 8 << 20);
}

#[test]
fn text_is_read_from_stdin_without_its_last_line_break() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let ran = world.run_with(
            &["inject", &session, "--role", "user", "--text", "-"],
            "zwei\nZeilen – ✓\n".as_bytes(),
        );
        assert_eq!(ran.status, Some(0));
        assert_eq!(world.texts(&session, None), ["zwei\nZeilen – ✓"]);
        world.ok(&["inject", &session, "--role", "user", "--text", "--looks-like-an-option"]);
        assert_eq!(world.texts(&session, None)[1], "--looks-like-an-option");
    });
}

#[test]
fn a_wrong_expected_head_is_a_conflict_and_writes_nothing() {
    on_each_store(|world| {
        let session = world.session(&["u:one"]);
        let stale = ["inject", &session, "--role", "user", "--text", "two", "--expected-head", "0"];
        let error = world.fail(4, &stale);
        assert_eq!(error["code"], "session.conflict");
        world.ok(&["inject", &session, "--role", "user", "--text", "two", "--expected-head", "1"]);
        let ran = inject_lines(world, &session, &["--expected-head", "2"], many(3).as_bytes());
        assert_eq!(parse_lines(&ran.out()).last().unwrap()["seq"], 5);
        assert_eq!(world.texts(&session, None).len(), 5);
    });
}

#[test]
fn a_repeated_idempotency_key_returns_the_first_answer_and_writes_nothing() {
    on_each_store(|world| {
        let session = world.session(&[]);
        let args = ["inject", &session, "--role", "user", "--text", "once", "--idempotency-key", "k"];
        let first = world.json(&args);
        assert_eq!(world.json(&args), first);
        assert_eq!(world.texts(&session, None), ["once"]);
        let first = inject_lines(world, &session, &["--idempotency-key", "many"], many(2).as_bytes());
        let again = inject_lines(world, &session, &["--idempotency-key", "many"], many(3).as_bytes());
        let (first, again) = (parse_lines(&first.out()), parse_lines(&again.out()));
        assert_eq!(first[..], again[..2]);
        assert_eq!(again[2]["seq"], 4);
        assert_eq!(world.texts(&session, None).len(), 4);
        // An empty key is refused: an unset shell variable would otherwise discard every message except the first.
        world.fail(2, &["inject", &session, "--role", "user", "--text", "x", "--idempotency-key", ""]);
    });
}

#[test]
fn message_shapes_of_vendors_are_accepted() {
    on_each_store(|world| {
        let session = world.session(&["u:look"]);
        let call = json!({ "role": "assistant", "content": [
            { "type": "text", "text": "looking" },
            { "type": "tool_use", "id": "t1", "name": "ls", "input": { "path": "." } },
            { "type": "tool_use", "id": "t2", "name": "cat", "input": { "path": "a" } }] });
        let results = json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "a" },
            { "type": "tool_result", "tool_use_id": "t2", "content": "text", "is_error": true }] });
        world.ok(&["inject", &session, "--message", &call.to_string()]);
        let ack = world.json(&["inject", &session, "--message", &results.to_string()]);
        assert_eq!(ack["seq"], 4);
        assert_eq!(ack["entries"].as_array().unwrap().len(), 2);
        let context = world.json(&["context", &session]);
        assert_eq!(context["messages"][3]["call_id"], "t2");
        assert_eq!(context["messages"][3]["is_error"], true);
    });
}

#[test]
fn a_field_that_only_json_can_set_gets_a_hint() {
    let world = World::new("sqlite");
    let session = world.session(&[]);
    let error = world.fail(2, &["inject", &session, "--role", "tool", "--text", "output"]);
    assert!(error["message"].as_str().unwrap().contains("tool_call_id"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("--message"), "{error}");
    assert_eq!(world.fail(2, &["inject", &session, "--role", "wizard", "--text", "x"])["code"], "input.role");
}
