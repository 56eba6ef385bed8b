//! Turns over HTTP: started, streamed, cancelled, answered.

use serde_json::{Value, json};

use crate::harness::{TestRequest, TestServer};
use crate::rights::wait_for_approval;
use crate::wire::{next_event, open};

async fn wait_for(server: &TestServer, session: &str, turn: &str, status: &str) -> Value {
    for _ in 0..crate::wire::POLLS_MAX {
        let turn_state = server.get("ana", &format!("/v1/sessions/{session}/turns/{turn}")).await.json();
        if turn_state["status"] == status {
            return turn_state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the turn did not reach {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_a_turn_returns_its_id_and_the_turn_runs_in_the_background() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("cole", "/v1/sessions/s/turns", &json!({ "input": "hi" })).await;
    assert_eq!(begun.status, 202);
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    let turn_state = wait_for(&server, "s", &turn, "completed").await;
    assert_eq!(turn_state["text"], "Hello, you.");
    let usage = server.get("ana", "/v1/sessions/s/usage").await.json();
    assert_eq!(usage["total"]["calls"], 1);
    let ended = server.post("ana", &format!("/v1/sessions/s/turns/{turn}/cancel"), &json!({})).await;
    assert_eq!((ended.status, ended.code().as_str()), (409, "turn.ended"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_can_be_streamed_to_its_end() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let body = br#"{"input":"hi","stream":true}"#;
    let headers = [("content-type", "application/json")];
    let req = TestRequest {
        method: "POST",
        path: "/v1/sessions/s/turns",
        key: Some("ana"),
        headers: &headers,
        body,
    };
    let (head, mut events) = open(server.addr, &server.bytes_of(req)).await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let (mut names, mut tokens, mut ids) = (Vec::new(), String::new(), Vec::new());
    while let Some(event) = next_event(&mut events).await {
        match event.id {
            Some(id) => ids.push(id),
            None if event.name == "agent:token" => tokens += event.data["text"].as_str().unwrap(),
            None => {}
        }
        names.push(event.name);
    }
    assert_eq!(
        (names[0].as_str(), names.last().unwrap().as_str()),
        ("session:turn_started", "session:turn_completed")
    );
    assert_eq!(tokens, "Hello, you.");
    assert!(ids.is_sorted() && ids.len() > 3, "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_is_rejected_or_queued_and_a_cancelled_one_keeps_its_output() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please hang" })).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    let second = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "hi" })).await;
    assert_eq!((second.status, second.code().as_str()), (409, "turn.running"));
    let queued = json!({ "input": "hi", "if_running": "queue" });
    let queued = server.post("ana", "/v1/sessions/s/turns", &queued).await;
    assert_eq!((queued.status, queued.json()["queued"].is_string()), (202, true));
    let cancelled = server.post("ana", &format!("/v1/sessions/s/turns/{turn}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 202);
    let turn_state = wait_for(&server, "s", &turn, "cancelled").await;
    assert_eq!(turn_state["text"], "I am ");
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_input_keeps_its_original_sender() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please hang" })).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    let queued = json!({ "input": "hi from cole", "if_running": "queue" });
    assert_eq!(server.post("cole", "/v1/sessions/s/turns", &queued).await.status, 202);
    server.post("ana", &format!("/v1/sessions/s/turns/{turn}/cancel"), &json!({})).await;
    let find_sender = async || {
        let log = server.get("ana", "/v1/sessions/s/entries?limit=100").await.json();
        let is_coles = |entry: &&Value| {
            entry["kind"] == "user_message" && entry["body"].to_string().contains("hi from cole")
        };
        log["items"].as_array().unwrap().iter().find(is_coles).map(|entry| entry["by"].clone())
    };
    for _ in 0..crate::wire::POLLS_MAX {
        if let Some(by) = find_sender().await {
            return assert_eq!(by, "user:cole");
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the queued input was not processed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_waits_for_a_person_and_continues_when_answered() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please ask" })).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    let approval = wait_for_approval(&server, "s").await;
    wait_for(&server, "s", &turn, "waiting").await;
    let answer = json!({ "answer": "approved", "reason": "yes" });
    let answered = server.post("cole", &format!("/v1/approvals/{approval}"), &answer).await;
    assert_eq!(answered.status, 202);
    wait_for(&server, "s", &turn, "completed").await;
    let twice = server.post("cole", &format!("/v1/approvals/{approval}"), &answer).await;
    assert_eq!((twice.status, twice.code().as_str()), (404, "approval.not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_waits_for_its_turns_and_leaves_the_rest_resumable() {
    let settings = sapwood_server::Settings {
        rate: None,
        grace: std::time::Duration::from_millis(200),
        ..sapwood_server::Settings::default()
    };
    let mut server = TestServer::open_with(settings).await;
    server.shared_session("s").await;
    server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please hang" })).await;
    let follow = TestRequest {
        method: "GET",
        path: "/v1/sessions/s/events",
        key: Some("ana"),
        headers: &[],
        body: b"",
    };
    let (_, mut events) = open(server.addr, &server.bytes_of(follow)).await;
    server.stop();
    while next_event(&mut events).await.is_some() {}
    assert_eq!(server.state.turns_running(), 1, "the hanging turn is still running");
    let scope = sapwood::Scope::user(sapwood::TenantId::local(), "ana".parse().unwrap());
    let summary = server.engine.directory().summary(&scope, &"s".parse().unwrap()).await.unwrap();
    assert!(summary.open_turn.is_some(), "another process can resume it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_running_turn_cannot_be_archived() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please hang" })).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    let refused = server.post("ana", "/v1/sessions/s/archive", &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "turn.running"));
    let cancelled = server.post("ana", &format!("/v1/sessions/s/turns/{turn}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 202);
    wait_for(&server, "s", &turn, "cancelled").await;
    assert_eq!(server.post("ana", "/v1/sessions/s/archive", &json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn archiving_a_session_cancels_its_waiting_turn() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let begun = server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please ask" })).await;
    let turn = begun.json()["turn"].as_str().unwrap().to_owned();
    wait_for_approval(&server, "s").await;
    wait_for(&server, "s", &turn, "waiting").await;
    // The turn has requested approval and releases the session shortly afterwards.
    let mut archived = server.post("ana", "/v1/sessions/s/archive", &json!({})).await;
    while archived.code() == "turn.running" {
        archived = server.post("ana", "/v1/sessions/s/archive", &json!({})).await;
    }
    assert_eq!((archived.status, archived.json()["state"].as_str()), (200, Some("archived")));
    wait_for(&server, "s", &turn, "cancelled").await;
}

/// A request refers to one turn and must not affect a later turn that has started in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn steering_or_cancelling_an_ended_turn_does_not_affect_the_next() {
    let server = TestServer::open().await;
    server.shared_session("s").await;
    let scope = sapwood::Scope::operator(sapwood::TenantId::local(), sapwood::Principal::System);
    let session = "s".parse().unwrap();
    let mut turns = Vec::new();
    for _ in 0..2 {
        let begun =
            server.post("ana", "/v1/sessions/s/turns", &json!({ "input": "please hang" })).await.json();
        let turn = begun["turn"].as_str().unwrap().to_owned();
        if turns.is_empty() {
            let path = format!("/v1/sessions/s/turns/{turn}/cancel");
            assert_eq!(server.post("ana", &path, &json!({})).await.status, 202);
            wait_for(&server, "s", &turn, "cancelled").await;
        }
        turns.push(turn);
    }
    let over = turns[0].parse().unwrap();
    let before = server.get("ana", "/v1/sessions/s").await.json()["head"]["seq"].clone();
    let parts = vec![sapwood::core::Part::text("gently")];
    let steered = server.engine.turn_control().steer_turn(&scope, &session, over, parts).await.unwrap_err();
    let cancelled = server.engine.turn_control().cancel_turn(&scope, &session, over).await.unwrap_err();
    assert_eq!((steered.code(), cancelled.code()), ("turn.ended", "turn.ended"));
    assert_eq!(
        server.get("ana", "/v1/sessions/s").await.json()["head"]["seq"],
        before,
        "nothing was appended"
    );
    let path = format!("/v1/sessions/s/turns/{}/steer", turns[1]);
    assert_eq!(server.post("ana", &path, &json!({ "input": "gently" })).await.status, 202);
    let path = format!("/v1/sessions/s/turns/{}/cancel", turns[1]);
    assert_eq!(server.post("ana", &path, &json!({})).await.status, 202);
    wait_for(&server, "s", &turns[1], "cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_leaves_no_session() {
    let settings = sapwood_server::Settings { body_bytes_max: 64 << 20, rate: None, ..Default::default() };
    let server = TestServer::open_with(settings).await;
    let item = json!({ "role": "user", "content": "x".repeat(17 << 20) });
    for (path, body) in
        [("/v1/conversations", json!({ "items": [item] })), ("/v1/responses", json!({ "input": [item] }))]
    {
        let refused = server.post("ana", path, &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (413, "input.too_large"), "{path}");
    }
    assert_eq!(server.get("ana", "/v1/sessions").await.json()["items"], json!([]));
}
