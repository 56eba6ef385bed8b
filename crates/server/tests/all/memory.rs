//! Memories and grafts over HTTP: added, queried, edited, deleted; grafted, read, withheld.

use serde_json::json;

use crate::harness::{TestRequest, TestServer};

async fn send(
    server: &TestServer,
    method: &str,
    key: &str,
    path: &str,
    body: &str,
) -> crate::wire::TestResponse {
    let headers: &[(&str, &str)] =
        if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
    server.request(TestRequest { method, path, key: Some(key), headers, body: body.as_bytes() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_are_added_queried_edited_and_deleted() {
    let server = TestServer::open().await;
    let new = json!({ "text": "Our staging database is heron" });
    let created = server.post("ana", "/v1/memory", &new).await;
    assert_eq!((created.status, created.json()["outcome"].as_str()), (201, Some("learned")));
    let id = created.json()["memory"]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.post("ana", "/v1/memory", &new).await.json()["outcome"], "known");
    let found = server.get("ana", "/v1/memory?q=which%20db%20for%20staging").await.json();
    assert_eq!(found["items"][0]["id"], json!(id));
    assert!(found["items"][0]["score"].as_f64().unwrap() > 0.1);
    for stranger in ["bob", "foreign"] {
        assert_eq!(server.get(stranger, "/v1/memory").await.json()["items"], json!([]));
        assert_eq!(server.get(stranger, "/v1/memory?q=staging%20database").await.json()["items"], json!([]));
        let path = format!("/v1/memory/{id}");
        assert_eq!(server.get(stranger, &path).await.code(), "memory.not_found");
        assert_eq!(send(&server, "DELETE", stranger, &path, "").await.code(), "memory.not_found");
    }
    let path = format!("/v1/memory/{id}");
    let patch = json!({ "everybody": true, "expected_version": 1 }).to_string();
    let edited = send(&server, "PATCH", "ana", &path, &patch).await;
    assert_eq!((edited.status, edited.json()["belongs"].as_str()), (200, Some("tenant")));
    assert_eq!(send(&server, "PATCH", "ana", &path, &patch).await.code(), "memory.conflict");
    assert_eq!(server.get("bob", &path).await.status, 200);
    assert_eq!(send(&server, "DELETE", "bob", &path, "").await.code(), "memory.denied");
    assert_eq!(server.get("foreign", &path).await.code(), "memory.not_found");
    assert_eq!(send(&server, "DELETE", "ana", &path, "").await.status, 204);
    assert_eq!(server.get("ana", &path).await.code(), "memory.not_found");
    let audit = server.get("operator", "/v1/audit?limit=1000").await.json();
    let changes = audit["items"].as_array().unwrap().iter().filter(|line| line["action"] == "memory_change");
    assert_eq!(changes.count(), 3, "learned, edited, deleted");
    assert!(!audit.to_string().contains("heron"), "the audit does not contain the text");
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_are_learned_on_close_or_on_request() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    server.add_message("ana", "s", "I prefer short answers.").await;
    let learned = server.post("ana", "/v1/sessions/s/memory", &json!({})).await.json();
    assert_eq!(learned["kept"][0]["memory"]["text"], "I prefer short answers");
    server.add_message("ana", "s", "We decided to ship on Monday.").await;
    assert_eq!(server.post("cole", "/v1/sessions/s/close", &json!({})).await.status, 200);
    let listed = server.get("ana", "/v1/memory?session=s&kind=decision").await.json();
    assert_eq!(listed["items"][0]["text"], "We decided to ship on Monday");
    assert_eq!(server.get("cole", "/v1/memory").await.json()["items"], json!([]));
    assert_eq!(server.get("ana", "/v1/memory?kind=wish").await.code(), "input.invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graft_is_readable_only_with_access_to_its_source() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "source" })).await;
    server.add_message("ana", "source", "what is it").await;
    let answer = json!({ "role": "assistant", "content": "the answer is forty-two" });
    server.post("ana", "/v1/sessions/source/entries", &answer).await;
    server.shared_session("s").await;
    let created = server.post("ana", "/v1/sessions/s/grafts", &json!({ "source": "source" })).await;
    assert_eq!(created.status, 201, "{:?}", created.json());
    let path = format!("/v1/sessions/s/grafts/{}", created.json()["seq"]);
    assert!(server.get("ana", &path).await.json()["text"].as_str().unwrap().contains("forty-two"));
    assert_eq!(server.get("rex", &path).await.code(), "graft.withheld");
    assert_eq!(server.get("rex", "/v1/sessions/s/grafts").await.json()["items"][0]["state"], "withheld");
    let shown = server.get("rex", "/v1/sessions/s/context").await.json().to_string();
    assert!(shown.contains("withheld") && !shown.contains("forty-two"), "{shown}");
    let rounds = json!({ "source": "source", "rounds": { "first": 1, "last": 9 } });
    assert_eq!(server.post("ana", "/v1/sessions/s/grafts", &rounds).await.code(), "graft.not_found");
    assert_eq!(server.get("ana", "/v1/sessions/source/digest").await.json()["items"][0]["number"], 1);
}
