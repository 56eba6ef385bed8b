//! Which model a name refers to, and the check of a model's key and endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_core::port::model::Model;
use sapwood_effects::model::{
    CatalogRow, Checked, KeyState, Models, ProviderKey, ProviderSettings, Settings,
};

use super::server::{Exchange, Server};
use super::{KEY, base_url, models_at};

/// Models with a key only for the providers whose variable is listed.
fn models_with_keys(variables: &'static [&'static str], settings: Settings) -> Models {
    let keys = move |variable: &str| variables.contains(&variable).then(|| ProviderKey::new(KEY.to_owned()));
    Models::new(settings, Arc::new(keys)).unwrap()
}

#[test]
fn dated_and_imported_names_find_their_row_and_a_configured_provider() {
    let models =
        models_with_keys(&["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"], Settings::default());
    let cases = [
        ("claude-sonnet-4-5-20250929", "anthropic/claude-sonnet-4-5-20250929", 200_000),
        ("gpt-4o-2024-08-06", "openai/gpt-4o-2024-08-06", 128_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic/claude-sonnet-4-5-20250929", 200_000),
        (
            "amazon-bedrock/anthropic.claude-haiku-4-5-20251001-v1:0",
            "anthropic/claude-haiku-4-5-20251001",
            200_000,
        ),
        ("google-vertex/claude-opus-4-5@20251101", "anthropic/claude-opus-4-5-20251101", 200_000),
        ("anthropic/claude-opus-4-5@20251101", "anthropic/claude-opus-4-5-20251101", 200_000),
        ("openrouter/openai/gpt-4o", "openai/gpt-4o", 128_000),
        ("google/gemini-2.5-pro", "gemini/gemini-2.5-pro", 200_000),
        ("anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5", 200_000),
        ("demo", "demo", 32_000),
    ];
    for (given, expected, window) in cases {
        assert_eq!(models.resolve(given).as_deref(), Ok(expected), "{given}");
        assert_eq!(models.facts(given).window_tokens, Some(window), "{given}");
    }
    for unknown in ["gpt-oops", "nowhere/model", "nowhere/gpt-5", "llama3.2", "", "openai/"] {
        assert_eq!(models.resolve(unknown).unwrap_err().code(), "model.unknown", "{unknown:?}");
    }
    assert_eq!(models.resolve("ollama/llama3.2").as_deref(), Ok("ollama/llama3.2"));
    assert_eq!(models.resolve("openai/gpt-99").as_deref(), Ok("openai/gpt-99"), "newer than the catalog");
}

#[test]
fn a_model_without_a_key_is_refused_before_the_call() {
    let models = models_with_keys(&["OPENAI_API_KEY"], Settings::default());
    assert_eq!(models.check("openai/gpt-5"), Ok(()));
    assert_eq!(models.check("anthropic/claude-sonnet-4-5").unwrap_err().code(), "model.no_key");
    assert_eq!((models.check("demo"), models.check("ollama/llama3.2")), (Ok(()), Ok(())));
    let shown = models.describe("claude-sonnet-4-5-20250929").unwrap();
    assert_eq!(shown.name, "anthropic/claude-sonnet-4-5-20250929");
    assert_eq!(shown.key, KeyState::Missing("ANTHROPIC_API_KEY".to_owned()));
    assert!(!shown.is_available());
    let listed = models.list();
    let is_available = |name: &str| listed.iter().find(|one| one.name == name).map(|one| one.is_available());
    assert_eq!(is_available("openai/gpt-5"), Some(true));
    assert_eq!(is_available("anthropic/claude-sonnet-4-5"), Some(false));
}

#[test]
fn a_name_that_two_providers_have_goes_to_the_provider_with_a_key() {
    let row = CatalogRow { window: Some(64_000), ..CatalogRow::default() };
    let gate = ProviderSettings {
        base_url: Some("http://127.0.0.1:9/v1".to_owned()),
        key_variable: Some("GATE_KEY".to_owned()),
        ..ProviderSettings::default()
    };
    let settings = || Settings {
        providers: BTreeMap::from([("gate".to_owned(), gate.clone())]),
        models: BTreeMap::from([("gate/gpt-5".to_owned(), row.clone())]),
        ..Settings::default()
    };
    let with_gate = models_with_keys(&["GATE_KEY"], settings());
    assert_eq!(with_gate.resolve("gpt-5").as_deref(), Ok("gate/gpt-5"));
    assert_eq!(with_gate.facts("gate/gpt-5").window_tokens, Some(64_000));
    let with_openai = models_with_keys(&["OPENAI_API_KEY"], settings());
    assert_eq!(with_openai.resolve("gpt-5").as_deref(), Ok("openai/gpt-5"));
}

#[tokio::test]
async fn a_check_asks_the_provider_without_sending_a_conversation() {
    let listed = r#"{"data":[{"id":"gpt-5"},{"id":"other"}]}"#;
    let cases = [
        (
            "anthropic",
            "claude-x",
            200,
            r#"{"id":"claude-x"}"#,
            "GET /v1/models/claude-x HTTP/1.1",
            Ok(Checked::Listed),
        ),
        (
            "gemini",
            "gemini-x",
            200,
            r#"{"name":"models/gemini-x"}"#,
            "GET /v1beta/models/gemini-x HTTP/1.1",
            Ok(Checked::Listed),
        ),
        ("openai", "gpt-5", 200, listed, "GET /v1/models HTTP/1.1", Ok(Checked::Listed)),
        ("openai", "gpt-6", 200, listed, "GET /v1/models HTTP/1.1", Err("model.unknown")),
        ("lab", "any", 200, "{}", "GET /v1/models HTTP/1.1", Ok(Checked::Answered)),
        (
            "ollama",
            "llama3",
            200,
            r#"{"models":[{"name":"llama3:latest"}]}"#,
            "GET /api/tags HTTP/1.1",
            Ok(Checked::Listed),
        ),
        (
            "anthropic",
            "claude-x",
            401,
            r#"{"error":{"message":"bad canary-key-4711"}}"#,
            "GET /v1/models/claude-x HTTP/1.1",
            Err("model.key_refused"),
        ),
        ("gemini", "gemini-x", 404, "{}", "GET /v1beta/models/gemini-x HTTP/1.1", Err("model.unknown")),
    ];
    for (provider, model, status, body, line, expected) in cases {
        let server = Server::start(vec![Exchange::answer(status, &[], body)]).await;
        let models = models_at(provider, &base_url(provider, &server), 5_000);
        let checked = models.check_endpoint(&format!("{provider}/{model}")).await;
        let request = server.requests().remove(0);
        assert_eq!(request.line, line, "{provider}/{model}");
        assert!(request.head.contains(KEY), "the key is missing: {}", request.head);
        let text = format!("{checked:?}");
        assert_eq!(checked.map_err(|error| error.code()), expected, "{provider}/{model}");
        assert!(!text.contains(KEY), "the error repeats the key: {text}");
    }
    let nothing = models_at("lab", "http://127.0.0.1:9/v1", 5_000);
    assert_eq!(nothing.check_endpoint("lab/x").await.unwrap_err().code(), "model.unreachable");
    assert_eq!(nothing.check_endpoint("demo").await, Ok(Checked::Local));
}
