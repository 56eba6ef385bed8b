//! Requests to Gemini and responses from it.

use sapwood_core::entry::{Stop, Usage};
use sapwood_core::port::model::{ReplyEvent, RequestPart, Signature, Thinking};
use serde_json::json;

use super::server::Exchange;
use super::*;

pub const NAME: &str = "gemini/gemini-3.8-flash";

/// A thought, text, two calls of which the first is signed, cache counts.
pub const FULL_STREAM: &str = "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Two trees 🌳\",\"thought\": true}],\"role\": \"model\"},\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2000,\"totalTokenCount\": 2000},\"modelVersion\": \"gemini-3.8-flash\"}\r\n\r\n\
data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"I look\"}],\"role\": \"model\"},\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2000,\"candidatesTokenCount\": 2,\"totalTokenCount\": 2042,\"thoughtsTokenCount\": 40}}\r\n\r\n\
data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \" twice.\"},{\"functionCall\": {\"name\": \"list_directory\",\"args\": {\"path\": \"src\"},\"id\": \"fc_1\"},\"thoughtSignature\": \"CiQB\"},{\"functionCall\": {\"name\": \"list_directory\",\"args\": {}}}],\"role\": \"model\"},\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2000,\"candidatesTokenCount\": 30,\"totalTokenCount\": 2070,\"thoughtsTokenCount\": 40}}\r\n\r\n\
data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"\"}],\"role\": \"model\"},\"finishReason\": \"STOP\",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2000,\"candidatesTokenCount\": 32,\"totalTokenCount\": 2072,\"cachedContentTokenCount\": 1800,\"thoughtsTokenCount\": 40},\"modelVersion\": \"gemini-3.8-flash\",\"responseId\": \"r\"}\r\n\r\n";

#[tokio::test]
async fn decodes_a_reply_with_a_thought_text_and_two_calls() {
    let (outcome, _) = play("gemini", &request(NAME), Exchange::events(FULL_STREAM)).await;
    let reply = outcome.reply();
    assert_eq!(text_of(&reply), "I look twice.");
    let calls = calls_of(&reply);
    assert_eq!(calls[0], ("fc_1".into(), "list_directory".into(), r#"{"path":"src"}"#.into()));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("list_directory", "{}"));
    assert!(calls[1].0.starts_with("call_"));
    assert_eq!(reply.stop, Some(Stop::ToolUse));
    let usage = Usage { input: 200, output: 72, cache_read: 1800, cache_write: 0, reasoning: 40 };
    assert_eq!(reply.usage, Some(usage));
    let signatures: Vec<Signature> = reply.signatures().into_values().collect();
    assert_eq!(signatures, [Signature("gemini:call:CiQB".into())]);
}

#[tokio::test]
async fn encodes_a_request_in_the_providers_format() {
    let mut request = rich_request(NAME);
    request.thinking = Thinking::High;
    request.output_tokens_max = Some(500);
    let (_, sent) = play("gemini", &request, Exchange::events(FULL_STREAM)).await;
    assert_eq!(sent.line, "POST /v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse HTTP/1.1");
    assert_eq!(sent.header("x-goog-api-key").unwrap(), KEY);
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{
            "name": "list_directory", "description": "Lists a directory.", "parametersJsonSchema": schema(),
        }]}],
        "generationConfig": {
            "maxOutputTokens": 500,
            "thinkingConfig": {"includeThoughts": true, "thinkingLevel": "high"},
        },
        "contents": [
            {"role": "user", "parts": [
                {"text": "Look"},
                {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
                {"text": "<file name=\"t.csv\">\na,b\n</file>"},
            ]},
            {"role": "model", "parts": [
                {"text": "I look."},
                {"functionCall": {"name": "list_directory", "args": {"path": "."}},
                 "thoughtSignature": "skip_thought_signature_validator"},
                {"functionCall": {"name": "list_directory", "args": {"malformed_input": "{\"path\""}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "list_directory",
                    "response": {"result": "a.txt\n[s.png: image/png, 3 bytes]"}}},
                {"functionResponse": {"name": "list_directory", "response": {"error": "bad input"}}},
            ]},
            {"role": "user", "parts": [
                {"inlineData": {"mimeType": "image/png", "data": "UElD"}},
                {"text": "<system_note>\nTime is short.\n</system_note>"},
            ]},
        ],
    });
    assert_eq!(sent.body, expected);
}

#[tokio::test]
async fn a_calls_signature_is_sent_back_with_the_call() {
    let mut request = request("gemini/gemini-2.5-pro");
    request.thinking = Thinking::Low;
    let signed =
        RequestPart::Reasoning { text: "Two".into(), signature: Some(Signature("gemini:call:CiQB".into())) };
    request.messages.push(message(
        Role::Assistant,
        vec![signed, call_part("a", "list_directory", "{}"), call_part("b", "list_directory", "{}")],
    ));
    request.messages.push(result("a", "list_directory", vec![text_part("x")], false));
    request.messages.push(result("b", "list_directory", vec![text_part("y")], false));
    let (_, sent) = play("gemini", &request, Exchange::events(FULL_STREAM)).await;
    let call = json!({"name": "list_directory", "args": {}});
    assert_eq!(
        sent.body["contents"][1]["parts"],
        json!([{"functionCall": call, "thoughtSignature": "CiQB"}, {"functionCall": call}])
    );
    assert_eq!(
        sent.body["generationConfig"]["thinkingConfig"],
        json!({"includeThoughts": true, "thinkingBudget": 2048})
    );
}

#[tokio::test]
async fn maps_each_stop_reason() {
    let cases = [
        ("STOP", Stop::Stop),
        ("MAX_TOKENS", Stop::Length),
        ("SAFETY", Stop::ContentFilter),
        ("RECITATION", Stop::ContentFilter),
        ("PROHIBITED_CONTENT", Stop::ContentFilter),
        ("MALFORMED_FUNCTION_CALL", Stop::Error),
    ];
    for (reason, stop) in cases {
        let chunk = json!({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": reason}]});
        let (outcome, _) =
            play("gemini", &request(NAME), Exchange::events(&format!("data: {chunk}\n\n"))).await;
        assert_eq!(outcome.events.last(), Some(&ReplyEvent::Stop(stop)), "{reason}");
    }
    let blocked = "data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"},\"usageMetadata\":{\"promptTokenCount\":4}}\n\n";
    let (outcome, _) = play("gemini", &request(NAME), Exchange::events(blocked)).await;
    assert_eq!(outcome.events.last(), Some(&ReplyEvent::Stop(Stop::ContentFilter)));
}
