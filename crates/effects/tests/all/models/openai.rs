//! Requests to OpenAI and compatible servers, and responses from them.

use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, RequestPart, Signature, Thinking};
use serde_json::json;

use super::server::Exchange;
use super::*;

pub const NAME: &str = "openai/gpt-5-mini";

/// Text, two calls with interleaved input, cache counts in a separate chunk.
pub const FULL_STREAM: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"content":"I look 🌳"},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"content":" twice."},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_A","type":"function","function":{"name":"list_directory","arguments":""}}]},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_B","type":"function","function":{"name":"list_directory","arguments":"{\"pa"}}]},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":\"src\"}"}},{"index":1,"function":{"arguments":"th\":\"t\"}"}}]},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5-mini","choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":120,"total_tokens":2120,"prompt_tokens_details":{"cached_tokens":1536,"cache_write_tokens":400},"completion_tokens_details":{"reasoning_tokens":64}}}

data: [DONE]

"#;

#[tokio::test]
async fn decodes_a_reply_with_text_and_two_calls() {
    let (outcome, _) = play("openai", &request(NAME), Exchange::events(FULL_STREAM)).await;
    let reply = outcome.reply();
    assert_eq!(text_of(&reply), "I look 🌳 twice.");
    assert_eq!(
        calls_of(&reply),
        [
            ("call_A".into(), "list_directory".into(), r#"{"path":"src"}"#.into()),
            ("call_B".into(), "list_directory".into(), r#"{"path":"t"}"#.into()),
        ] as [(String, String, String); 2]
    );
    assert_eq!(reply.stop, Some(Stop::ToolUse));
    let usage = Usage { input: 64, output: 120, cache_read: 1536, cache_write: 400, reasoning: 64 };
    assert_eq!(reply.usage, Some(usage));
}

fn messages(is_own: bool) -> serde_json::Value {
    let note = match is_own {
        true => json!({"role": "system", "content": "Time is short."}),
        false => json!({"type": "text", "text": "<system_note>\nTime is short.\n</system_note>"}),
    };
    let mut shown = vec![
        json!({"type": "text", "text": "Result of list_directory:"}),
        json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,UElD"}}),
    ];
    let mut all = vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
            {"type": "file", "file": {"filename": "d.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
            {"type": "text", "text": "<file name=\"t.csv\">\na,b\n</file>"},
        ]}),
        json!({"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "list_directory", "arguments": "{\"path\":\".\"}"}},
            {"id": "call_2620958b58472ba5", "type": "function",
             "function": {"name": "list_directory", "arguments": "{\"malformed_input\":\"{\\\"path\\\"\"}"}},
        ]}),
        json!({"role": "tool", "tool_call_id": "c1", "content": "a.txt\n[s.png: image/png, 3 bytes]"}),
        json!({"role": "tool", "tool_call_id": "call_2620958b58472ba5", "content": "Error: bad input"}),
    ];
    if is_own {
        all.extend([json!({"role": "user", "content": shown}), note]);
    } else {
        shown.push(note);
        all.push(json!({"role": "user", "content": shown}));
    }
    json!(all)
}

#[tokio::test]
async fn encodes_a_request_in_the_providers_format() {
    let mut request = rich_request(NAME);
    request.thinking = Thinking::Low;
    request.output_tokens_max = Some(500);
    request.temperature = Some(0.5);
    let (_, sent) = play("openai", &request, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(sent.header("authorization").unwrap(), format!("Bearer {KEY}"));
    let function =
        json!({"name": "list_directory", "description": "Lists a directory.", "parameters": schema()});
    let expected = json!({
        "model": "gpt-5-mini",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_completion_tokens": 500,
        "reasoning_effort": "low",
        "temperature": 0.5,
        "tools": [{"type": "function", "function": function}],
        "messages": messages(true),
    });
    assert_eq!(sent.body, expected);
}

#[tokio::test]
async fn a_compatible_server_gets_the_older_field_names() {
    let mut request = rich_request("lab/org/some-model");
    request.output_tokens_max = Some(500);
    let (outcome, sent) = play("lab", &request, Exchange::events(FULL_STREAM)).await;
    assert_eq!(outcome.code(), "ok");
    assert_eq!(sent.body["model"], "org/some-model");
    assert_eq!(sent.body["max_tokens"], 500);
    assert_eq!(sent.body.get("max_completion_tokens"), None);
    assert_eq!(sent.body["messages"], messages(false));
}

#[tokio::test]
async fn a_model_without_thinking_is_not_asked_to_think() {
    let mut request = request("openai/gpt-4.1");
    request.thinking = Thinking::High;
    let (_, sent) = play("openai", &request, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.body.get("reasoning_effort"), None);
}

const REASONED: &str = r#": OPENROUTER PROCESSING

data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"FIELD":"Hm,"},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"content":"","FIELD":" yes."},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_cache_hit_tokens":5}}

data: [DONE]

"#;

#[tokio::test]
async fn reasoning_is_read_from_both_fields_and_sent_back_only_where_required() {
    for (field, signature) in [("reasoning_content", Some("openai:reasoning_content")), ("reasoning", None)] {
        let wire = REASONED.replace("FIELD", field);
        let (outcome, _) = play("lab", &request("lab/m"), Exchange::events(&wire)).await;
        let signature = signature.map(|text| Signature(text.into()));
        assert_eq!(
            outcome.events[0..2],
            [ReplyEvent::Reasoning("Hm,".into()), ReplyEvent::Reasoning(" yes.".into())]
        );
        assert_eq!(outcome.events[2], ReplyEvent::ReasoningEnd { signature, redacted: false });
        assert_eq!(
            outcome.reply().usage.unwrap(),
            Usage { input: 4, output: 3, cache_read: 5, ..Usage::default() }
        );
    }
    let mut again = request("lab/m");
    let reasoning = |text: &str, signature: &str| RequestPart::Reasoning {
        text: text.into(),
        signature: Some(Signature(signature.into())),
    };
    let parts = vec![
        reasoning("Hm", "openai:reasoning_content"),
        reasoning("other", "anthropic:thinking:x"),
        text_part("Yes."),
    ];
    again.messages.push(message(Role::Assistant, parts));
    again.messages.push(user("Go on"));
    let (_, sent) = play("lab", &again, Exchange::events(FULL_STREAM)).await;
    assert_eq!(
        sent.body["messages"][2],
        json!({"role": "assistant", "content": "Yes.", "reasoning_content": "Hm"})
    );
}

#[tokio::test]
async fn a_calls_input_does_not_depend_on_how_it_is_split() {
    let input = r#"{"path":"ä \"b\" \u00e9","n":[1,2.5]}"#;
    let chunk = |call: serde_json::Value| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    };
    for (at, _) in input.char_indices() {
        let (first, second) = input.split_at(at);
        let began = json!({"index": 0, "id": "c", "function": {"name": "n", "arguments": first}});
        let rest = json!({"index": 0, "function": {"arguments": second}});
        let end =
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        let wire = format!("{}{}{end}", chunk(began), chunk(rest));
        let (outcome, _) = play("openai", &request(NAME), Exchange::events(&wire)).await;
        assert_eq!(calls_of(&outcome.reply())[0].2, input, "cut at {at}");
        assert_eq!(outcome.reply().stop, Some(Stop::ToolUse));
    }
}

#[tokio::test]
async fn maps_each_stop_reason() {
    let cases = [
        (r#"{"content":"x"}"#, "stop", Stop::Stop),
        (r#"{"content":"x"}"#, "length", Stop::Length),
        (r#"{"content":"x"}"#, "content_filter", Stop::ContentFilter),
        (r#"{"refusal":"I cannot."}"#, "stop", Stop::ContentFilter),
    ];
    for (delta, reason, stop) in cases {
        let wire = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":\"{reason}\"}}]}}\n\ndata: [DONE]\n\n"
        );
        let (outcome, _) = play("openai", &request(NAME), Exchange::events(&wire)).await;
        assert_eq!(outcome.events.last(), Some(&ReplyEvent::Stop(stop)), "{delta} {reason}");
    }
}

#[tokio::test]
async fn accepts_calls_without_indexes_and_ids() {
    let wire = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"a","arguments":{"x":1}}},{"function":{"name":"b","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;
    let (outcome, _) = play("lab", &request("lab/m"), Exchange::events(wire)).await;
    let calls = calls_of(&outcome.reply());
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("a", "{\"x\":1}"));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("b", "{}"));
    assert_ne!(calls[0].0, calls[1].0);
}
