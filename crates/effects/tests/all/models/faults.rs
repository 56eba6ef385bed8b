//! Failures over real HTTP: rejections, retry delays, silence, malformed data, redirects.

use std::sync::Arc;
use std::time::Duration;

use sapwood_core::port::model::{Model, ModelError, ReplyEvent};
use sapwood_effects::model::sse::FRAME_BYTES_MAX;
use sapwood_effects::model::{Models, ProviderKey, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::server::{Chunk, Ending, Exchange, Server};
use super::*;

const ALL: [(&str, &str); 4] = [
    ("anthropic", anthropic::NAME),
    ("openai", openai::NAME),
    ("gemini", gemini::NAME),
    ("ollama", ollama::NAME),
];

async fn error_of(provider: &str, model: &str, exchange: Exchange) -> ModelError {
    let (outcome, _) = play(provider, &request(model), exchange).await;
    outcome.error.expect("an error")
}

#[tokio::test]
async fn a_rate_limit_has_its_retry_delay_with_every_provider() {
    for (provider, model) in ALL {
        let pauses =
            [("retry-after", "7", 7_000), ("retry-after-ms", "120", 120), ("retry-after", "1.5", 1_500)];
        for (header, value, expected) in pauses {
            let body = r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#;
            let error = error_of(provider, model, Exchange::answer(429, &[(header, value)], body)).await;
            let expected = ModelError::RateLimited { model: model.into(), retry_after_ms: Some(expected) };
            assert_eq!(error, expected);
        }
    }
}

#[tokio::test]
async fn a_retry_date_is_relative_to_the_providers_clock() {
    let headers =
        [("date", "Mon, 16 Nov 2026 01:00:00 GMT"), ("retry-after", "Mon, 16 Nov 2026 01:00:20 GMT")];
    let error = error_of("openai", openai::NAME, Exchange::answer(429, &headers, "{}")).await;
    assert_eq!(error.retry_after_ms(), Some(20_000));
}

#[tokio::test]
async fn an_overload_is_transient_and_a_rejected_key_is_not() {
    for (provider, model) in ALL {
        for (status, code, is_transient) in [
            (500, "model.overloaded", true),
            (503, "model.overloaded", true),
            (529, "model.overloaded", true),
            (401, "model.key_refused", false),
            (403, "model.key_refused", false),
            (404, "model.unknown", false),
            (400, "model.refused", false),
            (413, "context_overflow", false),
        ] {
            let body = r#"{"error":{"message":"no"}}"#;
            let error = error_of(provider, model, Exchange::answer(status, &[], body)).await;
            assert_eq!((error.code(), error.is_transient()), (code, is_transient), "{provider} {status}");
        }
    }
}

#[tokio::test]
async fn a_key_in_a_providers_error_is_redacted() {
    for (provider, model) in ALL {
        let body = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}"}}}}"#);
        let error = error_of(provider, model, Exchange::answer(401, &[], &body)).await;
        let text = format!("{error} {error:?}");
        assert!(text.contains("Incorrect API key") && !text.contains(KEY), "{text}");
    }
}

#[tokio::test]
async fn an_error_inside_a_stream_follows_the_events_before_it() {
    let anthropic = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"Hi\"}}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let openai = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: {\"error\":{\"message\":\"The server had an error\",\"type\":\"server_error\"}}\n\n";
    let gemini = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Hi\"}]}}]}\n\ndata: {\"error\":{\"code\":503,\"message\":\"The model is overloaded.\",\"status\":\"UNAVAILABLE\"}}\n\n";
    let ollama = "{\"message\":{\"content\":\"Hi\"},\"done\":false}\n{\"error\":\"llama runner process has terminated\"}\n";
    for ((provider, model), wire) in ALL.into_iter().zip([anthropic, openai, gemini, ollama]) {
        let exchange = if provider == "ollama" { Exchange::lines(wire) } else { Exchange::events(wire) };
        let (outcome, _) = play(provider, &request(model), exchange).await;
        assert_eq!(outcome.events, [ReplyEvent::Text("Hi".into())], "{provider}");
        assert_eq!(outcome.code(), "model.overloaded", "{provider}");
    }
}

#[tokio::test]
async fn a_malformed_frame_is_an_error() {
    let cases = [
        (
            "anthropic",
            anthropic::NAME,
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\"\n\n",
        ),
        (
            "anthropic",
            anthropic::NAME,
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\"}}\n\n",
        ),
        (
            "anthropic",
            anthropic::NAME,
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\n",
        ),
        (
            "anthropic",
            anthropic::NAME,
            "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"x\"}}\n\n",
        ),
        ("anthropic", anthropic::NAME, "data: 12\n\n"),
        ("openai", openai::NAME, "data: {\"choices\":[{\"delta\":{\"content\":\"H\n\n"),
        ("openai", openai::NAME, "data: \"text\"\n\n"),
        (
            "openai",
            openai::NAME,
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]}}]}\n\n",
        ),
        ("gemini", gemini::NAME, "data: {\"candidates\"\n\n"),
        (
            "gemini",
            gemini::NAME,
            "data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{}}]}}]}\n\n",
        ),
        ("ollama", ollama::NAME, "{\"message\":{\"content\n{}\n"),
        ("ollama", ollama::NAME, "{\"message\":{\"tool_calls\":[{\"function\":{}}]}}\n"),
    ];
    for (provider, model, wire) in cases {
        let exchange = if provider == "ollama" { Exchange::lines(wire) } else { Exchange::events(wire) };
        let error = error_of(provider, model, exchange).await;
        assert_eq!(error.code(), "model.malformed", "{provider}: {wire}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_text_are_malformed() {
    let exchange = Exchange::stream("text/event-stream", vec![b"data: \xff\xfe\n\n".to_vec()], Ending::Whole);
    assert_eq!(error_of("openai", openai::NAME, exchange).await.code(), "model.malformed");
}

#[tokio::test]
async fn an_endless_line_is_an_error() {
    let chunk = vec![b'x'; FRAME_BYTES_MAX / 2 + 1];
    let exchange = Exchange::stream("text/event-stream", vec![chunk.clone(), chunk], Ending::Whole);
    let error = error_of("openai", openai::NAME, exchange).await;
    let limit = FRAME_BYTES_MAX;
    assert_eq!(error, ModelError::TooLarge { model: openai::NAME.into(), limit, unit: "bytes" });
}

fn with_pauses(pause_ms: u64) -> Exchange {
    let events: Vec<&str> = openai::FULL_STREAM.split_inclusive("\n\n").collect();
    let chunks = events
        .iter()
        .flat_map(|event| [Chunk::Bytes(event.as_bytes().to_vec()), Chunk::WaitMs(pause_ms)])
        .collect();
    Exchange { chunks, ..Exchange::events("") }
}

#[tokio::test]
async fn a_slow_stream_succeeds_and_a_silent_one_times_out() {
    for (pause_ms, idle_ms, code) in [(150, 20_000, "ok"), (20_000, 150, "model.silent")] {
        let server = Server::start(vec![with_pauses(pause_ms)]).await;
        let models = models_at("openai", &base_url("openai", &server), idle_ms);
        let outcome = call(&models, &request(openai::NAME)).await;
        assert_eq!(outcome.code(), code, "{pause_ms} ms");
        if code == "model.silent" {
            let silent = ModelError::Silent { model: openai::NAME.into(), waited_ms: idle_ms };
            assert_eq!(outcome.error, Some(silent));
        }
    }
}

#[tokio::test]
async fn a_server_that_never_answers_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let models = models_at("ollama", &format!("http://{}", listener.local_addr().unwrap()), 100);
    assert_eq!(call(&models, &request(ollama::NAME)).await.code(), "model.silent");
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let models = models_at("ollama", &format!("http://user:hunter2@{address}"), 1_000);
    let error = call(&models, &request(ollama::NAME)).await.error.unwrap();
    assert_eq!(error.code(), "model.unreachable");
    assert!(error.to_string().contains("refused") && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_key_is_not_sent_to_a_redirect_target() {
    let other = Server::start(vec![Exchange::events(openai::FULL_STREAM)]).await;
    for status in [301, 302, 307, 308] {
        let to = format!("{}/v1/chat/completions", other.url);
        let exchange = Exchange::answer(status, &[("location", &to)], "");
        let error = error_of("openai", openai::NAME, exchange).await;
        assert_eq!(error.code(), "model.refused");
        assert!(error.to_string().contains(&other.url), "{error}");
    }
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn a_response_that_is_not_a_stream_is_an_error() {
    let page =
        Exchange::stream("text/html; charset=utf-8", vec![b"<html>log in</html>".to_vec()], Ending::Whole);
    let error = error_of("openai", openai::NAME, page).await;
    assert_eq!(error.code(), "model.malformed");
    assert!(error.to_string().contains("text/html"), "{error}");
    let gateway = Exchange::answer(200, &[], r#"{"error":{"type":"rate_limit_error","message":"slow"}}"#);
    assert_eq!(error_of("openai", openai::NAME, gateway).await.code(), "model.rate_limited");
}

#[tokio::test]
async fn data_after_the_end_of_a_reply_is_ignored() {
    let wire = format!("{}data: {{broken\n\ndata: [DONE]\n\n", anthropic::FULL_STREAM);
    let (outcome, _) = play("anthropic", &request(anthropic::NAME), Exchange::events(&wire)).await;
    assert_eq!(outcome.code(), "ok");
}

#[tokio::test]
async fn dropping_a_stream_closes_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let models = models_at("ollama", &format!("http://{}", listener.local_addr().unwrap()), 5_000);
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 65_536];
        let _ = socket.read(&mut buffer).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
        let line = "{\"message\":{\"content\":\"Hi\"},\"done\":false}\n";
        socket.write_all(format!("{head}{line}").as_bytes()).await.unwrap();
        // The rest of the request may still arrive before the connection closes.
        while socket.read(&mut buffer).await.unwrap_or(0) > 0 {}
    });
    let mut stream = models.call(&request(ollama::NAME)).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(ReplyEvent::Text("Hi".into()))));
    drop(stream);
    tokio::time::timeout(Duration::from_secs(60), server)
        .await
        .expect("the client did not close the connection")
        .unwrap();
}

#[tokio::test]
async fn a_missing_key_is_named_by_its_variable() {
    let models = Models::new(Settings::default(), Arc::new(|_: &str| None::<ProviderKey>)).unwrap();
    for (model, variable) in
        [("anthropic/x", "ANTHROPIC_API_KEY"), ("openai/x", "OPENAI_API_KEY"), ("gemini/x", "GEMINI_API_KEY")]
    {
        let error = call(&models, &request(model)).await.error.unwrap();
        assert_eq!(error, ModelError::NoKey { model: model.into(), variable: variable.into() });
    }
    assert_eq!(models.names(), ["demo"]);
}

#[tokio::test]
async fn the_second_variable_is_used_if_the_first_is_not_set() {
    let server = Server::start(vec![Exchange::events(gemini::FULL_STREAM)]).await;
    let settings =
        Settings::default().with_variables(|name| (name == "GEMINI_BASE_URL").then(|| server.url.clone()));
    let keys = |variable: &str| (variable == "GOOGLE_API_KEY").then(|| ProviderKey::new("second".into()));
    let models = Models::new(settings, Arc::new(keys)).unwrap();
    assert_eq!(call(&models, &request(gemini::NAME)).await.code(), "ok");
    assert_eq!(server.requests()[0].header("x-goog-api-key").unwrap(), "second");
    assert!(models.names().contains(&gemini::NAME.to_owned()));
}

#[tokio::test]
async fn a_key_with_invalid_header_characters_is_rejected_before_anything_is_sent() {
    let keys = |_: &str| Some(ProviderKey::new("two\nlines".into()));
    let models = Models::new(Settings::default(), Arc::new(keys)).unwrap();
    assert_eq!(call(&models, &request("openai/gpt-5")).await.code(), "model.key_refused");
}

#[tokio::test]
async fn an_unknown_provider_error_lists_the_known_ones() {
    let models = models_at("lab", "http://127.0.0.1:9", 100);
    for name in ["gpt-oops", "nowhere/gpt-5", "openai/", ""] {
        let error = call(&models, &request(name)).await.error.unwrap();
        assert_eq!(error.code(), "model.unknown", "{name}");
        for provider in ["anthropic", "gemini", "lab", "ollama", "openai", "demo"] {
            assert!(error.to_string().contains(provider), "{error}");
        }
    }
}
