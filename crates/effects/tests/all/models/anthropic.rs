//! Requests to Anthropic and responses from it.

use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, RequestPart, Signature, Thinking};
use serde_json::json;

use super::server::Exchange;
use super::*;

pub const NAME: &str = "anthropic/claude-sonnet-4-5";

/// Reasoning with its signature in two parts, redacted reasoning, text, two calls, cache counts.
pub const FULL_STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5-20250929","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Zwei Bäume 🌳"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"Eq"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"Qb="}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"SECRET=="}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"I look"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":" twice."}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_A","name":"list_directory","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"path\": \"sr"}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"c\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: content_block_start
data: {"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"toolu_B","name":"list_directory","input":{}}}

event: content_block_stop
data: {"type":"content_block_stop","index":4}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;

#[tokio::test]
async fn decodes_a_reply_with_reasoning_text_and_two_calls() {
    let (outcome, _) = play("anthropic", &request(NAME), Exchange::events(FULL_STREAM)).await;
    let reply = outcome.reply();
    assert_eq!(text_of(&reply), "I look twice.");
    assert_eq!(
        calls_of(&reply),
        [
            ("toolu_A".into(), "list_directory".into(), r#"{"path": "src"}"#.into()),
            ("toolu_B".into(), "list_directory".into(), "{}".into()),
        ] as [(String, String, String); 2]
    );
    assert_eq!(reply.stop, Some(Stop::ToolUse));
    let usage = Usage { input: 12, output: 89, cache_read: 4000, cache_write: 300, reasoning: 0 };
    assert_eq!(reply.usage, Some(usage));
    let signatures: Vec<Signature> = reply.signatures().into_values().collect();
    let expected = ["anthropic:thinking:EqQb=", "anthropic:redacted:SECRET=="];
    assert_eq!(signatures, expected.map(|text| Signature(text.into())));
}

#[tokio::test]
async fn encodes_a_request_in_the_providers_format() {
    let (_, sent) = play("anthropic", &rich_request(NAME), Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(sent.header("x-api-key").unwrap(), KEY);
    assert_eq!(sent.header("anthropic-version").unwrap(), "2023-06-01");
    assert!(sent.header("user-agent").unwrap().starts_with("sapwood/"));
    let expected = json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 64000,
        "stream": true,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "list_directory", "description": "Lists a directory.", "input_schema": schema()}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                {"type": "document", "title": "d.pdf",
                 "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}},
                {"type": "text", "text": "<file name=\"t.csv\">\na,b\n</file>"},
            ]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "list_directory", "input": {"path": "."}},
                {"type": "tool_use", "id": "call_2620958b58472ba5", "name": "list_directory",
                 "input": {"malformed_input": "{\"path\""}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [
                    {"type": "text", "text": "a.txt"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "UElD"}},
                ]},
                {"type": "tool_result", "tool_use_id": "call_2620958b58472ba5", "is_error": true,
                 "content": [{"type": "text", "text": "bad input"}]},
                {"type": "text", "text": "<system_note>\nTime is short.\n</system_note>",
                 "cache_control": {"type": "ephemeral"}},
            ]},
        ],
    });
    assert_eq!(sent.body, expected);
}

fn signed(text: &str, signature: &str) -> RequestPart {
    RequestPart::Reasoning { text: text.into(), signature: Some(Signature(signature.into())) }
}

#[tokio::test]
async fn signed_reasoning_is_sent_back_within_a_turn_and_other_providers_signatures_are_not() {
    let mut request = request(NAME);
    request.thinking = Thinking::Medium;
    request.messages.push(message(
        Role::Assistant,
        vec![
            signed("Zwei", "anthropic:thinking:EqQb="),
            signed("", "anthropic:redacted:SECRET=="),
            signed("elsewhere", "gemini:call:XX"),
            call_part("c1", "list_directory", "{}"),
        ],
    ));
    request.messages.push(result("c1", "list_directory", vec![], false));
    let (_, sent) = play("anthropic", &request, Exchange::events(FULL_STREAM)).await;
    assert_eq!(
        sent.body["messages"][1]["content"],
        json!([
            {"type": "thinking", "thinking": "Zwei", "signature": "EqQb="},
            {"type": "redacted_thinking", "data": "SECRET=="},
            {"type": "tool_use", "id": "c1", "name": "list_directory", "input": {}},
        ])
    );
    assert_eq!(sent.body["thinking"], json!({"type": "enabled", "budget_tokens": 8192}));
}

#[tokio::test]
async fn thinking_is_requested_in_the_way_of_each_model() {
    let mut adaptive = request("anthropic/claude-opus-4-7");
    adaptive.thinking = Thinking::High;
    let (_, sent) = play("anthropic", &adaptive, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.body["thinking"], json!({"type": "adaptive", "display": "summarized"}));
    assert_eq!(sent.body["output_config"], json!({"effort": "high"}));

    let (_, sent) =
        play("anthropic", &request("anthropic/claude-opus-5"), Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.body["thinking"], json!({"type": "disabled"}));

    let mut small = request(NAME);
    small.thinking = Thinking::High;
    small.output_tokens_max = Some(4_096);
    let (_, sent) = play("anthropic", &small, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.body["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    assert_eq!(sent.body["max_tokens"], json!(4096));

    // The signatures were lost in a restart, so the model would reject thinking.
    small.messages.push(message(Role::Assistant, vec![call_part("c1", "list_directory", "{}")]));
    small.messages.push(result("c1", "list_directory", vec![text_part("a")], false));
    let (_, sent) = play("anthropic", &small, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.body.get("thinking"), None);
}

fn with_input(first: &str, second: &str) -> String {
    let delta = |text: &str| {
        let delta = json!({"type": "input_json_delta", "partial_json": text});
        let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        format!("event: content_block_delta\ndata: {event}\n\n")
    };
    let start = json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "tool_use", "id": "t", "name": "n", "input": {}}});
    format!("data: {start}\n\n{}{}data: {{\"type\":\"message_stop\"}}\n\n", delta(first), delta(second))
}

#[tokio::test]
async fn a_calls_input_does_not_depend_on_how_it_is_split() {
    let input = r#"{"path":"ä \"b\" \u00e9","n":[1,2.5]}"#;
    for (at, _) in input.char_indices() {
        let (first, second) = input.split_at(at);
        let (outcome, _) =
            play("anthropic", &request(NAME), Exchange::events(&with_input(first, second))).await;
        assert_eq!(calls_of(&outcome.reply())[0].2, input, "cut at {at}");
    }
}

#[tokio::test]
async fn maps_each_stop_reason() {
    let cases = [
        ("end_turn", Stop::Stop),
        ("stop_sequence", Stop::Stop),
        ("pause_turn", Stop::Stop),
        ("max_tokens", Stop::Length),
        ("model_context_window_exceeded", Stop::Length),
        ("tool_use", Stop::ToolUse),
        ("refusal", Stop::ContentFilter),
    ];
    for (reason, stop) in cases {
        let wire =
            FULL_STREAM.replace("\"stop_reason\":\"tool_use\"", &format!("\"stop_reason\":\"{reason}\""));
        let (outcome, _) = play("anthropic", &request(NAME), Exchange::events(&wire)).await;
        assert_eq!(outcome.events.last(), Some(&ReplyEvent::Stop(stop)), "{reason}");
    }
}
