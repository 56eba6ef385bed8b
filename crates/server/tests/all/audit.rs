//! Audit lines for changes and reads, and the changes that an import may make to an existing session.

use serde_json::{Value, json};

use crate::harness::{TestRequest, TestServer};
use crate::wire::TestResponse;

/// Returns a principal's audit lines for a session, as `action detail`.
async fn lines_of(server: &TestServer, session: &str, by: &str) -> Vec<String> {
    let audit = server.get("operator", &format!("/v1/audit?limit=1000&session={session}")).await.json();
    let lines = audit["items"].as_array().unwrap().iter().filter(|line| line["by"] == by);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    lines
        .map(|line| format!("{} {}", text(&line["action"]), text(&line["detail"])).trim().to_owned())
        .collect()
}

async fn log_of(server: &TestServer, key: &str, session: &str) -> Vec<Value> {
    let log = server.get(key, &format!("/v1/sessions/{session}/entries?limit=1000")).await.json();
    log["items"].as_array().unwrap().clone()
}

async fn import(server: &TestServer, key: &str, query: &str, file: &[u8]) -> TestResponse {
    let path = format!("/v1/import{query}");
    server
        .request(TestRequest { method: "POST", path: &path, key: Some(key), headers: &[], body: file })
        .await
}

async fn export(server: &TestServer, key: &str, session: &str) -> String {
    let path = format!("/v1/sessions/{session}/export");
    let file = server.post(key, &path, &json!({ "format": "jsonl" })).await;
    assert_eq!(file.status, 200);
    String::from_utf8(file.body).unwrap()
}

/// Appends an entry with the author `by` to a session file.
fn with_entry(file: &str, body: Value, by: &str) -> String {
    let last: Value = serde_json::from_str(file.lines().last().unwrap()).unwrap();
    let is_in_tree = |line: &Value| !["member_changed", "label"].contains(&line["type"].as_str().unwrap());
    let lines = file.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let leaf = lines.filter(is_in_tree).last().map_or(Value::Null, |line| line["id"].clone());
    let mut line = body;
    line["seq"] = json!(last["seq"].as_u64().unwrap() + 1);
    // Larger than any id generated from the clock.
    line["id"] = json!(format!("ffffffff-ffff-7000-8000-{:012x}", last["seq"].as_u64().unwrap() + 1));
    line["parent_id"] = leaf;
    line["timestamp"] = json!(1_000);
    line["by"] = json!(by);
    format!("{file}{line}\n")
}

fn with_message(file: &str, text: &str, by: &str) -> String {
    with_entry(file, json!({ "type": "user_message", "parts": [{ "type": "text", "text": text }] }), by)
}

fn with_member(file: &str, member: &str) -> String {
    with_entry(
        file,
        json!({ "type": "member_changed", "member": member, "role": "collaborator" }),
        "user:ana",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_audited() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let at = |verb: &str| format!("/v1/sessions/s{verb}");
    let patch = json!({ "title": "T", "model": "actor" });
    assert_eq!(server.send("PATCH", "cole", &at(""), &patch).await.status, 200);
    for (verb, body) in [
        ("/label", json!({ "entry": 3, "text": "here" })),
        ("/branch", json!({ "entry": 3 })),
        ("/trim", json!({ "keep_last": 1 })),
        ("/uncompact", json!({})),
        ("/compact", json!({ "keep_last": 1, "force": true })),
        ("/reset", json!({})),
    ] {
        let answer = server.post("cole", &at(verb), &body).await;
        assert_eq!(answer.status, 200, "{verb}: {:?}", answer.json());
    }
    for kind in ["artifacts", "inputs"] {
        let path = format!("/v1/sessions/s/{kind}?name=n");
        let req = TestRequest { method: "POST", path: &path, key: Some("cole"), headers: &[], body: b"x" };
        assert_eq!(server.request(req).await.status, 201);
    }
    let metadata = json!({ "metadata": { "a": "b" } });
    assert_eq!(server.post("cole", "/v1/conversations/s", &metadata).await.status, 200);
    assert_eq!(server.post("cole", &at("/turns"), &json!({ "input": "hi" })).await.status, 202);
    let expected = [
        "edit rename",
        "edit settings",
        "edit label",
        "edit branch",
        "edit trim",
        "edit uncompact",
        "edit compact",
        "edit reset",
        "edit artifact",
        "edit input",
        "edit metadata",
        "edit turn",
    ];
    assert_eq!(lines_of(&server, "s", "user:cole").await, expected);
    let owners = lines_of(&server, "s", "user:ana").await;
    assert!(owners.contains(&"share user:rex as reader".to_owned()), "{owners:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_an_existing_session_and_reading_it_in_a_search_are_audited() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    assert_eq!(server.post("cole", "/v1/sessions", &json!({ "id": "s" })).await.status, 200);
    for _ in 0..2 {
        assert_eq!(server.get("rex", "/v1/search?q=two").await.json()["items"].as_array().unwrap().len(), 1);
        assert_eq!(server.get("ana", "/v1/search?q=two").await.status, 200);
        assert_eq!(server.get("operator", "/v1/sessions/s/approvals").await.status, 200);
    }
    assert_eq!(lines_of(&server, "s", "user:cole").await, ["open"]);
    assert_eq!(lines_of(&server, "s", "user:rex").await, ["read"]);
    assert_eq!(lines_of(&server, "s", "user:olga").await, ["read"]);
    assert!(!lines_of(&server, "s", "user:ana").await.contains(&"read".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_reads_and_searches_are_audited_once() {
    for path in ["/v1/sessions/s", "/v1/sessions?q=two", "/v1/sessions?q=S", "/v1/conversations/s"] {
        let server = TestServer::open().await;
        server.shared_session("s").await;
        for key in ["rex", "rex", "ana", "operator", "bob"] {
            let status = server.get(key, path).await.status;
            assert_eq!(status, if key == "bob" && !path.contains('?') { 404 } else { 200 }, "{key} {path}");
        }
        for (name, lines) in [("rex", &["read"][..]), ("olga", &["read"]), ("bob", &[])] {
            assert_eq!(lines_of(&server, "s", &format!("user:{name}")).await, lines, "{name} {path}");
        }
        assert!(!lines_of(&server, "s", "user:ana").await.contains(&"read".to_owned()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_can_extend_a_session_by_an_import() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = export(&server, "ana", "s").await;
    let before = log_of(&server, "ana", "s").await;
    let forged = with_message(&file, "I, Ana, agree", "user:ana");
    for query in ["?dry_run=true", ""] {
        let refused = import(&server, "cole", query, forged.as_bytes()).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "session.denied"), "{query}");
    }
    assert_eq!(log_of(&server, "ana", "s").await, before);
    assert_eq!(import(&server, "operator", "", forged.as_bytes()).await.status, 200);
    assert_eq!(log_of(&server, "ana", "s").await.len(), before.len() + 1);
    let line = format!("import from entry {} on", before.len() + 1);
    assert_eq!(lines_of(&server, "s", "user:olga").await.first(), Some(&line));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_neither_adds_nor_removes_members() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = export(&server, "ana", "s").await;
    let members = server.get("ana", "/v1/sessions/s/members").await.json();
    let grown = with_member(&with_message(&file, "four", "user:ana"), "user:bob");
    let mut files = Vec::new();
    for key in ["ana", "foreign"] {
        let answer = import(&server, key, "", grown.as_bytes()).await;
        assert_eq!(answer.json()["items"][0]["problems"], json!([]), "{key}");
        let file = export(&server, key, "s").await;
        files.push(
            file.lines()
                .filter(|line| line.contains("member_changed"))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(
        (files[0].len(), &files[0]),
        (3, &files[1]),
        "the entries are kept unchanged and exported again (I11)"
    );
    assert_eq!(server.get("ana", "/v1/sessions/s/members").await.json(), members);
    assert_eq!(server.get("bob", "/v1/sessions/s").await.status, 404);
    let alone = server.get("foreign", "/v1/sessions/s/members").await.json();
    assert_eq!(alone["items"].as_array().unwrap().len(), 1, "{alone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_imported_by_a_user_get_that_users_name() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = with_message(&export(&server, "ana", "s").await, "me too", "user:cole")
        .replace("\"id\":\"s\"", "\"id\":\"t\"");
    assert_eq!(import(&server, "bob", "", file.as_bytes()).await.status, 200);
    let users = |log: Vec<Value>| -> Vec<String> {
        let is_users = |by: &&str| by.starts_with("user:");
        let mut users: Vec<String> = log
            .iter()
            .map(|entry| entry["by"].as_str().unwrap())
            .filter(is_users)
            .map(str::to_owned)
            .collect();
        users.sort();
        users.dedup();
        users
    };
    assert_eq!(users(log_of(&server, "bob", "t").await), ["user:bob"]);
    let copy = file.replace("\"id\":\"t\"", "\"id\":\"u\"");
    assert_eq!(import(&server, "operator", "", copy.as_bytes()).await.status, 200);
    assert_eq!(users(log_of(&server, "operator", "u").await), ["user:ana", "user:cole"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_audited_with_the_current_time() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = export(&server, "ana", "s").await.replace("\"id\":\"s\"", "\"id\":\"t\"");
    let header: Value = serde_json::from_str(file.lines().next().unwrap()).unwrap();
    let file = file.replacen(&header["timestamp"].to_string(), "1000", 1);
    assert_eq!(import(&server, "bob", "", file.as_bytes()).await.status, 200);
    assert_eq!(server.get("bob", "/v1/sessions/t").await.json()["created_at"], 1000);
    let audit = server.get("bob", "/v1/audit?session=t").await.json();
    let lines = audit["items"].as_array().unwrap();
    assert_eq!(lines.len(), 2, "created and imported: {audit}");
    assert!(lines.iter().all(|line| line["at"].as_i64().unwrap() > 1_000_000_000_000), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_without_ids_become_sessions_of_their_sender() {
    let server = TestServer::open().await;
    let one = br#"[{"role":"user","content":"one"}]"#;
    let two = br#"[{"role":"user","content":"two"}]"#;
    let mut sessions = Vec::new();
    for (key, query, file) in [
        ("ana", "", one),
        ("ana", "", two),
        ("bob", "", one),
        ("ana", "?name=a.json", one),
        ("bob", "?name=a.json", one),
    ] {
        let imported = import(&server, key, query, file).await;
        assert_eq!(imported.status, 200, "{:?}", imported.json());
        let item = imported.json()["items"][0].clone();
        assert_eq!((item["added"].as_u64(), &item["problems"]), (Some(1), &json!([])), "{item}");
        sessions.push(item["session"].as_str().unwrap().to_owned());
        let again = import(&server, key, query, file).await.json()["items"][0].clone();
        assert_eq!(
            (again["added"].as_u64(), again["session"].as_str()),
            (Some(0), sessions.last().map(String::as_str))
        );
    }
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 5, "{sessions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_import_leaves_no_session() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let file = export(&server, "ana", "s").await.replace("\"id\":\"s\"", "\"id\":\"t\"");
    let media = json!({ "type": "media", "blob": "0".repeat(64), "mime": "image/png", "bytes": 1 });
    let file = with_entry(&file, json!({ "type": "user_message", "parts": [media] }), "user:ana");
    let refused = import(&server, "bob", "", file.as_bytes()).await;
    assert_eq!((refused.status, refused.code().as_str()), (404, "blob.not_found"));
    assert_eq!(server.get("bob", "/v1/sessions").await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_bound_to_one_request() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    let req = |path, body| TestRequest { method: "POST", path, key: Some("ana"), headers: &headers, body };
    for (path, one, other) in [
        (
            "/v1/sessions/s/entries",
            &br#"{"role":"user","content":"a"}"#[..],
            &br#"{"role":"user","content":"b"}"#[..],
        ),
        (
            "/v1/conversations/s/items",
            &br#"{"items":[{"type":"message","role":"user","content":"a"}]}"#[..],
            &br#"{"items":[{"type":"message","role":"user","content":"b"}]}"#[..],
        ),
    ] {
        let first = server.request(req(path, one)).await;
        assert!(first.status < 300, "{:?}", first.json());
        // A different request with the same key is rejected on either route.
        let reused = server.request(req(path, other)).await;
        assert_eq!(reused.status, 409, "{path}");
        assert!(reused.json().to_string().contains("session.key_reused"), "{path}");
        assert_eq!(server.request(req(path, one)).await.json(), first.json());
    }
    assert_eq!(
        log_of(&server, "ana", "s").await.len(),
        1,
        "both routes with the same key and content append one entry"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_and_an_artifact_may_have_the_same_name() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/sessions", &json!({ "id": "s" })).await;
    for (kind, bytes) in [("artifacts", b"made "), ("inputs", b"given")] {
        let path = format!("/v1/sessions/s/{kind}?name=n.txt");
        let req = TestRequest { method: "POST", path: &path, key: Some("ana"), headers: &[], body: bytes };
        assert_eq!(server.request(req).await.json()["version"], 1);
    }
    for (kind, bytes) in [("artifacts", b"made "), ("inputs", b"given")] {
        let got = server.get("ana", &format!("/v1/sessions/s/{kind}/n.txt")).await;
        assert_eq!((got.status, got.body.as_slice()), (200, &bytes[..]));
    }
}
