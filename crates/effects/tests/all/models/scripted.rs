//! Cassettes and the demo model, by the names used on the command line.

use std::time::Instant;

use sapwood_core::entry::Stop;
use sapwood_core::port::model::{Model, ModelError, Price, ReplyEvent};
use sapwood_effects::model::{EnvironmentKeys, Models, Settings};

use super::*;

const CASSETTE: &str = r#"
window_tokens = 8000
price = { input = 3000, output = 15000 }

[[calls]]
expect = "Hello"
pieces = [
  { reasoning = "I should look." },
  { reasoning_end = {} },
  { call = { id = "c1", name = "list_directory", input = { path = "." } } },
  { call_began = { index = 1, id = "c2", name = "list_directory" } },
  { call_input = { index = 1, text = "{\"pa" } },
  { call_input = { index = 1, text = "th\":1}" } },
  { usage = { input = 20, output = 5 } },
]

[[calls]]
pieces = [{ text = "Half a sen" }, { wait_ms = 30 }, { cut = "the wire broke" }]

[[calls]]
pieces = [{ error = { kind = "rate_limited", retry_after_ms = 9 } }]

[[calls]]
pieces = [{ text = "Done." }, { stop = "length" }]
"#;

struct Player {
    models: Models,
    name: String,
    _dir: tempfile::TempDir,
}

fn player(cassette: &str, extension: &str) -> Player {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(format!("tape.{extension}")), cassette).unwrap();
    let settings =
        Settings { scripts_dir: Some(dir.path().to_owned()), demo_pace_ms: Some(0), ..Settings::default() };
    let models = Models::new(settings, Arc::new(EnvironmentKeys)).unwrap();
    Player { models, name: "scripted/tape".into(), _dir: dir }
}

impl Player {
    async fn call(&self, messages: Vec<RequestMessage>) -> CallOutcome {
        let mut request = request(&self.name);
        request.messages = messages;
        super::call(&self.models, &request).await
    }
}

#[tokio::test]
async fn a_cassette_plays_its_calls_in_order_and_then_fails() {
    let player = player(CASSETTE, "toml");
    let first = player.call(vec![user("Hello")]).await;
    let calls = calls_of(&first.reply());
    assert_eq!(calls[0], ("c1".into(), "list_directory".into(), r#"{"path":"."}"#.into()));
    assert_eq!(calls[1], ("c2".into(), "list_directory".into(), r#"{"path":1}"#.into()));
    assert_eq!(first.reply().stop, Some(Stop::ToolUse));
    assert_eq!(first.reply().usage.unwrap().input, 20);

    let began = Instant::now();
    let second = player.call(vec![user("x")]).await;
    assert_eq!(second.events, [ReplyEvent::Text("Half a sen".into())]);
    assert_eq!(second.code(), "model.cut");
    assert!(began.elapsed().as_millis() >= 30);

    let third = player.call(vec![user("x")]).await;
    assert_eq!(third.error.unwrap().retry_after_ms(), Some(9));
    let fourth = player.call(vec![user("x")]).await;
    assert_eq!(fourth.events, [ReplyEvent::Text("Done.".into()), ReplyEvent::Stop(Stop::Length)]);
    let fifth = player.call(vec![user("x")]).await;
    assert_eq!(fifth.error, Some(ModelError::Unscripted { model: "scripted/tape".into(), call: 4 }));

    let facts = player.models.facts("scripted/tape");
    assert_eq!(facts.window_tokens, Some(8000));
    assert_eq!(facts.price, Some(Price { input: 3000, output: 15000, ..Price::default() }));
}

#[tokio::test]
async fn by_history_the_request_selects_the_call() {
    let cassette = r#"{"by": "history", "calls": [
        {"pieces": [{"text": "one"}]}, {"pieces": [{"text": "two"}]}
    ]}"#;
    let player = player(cassette, "json");
    let answer = || message(Role::Assistant, vec![text_part("one")]);
    for _ in 0..2 {
        assert_eq!(text_of(&player.call(vec![user("a")]).await.reply()), "one");
        assert_eq!(text_of(&player.call(vec![user("a"), answer(), user("b")]).await.reply()), "two");
    }
    let beyond = player.call(vec![user("a"), answer(), user("b"), answer()]).await;
    assert_eq!(beyond.error, Some(ModelError::Unscripted { model: "scripted/tape".into(), call: 2 }));
}

#[tokio::test]
async fn a_call_that_the_cassette_does_not_expect_is_rejected() {
    let player = player(CASSETTE, "toml");
    let outcome = player.call(vec![user("Goodbye")]).await;
    assert!(outcome.error.unwrap().to_string().contains("of the cassette expects"));
}

#[tokio::test]
async fn a_cassette_can_be_named_by_its_file_and_an_invalid_one_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    std::fs::write(&file, CASSETTE).unwrap();
    let models = Models::new(Settings::default(), Arc::new(EnvironmentKeys)).unwrap();
    let named = format!("scripted:{}", file.display());
    assert_eq!(super::call(&models, &request(&named)).await.code(), "ok");

    std::fs::write(dir.path().join("b.toml"), "[[calls]]\npieces = [{ txt = \"x\" }]").unwrap();
    for (name, expected) in [("b.toml", "not part of a valid cassette"), ("c.toml", "No such file")] {
        let named = format!("scripted:{}", dir.path().join(name).display());
        let error = super::call(&models, &request(&named)).await.error.unwrap();
        assert_eq!(error.code(), "model.unknown");
        assert!(error.to_string().contains(expected), "{error}");
    }
    for escaping in ["scripted/../a", "scripted/", "scripted/.a", "scripted/x"] {
        assert_eq!(super::call(&models, &request(escaping)).await.code(), "model.unknown", "{escaping}");
    }
}

#[tokio::test]
async fn the_demo_model_needs_no_settings_and_its_calls_have_a_cost() {
    let player = player(CASSETTE, "toml");
    for name in ["demo", "demo/any"] {
        let outcome = super::call(&player.models, &request(name)).await;
        assert!(text_of(&outcome.reply()).contains("Sapwood"));
        let facts = player.models.facts(name);
        let usage = outcome.reply().usage.unwrap();
        assert!(usage.input > 0 && usage.output > 100);
        assert!(facts.price.unwrap().cost_nano_usd(&usage) > 0);
        assert_eq!(facts.window_tokens, Some(32_000));
    }
}
