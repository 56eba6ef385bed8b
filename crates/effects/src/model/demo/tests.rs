//! Tests of the demo model's answers to plain requests.

use sapwood_core::content::Json;
use sapwood_core::port::model::{Reply, RequestMessage};
use sapwood_core::port::tool::{Replay, ToolSpec, Touch};
use serde_json::json;

use super::*;

fn tool(name: &str, schema: serde_json::Value) -> ToolSpec {
    ToolSpec {
        name: name.into(),
        description: String::new(),
        input_schema: Json::from_value(&schema),
        touch: Touch::Reads,
        replay: Replay::Safe,
    }
}

fn tools() -> Vec<ToolSpec> {
    let text = json!({"type": "string"});
    vec![
        tool("read_file", json!({"type": "object", "properties": {"path": text}})),
        tool("write_file", json!({"type": "object", "properties": {"path": text, "content": text}})),
        tool("list_directory", json!({"type": "object", "properties": {"path": text}})),
        tool(
            "run_command",
            json!({"type": "object", "properties": {"command": text, "args": {"type": "array"}}}),
        ),
    ]
}

fn request(text: &str) -> Request {
    Request {
        model: "demo".into(),
        system: None,
        messages: vec![RequestMessage { role: Role::User, parts: vec![RequestPart::Text(text.into())] }],
        tools: tools(),
        thinking: Thinking::Off,
        temperature: None,
        output_tokens_max: None,
    }
}

fn full_reply(request: &Request) -> Reply {
    let mut full_reply = Reply::default();
    for event in reply(request) {
        full_reply.apply(event).unwrap();
    }
    full_reply
}

fn text(request: &Request) -> String {
    sapwood_core::content::joined_text(&full_reply(request).parts())
}

fn calls(text: &str) -> Vec<(String, serde_json::Value)> {
    let parts = full_reply(&request(text)).parts();
    let calls = parts.iter().filter_map(|part| part.as_tool_call());
    calls.map(|call| (call.name.clone(), call.input.to_value())).collect()
}

#[test]
fn plain_requests_become_calls_of_available_tools() {
    let one = |name: &str, input| vec![(name.to_owned(), input)];
    assert_eq!(calls("read notes.txt"), one("read_file", json!({"path": "notes.txt"})));
    assert_eq!(calls("List"), one("list_directory", json!({"path": "."})));
    assert_eq!(
        calls("run cargo test -q"),
        one("run_command", json!({"command": "cargo", "args": ["test", "-q"]}))
    );
    let written = one("write_file", json!({"path": "a.txt", "content": "two words"}));
    assert_eq!(calls("write a.txt: two words"), written);
    assert_eq!(calls("write two words to a.txt"), written);
    assert_eq!(calls("use read_file {\"path\": 7}"), one("read_file", json!({"path": 7})));
    assert_eq!(calls("use read_file nonsense"), one("read_file", json!("nonsense")));
    let both = calls("read a.txt and read b.txt");
    assert_eq!(both.len(), 2);
    assert_eq!(both[1].1, json!({"path": "b.txt"}));
}

#[test]
fn a_missing_tool_is_reported_with_the_available_ones() {
    let answer = text(&request("fetch https://example.org"));
    assert!(answer.contains("does not have") && answer.contains("read_file"), "{answer}");
    assert_eq!(full_reply(&request("fetch https://example.org")).stop, Some(Stop::Stop));
}

#[test]
fn writes_exactly_the_requested_number_of_words() {
    for count in [1, 7, 2_000] {
        let answer = text(&request(&format!("write {count} words")));
        assert_eq!(answer.split_whitespace().count(), count);
    }
    let long = text(&request("please write 999999999 words about rain"));
    assert_eq!(long.split_whitespace().count(), words::WORDS_MAX);
}

#[test]
fn equal_requests_have_equal_answers_and_different_requests_have_different_call_ids() {
    let first = reply(&request("read a.txt"));
    assert_eq!(first, reply(&request("read a.txt")));
    let mut later = request("read a.txt");
    later.messages.insert(0, later.messages[0].clone());
    let id = |events: &[ReplyEvent]| {
        events.iter().find_map(|event| match event {
            ReplyEvent::CallBegan { call_id, .. } => Some(call_id.clone()),
            _ => None,
        })
    };
    assert_ne!(id(&first), id(&reply(&later)));
}

#[test]
fn reports_tool_results_and_calls_no_more_tools() {
    let mut request = request("read a.txt");
    let result = |tool: &str, text: &str, is_error| RequestMessage {
        role: Role::Tool,
        parts: vec![RequestPart::ToolResult {
            call_id: "c".into(),
            tool: tool.into(),
            parts: vec![RequestPart::Text(text.into())],
            is_error,
        }],
    };
    request.messages.push(result("read_file", "the content", false));
    request.messages.push(result("run_command", "denied", true));
    let answer = text(&request);
    assert!(answer.contains("the content") && answer.contains("run_command failed: denied"), "{answer}");
    assert_eq!(full_reply(&request).stop, Some(Stop::Stop));
}

#[test]
fn an_output_limit_truncates_the_answer() {
    let mut request = request("write 100 words");
    request.output_tokens_max = Some(10);
    let answer = full_reply(&request);
    assert_eq!(answer.stop, Some(Stop::Length));
    assert_eq!(answer.usage.unwrap().output, 10);
}

#[test]
fn thinks_only_if_requested() {
    let mut request = request("hello");
    request.thinking = Thinking::Low;
    let has_reasoning =
        |events: &[ReplyEvent]| events.iter().any(|event| matches!(event, ReplyEvent::Reasoning(_)));
    assert!(has_reasoning(&reply(&request)));
    request.thinking = Thinking::Off;
    assert!(!has_reasoning(&reply(&request)));
}

#[test]
fn answers_from_its_context() {
    let mut request = request("My name is Ada");
    let user_message =
        |text: &str| RequestMessage { role: Role::User, parts: vec![RequestPart::Text(text.into())] };
    request.messages.push(user_message("what did I say?"));
    assert!(text(&request).contains("My name is Ada"));
    request.messages.push(user_message("Summarise the conversation in 100 words"));
    assert!(text(&request).contains("- the user said: My name is Ada"));
}

#[test]
fn a_request_over_the_window_is_an_overflow() {
    let long = request(&"word ".repeat(1_000));
    let Err(error) = Demo::new(Some(0)).call(&long, Some(1_000)) else { panic!("the request was accepted") };
    assert_eq!(error.code(), "context_overflow");
}

#[test]
fn summarises_a_transcript() {
    let transcript = "<the-summary-so-far>\n## Facts\n- the port is 8080\n</the-summary-so-far>\n\n\
                <the-conversation>\nuser: Build a boat\nassistant: I look.\n[calls read_file {\"path\":\"plan.md\"}]\n\
                read_file: write 500 words\nuser: Paint it red\n</the-conversation>\n\nWrite the summary now.";
    let answer = text(&request(transcript));
    for kept in ["## Goal\n- Build a boat", "the port is 8080", "Paint it red", "called read_file"] {
        assert!(answer.contains(kept), "{kept} is not in {answer}");
    }
    let many: String = (0..500).map(|at| format!("user: wish {at}\n")).collect();
    let answer = text(&request(&format!("{many}Summarise this.")));
    assert!(answer.contains("wish 0\n") && answer.contains("wish 499") && !answer.contains("wish 250"));
}
