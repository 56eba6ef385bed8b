//! `http_request`: the output for the model, which never contains a secret.

use std::sync::Arc;

use sapwood_core::port::tool::{OutputPart, Replay, ToolOutput, Touch};
use sapwood_effects::tool::Tool;
use sapwood_effects::tool::http::HttpRequest;
use serde_json::json;

use crate::harness::{TestNetwork, http_response, text_of};
use crate::secrets::{CANARY, secrets};

async fn run(network: &TestNetwork, input: serde_json::Value) -> ToolOutput {
    HttpRequest::new(network.egress(&["good.test"]), Arc::new(secrets())).run(&input).await
}

#[tokio::test]
async fn the_output_has_status_selected_headers_and_text() {
    let headers = "Content-Type: application/json\r\nSet-Cookie: a=b\r\nETag: \"1\"\r\n";
    let network =
        TestNetwork::start(|_, _| http_response("404 Not Found", headers, b"{\"why\":\"gone\"}")).await;
    let output =
        run(&network, json!({"url": network.url("good.test", "/a"), "method": "POST", "body": "hi"})).await;
    let text = text_of(&output);
    assert!(!output.is_error && text.starts_with("HTTP 404 Not Found from good.test\n"), "{text}");
    assert!(
        text.ends_with("\n\n{\"why\":\"gone\"}") && text.contains("etag: \"1\"") && !text.contains("a=b"),
        "{text}"
    );
    assert!(network.requests()[0].starts_with("POST /a ") && network.requests()[0].ends_with("hi"));
}

#[tokio::test]
async fn images_are_returned_as_media_and_other_binary_data_as_a_note() {
    let network = TestNetwork::start(|request, _| match request.contains("/cat.png") {
        true => http_response("200 OK", "Content-Type: image/png\r\n", b"\x89PNG\xff"),
        false => http_response("200 OK", "Content-Type: application/octet-stream\r\n", b"\xff\xfe\x00"),
    })
    .await;
    let output = run(&network, json!({"url": network.url("good.test", "/cat.png")})).await;
    let media = OutputPart::Media {
        mime: "image/png".into(),
        name: Some("cat.png".into()),
        bytes: b"\x89PNG\xff".into(),
    };
    assert_eq!(output.parts[1], media);
    let output = run(&network, json!({"url": network.url("good.test", "/bytes")})).await;
    assert!(text_of(&output).contains("3 bytes of binary data"), "{output:?}");
}

#[tokio::test]
async fn a_compressed_body_is_neither_decompressed_nor_shown() {
    let network = TestNetwork::start(|_, _| {
        http_response("200 OK", "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n", b"\x1f\x8b__")
    })
    .await;
    let output = run(&network, json!({"url": network.url("good.test", "/")})).await;
    assert!(text_of(&output).contains("4 bytes of binary data"), "{output:?}");
}

#[tokio::test]
async fn a_secret_reaches_the_server_and_not_the_model() {
    let network = TestNetwork::start(|request, _| {
        http_response("200 OK", "Content-Type: text/plain\r\n", request.as_bytes())
    })
    .await;
    let variables = [("SAPWOOD_SECRET_TOKEN".to_owned(), "t0ken-canary-1234".to_owned())];
    let secrets = Arc::new(sapwood_effects::secret::Secrets::from_variables(variables));
    let tool = HttpRequest::new(network.egress(&["good.test"]), secrets);
    let input =
        json!({"url": network.url("good.test", "/"), "headers": {"Authorization": "Bearer secret:TOKEN"}});
    let output = tool.run(&input).await;
    assert!(network.requests()[0].contains("Bearer t0ken-canary-1234"));
    let text = format!("{output:?}");
    assert!(!text.contains("t0ken-canary") && text.contains("Bearer [secret:TOKEN]"), "{text}");
}

#[tokio::test]
async fn refusals_are_errors_for_the_model_and_contain_no_secret() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"")).await;
    let good = network.url("good.test", "/");
    let with_header = |value: &str| json!({"url": good, "headers": {"X-Key": value}});
    for (input, expected) in [
        (json!({"url": "https://evil.test/"}), "not in allowed_hosts"),
        (json!({"url": "http://good.test/"}), "only https"),
        (json!({"url": format!("https://evil.test/{CANARY}")}), "not in allowed_hosts"),
        // The value has a character that headers do not allow. The error must not contain the value.
        (with_header("a\r\nb secret:CANARY"), "header X-Key"),
        (with_header("secret:PATH"), "no secret PATH"),
        (with_header("secret:SHORT"), "3 bytes"),
        (json!({"url": good, "headers": {"X-Key": 1}}), "is not text"),
        (json!({"url": good, "method": "GET /evil HTTP/1.1\r\nX: 1"}), "method"),
        (json!({"url": good, "unknown": 1}), "unknown field"),
        (json!({}), "url"),
    ] {
        let output = run(&network, input.clone()).await;
        let text = text_of(&output);
        assert!(output.is_error && text.to_lowercase().contains(&expected.to_lowercase()), "{input}: {text}");
        assert!(!format!("{output:?}").contains("c4n4ry"), "{text}");
    }
    assert!(network.requests().is_empty());
}

#[tokio::test]
async fn it_acts_and_is_never_replayed() {
    let network = TestNetwork::start(|_, _| http_response("200 OK", "", b"")).await;
    let spec = HttpRequest::new(network.egress(&[]), Arc::default()).spec();
    assert_eq!((spec.name.as_str(), spec.touch, spec.replay), ("http_request", Touch::Acts, Replay::Never));
}
