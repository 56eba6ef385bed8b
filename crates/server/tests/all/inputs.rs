//! Inputs, inline media and custom entries over HTTP.

use serde_json::json;

use crate::harness::{TestRequest, TestServer};
use crate::wire::TestResponse;

async fn upload(server: &TestServer, key: &str, path: &str, body: &[u8]) -> TestResponse {
    let request = TestRequest { method: "POST", path, key: Some(key), headers: &[], body };
    server.request(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_announced_and_a_snippet_has_a_source() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let file = upload(&server, "ana", "/v1/sessions/s/inputs?name=a.txt", b"oaks").await;
    assert_eq!((file.status, file.json()["source"].is_null()), (201, true));
    let source = "https://example.org/oaks";
    let path = format!("/v1/sessions/s/inputs?name=oaks&source={source}");
    let snippet = upload(&server, "ana", &path, b"Oaks live long.").await;
    assert_eq!((snippet.status, snippet.json()["source"].as_str()), (201, Some(source)));
    let context = server.get("ana", "/v1/sessions/s/context").await.json().to_string();
    assert!(context.contains("read_input") && context.contains("a.txt"), "{context}");
    assert!(context.contains(source) && context.contains("Oaks live long."), "{context}");
    let listed = server.get("ana", "/v1/sessions/s/inputs").await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
    let binary = upload(&server, "ana", &path, b"\xff\0").await;
    assert_eq!((binary.status, binary.code().as_str()), (400, "input.invalid"));
    let empty = upload(&server, "ana", "/v1/sessions/s/inputs?name=x&source=", b"x").await;
    assert_eq!((empty.status, empty.code().as_str()), (400, "input.invalid"));
    let artifact = upload(&server, "ana", "/v1/sessions/s/artifacts?name=x&source=y", b"x").await;
    assert_eq!(artifact.status, 400, "only inputs have a source");
    assert_eq!(upload(&server, "bob", &path, b"x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_images_become_blobs_and_other_users_cannot_read_them() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let message =
        json!({ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": url } }] });
    let added = server.post("ana", "/v1/sessions/s/entries", &json!([message, message])).await;
    assert_eq!(added.status, 201, "{}", added.json());
    let context = server.get("ana", "/v1/sessions/s/context").await.json();
    let media = &context["messages"][0]["parts"][0];
    assert_eq!((&media["type"], &media["mime"]), (&json!("media"), &json!("image/png")));
    let path = format!("/v1/sessions/s/blobs/{}", media["blob"].as_str().unwrap());
    assert_eq!(server.get("ana", &path).await.body, b"\x89PNG\r\n\x1a\n");
    assert_eq!(server.get("bob", &path).await.status, 404);
    let by_url =
        json!({ "role": "user", "content": [{ "type": "image_url", "image_url": "https://example.org/a" }] });
    let refused = server.post("ana", "/v1/sessions/s/entries", &by_url).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "input.inline_media"));
    assert!(refused.json()["hint"].as_str().unwrap().contains("base64"), "{}", refused.json());
    let turn =
        json!({ "input": [{ "type": "input_image", "image_url": url }, { "type": "text", "text": "look" }] });
    assert_eq!(server.post("ana", "/v1/sessions/s/turns", &turn).await.status, 202);
    let foreign = server.post("bob", "/v1/sessions/s/entries", &message).await;
    assert_eq!(foreign.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_entries_length_exists_and_prune() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    for number in 0..4 {
        server.add_message("ana", "s", &number.to_string()).await;
    }
    let entries = json!([{ "role": "custom", "custom_type": "ext", "content": "note" },
        { "role": "info", "custom_type": "ext", "data": { "score": 3 } }]);
    assert_eq!(server.post("ana", "/v1/sessions/s/entries", &entries).await.status, 201);
    assert_eq!(
        server.get("ana", "/v1/sessions/s/length").await.json(),
        json!({ "session": "s", "length": 5 })
    );
    for name in ["sapwood.flow", "turn_terms"] {
        let forged = json!({ "role": "info", "custom_type": name, "data": {} });
        let refused = server.post("ana", "/v1/sessions/s/entries", &forged).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "input.invalid"), "{name}");
    }
    for (key, session, exists) in [("ana", "s", true), ("ana", "unknown", false), ("bob", "s", false)] {
        let answer = server.get(key, &format!("/v1/sessions/{session}/exists")).await;
        assert_eq!((answer.status, &answer.json()["exists"]), (200, &json!(exists)), "{key} {session}");
    }
    let idle = json!({ "inactive_for_ms": 3_600_000, "keep_last": 2 });
    assert_eq!(server.post("ana", "/v1/sessions/s/prune", &idle).await.json()["archived"], 0);
    let dry = json!({ "inactive_for_ms": 0, "keep_last": 2, "dry_run": true });
    assert_eq!(server.post("ana", "/v1/sessions/s/prune", &dry).await.json()["archived"], 3);
    assert_eq!(server.get("ana", "/v1/sessions/s/length").await.json()["length"], 5);
    let now = json!({ "inactive_for_ms": 0, "keep_last": 2 });
    assert_eq!(server.post("ana", "/v1/sessions/s/prune", &now).await.json()["archived"], 3);
    assert_eq!(server.get("ana", "/v1/sessions/s/length").await.json()["length"], 2);
}
