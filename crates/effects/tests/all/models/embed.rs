//! Embeddings over real HTTP on loopback, in the formats of OpenAI and Ollama.

use sapwood_core::port::embedder::Embedder;
use sapwood_effects::model::ModelEmbedder;
use serde_json::json;

use super::server::{Exchange, Server};
use super::*;

async fn embed(provider: &str, answer: Exchange) -> (Result<Vec<Vec<f32>>, String>, server::SentRequest) {
    let server = Server::start(vec![answer]).await;
    let models = Arc::new(models_at(provider, &base_url(provider, &server), 20_000));
    let embedder = ModelEmbedder::new(models, format!("{provider}/small"));
    let texts = ["one".to_owned(), "two".to_owned()];
    let answer = embedder.embed(&texts).await.map_err(|error| error.to_string());
    (answer, server.requests().remove(0))
}

#[tokio::test]
async fn vectors_are_returned_in_the_order_of_their_texts() {
    let body = r#"{"object":"list","data":[{"object":"embedding","index":1,"embedding":[0,1]},
        {"object":"embedding","index":0,"embedding":[1,0.5]}],"model":"small","usage":{"prompt_tokens":2}}"#;
    for provider in ["openai", "lab"] {
        let (vectors, sent) = embed(provider, Exchange::answer(200, &[], body)).await;
        assert_eq!(vectors.unwrap(), [[1.0, 0.5], [0.0, 1.0]]);
        assert!(sent.line.starts_with("POST /v1/embeddings "), "{}", sent.line);
        assert_eq!(sent.body, json!({"model": "small", "input": ["one", "two"]}));
        assert_eq!(sent.header("authorization").unwrap(), format!("Bearer {KEY}"));
    }
    let body = r#"{"model":"small","embeddings":[[1,0],[0,1]],"total_duration":1}"#;
    let (vectors, sent) = embed("ollama", Exchange::answer(200, &[], body)).await;
    assert_eq!(vectors.unwrap(), [[1.0, 0.0], [0.0, 1.0]]);
    assert!(sent.line.starts_with("POST /api/embed "), "{}", sent.line);
}

#[tokio::test]
async fn an_invalid_response_is_an_error_without_the_key() {
    let cases = [
        (200, r#"{"data":[{"index":0,"embedding":[1]}]}"#.to_owned(), "one vector"),
        (200, r#"{"data":[{"index":0,"embedding":[]},{"index":1,"embedding":[]}]}"#.to_owned(), "one vector"),
        (
            200,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1,2]}]}"#.to_owned(),
            "one vector",
        ),
        (200, "[]".to_owned(), "failed to parse"),
        (401, format!("the key {KEY} is wrong"), "401"),
    ];
    for (status, body, expected) in cases {
        let (answer, _) = embed("openai", Exchange::answer(status, &[], &body)).await;
        let why = answer.unwrap_err();
        assert!(why.contains(expected) && !why.contains(KEY), "{why}");
    }
}

#[tokio::test]
async fn a_provider_without_embeddings_reports_an_error() {
    let models = Arc::new(models_at("anthropic", "http://127.0.0.1:9", 1_000));
    for name in ["anthropic/x", "demo"] {
        let embedder = ModelEmbedder::new(models.clone(), name);
        let error = embedder.embed(&["x".to_owned()]).await.unwrap_err();
        assert!(error.to_string().contains("embeddings"), "{error}");
    }
}
