//! Requests to Ollama and responses from it.

use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{RequestPart, Signature, Thinking};
use serde_json::json;

use super::server::Exchange;
use super::*;

pub const NAME: &str = "ollama/qwen3:8b";

/// A thought, text, two calls in one line, the counts in the last line.
pub const FULL_STREAM: &str = r#"{"model":"qwen3:8b","created_at":"2026-11-01T00:00:00Z","message":{"role":"assistant","content":"","thinking":"Two trees 🌳"},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-01T00:00:00Z","message":{"role":"assistant","content":"I look"},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-01T00:00:00Z","message":{"role":"assistant","content":" twice."},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-01T00:00:00Z","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"list_directory","arguments":{"path":"src"}}},{"function":{"name":"list_directory","arguments":{}}}]},"done":false}
{"model":"qwen3:8b","created_at":"2026-11-01T00:00:00Z","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"total_duration":1,"load_duration":1,"prompt_eval_count":26,"prompt_eval_duration":1,"eval_count":98,"eval_duration":1}
"#;

#[tokio::test]
async fn decodes_a_reply_with_a_thought_text_and_two_calls() {
    let (outcome, _) = play("ollama", &request(NAME), Exchange::lines(FULL_STREAM)).await;
    let reply = outcome.reply();
    assert_eq!(text_of(&reply), "I look twice.");
    let calls = calls_of(&reply);
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("list_directory", r#"{"path":"src"}"#));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("list_directory", "{}"));
    assert_ne!(calls[0].0, calls[1].0);
    assert_eq!(reply.stop, Some(Stop::ToolUse));
    assert_eq!(reply.usage, Some(Usage { input: 26, output: 98, ..Usage::default() }));
}

#[tokio::test]
async fn encodes_a_request_in_the_servers_format() {
    let mut request = rich_request(NAME);
    request.thinking = Thinking::High;
    request.output_tokens_max = Some(500);
    request.temperature = Some(0.25);
    let (_, sent) = play("ollama", &request, Exchange::lines(FULL_STREAM)).await;
    assert_eq!(sent.line, "POST /api/chat HTTP/1.1");
    let function =
        json!({"name": "list_directory", "description": "Lists a directory.", "parameters": schema()});
    let expected = json!({
        "model": "qwen3:8b",
        "stream": true,
        "think": true,
        "options": {"num_ctx": 16384, "num_predict": 500, "temperature": 0.25},
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look\n\n[d.pdf: application/pdf, 4 bytes]\n\n<file name=\"t.csv\">\na,b\n</file>",
             "images": ["iVBORw=="]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"function": {"name": "list_directory", "arguments": {"path": "."}}},
                {"function": {"name": "list_directory", "arguments": {"malformed_input": "{\"path\""}}},
            ]},
            {"role": "tool", "tool_name": "list_directory", "content": "a.txt\n[s.png: image/png, 3 bytes]"},
            {"role": "tool", "tool_name": "list_directory", "content": "Error: bad input"},
            {"role": "user",
             "content": "Result of list_directory:\n\n<system_note>\nTime is short.\n</system_note>",
             "images": ["UElD"]},
        ],
    });
    assert_eq!(sent.body, expected);
}

#[tokio::test]
async fn thinking_has_levels_where_supported_and_is_sent_back_to_its_provider() {
    let mut request = request("ollama/gpt-oss:20b");
    request.thinking = Thinking::Medium;
    let thought = |signature: &str| RequestPart::Reasoning {
        text: format!("by {signature}"),
        signature: Some(Signature(signature.into())),
    };
    let parts = vec![thought("ollama:thinking"), thought("anthropic:thinking:x"), text_part("Yes.")];
    request.messages.push(message(Role::Assistant, parts));
    request.messages.push(user("Go on"));
    let (_, sent) = play("ollama", &request, Exchange::lines(FULL_STREAM)).await;
    assert_eq!(sent.body["think"], "medium");
    assert_eq!(
        sent.body["messages"][2],
        json!({"role": "assistant", "content": "Yes.", "thinking": "by ollama:thinking"})
    );
}

#[tokio::test]
async fn a_truncated_answer_has_the_stop_reason_length() {
    let wire = FULL_STREAM.replace("\"done_reason\":\"stop\"", "\"done_reason\":\"length\"");
    let (outcome, _) = play("ollama", &request(NAME), Exchange::lines(&wire)).await;
    assert_eq!(outcome.reply().stop, Some(Stop::Length));
}

#[tokio::test]
async fn lists_the_models_of_a_local_server_and_none_of_a_missing_one() {
    let tags = r#"{"models":[{"name":"qwen3:8b","size":1},{"name":"gemma4:latest"}]}"#;
    let server = Server::start(vec![Exchange::answer(200, &[], tags)]).await;
    let models = models_at("ollama", &server.url, 20_000);
    assert_eq!(models.local_names().await, ["ollama/qwen3:8b", "ollama/gemma4:latest"]);
    assert_eq!(server.requests()[0].line, "GET /api/tags HTTP/1.1");
    drop(server);
    assert!(models.local_names().await.is_empty());
}
